//! Resolve a ref at the remote and bring its objects.
//!
//! The order of a fetch: ask for the ref (one request where that is possible), and be done when its commit is there; else take the
//! repository's lock, connect, receive the pack into the object store and make it durable, then the shallow boundary, then the ref. A
//! crash between any two of these leaves a store that opens and serves what it served before.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::credential::Auth;
use crate::error::{Fault, Result, StoreError};
use crate::ids::{CommitId, ObjectId};
use crate::maintenance::heal;
use crate::refspec::RefSpec;
use crate::repository::lock::Lock;
use crate::repository::shallow::Boundary;
use crate::repository::{Condition, Repository};
use crate::transport::{self, RemoteRef};
use crate::url::Scheme;

mod copy;
mod keep;
mod monitor;
mod negotiate;
mod pick;
mod receive;
mod remote;

use pick::{Target, pick};
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
    /// How many commits of history; 0 is all of it.
    depth: u32,
    auth: &'a Auth,
    progress: &'a dyn Progress,
    stop: &'a Arc<AtomicBool>,
    /// The host answered, and so let `auth` in.
    contacted: &'a Cell<bool>,
    /// Something in the repository is not whole: nothing is believed to be there because something else is.
    damaged: bool,
}

/// One spec of a fetch, and what became of it.
struct Item<'a> {
    spec: &'a RefSpec,
    /// What it stands for at the host, once that is known; for a commit id itself.
    target: Option<Target>,
    outcome: Option<Result<Fetched>>,
}

impl<'a> Item<'a> {
    fn new(spec: &'a RefSpec) -> Self {
        Item { spec, target: None, outcome: None }
    }

    fn is_open(&self) -> bool {
        self.outcome.is_none()
    }

    fn is_commit(&self) -> bool {
        matches!(self.spec, RefSpec::Commit(_))
    }

    /// Ends it by an error that is this spec's own; what is the host's or the disk's fault ends the whole fetch.
    fn fail(&mut self, err: StoreError) -> Result<()> {
        if err.fault() != Fault::NotFound {
            return Err(err);
        }
        self.outcome = Some(Err(err));
        Ok(())
    }
}

/// Does what [`Repository::fetch`] promises.
pub(crate) fn run(repository: &Repository, request: &FetchRequest, progress: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<Fetched> {
    let mut all = run_many(repository, std::slice::from_ref(&request.spec), request.depth, &request.auth, progress, stop)?;
    all.pop().unwrap_or_else(|| Err(unfinished()))
}

/// Does what [`Repository::fetch_many`] promises.
pub(crate) fn run_many(
    repository: &Repository,
    specs: &[RefSpec],
    depth: u32,
    auth: &Auth,
    progress: &dyn Progress,
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Result<Fetched>>> {
    progress.update(Phase::Negotiating, 0, None);
    let mut items: Vec<Item<'_>> = specs.iter().map(Item::new).collect();
    let contacted = Cell::new(false);
    let result =
        with_healing(repository, &mut items, Fetch { repository, depth, auth, progress, stop, contacted: &contacted, damaged: false });
    match &result {
        Ok(()) if contacted.get() => repository.remember_credential(auth)?,
        // Hosts also say "not found" to hide what may not be seen.
        Err(err) if matches!(err.fault(), Fault::Refused | Fault::NotFound) => repository.forget_credential(auth)?,
        _ => {}
    }
    // What a host says is passed on, and it may repeat what it was told.
    let secrets = auth.told();
    result.map_err(|err| err.without(&secrets))?;
    let outcomes = items.into_iter().map(|item| item.outcome.unwrap_or_else(|| Err(unfinished())));
    Ok(outcomes.map(|outcome| outcome.map_err(|err| err.without(&secrets))).collect())
}

/// Runs a fetch, after and before what is broken here is removed if there is reason to.
fn with_healing(repository: &Repository, items: &mut [Item<'_>], mut fetch: Fetch<'_>) -> Result<()> {
    let stop = fetch.stop;
    fetch.damaged = heal::examine_suspect(repository, stop)? != Condition::Sound;
    let mut fetched = fetch.run(items);
    if fetched.as_ref().is_err_and(|err| err.fault() == Fault::Corrupt) && !fetch.damaged && !repository.is_examined_lately() {
        // What the host sends may be right, and what is here be broken.
        let lock = repository.lock(stop)?;
        let examined = heal::examine(repository, stop)?;
        drop(lock);
        if examined.removed || examined.condition != Condition::Sound {
            fetch.damaged = true;
            fetched = fetch.run(items);
        }
    }
    fetched?;
    if fetch.damaged && items.iter().any(|item| matches!(&item.outcome, Some(Ok(fetched)) if fetched.received)) {
        let _lock = repository.lock(stop)?;
        heal::judge(repository, stop)?;
    }
    Ok(())
}

fn unfinished() -> StoreError {
    StoreError::new(Fault::Internal, "a fetch ended without a result")
}

impl Fetch<'_> {
    fn run(&self, items: &mut [Item<'_>]) -> Result<()> {
        // Objects are shared, access to them is not.
        if items.iter().any(Item::is_commit) && self.repository.has_fetched_with(self.auth)? {
            self.settle_commits(items, None)?;
        }
        if items.iter().all(|item| !item.is_open()) {
            return Ok(());
        }
        if self.repository.url().scheme() == Scheme::File {
            return self.copy_from_disk(items);
        }
        if let Some(listed) = self.poll(items)? {
            self.contacted.set(true);
            self.settle_names(items, &listed, None)?;
            if items.iter().all(|item| !item.is_open()) {
                return Ok(());
            }
        }
        let lock = self.repository.lock(self.stop)?;
        let mut remote = self.connect()?;
        // Somebody else may have fetched it while this fetch waited for the lock.
        self.settle_commits(items, Some(&lock))?;
        if items.iter().any(|item| item.is_open() && !item.is_commit()) {
            let listed = remote.ls_refs(&prefixes(items))?;
            self.settle_names(items, &listed, Some(&lock))?;
        }
        if items.iter().all(|item| !item.is_open()) {
            remote.finish();
            return Ok(());
        }
        self.receive(remote, items, &lock)
    }

    /// Asks for the refs in one request, where that is possible.
    fn poll(&self, items: &[Item<'_>]) -> Result<Option<Vec<RemoteRef>>> {
        if items.iter().all(|item| !item.is_open() || item.is_commit()) {
            return Ok(None);
        }
        transport::ls_refs_once(self.repository.url(), self.auth, self.repository.net(), self.stop, &prefixes(items))
    }

    fn connect(&self) -> Result<Remote<'_>> {
        let remote = Remote::connect(self.repository, self.auth, self.stop)?;
        self.contacted.set(true);
        self.repository.adopt_hash(remote.hash())?;
        Ok(remote)
    }

    /// Ends the commit ids that are there.
    fn settle_commits(&self, items: &mut [Item<'_>], lock: Option<&Lock>) -> Result<()> {
        for item in items.iter_mut().filter(|item| item.is_open()) {
            if let RefSpec::Commit(commit) = item.spec {
                self.settle(item, Target { ref_name: None, id: commit.id(), commit: commit.id() }, lock)?;
            }
        }
        Ok(())
    }

    /// Finds what the names stand for, and ends those that are not listed and those whose commit is there.
    fn settle_names(&self, items: &mut [Item<'_>], listed: &[RemoteRef], lock: Option<&Lock>) -> Result<()> {
        for item in items.iter_mut().filter(|item| item.is_open() && !item.is_commit()) {
            match pick(item.spec, self.repository.url(), listed) {
                Ok(target) => self.settle(item, target, lock)?,
                Err(err) => item.fail(err)?,
            }
        }
        Ok(())
    }

    /// Ends `item` when `target` needs no objects.
    fn settle(&self, item: &mut Item<'_>, target: Target, lock: Option<&Lock>) -> Result<()> {
        match self.without_objects(item.spec, &target, lock) {
            Ok(Some(done)) => item.outcome = Some(Ok(done)),
            Ok(None) => item.target = Some(target),
            Err(err) => item.fail(err)?,
        }
        Ok(())
    }

    /// Whether a target's commit is there already with as much history as is asked for; `None` when it is not.
    fn without_objects(&self, spec: &RefSpec, target: &Target, lock: Option<&Lock>) -> Result<Option<Fetched>> {
        let commit = CommitId::new(target.commit);
        if lock.is_some() {
            // Maintenance may have run before the lock was taken.
            self.repository.objects().relist()?;
        }
        let Some(cuts) = self.present(spec, target.commit)? else { return Ok(None) };
        let done = Fetched { commit, ref_name: target.ref_name.clone(), received: false };
        if cuts.is_empty() && self.repository.known(spec)? == Some(commit) {
            self.repository.renew(spec);
            return Ok(Some(done));
        }
        if lock.is_none() {
            // Looked at again under the lock.
            let lock = self.repository.lock(self.stop)?;
            return self.without_objects(spec, target, Some(&lock));
        }
        self.record(&[(spec, commit)], &cuts, &Boundary::new())?;
        Ok(Some(done))
    }

    /// Whether the commit is there with the history that is asked for: the commits its history would have to be cut at, else `None`.
    fn present(&self, spec: &RefSpec, commit: ObjectId) -> Result<Option<Boundary>> {
        let objects = self.repository.objects();
        // A remote of another hash is told apart when it is connected to.
        if commit.kind() != objects.hash() || !objects.contains(commit)? {
            return Ok(None);
        }
        if self.damaged && heal::whole_tips(self.repository, &[commit], self.stop)?.is_empty() {
            return Ok(None);
        }
        self.check_kind(spec, commit)?;
        let depth = self.depth;
        if self.repository.is_complete(commit, depth) {
            return Ok(Some(Boundary::new()));
        }
        let boundary = self.repository.boundary()?;
        let known = self.repository.known(spec)? == Some(CommitId::new(commit));
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
    fn check_kind(&self, spec: &RefSpec, id: ObjectId) -> Result<()> {
        let (kind, _) = self.repository.objects().header(id)?;
        if kind == gix::object::Kind::Commit {
            return Ok(());
        }
        let message = format!(
            "{:?} of {} leads to a {kind}, not to a commit: give a branch, a tag of a commit, or a commit",
            spec.to_string(),
            self.repository.url()
        );
        Err(StoreError::new(Fault::NotFound, message))
    }

    /// Makes commits that are there the ones that are known for their refs. The cuts in their history come before the refs, and cuts that
    /// only former commits needed go after them, so that the history ends at the boundary at every moment.
    fn record(&self, commits: &[(&RefSpec, CommitId)], cut: &Boundary, joined: &Boundary) -> Result<()> {
        self.repository.move_boundary(cut, joined)?;
        for (spec, commit) in commits {
            self.repository.set_known(spec, *commit)?;
        }
        self.repository.tidy_boundary()
    }
}

/// What to ask the host to list: HEAD always, since it tells an empty repository from a missing ref.
fn prefixes(items: &[Item<'_>]) -> Vec<String> {
    let mut prefixes: Vec<String> = items.iter().filter(|item| item.is_open()).flat_map(|item| item.spec.candidates()).collect();
    prefixes.push("HEAD".into());
    let mut seen = std::collections::HashSet::new();
    prefixes.retain(|prefix| seen.insert(prefix.clone()));
    prefixes
}

/// How many tags of tags are followed.
const MAX_TAGS: usize = 100;

/// What the tag object `id` names.
fn tag_target(id: ObjectId, content: &[u8], hash: gix::hash::Kind) -> Result<ObjectId> {
    gix::objs::TagRefIter::from_bytes(content, hash)
        .target_id()
        .map_err(|err| StoreError::new(Fault::Corrupt, format!("tag {id} is malformed")).caused_by(err))
}
