//! Runs the fetches of many views: [`Groups`] decides when, a thread for each fetch does it, and every view of the group is told the outcome.
//!
//! Promises: nobody who asks waits behind a fetch of another host; whoever waits is answered by a fetch that began after the question; a view
//! that leaves is told nothing more, and the fetch that only it wanted is interrupted.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{RecvTimeoutError, Sender};
use gitmount_proto::fsd::v1 as proto;
use gitmount_store::ids::CommitId;
use gitmount_store::refspec::RefSpec;
use gitmount_store::repository::Repository;
use gitmount_store::{Fault, StoreError};

use super::credential::{Credential, Fingerprint};
use super::metrics::Metrics;
use super::policy::Pull;
use super::schedule::groups::{Demand, GroupId, Groups, MemberId, Rules};
use super::schedule::{Random, SystemRandom};
use super::upkeep::Upkeep;
use crate::control::Failure;

mod work;

/// How often somebody who waits looks whether it still makes sense.
const LOOK: Duration = Duration::from_millis(50);

/// The answer to who waits.
pub type Answer = Result<proto::Pulled, Failure>;

/// Somebody who follows a ref.
pub trait Follows: Send + Sync {
    /// What a fetch gave that began at `started`. It is not called twice at the same time for fetches of one group.
    fn fetched(&self, started: SystemTime, outcome: Result<CommitId, &StoreError>) -> Answer;
}

/// Where a fetch goes, and as whom.
#[derive(Debug, Clone)]
pub struct Origin {
    /// The copy in the store.
    pub repository: Arc<Repository>,
    /// What `Retry-After` holds back together.
    pub host: String,
    /// What is presented.
    pub credential: Credential,
    /// Commits of history; 0 for all.
    pub depth: u32,
}

#[derive(Clone)]
struct Member {
    spec: RefSpec,
    pull: Pull,
    follows: Arc<dyn Follows>,
}

struct Job {
    key: (PathBuf, Fingerprint, u32),
    origin: Origin,
    members: BTreeMap<MemberId, Member>,
    waiting: Vec<(MemberId, Sender<Answer>)>,
    stop: Arc<AtomicBool>,
}

struct State {
    groups: Groups,
    jobs: HashMap<GroupId, Job>,
    next_member: MemberId,
    running: usize,
    stopping: bool,
    random: Box<dyn Random>,
}

impl State {
    /// Answers all who wait for a host that asks to be left alone: those who come later are not made to wait for it either.
    fn answer_held(&mut self, now: Instant) {
        for (group, job) in &mut self.jobs {
            if let Some(left) = self.groups.held(*group, now) {
                for (_, waiter) in job.waiting.drain(..) {
                    // Who went away needs no answer.
                    let _ = waiter.send(Err(held(left)));
                }
            }
        }
    }
}

fn held(left: Duration) -> Failure {
    let message = format!("the host asked to be left alone for another {} seconds: try again after that", left.as_secs() + 1);
    Failure::new(Fault::Unreachable, message)
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    upkeep: Arc<Upkeep>,
    metrics: Arc<Metrics>,
}

impl Shared {
    /// The state, whatever happened to a thread that held it: every change leaves it whole.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The fetches of a daemon.
pub struct Fetches {
    shared: Arc<Shared>,
    scheduler: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Fetches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fetches")
    }
}

/// A view's place in a group; it leaves when the last copy is dropped.
#[derive(Clone)]
pub struct Membership(Arc<Place>);

struct Place {
    shared: Arc<Shared>,
    group: GroupId,
    member: MemberId,
    repository: PathBuf,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Membership({}, {})", self.0.group, self.0.member)
    }
}

impl Fetches {
    /// Starts the scheduler; `upkeep` follows each fetch with news.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn start(rules: Rules, upkeep: Arc<Upkeep>, metrics: Arc<Metrics>) -> std::io::Result<Self> {
        let state = State {
            groups: Groups::new(rules),
            jobs: HashMap::new(),
            next_member: 0,
            running: 0,
            stopping: false,
            random: Box::<SystemRandom>::default(),
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new(), upkeep, metrics });
        let scheduler = std::thread::Builder::new().name("schedule".into()).spawn({
            let shared = Arc::clone(&shared);
            move || schedule(&shared)
        })?;
        Ok(Fetches { shared, scheduler: Mutex::new(Some(scheduler)) })
    }

    /// Joins those who fetch from the same origin. It is not fetched for that.
    pub fn join(&self, origin: &Origin, spec: RefSpec, pull: Pull, follows: Arc<dyn Follows>) -> Membership {
        let mut state = self.shared.lock();
        let state = &mut *state;
        let repository = origin.repository.git_dir().to_owned();
        let key = (repository.clone(), origin.credential.fingerprint().clone(), origin.depth);
        let known = state.jobs.iter().find(|(_, job)| job.key == key).map(|(group, _)| *group);
        let group = known.unwrap_or_else(|| {
            let group = state.groups.add(&repository.to_string_lossy(), &origin.host);
            let stop = Arc::new(AtomicBool::new(state.stopping));
            let job = Job { key, origin: origin.clone(), members: BTreeMap::new(), waiting: vec![], stop };
            state.jobs.insert(group, job);
            group
        });
        state.next_member += 1;
        let member = state.next_member;
        // A commit never moves.
        let pull = if matches!(spec, RefSpec::Commit(_)) { Pull::Never } else { pull };
        if let Some(job) = state.jobs.get_mut(&group) {
            job.members.insert(member, Member { spec, pull, follows });
        }
        state.groups.join(group, member, pull, Instant::now());
        self.shared.changed.notify_all();
        Membership(Arc::new(Place { shared: Arc::clone(&self.shared), group, member, repository }))
    }

    /// Ends it: fetches are interrupted, and everybody who waits is answered.
    pub fn stop(&self, limit: Duration) {
        {
            let mut state = self.shared.lock();
            state.stopping = true;
            self.shared.upkeep.stop();
            state.jobs.values().for_each(|job| job.stop.store(true, Ordering::SeqCst));
            self.shared.changed.notify_all();
        }
        if let Some(scheduler) = self.scheduler.lock().unwrap_or_else(PoisonError::into_inner).take()
            && scheduler.join().is_err()
        {
            tracing::error!("the scheduler panicked");
        }
        let end = Instant::now() + limit;
        let mut state = self.shared.lock();
        while state.running > 0 && Instant::now() < end {
            state = self.shared.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        if state.running > 0 {
            tracing::warn!(fetches = state.running, "some fetches could not be interrupted in time");
        }
    }
}

impl Membership {
    /// Fetches now and waits for the outcome, until `given_up` says that nobody wants it any more.
    pub fn pull(&self, given_up: &dyn Fn() -> bool) -> Answer {
        let gone = || Failure::new(Fault::Cancelled, "it was given up meanwhile: ask again");
        let Place { shared, group, member, .. } = &*self.0;
        let (answer, answered) = crossbeam_channel::bounded(1);
        {
            let mut state = shared.lock();
            let now = Instant::now();
            if state.stopping {
                return Err(Failure::new(Fault::Cancelled, "the daemon is being stopped: ask the next one"));
            }
            if let Some(left) = state.groups.held(*group, now) {
                return Err(held(left));
            }
            let Some(job) = state.jobs.get_mut(group) else { return Err(gone()) };
            job.waiting.push((*member, answer));
            state.groups.demand(*group, Demand::Urgent, now);
            shared.changed.notify_all();
        }
        loop {
            match answered.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) if !given_up() => {}
                Err(_) => return Err(gone()),
            }
        }
    }

    /// Says that there may be news, and waits for nothing: for this view's group now, or as a demand for all views of the repository.
    pub fn demand(&self, demand: Demand) {
        let Place { shared, group: own, repository, .. } = &*self.0;
        let mut state = shared.lock();
        let state = &mut *state;
        let now = Instant::now();
        let same = |job: &Job| demand == Demand::Noted && job.key.0 == *repository;
        for (group, _) in state.jobs.iter().filter(|(group, job)| *group == own || same(job)) {
            state.groups.demand(*group, demand, now);
        }
        shared.changed.notify_all();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let state = &mut *state;
        state.groups.leave(self.group, self.member, Instant::now());
        let Some(job) = state.jobs.get_mut(&self.group) else { return };
        job.members.remove(&self.member);
        job.waiting.retain(|(member, _)| *member != self.member);
        if job.members.is_empty() {
            job.stop.store(true, Ordering::SeqCst);
            state.jobs.remove(&self.group);
            state.groups.remove(self.group);
        }
        self.shared.changed.notify_all();
    }
}

/// The scheduler's thread: starts what is due, and sleeps until something is or changes.
fn schedule(shared: &Arc<Shared>) {
    const LONG: Duration = Duration::from_secs(3600);
    let mut state = shared.lock();
    while !state.stopping {
        let now = Instant::now();
        let next = state.groups.next(now);
        if !next.start.is_empty() {
            state.running += next.start.len();
            // A thread that cannot be started gives its place back at once, for which it needs the lock.
            drop(state);
            for group in next.start {
                let worker = work::Worker::new(Arc::clone(shared), group);
                if let Err(error) = std::thread::Builder::new().name("fetch".into()).spawn(move || worker.run()) {
                    tracing::error!(%error, "no thread can be started for a fetch: raise the limit of processes");
                }
            }
            state = shared.lock();
            continue;
        }
        let wait = next.wake.map_or(LONG, |wake| wake.saturating_duration_since(now)).min(LONG);
        state = shared.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
    }
}
