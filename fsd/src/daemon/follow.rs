//! The thread that keeps a mount at its ref: it waits until a fetch is due or demanded, fetches, pins and switches.
//!
//! A demand is answered by a fetch that began after it, so that a push made just before is never missed; demands that wait
//! meanwhile share one fetch. [`Follow::stop`] interrupts a running fetch.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use gitmount_proto::fsd::v1 as proto;
use gitmount_store::error::Result;
use gitmount_store::fetch::NoProgress;
use gitmount_store::ids::CommitId;
use gitmount_store::{Fault, StoreError};

use super::events::{Diary, Kind};
use super::health::Health;
use super::schedule::{Random, Schedule};
use super::upstream::{Hold, Upstream};
use crate::control::Failure;
use crate::fuse::Mount;

/// What shows commits: a mount, or a model of one in tests.
pub trait Served: Send + Sync {
    /// The commit that is shown.
    fn commit(&self) -> CommitId;
    /// Shows another one; gives how many names changed.
    fn switch(&self, commit: CommitId) -> Result<usize>;
    /// The commits whose objects must stay: the one that is shown, and others that can still be read.
    fn pinned(&self) -> Vec<CommitId> {
        vec![self.commit()]
    }
}

impl Served for Mount {
    fn commit(&self) -> CommitId {
        self.view().current().commit
    }

    fn switch(&self, commit: CommitId) -> Result<usize> {
        let switched = Mount::switch(self, commit)?;
        tracing::info!(old = %switched.old, new = %switched.new, changed = switched.changed, took = ?switched.took, "switched");
        Ok(switched.changed)
    }

    fn pinned(&self) -> Vec<CommitId> {
        self.view().pinned()
    }
}

/// The answer to a demand.
type Answer = std::result::Result<proto::Pulled, Failure>;

enum Event {
    /// Somebody waits for a fetch.
    Demand(Sender<Answer>),
    /// Refs on the local disk may have moved.
    Moved,
    Stop,
}

/// What the thread works with.
pub struct Follower {
    /// Where commits come from.
    pub upstream: Arc<dyn Upstream>,
    /// Where they go.
    pub served: Arc<dyn Served>,
    /// The record of the fetches.
    pub health: Arc<Mutex<Health>>,
    /// When to fetch; it has been told of the fetch before the mount.
    pub schedule: Schedule,
    /// Randomness for the schedule.
    pub random: Box<dyn Random>,
    /// The pins of the commits that can be read; at the start that of the one that is served.
    pub holds: Vec<(CommitId, Hold)>,
    /// Where it is noted what happens.
    pub diary: Arc<Diary>,
}

/// The running thread.
#[derive(Debug)]
pub struct Follow {
    events: Sender<Event>,
    stop: Arc<AtomicBool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Follow {
    /// Starts following.
    pub fn start(follower: Follower) -> std::io::Result<Self> {
        let (events, received) = crossbeam_channel::unbounded();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("follow".into()).spawn(move || follower.run(&received, &stopped))?;
        Ok(Follow { events, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Fetches now and waits for the outcome; once the mount is being unmounted it waits no longer.
    pub fn pull(&self) -> Answer {
        const LOOK: Duration = Duration::from_millis(200);
        let gone = || Failure::new(Fault::Cancelled, "the mount is being unmounted, nothing was pulled");
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.events.send(Event::Demand(answer)).map_err(|_| gone())?;
        loop {
            match answered.recv_timeout(LOOK) {
                Ok(answer) => return answer,
                Err(RecvTimeoutError::Timeout) if !self.stop.load(Ordering::SeqCst) => {}
                Err(_) => return Err(gone()),
            }
        }
    }

    /// Says that refs on the local disk may have moved.
    pub fn moved(&self) {
        // The thread is gone only when the mount is.
        let _ = self.events.send(Event::Moved);
    }

    /// Interrupts a running fetch, and waits until the thread has ended and its pin is dropped.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.events.send(Event::Stop);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the thread that follows the ref panicked");
        }
    }
}

impl Drop for Follow {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Follower {
    fn run(mut self, events: &Receiver<Event>, stop: &Arc<AtomicBool>) {
        loop {
            let first = match self.schedule.due() {
                Some(due) => match events.recv_deadline(due) {
                    Ok(event) => Some(event),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => return,
                },
                None => match events.recv() {
                    Ok(event) => Some(event),
                    Err(_) => return,
                },
            };
            let mut waiting = Vec::new();
            for event in first.into_iter().chain(events.try_iter()) {
                match event {
                    Event::Demand(answer) => waiting.push(answer),
                    Event::Moved => {}
                    Event::Stop => return,
                }
            }
            let answer = self.fetch(stop);
            for waiter in waiting {
                // A waiter that went away needs no answer.
                let _ = waiter.send(answer.clone());
            }
            if answer.is_ok_and(|pulled| pulled.old != pulled.new) {
                self.upstream.tidy();
            }
        }
    }

    /// One fetch, with all that follows from it.
    fn fetch(&mut self, stop: &Arc<AtomicBool>) -> Answer {
        if let Some(left) = self.schedule.held(Instant::now()) {
            return Err(Failure::new(
                Fault::Unreachable,
                format!("the host asked to be left alone for another {} seconds: pull again after that", left.as_secs() + 1),
            ));
        }
        record(&self.health).attempted(SystemTime::now());
        let outcome = self.upstream.fetch(&NoProgress, stop).and_then(|commit| self.show(commit));
        let now = Instant::now();
        match outcome {
            Ok(pulled) => {
                self.schedule.succeeded(now, &mut *self.random);
                let mut health = record(&self.health);
                health.switches += u64::from(pulled.old != pulled.new);
                let recovered = health.succeeded();
                drop(health);
                if recovered {
                    tracing::info!("fetching works again");
                    let commit = self.served.commit();
                    self.diary.note(Kind::FetchRecovered, commit, format!("fetching works again, {commit} is shown"));
                }
                Ok(pulled)
            }
            Err(error) => {
                // Not the host's failure: the record stays as it is.
                if error.fault() != Fault::Cancelled {
                    self.schedule.failed(now, error.host_wait(), &mut *self.random);
                    if record(&self.health).failed(&error) {
                        tracing::warn!(%error, "the fetch failed; the last commit stays");
                        let message = format!("the fetch failed, the last commit stays: {error}");
                        self.diary.note(Kind::FetchFailed, self.served.commit(), message);
                    }
                }
                Err(Failure::from(&error))
            }
        }
    }

    /// Pins and shows `commit`, and lets go of those that cannot be read any more.
    fn show(&mut self, commit: CommitId) -> Result<proto::Pulled> {
        let old = self.served.commit();
        let mut changed = 0;
        if commit != old {
            let hold = self.upstream.pin(commit)?;
            changed = self.served.switch(commit).map_err(|e| path_gone(e, commit))?;
            self.holds.retain(|(held, _)| *held != commit);
            self.holds.push((commit, hold));
            let pinned = self.served.pinned();
            self.holds.retain(|(held, _)| pinned.contains(held));
            let what = self.diary.subject();
            self.diary.note(Kind::Switched, commit, format!("{what} moved from {old} to {commit}, {changed} of the names in use changed"));
        }
        Ok(proto::Pulled { old: old.to_string(), new: commit.to_string(), changed: changed as u64 })
    }
}

/// Says which commit a path is missing in; the ref itself is there.
pub(super) fn path_gone(error: StoreError, commit: CommitId) -> StoreError {
    if error.fault() == Fault::NotFound {
        return StoreError::new(Fault::NotFound, format!("commit {commit} is not shown: {error}"));
    }
    error
}

/// The record, whatever happened to a thread that held it: every write leaves it whole.
pub fn record(health: &Mutex<Health>) -> MutexGuard<'_, Health> {
    health.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
