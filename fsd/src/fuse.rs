//! The adapter to the kernel: mounting, session, notifications; no logic.

use std::path::PathBuf;
use std::sync::Arc;

use gitmount_store::ids::CommitId;

use crate::view::{Switched, View};

/// How a view is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// An existing, empty directory, absolute.
    pub target: PathBuf,
    /// Let other users in (`allow_other`).
    pub allow_other: bool,
    /// What `findmnt` shows as source; no credential.
    pub source: String,
    /// Threads that read from /dev/fuse (default 4).
    pub threads: usize,
}

/// Requests the kernel has sent so far, by operation, sorted by name; only those that happened.
pub type RequestCounts = Vec<(&'static str, u64)>;

/// A live mount. Dropping it unmounts.
#[derive(Debug)]
pub struct Mount {
    _private: (),
}

impl Mount {
    /// Mounts `view`; when this returns the tree is served.
    pub fn new(view: Arc<View>, options: &MountOptions) -> std::io::Result<Arc<Self>> {
        let _ = (view, options);
        todo!()
    }

    /// Switches to another commit of the same repository: every lookup that starts after this sees the new tree.
    pub fn switch(&self, commit: CommitId) -> gitmount_store::error::Result<Switched> {
        let _ = commit;
        todo!()
    }

    /// The view.
    pub fn view(&self) -> &Arc<View> {
        todo!()
    }

    /// Messages of the kernel so far.
    pub fn requests(&self) -> RequestCounts {
        todo!()
    }

    /// Unmounts; lazily when `lazy` (a busy mount goes away with its last user).
    pub fn unmount(&self, lazy: bool) -> std::io::Result<()> {
        let _ = lazy;
        todo!()
    }

    /// Blocks until the mount is gone, whoever unmounted it.
    pub fn wait(&self) {
        todo!()
    }
}
