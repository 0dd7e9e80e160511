//! Read commits, trees and blobs. Repository content is hostile: names and sizes are checked here, once.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use bstr::{BStr, BString};

use crate::error::{Fault, Result, StoreError};
use crate::ids::{CommitId, ObjectId};
use crate::path::RepoPath;

mod database;
mod decoder;
pub(crate) mod delta;
mod history;
mod loose;
pub(crate) mod pack;
mod parts;
pub(crate) mod reach;
mod stream;
#[cfg(test)]
mod tests;
mod tree;
mod whole;

use database::{Database, Found};
use pack::PackAccess;
pub use parts::Parts;
pub(crate) use stream::Hashing;
pub use tree::{MAX_NAME, MAX_TREE_BYTES, MAX_TREE_ENTRIES};

/// What a tree entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A regular file with the executable bit.
    Executable,
    /// A symbolic link; its blob is the target.
    Symlink,
    /// A directory.
    Directory,
    /// A submodule: shown as an empty directory.
    Submodule,
}

/// One entry of a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Raw name: 1 to 255 bytes, no `/`, no NUL, not `.` or `..`.
    pub name: BString,
    /// The entry's object.
    pub id: ObjectId,
    /// What it is.
    pub kind: EntryKind,
}

/// A decoded tree: entries sorted by name in plain byte order, names unique.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    entries: Vec<Entry>,
}

impl Tree {
    /// Decodes a tree object and checks every name.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] for a malformed tree and for hostile names.
    pub fn decode(data: &[u8], hash: gix::hash::Kind) -> Result<Self> {
        tree::decode(data, hash)
    }

    /// All entries, sorted by name as bytes.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The position of `name`.
    pub fn find(&self, name: &BStr) -> Option<usize> {
        self.entries.binary_search_by(|e| e.name.as_slice().cmp(name)).ok()
    }
}

/// What a view needs of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitInfo {
    /// The root tree.
    pub tree: ObjectId,
    /// The committer's time (seconds; before 1970 is clamped to it).
    pub time: SystemTime,
}

/// Read access to one object database. Cheap to clone; every thread uses its own clone or shares one (`Send + Sync`).
///
/// It sees what later fetches add and goes on when a repack replaces packs. Replacement refs (`refs/replace`) are not followed: an id
/// always stands for its own content.
#[derive(Debug, Clone)]
pub struct Objects {
    database: Arc<Database>,
}

impl Objects {
    /// Opens the objects directory `directory` (`<git dir>/objects`) with its alternates.
    pub(crate) fn open(directory: PathBuf, hash: gix::hash::Kind) -> Result<Self> {
        Ok(Objects { database: Arc::new(Database::open(directory, hash)?) })
    }

    /// The hash of the repository.
    pub fn hash(&self) -> gix::hash::Kind {
        self.database.hash()
    }

    /// Reads a commit.
    pub fn commit(&self, id: CommitId) -> Result<CommitInfo> {
        let id = id.id();
        self.noticed(self.with_object(id, gix::object::Kind::Commit, |data| {
            let broken = || StoreError::new(Fault::Corrupt, format!("commit {id} is malformed"));
            let commit = gix::objs::CommitRef::from_bytes(data, self.hash()).map_err(|err| broken().caused_by(err))?;
            let committer = commit.committer().map_err(|err| broken().caused_by(err))?;
            let seconds = committer.time().map(|time| time.seconds).unwrap_or_default();
            let since = Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
            let time = SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH);
            Ok(CommitInfo { tree: commit.tree(), time })
        }))
    }

    /// Reads and decodes a tree.
    pub fn tree(&self, id: ObjectId) -> Result<Tree> {
        // What is refused is no damage: it was made so.
        self.noticed(self.with_object(id, gix::object::Kind::Tree, |data| Ok(Tree::decode(data, self.hash()))))?
            .map_err(|err| StoreError::new(err.fault(), format!("tree {id} is refused: {err}")))
    }

    /// The tree at `path` below `root`.
    ///
    /// # Errors
    /// [`crate::Fault::NotFound`] when there is none, or when it is no directory; the message says which.
    pub fn tree_at(&self, root: ObjectId, path: &RepoPath) -> Result<ObjectId> {
        let mut at = root;
        for name in path.segments() {
            let tree = self.tree(at)?;
            let Some(entry) = tree.find(name).map(|position| &tree.entries()[position]) else {
                let message = format!("path {:?} does not exist in the commit: {name:?} is not there", path.as_bstr());
                return Err(StoreError::new(Fault::NotFound, message));
            };
            let what = match entry.kind {
                EntryKind::Directory => {
                    at = entry.id;
                    continue;
                }
                EntryKind::File | EntryKind::Executable => "a file",
                EntryKind::Symlink => "a symbolic link",
                EntryKind::Submodule => "a submodule",
            };
            let message = format!("path {:?} is no directory of the commit: {name:?} is {what}", path.as_bstr());
            return Err(StoreError::new(Fault::NotFound, message));
        }
        Ok(at)
    }

    /// The size of a blob in bytes, from its header alone.
    pub fn blob_size(&self, id: ObjectId) -> Result<u64> {
        let (kind, size) = self.noticed(self.header(id))?;
        expect_kind(id, kind, gix::object::Kind::Blob)?;
        Ok(size)
    }

    /// A whole blob. For blobs that may be big use [`Objects::blob_to`].
    pub fn blob(&self, id: ObjectId) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        self.blob_into(id, &mut content)?;
        Ok(content)
    }

    /// As [`Objects::blob`], into a buffer that was used before; its former content is lost.
    pub fn blob_into(&self, id: ObjectId, out: &mut Vec<u8>) -> Result<()> {
        // Who reads it has asked for its size.
        let kind = self.noticed(self.read_up_to(id, out, u64::MAX))?;
        expect_kind(id, kind, gix::object::Kind::Blob)
    }

    /// Writes a blob to `out` in pieces, in bounded memory whatever its size; deltas are resolved through unlinked files in `scratch`.
    pub fn blob_to(&self, id: ObjectId, scratch: &Path, out: &mut dyn Write) -> Result<u64> {
        let (kind, size) = self.noticed(self.stream_to(id, scratch, out))?;
        expect_kind(id, kind, gix::object::Kind::Blob)?;
        Ok(size)
    }

    /// Whether a reader found something broken or missing since [`Objects::forget_damage`].
    pub(crate) fn has_noticed_damage(&self) -> bool {
        self.database.damage.load(Ordering::Relaxed)
    }

    pub(crate) fn forget_damage(&self) {
        self.database.damage.store(false, Ordering::Relaxed);
    }

    fn noticed<T>(&self, read: Result<T>) -> Result<T> {
        if read.as_ref().is_err_and(|err| err.fault() == Fault::Corrupt) {
            self.database.damage.store(true, Ordering::Relaxed);
        }
        read
    }

    /// Whether the object is there.
    pub fn contains(&self, id: ObjectId) -> Result<bool> {
        Ok(self.database.find(&id)?.is_some())
    }

    /// The kind and size of an object.
    pub(crate) fn header(&self, id: ObjectId) -> Result<(gix::object::Kind, u64)> {
        match self.find(id)? {
            Found::Loose(loose) => Ok((loose.kind, loose.size)),
            Found::Packed(pack, offset) => self.packed_header(&*pack, offset, 0),
        }
    }

    /// Reads any object that is not bigger than a tree may be into `out`, whose former content is lost.
    pub(crate) fn read(&self, id: ObjectId, out: &mut Vec<u8>) -> Result<gix::object::Kind> {
        self.read_up_to(id, out, MAX_TREE_BYTES)
    }

    fn read_up_to(&self, id: ObjectId, out: &mut Vec<u8>, most: u64) -> Result<gix::object::Kind> {
        match self.find(id)? {
            Found::Loose(loose) => loose.read(out, most),
            Found::Packed(pack, offset) => decoder::with(|decoder| self.read_whole(&*pack, offset, out, decoder, most)),
        }
    }

    /// Reads the object at `offset` of `pack`, whose size was asked for before, into `out`, whose former content is lost.
    pub(crate) fn read_packed(&self, pack: &dyn PackAccess, offset: u64, out: &mut Vec<u8>) -> Result<gix::object::Kind> {
        decoder::with(|decoder| self.read_whole(pack, offset, out, decoder, u64::MAX))
    }

    /// Where an object is.
    pub(crate) fn place(&self, id: ObjectId) -> Result<Place> {
        Ok(match self.find(id)? {
            Found::Loose(_) => Place::Loose,
            Found::Packed(pack, offset) => Place::Packed(pack, offset),
        })
    }

    /// The kind and size of the object at `offset` of `pack`.
    pub(crate) fn packed_kind(&self, pack: &dyn PackAccess, offset: u64) -> Result<(gix::object::Kind, u64)> {
        self.packed_header(pack, offset, 0)
    }

    /// The id that the content of a loose object has, whatever its name says; `None` when there is no such file.
    pub(crate) fn loose_id(&self, id: ObjectId) -> Result<Option<ObjectId>> {
        let Some(loose) = loose::Loose::open(self.directory(), &id)? else { return Ok(None) };
        let mut hashing = Hashing::new(self.hash(), loose.kind, loose.size);
        stream::stream_loose(loose, &mut hashing)?;
        hashing.id().map(Some)
    }

    /// Lists the packs again: after adding or removing some, so that [`Objects::contains_now`] is right about them.
    pub(crate) fn relist(&self) -> Result<()> {
        self.database.relist()
    }

    /// The packs of this repository and its alternates.
    pub(crate) fn packs(&self) -> Vec<Arc<pack::Pack>> {
        self.database.known().packs.clone()
    }

    /// The objects directory.
    pub fn directory(&self) -> &Path {
        self.database.directory()
    }

    /// Gives `work` the content of an object of `kind`, without a copy of it.
    fn with_object<T>(&self, id: ObjectId, kind: gix::object::Kind, work: impl FnOnce(&[u8]) -> Result<T>) -> Result<T> {
        match self.find(id)? {
            Found::Loose(loose) => {
                expect_kind(id, loose.kind, kind)?;
                check_whole(id, loose.size)?;
                let mut content = Vec::new();
                loose.read(&mut content, MAX_TREE_BYTES)?;
                work(&content)
            }
            Found::Packed(pack, offset) => decoder::with(|decoder| {
                let entry = pack.entry(offset)?;
                check_whole(id, entry.decompressed_size)?;
                let mut buffer = std::mem::take(&mut decoder.buffer);
                let found = self.read_whole(&*pack, offset, &mut buffer, decoder, MAX_TREE_BYTES);
                let result = found.and_then(|found| expect_kind(id, found, kind)).and_then(|()| work(&buffer));
                decoder.buffer = buffer;
                result
            }),
        }
    }

    fn find(&self, id: ObjectId) -> Result<Found> {
        self.database
            .find(&id)?
            .ok_or_else(|| StoreError::new(Fault::Corrupt, format!("object {id} is missing in {}", self.database.directory().display())))
    }

    fn packed_header(&self, pack: &dyn PackAccess, offset: u64, depth: usize) -> Result<(gix::object::Kind, u64)> {
        let data = pack.mapped()?;
        let entry = pack.entry(offset)?;
        if let Some(kind) = entry.header.as_kind() {
            return Ok((kind, entry.decompressed_size));
        }
        check_depth(pack, offset, depth)?;
        let resolve = |base: &gix::hash::oid| -> gix::Result<Option<gix_pack::data::decode::header::ResolvedBase>> {
            use gix_pack::data::decode::header::ResolvedBase;
            if let Some(offset) = pack.offset_of(base) {
                return data.entry(offset).map(ResolvedBase::InPack).map(Some);
            }
            let kind = match self.database.find(base).map_err(gix::Error::from_error)? {
                None => return Ok(None),
                Some(Found::Loose(loose)) => loose.kind,
                Some(Found::Packed(other, offset)) => self.packed_header(&*other, offset, depth + 1).map_err(gix::Error::from_error)?.0,
            };
            Ok(Some(ResolvedBase::OutOfPack { kind, num_deltas: None }))
        };
        let header = decoder::with(|decoder| data.decode_header(entry, &mut decoder.inflate, &resolve));
        header.map(|header| (header.kind, header.object_size)).map_err(|err| pack.broken(offset).caused_by(err))
    }
}

/// Where an object is.
pub(crate) enum Place {
    /// In a file of its own.
    Loose,
    /// At an offset of a pack.
    Packed(Arc<pack::Pack>, u64),
}

/// How many packs a chain of deltas may lead through by base ids.
const MAX_PACK_HOPS: usize = 32;

fn check_depth(pack: &dyn PackAccess, offset: u64, depth: usize) -> Result<()> {
    if depth < MAX_PACK_HOPS { Ok(()) } else { Err(pack.broken(offset)) }
}

fn check_whole(id: ObjectId, size: u64) -> Result<()> {
    if size <= MAX_TREE_BYTES {
        return Ok(());
    }
    let message = format!("object {id} of {size} bytes is too big: a tree or commit may have {MAX_TREE_BYTES} bytes");
    Err(StoreError::new(Fault::Corrupt, message))
}

fn expect_kind(id: ObjectId, found: gix::object::Kind, expected: gix::object::Kind) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(StoreError::new(Fault::Corrupt, format!("object {id} is a {found}, where a {expected} must be")))
}
