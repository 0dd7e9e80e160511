//! One view of a daemon: its mount, its targets, and what it does when a fetch has an outcome.
//!
//! Promises: a commit is pinned before it is shown, and the pin of one that can be read no more goes after the switch; a fetch that fails
//! changes nothing of what is shown; what status and statistics need is in memory.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::SystemTime;

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::error::Result;
use gitmount_store::ids::CommitId;
use gitmount_store::repository::Repository;
use gitmount_store::{Fault, StoreError};

use super::context::Context;
use super::credential::{Credential, Fingerprint};
use super::events::{Kind, Ring, now};
use super::fetches::{Answer, Follows, Membership, Origin};
use super::health::{Health, State, millis};
use super::record::Target;
use super::schedule::groups::Demand;
use super::spec::Spec;
use crate::control::Failure;
use crate::fuse::Mount;

/// Locks, whatever happened to a thread that held it: every write leaves the data whole.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A view.
pub struct Shown {
    /// Its name in the state directory, never used twice.
    pub id: String,
    /// What it shows.
    pub spec: Spec,
    /// The copy in the store.
    pub repository: Arc<Repository>,
    pub(super) context: Arc<Context>,
    pub(super) health: Mutex<Health>,
    pub(super) ring: Ring,
    pub(super) last_demand: Mutex<Option<SystemTime>>,
    pub(super) demanded_pulls: Mutex<u64>,
    pub(super) notices: Mutex<Vec<String>>,
    pub(super) measured: Mutex<super::measure::State>,
    places: Mutex<Places>,
    access: Mutex<Access>,
    commits: Mutex<Commits>,
    mount: OnceLock<Arc<Mount>>,
    writing: written::Writing,
}

/// Where it is shown.
#[derive(Default)]
struct Places {
    targets: Vec<Target>,
    /// Its last target is gone: it takes no other.
    ending: bool,
}

/// As whom it fetches.
#[derive(Default)]
struct Access {
    /// What each target brought.
    credentials: HashMap<PathBuf, Credential>,
    /// What is presented at the moment.
    acting: Option<(Fingerprint, Membership)>,
    /// Credentials that have fetched the ref.
    proven: HashSet<Fingerprint>,
    /// Credentials that the host has refused since.
    refused: HashSet<Fingerprint>,
}

/// What is in the store for it.
#[derive(Default)]
struct Commits {
    /// What the last fetch that worked gave.
    last: Option<CommitId>,
    /// What is pinned: the commits that can be read.
    pins: Vec<CommitId>,
}

mod written;

impl std::fmt::Debug for Shown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shown({}, {})", self.id, self.spec)
    }
}

impl Shown {
    /// A view that has fetched nothing yet and is shown nowhere.
    pub fn new(id: String, spec: Spec, repository: Arc<Repository>, context: Arc<Context>) -> Arc<Self> {
        Arc::new(Shown {
            id,
            spec,
            repository,
            context,
            health: Mutex::default(),
            ring: Ring::default(),
            last_demand: Mutex::default(),
            demanded_pulls: Mutex::default(),
            notices: Mutex::default(),
            measured: Mutex::default(),
            places: Mutex::default(),
            access: Mutex::default(),
            commits: Mutex::default(),
            mount: OnceLock::new(),
            writing: written::Writing::default(),
        })
    }

    /// The mount; `None` while it is made.
    pub fn mount(&self) -> Option<&Arc<Mount>> {
        self.mount.get()
    }

    /// The commit that is shown.
    pub fn commit(&self) -> Option<CommitId> {
        self.mount.get().map(|mount| mount.view().current().commit)
    }

    /// What the last fetch that worked gave.
    pub(super) fn fetched_commit(&self) -> Option<CommitId> {
        lock(&self.commits).last
    }

    // ---- Where it is shown.

    /// Takes a target; `false` when the view is ending.
    pub fn attach(&self, target: Target) -> bool {
        let mut places = lock(&self.places);
        if places.ending {
            return false;
        }
        places.targets.push(target);
        true
    }

    /// Lets go of a target; `Some(true)` when it was the last one and the view ends now, which its caller does.
    pub fn release(&self, path: &Path) -> Option<(Target, bool)> {
        let mut places = lock(&self.places);
        let at = places.targets.iter().position(|target| target.path() == path)?;
        let target = places.targets.remove(at);
        places.ending |= places.targets.is_empty();
        let ending = places.ending;
        drop(places);
        lock(&self.access).credentials.remove(path);
        Some((target, ending))
    }

    /// Ends a view that never got a target.
    pub(super) fn give_up(&self) {
        lock(&self.places).ending = true;
    }

    /// Whether its last target is gone.
    fn is_ending(&self) -> bool {
        lock(&self.places).ending
    }

    /// Whether it has no target yet.
    pub(super) fn is_new(&self) -> bool {
        let places = lock(&self.places);
        places.targets.is_empty() && !places.ending
    }

    /// Notes that the bind mount of a target is there.
    pub fn bound(&self, path: &Path) {
        for target in lock(&self.places).targets.iter_mut().filter(|target| target.path() == path) {
            target.bound = true;
        }
    }

    /// Its targets.
    pub fn targets(&self) -> Vec<Target> {
        lock(&self.places).targets.clone()
    }

    // ---- As whom it fetches.

    /// Whether this credential has fetched the ref, so that it may share what is shown.
    pub fn admits(&self, credential: &Credential) -> bool {
        let access = lock(&self.access);
        let print = credential.fingerprint();
        access.proven.contains(print) && !access.refused.contains(print)
    }

    /// Lets a credential in that has not fetched the ref now, but this repository before.
    pub(super) fn admit(&self, credential: &Credential) {
        lock(&self.access).proven.insert(credential.fingerprint().clone());
    }

    /// Notes what a target brought; gives whether it is another than before.
    pub fn entrust(self: &Arc<Self>, target: &Path, credential: &Credential) -> bool {
        let mut access = lock(&self.access);
        let before = access.credentials.insert(target.to_owned(), credential.clone());
        if before.is_some_and(|before| before.fingerprint() == credential.fingerprint()) {
            return false;
        }
        access.refused.remove(credential.fingerprint());
        self.act_as(&mut access, credential)
    }

    /// What a target brought; `None` when it has brought nothing since the daemon's start.
    pub(super) fn credential_of(&self, target: &Path) -> Option<Credential> {
        lock(&self.access).credentials.get(target).cloned()
    }

    /// Fetches as somebody who is no target's yet.
    pub(super) fn follow(self: &Arc<Self>, credential: &Credential) {
        self.act_as(&mut lock(&self.access), credential);
    }

    fn act_as(self: &Arc<Self>, access: &mut Access, credential: &Credential) -> bool {
        if access.acting.as_ref().is_some_and(|(print, _)| print == credential.fingerprint()) {
            return false;
        }
        let origin = Origin {
            repository: Arc::clone(&self.repository),
            host: self.spec.host(),
            credential: credential.clone(),
            depth: self.spec.depth,
        };
        let follows = Arc::new(Told { view: Arc::downgrade(self), credential: credential.fingerprint().clone() });
        let membership = self.context.fetches.join(&origin, self.spec.reference.clone(), self.spec.pull, follows);
        access.acting = Some((credential.fingerprint().clone(), membership));
        true
    }

    /// Whether nothing is fetched until a caller brings the credential again.
    pub fn is_waiting(&self) -> bool {
        lock(&self.access).acting.is_none()
    }

    /// Fetches now and waits.
    pub fn pull(&self, given_up: &dyn Fn() -> bool) -> Answer {
        // Not under the lock: the outcome needs it.
        let membership = lock(&self.access).acting.as_ref().map(|(_, membership)| membership.clone());
        match membership {
            Some(membership) => membership.pull(given_up),
            None => Err(Failure::new(
                Fault::Refused,
                "the daemon was restarted and waits for the view's credential: publish it again with its credential",
            )),
        }
    }

    /// Says that there may be news; gives whether the view takes it.
    pub fn demand(&self) -> bool {
        *lock(&self.last_demand) = Some(SystemTime::now());
        match &lock(&self.access).acting {
            Some((_, membership)) => membership.demand(Demand::Noted),
            None => return false,
        }
        true
    }

    /// Fetches once, since news may have been missed.
    pub(super) fn catch_up(&self) {
        if let Some((_, membership)) = &lock(&self.access).acting {
            membership.demand(Demand::Urgent);
        }
    }

    /// Leaves the group; nothing is fetched for it any more.
    pub(super) fn leave(&self) {
        let acting = lock(&self.access).acting.take();
        drop(acting);
    }

    /// When the host refused this credential and another target brought a different one, that one is tried.
    fn try_another(self: &Arc<Self>, refused: Fingerprint) {
        let mut access = lock(&self.access);
        access.refused.insert(refused);
        let other = access.credentials.values().find(|c| !access.refused.contains(c.fingerprint())).cloned();
        if let Some(other) = other
            && self.act_as(&mut access, &other)
            && let Some((_, membership)) = &access.acting
        {
            membership.demand(Demand::Urgent);
        }
    }

    // ---- What it shows.

    /// Keeps a commit in the store for this view.
    pub(super) fn pin(&self, commit: CommitId) -> Result<()> {
        self.pin_into(&mut lock(&self.commits), commit)
    }

    fn pin_into(&self, commits: &mut Commits, commit: CommitId) -> Result<()> {
        if !commits.pins.contains(&commit) {
            self.repository.pin_named(&pin_name(&self.id, commit), commit)?;
            commits.pins.push(commit);
        }
        Ok(())
    }

    /// Lets go of the pins that are not in `keep`, and keeps what of the commits behind them is still open.
    fn let_go(&self, commits: &mut Commits, keep: &[CommitId]) {
        if commits.pins.iter().all(|commit| keep.contains(commit)) {
            return;
        }
        let open = self.mount.get().map(|mount| mount.view().table().orphans()).unwrap_or_default();
        if let Err(error) = self.repository.keep_objects(&self.id, &open) {
            // With the pins everything stays.
            tracing::warn!(view = %self.id, %error, "old commits are kept, since what is open of them cannot be noted");
            return;
        }
        commits.pins.retain(|commit| {
            keep.contains(commit)
                || self
                    .repository
                    .unpin_named(&pin_name(&self.id, *commit))
                    .inspect_err(|error| tracing::warn!(%error, "a pin stays"))
                    .is_err()
        });
    }

    /// Lets go of everything: nothing of it can be read any more.
    pub(super) fn unpin(&self) {
        let mut commits = lock(&self.commits);
        for commit in commits.pins.drain(..) {
            if let Err(error) = self.repository.unpin_named(&pin_name(&self.id, commit)) {
                tracing::warn!(%error, "a pin stays until the next start");
            }
        }
        if let Err(error) = self.repository.keep_objects(&self.id, &[]) {
            tracing::warn!(%error, "a list of objects stays until the next start");
        }
    }

    /// The tree is mounted. Whatever was fetched meanwhile is shown at once.
    pub(super) fn mounted(self: &Arc<Self>, mount: Arc<Mount>) {
        let mut commits = lock(&self.commits);
        commits.pins.extend(mount.view().pinned());
        commits.pins.sort_unstable();
        commits.pins.dedup();
        // Called once for a view, by who made it.
        let _ = self.mount.set(mount);
        if let Some(last) = commits.last
            && let Err(error) = self.show(&mut commits, last)
        {
            tracing::warn!(view = %self.id, %error, "the newest commit is not shown yet");
        }
    }

    /// Pins and shows `commit`.
    fn show(self: &Arc<Self>, commits: &mut Commits, commit: CommitId) -> Result<proto::Pulled> {
        let Some(mount) = self.mount.get() else {
            return Ok(proto::Pulled { old: commit.to_string(), new: commit.to_string(), changed: 0 });
        };
        let old = mount.view().current().commit;
        let mut changed = 0;
        if commit != old {
            self.pin_into(commits, commit)?;
            let switched = mount.switch(commit).map_err(|error| super::follow::path_gone(error, commit))?;
            changed = switched.changed;
            self.let_go(commits, &mount.view().pinned());
            lock(&self.health).switches += 1;
            self.context.metrics.switched(&switched);
            self.tell(Kind::Switched, format!("{} moved from {old} to {commit}, {changed} of the names in use changed", self.spec));
            self.write_or_later();
        }
        Ok(proto::Pulled { old: old.to_string(), new: commit.to_string(), changed: changed as u64 })
    }

    /// An event of this view.
    pub fn event(&self, kind: Kind, message: String) -> proto::Event {
        let targets = self.targets();
        proto::Event {
            kind: kind.into(),
            time_ms: now(),
            message,
            url: self.spec.url.to_string(),
            r#ref: self.spec.reference.to_string(),
            targets: targets.iter().map(|target| target.path().into_os_string().into_encoded_bytes()).collect(),
            volumes: targets.iter().map(Target::volume).collect(),
            commit: self.commit().map(|commit| commit.to_string()).unwrap_or_default(),
            last_demand_ms: lock(&self.last_demand).map(millis),
            last_success_ms: lock(&self.health).last_success.map(millis),
        }
    }

    /// Remembers and tells an event.
    pub fn tell(&self, kind: Kind, message: String) {
        let event = self.event(kind, message);
        self.ring.push(event.clone());
        self.context.events.tell(event);
    }

    /// Notes a failure; the first one after a success is told.
    fn failed(&self, error: &StoreError) {
        let first = lock(&self.health).failed(error);
        if first && self.mount.get().is_some() {
            self.tell(Kind::FetchFailed, format!("the fetch failed, the last commit stays: {error}"));
        }
    }
}

/// The name under which a view's commit is pinned.
fn pin_name(id: &str, commit: CommitId) -> String {
    format!("{id}.{commit}")
}

/// The view that a pin is for.
pub(super) fn pinned_by(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Who is told of a fetch: a view, with what was presented.
struct Told {
    view: Weak<Shown>,
    credential: Fingerprint,
}

impl Follows for Told {
    fn fetched(&self, started: SystemTime, outcome: std::result::Result<CommitId, &StoreError>) -> Answer {
        let gone = || Failure::new(Fault::Cancelled, "the view is gone meanwhile");
        self.view.upgrade().ok_or_else(gone)?.fetched(&self.credential, started, outcome)
    }
}

impl Shown {
    fn fetched(
        self: &Arc<Self>,
        credential: &Fingerprint,
        started: SystemTime,
        outcome: std::result::Result<CommitId, &StoreError>,
    ) -> Answer {
        let mut commits = lock(&self.commits);
        lock(&self.health).attempted(started);
        let commit = match outcome {
            Ok(commit) => commit,
            Err(error) => {
                self.failed(error);
                drop(commits);
                if error.fault() == Fault::Refused {
                    self.context.metrics.refused();
                    self.try_another(credential.clone());
                }
                return Err(Failure::from(error));
            }
        };
        {
            let mut access = lock(&self.access);
            access.proven.insert(credential.clone());
            access.refused.remove(credential);
        }
        let answers = |demanded: SystemTime| demanded <= started && lock(&self.health).last_success.is_none_or(|last| last < demanded);
        if lock(&self.last_demand).is_some_and(answers) {
            *lock(&self.demanded_pulls) += 1;
        }
        commits.last = Some(commit);
        match self.show(&mut commits, commit) {
            Ok(pulled) => {
                if lock(&self.health).succeeded() && self.mount.get().is_some() {
                    self.tell(Kind::FetchRecovered, format!("fetching works again, {commit} is shown"));
                }
                Ok(pulled)
            }
            Err(error) => {
                self.failed(&error);
                Err(Failure::from(&error))
            }
        }
    }

    /// The last known commit is shown, since the host does not answer.
    pub(super) fn is_stale(&self, error: &StoreError) {
        let mut health = lock(&self.health);
        health.error = Some(error.to_string());
        health.state = State::Stale;
    }
}
