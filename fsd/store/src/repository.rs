//! One bare repository of the store: its objects, what was fetched into it, and what is pinned.

use crate::error::Result;
use crate::fetch::{FetchRequest, Fetched, Progress};
use crate::ids::CommitId;
use crate::objects::Objects;
use crate::refspec::RefSpec;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// One repository. Cheap to share; all methods may be called from any thread.
#[derive(Debug)]
pub struct Repository {
    _private: (),
}

/// Keeps a commit from being removed by maintenance while it lives, across processes (and, when the process dies, not longer than until the
/// next maintenance).
#[derive(Debug)]
pub struct Pin {
    _private: (),
}

impl Pin {
    /// The pinned commit.
    pub fn commit(&self) -> CommitId {
        todo!()
    }
}

impl Repository {
    /// Resolves `request.spec` at the remote and brings the commit with everything below it. Waits when another fetch of this repository
    /// runs, in this process or another. All or nothing: after an error the repository is as before.
    pub fn fetch(&self, request: &FetchRequest, progress: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<Fetched> {
        let _ = (request, progress, stop);
        todo!()
    }

    /// The commit the last successful fetch of `spec` gave, without asking the remote (any depth); `None` when it was never fetched.
    pub fn known(&self, spec: &RefSpec) -> Result<Option<CommitId>> {
        let _ = spec;
        todo!()
    }

    /// Pins a commit that is present.
    pub fn pin(&self, commit: CommitId) -> Result<Pin> {
        let _ = commit;
        todo!()
    }

    /// Read access to its objects; sees what later fetches bring.
    pub fn objects(&self) -> Objects {
        todo!()
    }
}
