//! Resolve a ref at the remote and bring its objects.

use crate::credential::Auth;
use crate::ids::CommitId;
use crate::refspec::RefSpec;

/// What to fetch, and as whom.
#[derive(Debug, Clone)]
pub struct FetchRequest {
    /// The ref to resolve.
    pub spec: RefSpec,
    /// How many commits of history; 0 is all of it.
    pub depth: u32,
    /// What is presented to the host.
    pub auth: Auth,
}

/// What a fetch found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The commit the ref stands at (annotated tags peeled).
    pub commit: CommitId,
    /// The full name of the ref that was taken; `None` for a commit id.
    pub ref_name: Option<String>,
    /// Whether objects were received (false: a poll without news).
    pub received: bool,
}

/// Told how a fetch goes. Called from the fetching threads, often; must be quick.
pub trait Progress: Send + Sync {
    /// What the fetch is doing, with how far it is: bytes while receiving, objects while indexing and resolving.
    fn update(&self, phase: Phase, done: u64, total: Option<u64>);
    /// A line of the host's own (sideband 2), complete, control characters removed.
    fn remote(&self, _line: &str) {}
}

/// The phases of a fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Connecting and asking for refs.
    Negotiating,
    /// Receiving the pack; `done` in bytes.
    Receiving,
    /// Indexing; in objects.
    Indexing,
    /// Resolving deltas; in objects.
    Resolving,
}

/// A [`Progress`] that ignores everything.
#[derive(Debug, Clone, Copy)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn update(&self, _: Phase, _: u64, _: Option<u64>) {}
}
