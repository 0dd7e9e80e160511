//! One pack and its index. Both are mapped, never read into memory; the pack is opened when its first object is asked for.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use gix_pack::data;

use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::points::{self, Points};

/// Most memory one delta chain may take before it is resolved through files instead.
pub(crate) const DELTA_MEMORY: usize = 48 << 20;

/// Ids for the delta-base caches, which several repositories share: no two packs of a process may have the same.
static NEXT_ID: AtomicU32 = AtomicU32::new(1);

pub(crate) struct Pack {
    index: gix_pack::index::File,
    path: PathBuf,
    hash: gix::hash::Kind,
    data: OnceLock<data::File>,
    points: OnceLock<Option<Points>>,
    /// The pack was not there, or another one of the same name was.
    stale: AtomicBool,
}

impl Pack {
    /// Maps the index at `index_path`.
    pub(crate) fn open(index_path: &Path, hash: gix::hash::Kind) -> Result<Self> {
        let index = gix_pack::index::File::at(index_path, hash)
            .map_err(|err| StoreError::new(Fault::Corrupt, format!("pack index {} cannot be read", index_path.display())).caused_by(err))?;
        Ok(Pack {
            index,
            path: index_path.with_extension("pack"),
            hash,
            data: OnceLock::new(),
            points: OnceLock::new(),
            stale: AtomicBool::new(false),
        })
    }

    /// The pack file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn index(&self) -> &gix_pack::index::File {
        &self.index
    }

    /// The mapped pack, `None` when it was removed since the index was read.
    pub(crate) fn data(&self) -> Result<Option<&data::File>> {
        if let Some(data) = self.data.get() {
            return Ok(Some(data));
        }
        let broken = || StoreError::new(Fault::Corrupt, format!("pack {} cannot be read", self.path.display()));
        let mut file = match data::File::at(&self.path, self.hash) {
            Ok(file) => file,
            Err(_) if !self.path.exists() => return Ok(self.gone()),
            Err(err) => return Err(broken().caused_by(err)),
        };
        // A pack of the same name may have been written anew with other offsets: this index is then as good as gone.
        if file.checksum() != self.index.pack_checksum() {
            return Ok(self.gone());
        }
        file.id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let file = file.with_alloc_limit_bytes(Some(DELTA_MEMORY));
        // Two threads may race here; the loser's mapping is dropped.
        let _ = self.data.set(file);
        Ok(self.data.get())
    }

    /// Its points, when it has any that can be used.
    pub(crate) fn points(&self) -> Option<&Points> {
        let open = || Points::open(&self.path.with_extension(points::EXTENSION), self.index.pack_checksum().as_slice());
        self.points.get_or_init(open).as_ref()
    }

    fn gone(&self) -> Option<&data::File> {
        self.stale.store(true, Ordering::Relaxed);
        None
    }

    /// Whether index and pack still belong together, as far as anybody noticed.
    pub(super) fn is_current(&self) -> bool {
        !self.stale.load(Ordering::Relaxed)
    }
}

/// What decoding needs of a pack, whether it has an index yet or not.
pub(crate) trait PackAccess {
    /// The mapped pack.
    fn mapped(&self) -> Result<&data::File>;

    /// Where `id` is in this pack.
    fn offset_of(&self, id: &gix::hash::oid) -> Option<u64>;

    /// The error for something that is wrong at `offset`.
    fn broken(&self, offset: u64) -> StoreError;

    /// The entry at `offset`.
    fn entry(&self, offset: u64) -> Result<data::Entry> {
        self.mapped()?.entry(offset).map_err(|err| self.broken(offset).caused_by(err))
    }

    /// The compressed bytes that start at `from`, up to the end of the pack.
    fn compressed(&self, from: u64) -> Result<&[u8]> {
        let data = self.mapped()?;
        data.entry_slice(from..data.pack_end() as u64).ok_or_else(|| self.broken(from))
    }

    /// Where the base of a delta is: an offset in this pack, or the id of an object elsewhere. `None` for a full object.
    fn base_of(&self, entry: &data::Entry) -> Result<Option<Base>> {
        use data::entry::Header;
        Ok(match entry.header {
            Header::OfsDelta { base_distance } => {
                let offset = entry.checked_base_pack_offset(base_distance).ok_or_else(|| self.broken(entry.data_offset))?;
                Some(Base::Here(offset))
            }
            Header::RefDelta { base_id } => Some(self.offset_of(&base_id).map_or(Base::Elsewhere(base_id), Base::Here)),
            Header::Commit | Header::Tree | Header::Blob | Header::Tag => None,
        })
    }
}

impl PackAccess for Pack {
    fn mapped(&self) -> Result<&data::File> {
        self.data()?.ok_or_else(|| StoreError::new(Fault::Corrupt, format!("pack {} is gone", self.path.display())))
    }

    fn offset_of(&self, id: &gix::hash::oid) -> Option<u64> {
        self.index.lookup(id).map(|at| self.index.pack_offset_at_index(at))
    }

    fn broken(&self, offset: u64) -> StoreError {
        StoreError::new(Fault::Corrupt, format!("pack {} is broken at offset {offset}", self.path.display()))
    }
}

impl std::fmt::Debug for Pack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Pack").field(&self.path).finish()
    }
}

/// What a delta is made against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Base {
    /// The entry at this offset of the same pack.
    Here(u64),
    /// An object outside of the pack (never written by git, but harmless).
    Elsewhere(ObjectId),
}
