//! Resolve a ref at the remote and bring its objects.
//!
//! The order of a fetch: ask for the ref (one request where that is possible), and be done when its commit is there; else take the
//! repository's lock, connect, receive the pack into the object store and make it durable, then the shallow boundary, then the ref. A
//! crash between any two of these leaves a store that opens and serves what it served before.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::credential::Auth;
use crate::error::{Fault, Result, StoreError};
use crate::ids::{CommitId, ObjectId};
use crate::objects::reach::Limits;
use crate::refspec::RefSpec;
use crate::repository::Repository;
use crate::repository::lock::Lock;
use crate::repository::shallow::Boundary;
use crate::transport::{self, RemoteRef};
use crate::url::Scheme;

mod copy;
mod monitor;
mod negotiate;
mod pick;
mod receive;
mod remote;

use pick::{Target, pick};
use receive::Received;
use remote::Remote;

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

/// One fetch into one repository.
struct Fetch<'a> {
    repository: &'a Repository,
    request: &'a FetchRequest,
    progress: &'a dyn Progress,
    stop: &'a Arc<AtomicBool>,
}

/// Does what [`Repository::fetch`] promises.
pub(crate) fn run(repository: &Repository, request: &FetchRequest, progress: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<Fetched> {
    progress.update(Phase::Negotiating, 0, None);
    Fetch { repository, request, progress, stop }.run()
}

impl Fetch<'_> {
    fn run(&self) -> Result<Fetched> {
        if let RefSpec::Commit(commit) = self.request.spec
            && let Some(done) = self.without_objects(commit.id(), None, None)?
        {
            return Ok(done);
        }
        if self.repository.url().scheme() == Scheme::File {
            return self.copy_from_disk();
        }
        if let Some(listed) = self.poll()? {
            let target = self.pick(&listed)?;
            if let Some(done) = self.without_objects(target.commit, Some(&target.ref_name), None)? {
                return Ok(done);
            }
        }
        let lock = self.repository.lock(self.stop)?;
        let mut remote = self.connect()?;
        if let RefSpec::Commit(commit) = self.request.spec {
            return self.commit(remote, commit.id(), &lock);
        }
        let target = self.pick(&remote.ls_refs(&self.prefixes())?)?;
        // Somebody else may have fetched it while this fetch waited for the lock.
        if let Some(done) = self.without_objects(target.commit, Some(&target.ref_name), Some(&lock))? {
            remote.finish();
            return Ok(done);
        }
        let received = remote.receive(self, &[target.id], self.request.depth)?;
        remote.finish();
        self.keep(&received, target.id, Some(target.ref_name), &lock)
    }

    /// Fetches a commit by its id: directly, or, where the host gives only what its refs name, with the whole history of all branches and
    /// tags.
    fn commit(&self, mut remote: Remote<'_>, id: ObjectId, lock: &Lock) -> Result<Fetched> {
        let absent = |cause: StoreError| {
            let message = format!("commit {id} does not exist in {}, or no branch or tag leads to it", self.repository.url());
            StoreError::new(Fault::NotFound, message).caused_by(cause)
        };
        let refused = match remote.receive(self, &[id], self.request.depth) {
            Ok(received) => {
                remote.finish();
                return self.keep(&received, id, None, lock);
            }
            Err(err) if err.fault() == Fault::NotFound => err,
            Err(err) => return Err(err),
        };
        // A connection that saw an error is of no more use.
        let mut remote = self.connect()?;
        let listed = remote.ls_refs(&["refs/heads/".into(), "refs/tags/".into()])?;
        let mut wants: Vec<ObjectId> = listed.iter().map(|listed| listed.id).collect();
        wants.sort_unstable();
        wants.dedup();
        if wants.is_empty() {
            return Err(absent(refused));
        }
        let received = remote.receive(self, &wants, 0)?;
        remote.finish();
        if !self.repository.objects().contains(id)? {
            received.discard(self.repository)?;
            return Err(absent(refused));
        }
        self.keep(&received, id, None, lock)
    }

    /// Asks for the refs in one request, where that is possible.
    fn poll(&self) -> Result<Option<Vec<RemoteRef>>> {
        if matches!(self.request.spec, RefSpec::Commit(_)) {
            return Ok(None);
        }
        transport::ls_refs_once(self.repository.url(), &self.request.auth, self.repository.net(), self.stop, &self.prefixes())
    }

    fn connect(&self) -> Result<Remote<'_>> {
        let remote = Remote::connect(self.repository, &self.request.auth, self.stop)?;
        self.repository.adopt_hash(remote.hash())?;
        Ok(remote)
    }

    fn pick(&self, listed: &[RemoteRef]) -> Result<Target> {
        pick(&self.request.spec, self.repository.url(), listed)
    }

    /// What to ask the host to list: HEAD always, since it tells an empty repository from a missing ref.
    fn prefixes(&self) -> Vec<String> {
        let mut prefixes = self.request.spec.candidates();
        if self.request.spec != RefSpec::Head {
            prefixes.push("HEAD".into());
        }
        prefixes
    }

    /// Ends a fetch whose commit is there already with as much history as is asked for; `None` when it is not.
    fn without_objects(&self, commit: ObjectId, ref_name: Option<&str>, lock: Option<&Lock>) -> Result<Option<Fetched>> {
        let Some(cuts) = self.present(commit)? else { return Ok(None) };
        let done = Fetched { commit: CommitId::new(commit), ref_name: ref_name.map(str::to_owned), received: false };
        if cuts.is_empty() && self.repository.known(&self.request.spec)? == Some(done.commit) {
            self.repository.renew(&self.request.spec);
            return Ok(Some(done));
        }
        if lock.is_none() {
            // Looked at again under the lock, since maintenance may have run in between.
            let lock = self.repository.lock(self.stop)?;
            return self.without_objects(commit, ref_name, Some(&lock));
        }
        self.record(done.commit, &cuts, &Boundary::new())?;
        Ok(Some(done))
    }

    /// Whether the commit is there with the history that is asked for: the commits its history would have to be cut at, else `None`.
    fn present(&self, commit: ObjectId) -> Result<Option<Boundary>> {
        let objects = self.repository.objects();
        // A remote of another hash is told apart when it is connected to.
        if commit.kind() != objects.hash() || !objects.contains(commit)? {
            return Ok(None);
        }
        self.check_kind(commit)?;
        let depth = self.request.depth;
        if self.repository.is_complete(commit, depth) {
            return Ok(Some(Boundary::new()));
        }
        let boundary = self.repository.boundary()?;
        let known = self.repository.known(&self.request.spec)? == Some(CommitId::new(commit));
        if !known || depth != 1 && !(depth == 0 && boundary.is_empty()) {
            match objects.adopt(commit, depth, &boundary)? {
                Some(cuts) if cuts.is_empty() => {}
                other => return Ok(other),
            }
        }
        self.repository.set_complete(commit, depth);
        Ok(Some(Boundary::new()))
    }

    /// Refuses what is no commit.
    fn check_kind(&self, id: ObjectId) -> Result<()> {
        let (kind, _) = self.repository.objects().header(id)?;
        if kind == gix::object::Kind::Commit {
            return Ok(());
        }
        let message = format!(
            "{:?} of {} leads to a {kind}, not to a commit: give a branch, a tag of a commit, or a commit",
            self.request.spec.to_string(),
            self.repository.url()
        );
        Err(StoreError::new(Fault::NotFound, message))
    }

    /// Ends a fetch that received objects: from here on they are part of the repository. When the objects are not what was asked for they
    /// are removed again.
    fn keep(&self, received: &Received, wanted: ObjectId, ref_name: Option<String>, _lock: &Lock) -> Result<Fetched> {
        self.repository.objects().relist()?;
        let checked = self.peel(wanted).and_then(|commit| {
            self.check_complete(commit, received)?;
            Ok(commit)
        });
        let commit = match checked {
            Ok(commit) => commit,
            Err(err) => {
                received.discard(self.repository)?;
                return Err(err);
            }
        };
        let (mut cut, mut joined) = (Boundary::new(), Boundary::new());
        for update in &received.shallow {
            use gix::protocol::fetch::response::ShallowUpdate;
            match update {
                ShallowUpdate::Shallow(id) => cut.insert(*id),
                ShallowUpdate::Unshallow(id) => joined.insert(*id),
            };
        }
        let commit = CommitId::new(commit);
        self.record(commit, &cut, &joined)?;
        Ok(Fetched { commit, ref_name, received: received.any() })
    }

    /// Makes a commit that is there the one that is known for the ref. The cuts in its history come before the ref, and cuts that only the
    /// former commit needed go after it, so that the history ends at the boundary at every moment.
    fn record(&self, commit: CommitId, cut: &Boundary, joined: &Boundary) -> Result<()> {
        self.repository.move_boundary(cut, joined)?;
        self.repository.set_known(&self.request.spec, commit)?;
        self.repository.tidy_boundary()
    }

    /// Follows annotated tags, also tags of tags, to the commit.
    fn peel(&self, mut id: ObjectId) -> Result<ObjectId> {
        let objects = self.repository.objects();
        let mut content = Vec::new();
        for _ in 0..MAX_TAGS {
            if objects.header(id)?.0 != gix::object::Kind::Tag || matches!(self.request.spec, RefSpec::Commit(_)) {
                self.check_kind(id)?;
                return Ok(id);
            }
            objects.read(id, &mut content)?;
            id = tag_target(id, &content, objects.hash())?;
        }
        Err(StoreError::new(Fault::Corrupt, format!("more than {MAX_TAGS} tags of tags lead to {id}")))
    }

    /// Checks that the tree that is going to be served is there to its last blob: a host can leave objects out of a pack. What was there
    /// before is complete below, since no incomplete commit is ever kept: so the work goes with what is new, not with the whole tree.
    fn check_complete(&self, commit: ObjectId, received: &Received) -> Result<()> {
        let objects = self.repository.objects();
        let fresh = received.pack.as_ref().filter(|pack| pack.fresh).map(|pack| pack.path.as_path());
        let older: Vec<_> = objects.packs().into_iter().filter(|pack| fresh.is_some_and(|fresh| pack.path() != fresh)).collect();
        let known = |id: &gix::hash::oid| older.iter().any(|pack| pack.index().lookup(id).is_some());
        let incomplete =
            |err| StoreError::new(Fault::Corrupt, format!("{} sent an incomplete commit {commit}", self.repository.url())).caused_by(err);
        let limits = Limits { boundary: &Boundary::from([commit]), depth: 1, skip: &known, problem: &mut |err| Err(incomplete(err)) };
        for id in objects.reach(&[commit], limits)?.ids {
            if !objects.contains_now(&id) {
                return Err(incomplete(StoreError::new(Fault::Corrupt, format!("object {id} is missing"))));
            }
        }
        Ok(())
    }
}

/// How many tags of tags are followed.
const MAX_TAGS: usize = 100;

/// What the tag object `id` names.
fn tag_target(id: ObjectId, content: &[u8], hash: gix::hash::Kind) -> Result<ObjectId> {
    gix::objs::TagRefIter::from_bytes(content, hash)
        .target_id()
        .map_err(|err| StoreError::new(Fault::Corrupt, format!("tag {id} is malformed")).caused_by(err))
}
