//! A repository of the user's on the local disk: opened read-only, nothing copied, nothing written; its refs are watched, not polled.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::ids::CommitId;
use crate::objects::Objects;

/// A local repository (bare, or the `.git` of a work tree, also a linked work tree).
#[derive(Debug)]
pub struct LocalRepository {
    _private: (),
}

impl LocalRepository {
    /// Finds the repository at `path` or, like git, above it.
    pub fn discover(path: &Path) -> Result<Self> {
        let _ = path;
        todo!()
    }

    /// Its git directory, absolute.
    pub fn git_dir(&self) -> PathBuf {
        todo!()
    }

    /// Resolves a revision expression (`main~3`, `v1.2`, `HEAD@{1}`, `:/text`, an abbreviated id) to a commit.
    pub fn resolve(&self, revision: &str) -> Result<CommitId> {
        let _ = revision;
        todo!()
    }

    /// Read access to its objects, alternates included; sees what is added later.
    pub fn objects(&self) -> Objects {
        todo!()
    }

    /// Watches what refs are made of (HEAD, refs/, packed-refs, reftable; logs too). 
    pub fn watch(&self) -> Result<RefWatch> {
        todo!()
    }
}

/// Tells when refs may have moved (inotify).
#[derive(Debug)]
pub struct RefWatch {
    _private: (),
}

impl RefWatch {
    /// Blocks until refs may have moved (bursts within 20 ms are one), or until `stop_fd`, when given, becomes readable (`Ok(false)`).
    pub fn wait(&mut self, stop_fd: Option<std::os::fd::BorrowedFd<'_>>) -> Result<bool> {
        let _ = stop_fd;
        todo!()
    }
}
