//! Where the commits of a view come from: a repository at a host, or one on the local disk.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gitmount_store::error::Result;
use gitmount_store::fetch::{FetchRequest, Progress};
use gitmount_store::ids::CommitId;
use gitmount_store::local::LocalRepository;
use gitmount_store::maintenance;
use gitmount_store::repository::Repository;

/// Keeps a commit's objects in the store while it lives.
pub type Hold = Box<dyn Send>;

/// Something whose ref can be asked for.
pub trait Upstream: Send + Sync {
    /// The commit at which the ref stands now, with all its objects present.
    fn fetch(&self, progress: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<CommitId>;

    /// The commit of the last fetch that worked, without asking anybody; `None` also when the own credential never fetched.
    fn known(&self) -> Result<Option<CommitId>>;

    /// Keeps a present commit from being removed.
    fn pin(&self, commit: CommitId) -> Result<Hold>;

    /// Maintenance, when it is due: each fetch with news adds a pack.
    fn tidy(&self) {}
}

/// A repository at a host.
#[derive(Debug)]
pub struct Remote {
    /// Its copy in the store.
    pub repository: Arc<Repository>,
    /// What is fetched, and as whom.
    pub request: FetchRequest,
}

impl Upstream for Remote {
    fn fetch(&self, progress: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<CommitId> {
        Ok(self.repository.fetch(&self.request, progress, stop)?.commit)
    }

    fn known(&self) -> Result<Option<CommitId>> {
        // What others have fetched is not theirs to see whom the host never let in, or has refused since.
        if self.repository.has_fetched_with(&self.request.auth)? { self.repository.known(&self.request.spec) } else { Ok(None) }
    }

    fn pin(&self, commit: CommitId) -> Result<Hold> {
        Ok(Box::new(self.repository.pin(commit)?))
    }

    fn tidy(&self) {
        match maintenance::maintain(&self.repository, &AtomicBool::new(false)) {
            Ok(None) => {}
            Ok(Some(report)) => tracing::info!(?report, "packed the repository"),
            Err(error) => tracing::warn!(%error, "the repository cannot be packed; it works on as it is"),
        }
    }
}

/// A repository of the user's on the local disk: read, never written.
#[derive(Debug)]
pub struct Local {
    /// The repository.
    pub repository: Arc<LocalRepository>,
    /// A revision expression.
    pub revision: String,
}

impl Upstream for Local {
    fn fetch(&self, _: &dyn Progress, _: &Arc<AtomicBool>) -> Result<CommitId> {
        self.repository.resolve(&self.revision)
    }

    fn known(&self) -> Result<Option<CommitId>> {
        Ok(None)
    }

    /// Holds nothing: a pin would be a ref in somebody else's repository.
    fn pin(&self, _: CommitId) -> Result<Hold> {
        Ok(Box::new(()))
    }
}
