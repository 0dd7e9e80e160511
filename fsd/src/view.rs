//! What a mount shows: the current snapshot behind one pointer, and the two-phase switch to the next.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::Objects;
use gitmount_store::path::RepoPath;

/// What a view is made from.
#[derive(Debug, Clone)]
pub struct ViewOptions {
    /// Sub-directory that becomes the root.
    pub path: RepoPath,
    /// What `user.git.ref` says on the root.
    pub ref_name: String,
    /// Where big blobs are spooled (unlinked files).
    pub spool_dir: PathBuf,
    /// Upper bound of all spooled bytes together (default 8 GiB).
    pub spool_limit: u64,
    /// Blobs above this many bytes are spooled (default 8 MiB).
    pub spool_threshold: u64,
    /// Bytes of inflated blobs kept in memory (default 16 MiB).
    pub blob_cache: u64,
    /// Owner shown on every entry.
    pub uid: u32,
    /// Group shown on every entry.
    pub gid: u32,
}

/// An immutable commit and the tree that is served of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit.
    pub commit: CommitId,
    /// The tree at the view's path.
    pub root: ObjectId,
}

/// What a switch did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    /// The commit before.
    pub old: CommitId,
    /// The commit now served.
    pub new: CommitId,
    /// Names the kernel was told about.
    pub changed: usize,
    /// From the call to the new tree visible.
    pub took: Duration,
}

/// A view. All methods may be called from any thread.
#[derive(Debug)]
pub struct View {
    _private: (),
}

impl View {
    /// A view of `commit`.
    ///
    /// # Errors
    /// `NotFound` when `options.path` is no directory of the commit.
    pub fn new(objects: Objects, commit: CommitId, options: ViewOptions) -> gitmount_store::error::Result<Arc<Self>> {
        let _ = (objects, commit, options);
        todo!()
    }

    /// The snapshot served now.
    pub fn current(&self) -> Snapshot {
        todo!()
    }
}
