//! One fetch for a group: what is asked for, and who is told what came of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use crossbeam_channel::Sender;
use gitmount_store::Fault;
use gitmount_store::error::Result;
use gitmount_store::fetch::{Phase, Progress};
use gitmount_store::ids::CommitId;
use gitmount_store::refspec::RefSpec;
use gitmount_store::repository::Repository;

use super::{Answer, GroupId, Member, MemberId, Origin, Pull, Shared};
use crate::control::Failure;

/// What of a job is needed while it is fetched.
struct Order {
    origin: Origin,
    /// Who is told, each with the place of its ref in `specs`.
    members: Vec<(MemberId, Member, usize)>,
    specs: Vec<RefSpec>,
    waiting: Vec<(MemberId, Sender<Answer>)>,
    stop: Arc<AtomicBool>,
}

/// Counts what a host sends.
#[derive(Default)]
struct Received(AtomicU64);

impl Progress for Received {
    fn update(&self, phase: Phase, done: u64, _: Option<u64>) {
        if phase == Phase::Receiving {
            self.0.fetch_max(done, Ordering::Relaxed);
        }
    }
}

/// How a fetch ended, for the schedule.
enum End {
    Worked,
    Failed(Option<std::time::Duration>),
    Stopped,
}

/// The thread of one fetch. It gives its place back in any case.
pub(super) struct Worker {
    shared: Arc<Shared>,
    group: GroupId,
    end: Option<End>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, group: GroupId) -> Self {
        Worker { shared, group, end: None }
    }

    pub(super) fn run(mut self) {
        let Some(order) = self.order() else {
            self.end = Some(End::Stopped);
            return;
        };
        let started = SystemTime::now();
        let (begin, received) = (Instant::now(), Received::default());
        let outcome = fetch(&order, &received);
        self.shared.metrics.fetched(outcome.is_ok(), begin.elapsed(), received.0.load(Ordering::Relaxed));
        self.end = Some(match &outcome {
            Ok(_) => End::Worked,
            Err(error) if error.fault() == Fault::Cancelled => End::Stopped,
            Err(error) => End::Failed(error.host_wait()),
        });
        let mut news = false;
        let mut answers: Vec<(MemberId, Answer)> = vec![];
        for (id, member, at) in &order.members {
            let answer = match &outcome {
                Ok(commits) => member.follows.fetched(started, commits[*at].as_ref().copied()),
                Err(error) if error.fault() == Fault::Cancelled => Err(Failure::from(error)),
                Err(error) => member.follows.fetched(started, Err(error)),
            };
            news |= answer.as_ref().is_ok_and(|pulled| pulled.old != pulled.new);
            answers.push((*id, answer));
        }
        let repository = Arc::clone(&order.origin.repository);
        let upkeep = Arc::clone(&self.shared.upkeep);
        // The place is free before anybody is answered: who asks again then is not told of this fetch.
        drop(self);
        for (member, waiter) in order.waiting {
            if let Some((_, answer)) = answers.iter().find(|(id, _)| *id == member) {
                // Who went away needs no answer.
                let _ = waiter.send(answer.clone());
            }
        }
        if news {
            upkeep.after_news(&repository);
        }
    }

    /// What to fetch: all refs that move, and those that somebody waits for.
    fn order(&self) -> Option<Order> {
        let mut state = self.shared.lock();
        let job = state.jobs.get_mut(&self.group)?;
        let waiting = std::mem::take(&mut job.waiting);
        let wanted = |id: &MemberId, member: &Member| member.pull != Pull::Never || waiting.iter().any(|(waiter, _)| waiter == id);
        let mut specs: Vec<RefSpec> = vec![];
        let mut members = vec![];
        for (id, member) in job.members.iter().filter(|(id, member)| wanted(id, member)) {
            let at = specs.iter().position(|spec| *spec == member.spec).unwrap_or_else(|| {
                specs.push(member.spec.clone());
                specs.len() - 1
            });
            members.push((*id, member.clone(), at));
        }
        Some(Order { origin: job.origin.clone(), members, specs, waiting, stop: Arc::clone(&job.stop) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        let state = &mut *state;
        state.running -= 1;
        let now = Instant::now();
        match self.end.take() {
            Some(End::Worked) => state.groups.worked(self.group, now, &mut *state.random),
            Some(End::Failed(wait)) => {
                state.groups.failed(self.group, now, wait, &mut *state.random);
                state.answer_held(now);
            }
            Some(End::Stopped) => state.groups.stopped(self.group),
            // It panicked, or its thread could not be started.
            None => state.groups.failed(self.group, now, None, &mut *state.random),
        }
        self.shared.changed.notify_all();
    }
}

/// The outer error is about the host or the disk, the inner ones about single refs.
fn fetch(order: &Order, received: &Received) -> Result<Vec<Result<CommitId>>> {
    let Order { origin, specs, stop, .. } = order;
    let Origin { repository, credential, depth, .. } = origin;
    let mut asked = specs.clone();
    // A commit that is there is not asked for, which is no answer to whether this credential may see it: HEAD is.
    let unproven = asked.iter().any(|spec| matches!(spec, RefSpec::Commit(id) if is_there(repository, *id)));
    if unproven && !repository.has_fetched_with(credential.auth())? {
        asked.insert(0, RefSpec::Head);
    }
    let fetched = repository.fetch_many(&asked, *depth, credential.auth(), received, stop)?;
    let mut outcomes: Vec<Result<CommitId>> = fetched.into_iter().map(|one| one.map(|fetched| fetched.commit)).collect();
    if asked.len() > specs.len()
        && let Err(error) = outcomes.remove(0)
    {
        return Err(error);
    }
    Ok(outcomes)
}

fn is_there(repository: &Repository, commit: CommitId) -> bool {
    repository.objects().contains(commit.id()).unwrap_or(false)
}
