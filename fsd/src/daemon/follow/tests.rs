//! The thread with a scripted upstream and a model of a mount: what is fetched when, pinned when, shown when.

use std::collections::VecDeque;
use std::time::Duration;

use gitmount_store::fetch::Progress;

use super::super::health::State;
use super::*;

fn commit(n: u8) -> CommitId {
    CommitId::parse(&format!("{n:040x}")).unwrap()
}

/// What happened, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// What a fetch gives: a commit, or a fault with the host's `Retry-After`.
type Scripted = std::result::Result<CommitId, (Fault, Option<Duration>)>;

struct Script {
    log: Log,
    /// Outcomes in order; the last one repeats.
    outcomes: Mutex<VecDeque<Scripted>>,
    /// Holds a fetch until told.
    gate: Option<Receiver<()>>,
}

struct Pinned(Log, CommitId);

impl Drop for Pinned {
    fn drop(&mut self) {
        self.0.lock().unwrap().push(format!("unpin {}", short(self.1)));
    }
}

fn short(commit: CommitId) -> String {
    commit.to_string()[38..].to_owned()
}

impl Upstream for Script {
    fn fetch(&self, _: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<CommitId> {
        self.log.lock().unwrap().push("fetch".into());
        if let Some(gate) = &self.gate {
            while gate.recv_timeout(Duration::from_millis(5)).is_err() {
                if stop.load(Ordering::SeqCst) {
                    return Err(StoreError::new(Fault::Cancelled, "stopped"));
                }
            }
        }
        let mut outcomes = self.outcomes.lock().unwrap();
        let next = if outcomes.len() > 1 { outcomes.pop_front().unwrap() } else { outcomes[0] };
        next.map_err(|(fault, wait)| StoreError::new(fault, format!("{fault:?}")).retry_after(wait))
    }

    fn known(&self) -> Result<Option<CommitId>> {
        Ok(None)
    }

    fn pin(&self, commit: CommitId) -> Result<Hold> {
        self.log.lock().unwrap().push(format!("pin {}", short(commit)));
        Ok(Box::new(Pinned(Arc::clone(&self.log), commit)))
    }
}

struct Shown {
    log: Log,
    now: Mutex<CommitId>,
    refuse: Option<CommitId>,
}

impl Served for Shown {
    fn commit(&self) -> CommitId {
        *self.now.lock().unwrap()
    }

    fn switch(&self, commit: CommitId) -> Result<usize> {
        if self.refuse == Some(commit) {
            return Err(StoreError::new(Fault::NotFound, "path \"docs\" does not exist"));
        }
        self.log.lock().unwrap().push(format!("show {}", short(commit)));
        *self.now.lock().unwrap() = commit;
        Ok(1)
    }
}

struct Low;

impl Random for Low {
    fn between(&mut self, low: Duration, _: Duration) -> Duration {
        low
    }
}

struct Bed {
    follow: Follow,
    log: Log,
    health: Arc<Mutex<Health>>,
    shown: Arc<Shown>,
    diary: Arc<Diary>,
}

fn bed(every: Option<Duration>, outcomes: impl IntoIterator<Item = Scripted>, gate: Option<Receiver<()>>, refuse: Option<CommitId>) -> Bed {
    let log = Log::default();
    let health = Arc::new(Mutex::new(Health::default()));
    let diary = Arc::<Diary>::default();
    let shown = Arc::new(Shown { log: Arc::clone(&log), now: Mutex::new(commit(1)), refuse });
    let upstream = Script { log: Arc::clone(&log), outcomes: Mutex::new(outcomes.into_iter().collect()), gate };
    let mut schedule = Schedule::new(every);
    schedule.succeeded(Instant::now(), &mut Low);
    let follow = Follow::start(Follower {
        upstream: Arc::new(upstream),
        served: Arc::clone(&shown) as Arc<dyn Served>,
        health: Arc::clone(&health),
        schedule,
        random: Box::new(Low),
        holds: vec![(commit(1), Box::new(Pinned(Arc::clone(&log), commit(1))))],
        diary: Arc::clone(&diary),
    })
    .unwrap();
    Bed { follow, log, health, shown, diary }
}

impl Bed {
    fn log(&self) -> Vec<String> {
        self.log.lock().unwrap().clone()
    }

    fn until(&self, what: impl Fn(&Bed) -> bool) {
        let end = Instant::now() + Duration::from_secs(10);
        while !what(self) {
            assert!(Instant::now() < end, "did not happen in time: {:?}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn a_new_commit_is_pinned_before_it_is_shown_and_the_old_one_let_go_after() {
    let bed = bed(None, [Ok(commit(2))], None, None);
    let pulled = bed.follow.pull().unwrap();
    assert_eq!((pulled.old, pulled.new, pulled.changed), (commit(1).to_string(), commit(2).to_string(), 1));
    assert_eq!(bed.log(), ["fetch", "pin 02", "show 02", "unpin 01"]);
    assert_eq!(record(&bed.health).switches, 1);
    bed.follow.stop();
    assert_eq!(bed.log().last().unwrap(), "unpin 02");
}

#[test]
fn without_news_nothing_is_pinned_or_shown() {
    let bed = bed(None, [Ok(commit(1))], None, None);
    let pulled = bed.follow.pull().unwrap();
    assert_eq!(pulled.old, pulled.new);
    assert_eq!(bed.log(), ["fetch"]);
    assert_eq!(record(&bed.health).switches, 0);
}

#[test]
fn polls_by_itself_when_due() {
    let bed = bed(Some(Duration::from_millis(20)), [Ok(commit(1)), Ok(commit(2))], None, None);
    bed.until(|b| b.shown.commit() == commit(2));
    assert!(record(&bed.health).fetches >= 2);
}

#[test]
fn a_failure_keeps_what_is_shown_and_is_told_to_who_waits() {
    let bed = bed(None, [Err((Fault::Unreachable, None)), Err((Fault::NotFound, None)), Ok(commit(1))], None, None);
    assert_eq!(bed.follow.pull().unwrap_err().fault, Fault::Unreachable);
    assert_eq!(record(&bed.health).state, State::Failing);
    assert_eq!(bed.follow.pull().unwrap_err().fault, Fault::NotFound);
    assert_eq!(record(&bed.health).state, State::Gone);
    bed.follow.pull().unwrap();
    let health = record(&bed.health).clone();
    assert_eq!((health.state, health.fetches, health.failures), (State::Ok, 3, 2));
    assert_eq!(bed.log(), ["fetch", "fetch", "fetch"]);
    let kinds: Vec<Kind> = bed.diary.all().iter().map(|event| event.kind()).collect();
    assert_eq!(kinds, [Kind::FetchFailed, Kind::FetchRecovered], "only the first failure is noted");
}

#[test]
fn a_path_that_the_new_commit_lacks_keeps_the_old_commit_and_its_pin() {
    let bed = bed(None, [Ok(commit(2))], None, Some(commit(2)));
    let failure = bed.follow.pull().unwrap_err();
    assert!(failure.message.contains("path \"docs\""), "{failure:?}");
    assert_eq!(bed.log(), ["fetch", "pin 02", "unpin 02"]);
    assert_eq!((bed.shown.commit(), record(&bed.health).state), (commit(1), State::Gone));
}

#[test]
fn a_host_that_wants_to_be_left_alone_is_not_asked_again() {
    let bed = bed(None, [Err((Fault::Unreachable, Some(Duration::from_secs(60))))], None, None);
    bed.follow.pull().unwrap_err();
    let failure = bed.follow.pull().unwrap_err();
    assert_eq!(failure.fault, Fault::Unreachable);
    assert!(failure.message.contains("60 seconds"), "{failure:?}");
    assert_eq!(bed.log(), ["fetch"]);
}

#[test]
fn a_demand_during_a_fetch_brings_another_fetch_and_demands_share_it() {
    let (open, gate) = crossbeam_channel::unbounded();
    let bed = bed(None, [Ok(commit(1)), Ok(commit(2))], Some(gate), None);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| bed.follow.pull().unwrap());
        bed.until(|b| b.log().len() == 1);
        let later: Vec<_> = (0..3).map(|_| scope.spawn(|| bed.follow.pull().unwrap())).collect();
        bed.until(|b| b.follow.events.len() == 3);
        open.send(()).unwrap();
        assert_eq!(first.join().unwrap().new, commit(1).to_string());
        open.send(()).unwrap();
        for pulled in later {
            assert_eq!(pulled.join().unwrap().new, commit(2).to_string());
        }
    });
    assert_eq!(bed.log().iter().filter(|l| *l == "fetch").count(), 2);
}

#[test]
fn stop_interrupts_a_fetch_and_leaves_no_failure() {
    let (_open, gate) = crossbeam_channel::unbounded::<()>();
    let bed = bed(None, [Ok(commit(2))], Some(gate), None);
    bed.follow.moved();
    bed.until(|b| b.log().len() == 1);
    bed.follow.stop();
    assert_eq!(bed.log(), ["fetch", "unpin 01"]);
    let health = record(&bed.health).clone();
    assert_eq!((health.state, health.failures), (State::Ok, 0));
    assert_eq!(bed.follow.pull().unwrap_err().fault, Fault::Cancelled);
}
