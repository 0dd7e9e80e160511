//! Read commits, trees and blobs. Repository content is hostile: names and sizes are checked here, once.

use std::io::Write;
use std::time::SystemTime;

use bstr::{BStr, BString};

use crate::error::Result;
use crate::ids::{CommitId, ObjectId};
use crate::path::RepoPath;

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
        let _ = (data, hash);
        todo!()
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
#[derive(Debug, Clone)]
pub struct Objects {
    _private: (),
}

impl Objects {
    /// The hash of the repository.
    pub fn hash(&self) -> gix::hash::Kind {
        todo!()
    }

    /// Reads a commit.
    pub fn commit(&self, id: CommitId) -> Result<CommitInfo> {
        let _ = id;
        todo!()
    }

    /// Reads and decodes a tree.
    pub fn tree(&self, id: ObjectId) -> Result<Tree> {
        let _ = id;
        todo!()
    }

    /// The tree at `path` below `root`.
    ///
    /// # Errors
    /// [`crate::Fault::NotFound`] when there is none, or when it is no directory; the message says which.
    pub fn tree_at(&self, root: ObjectId, path: &RepoPath) -> Result<ObjectId> {
        let _ = (root, path);
        todo!()
    }

    /// The size of a blob in bytes, from its header alone.
    pub fn blob_size(&self, id: ObjectId) -> Result<u64> {
        let _ = id;
        todo!()
    }

    /// A whole blob. For blobs that may be big use [`Objects::blob_to`].
    pub fn blob(&self, id: ObjectId) -> Result<Vec<u8>> {
        let _ = id;
        todo!()
    }

    /// Writes a blob to `out` in pieces, in bounded memory whatever its size; deltas are resolved through unlinked files in `scratch`.
    pub fn blob_to(&self, id: ObjectId, scratch: &std::path::Path, out: &mut dyn Write) -> Result<u64> {
        let _ = (id, scratch, out);
        todo!()
    }
}
