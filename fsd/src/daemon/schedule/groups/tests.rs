//! Each rule of the groups, with a clock that is set by hand.

use super::super::tests::{Fixed, secs};
use super::*;

const RULES: Rules = Rules { interval: Duration::from_secs(10), workers: 8 };

/// Groups and a clock.
struct World {
    groups: Groups,
    now: Instant,
}

impl World {
    fn new() -> Self {
        World { groups: Groups::new(RULES), now: Instant::now() }
    }

    /// A group with one member, whose first fetch has worked.
    fn group(&mut self, repository: &str, host: &str, pull: Pull) -> GroupId {
        let id = self.groups.add(repository, host);
        self.groups.join(id, 1, pull, self.now);
        self.groups.demand(id, Demand::Urgent, self.now);
        assert_eq!(self.start(), [id]);
        self.work(id);
        id
    }

    fn start(&mut self) -> Vec<GroupId> {
        self.groups.next(self.now).start
    }

    fn wake(&mut self) -> Option<Duration> {
        let next = self.groups.next(self.now);
        assert!(next.start.is_empty());
        next.wake.map(|wake| wake - self.now)
    }

    fn pass(&mut self, seconds: u64) {
        self.now += secs(seconds);
    }

    fn work(&mut self, id: GroupId) {
        self.groups.worked(id, self.now, &mut Fixed(50));
    }

    fn fail(&mut self, id: GroupId, host_wait: Option<Duration>) {
        self.groups.failed(id, self.now, host_wait, &mut Fixed(100));
    }
}

fn every(seconds: u64) -> Pull {
    Pull::Every(secs(seconds))
}

#[test]
fn a_group_is_fetched_as_often_as_its_most_eager_member_wants() {
    let mut world = World::new();
    let id = world.group("r", "h", every(300));
    assert_eq!(world.wake(), Some(secs(300)));
    world.groups.join(id, 2, every(60), world.now);
    assert_eq!(world.wake(), Some(secs(60)));
    world.pass(60);
    assert_eq!(world.start(), [id]);
    world.work(id);
    world.groups.leave(id, 2, world.now);
    assert_eq!(world.wake(), Some(secs(60)), "what was planned stays");
    world.pass(60);
    assert_eq!(world.start(), [id]);
    world.work(id);
    assert_eq!(world.wake(), Some(secs(300)));
    world.groups.leave(id, 1, world.now);
    assert_eq!(world.wake(), None);
}

#[test]
fn a_hundred_views_of_a_repository_cost_one_fetch() {
    let mut world = World::new();
    let id = world.group("r", "h", every(60));
    for member in 2..=100 {
        world.groups.join(id, member, every(60), world.now);
    }
    world.pass(61);
    assert_eq!(world.start(), [id]);
    assert!(world.start().is_empty());
    world.work(id);
    assert!(world.start().is_empty());
}

#[test]
fn twenty_demands_within_the_interval_cost_one_fetch_at_its_end() {
    let mut world = World::new();
    let id = world.group("r", "h", Pull::OnDemand);
    world.pass(1);
    for _ in 0..20 {
        world.groups.demand(id, Demand::Noted, world.now);
    }
    assert_eq!(world.wake(), Some(secs(9)));
    world.pass(9);
    assert_eq!(world.start(), [id]);
    world.work(id);
    assert_eq!(world.wake(), None);
    world.pass(10);
    world.groups.demand(id, Demand::Noted, world.now);
    assert_eq!(world.start(), [id], "after a quiet interval a demand is answered at once");
}

#[test]
fn who_waits_is_not_made_to_wait_for_the_interval() {
    let mut world = World::new();
    let id = world.group("r", "h", Pull::Never);
    world.groups.demand(id, Demand::Urgent, world.now);
    assert_eq!(world.start(), [id]);
}

#[test]
fn a_demand_is_answered_by_a_fetch_that_began_after_it() {
    let mut world = World::new();
    let id = world.group("r", "h", every(300));
    world.pass(300);
    assert_eq!(world.start(), [id]);
    world.pass(3);
    world.groups.demand(id, Demand::Noted, world.now);
    world.work(id);
    assert_eq!(world.wake(), Some(secs(7)));
    world.pass(7);
    assert_eq!(world.start(), [id]);
}

#[test]
fn a_fetch_that_failed_answers_no_demand() {
    let mut world = World::new();
    let id = world.group("r", "h", Pull::OnDemand);
    for wait in [10, 20, 40, 80, 160, 300, 300] {
        world.groups.demand(id, Demand::Urgent, world.now);
        assert_eq!(world.start(), [id]);
        world.fail(id, None);
        assert_eq!(world.wake(), Some(secs(wait)));
    }
    world.pass(300);
    assert_eq!(world.start(), [id]);
    world.work(id);
    assert_eq!(world.wake(), None);
}

#[test]
fn a_view_that_never_pulls_is_not_tried_again() {
    let mut world = World::new();
    let id = world.group("r", "h", Pull::Never);
    world.groups.demand(id, Demand::Urgent, world.now);
    assert_eq!(world.start(), [id]);
    world.fail(id, None);
    assert_eq!(world.wake(), None);
}

#[test]
fn one_fetch_of_a_repository_runs_at_a_time() {
    let mut world = World::new();
    let (one, two) = (world.group("r", "h", every(60)), world.group("r", "h", every(60)));
    world.pass(60);
    let first = world.start();
    assert_eq!(first.len(), 1);
    world.work(first[0]);
    let second = world.start();
    assert!(second.len() == 1 && second != first && [one, two].contains(&second[0]));
}

#[test]
fn the_host_is_left_alone_as_long_as_it_asks_by_all_its_repositories() {
    let mut world = World::new();
    let (one, two) = (world.group("one", "h", every(60)), world.group("two", "h", every(60)));
    let other = world.group("three", "elsewhere", every(60));
    world.pass(60);
    assert_eq!(world.start().len(), 3);
    world.work(other);
    world.work(two);
    world.fail(one, Some(secs(120)));
    assert_eq!(world.groups.held(two, world.now), Some(secs(120)));
    assert_eq!(world.groups.held(other, world.now), None);
    world.groups.demand(two, Demand::Urgent, world.now);
    world.pass(60);
    assert_eq!(world.start(), [other]);
    world.work(other);
    world.pass(60);
    assert_eq!(world.start().len(), 3);
    assert_eq!(world.groups.held(two, world.now), None);
}

#[test]
fn a_silent_host_has_half_of_the_workers() {
    let mut world = World::new();
    let silent: Vec<_> = (0..20).map(|n| world.group(&format!("s{n}"), "silent", every(60))).collect();
    let other: Vec<_> = (0..20).map(|n| world.group(&format!("o{n}"), "other", every(60))).collect();
    world.pass(60);
    let started = world.start();
    assert_eq!(started.iter().filter(|id| silent.contains(id)).count(), 4);
    assert_eq!(started.iter().filter(|id| other.contains(id)).count(), 4);
    // The silent ones hang; all others are fetched, a few at a time.
    let mut done: Vec<GroupId> = started.into_iter().filter(|id| other.contains(id)).collect();
    let mut next = 0;
    while next < done.len() {
        world.work(done[next]);
        next += 1;
        let started = world.start();
        assert!(started.iter().all(|id| other.contains(id)), "the silent host got more than its half");
        done.extend(started);
    }
    assert_eq!(done.len(), 20);
}

#[test]
fn a_thousand_groups_are_each_fetched_once_an_interval() {
    let mut world = World::new();
    let ids: Vec<_> = (0..1000).map(|n| world.group(&format!("r{n}"), &format!("h{}", n % 50), every(60))).collect();
    let mut count: HashMap<GroupId, u32> = HashMap::new();
    for _ in 0..3 {
        world.pass(60);
        loop {
            let started = world.start();
            if started.is_empty() {
                break;
            }
            for id in started {
                *count.entry(id).or_default() += 1;
                world.work(id);
            }
        }
    }
    assert!(ids.iter().all(|id| count[id] == 3));
}

#[test]
fn a_group_that_goes_while_it_is_fetched_leaves_nothing() {
    let mut world = World::new();
    let id = world.group("r", "h", every(60));
    world.pass(60);
    assert_eq!(world.start(), [id]);
    world.groups.remove(id);
    world.work(id);
    world.fail(id, Some(secs(30)));
    assert_eq!((world.wake(), world.groups.demand(id, Demand::Urgent, world.now)), (None, None));
    let again = world.group("r", "h", every(60));
    assert_ne!(again, id);
}

#[test]
fn a_fetch_that_was_stopped_says_nothing_of_the_host() {
    let mut world = World::new();
    let id = world.group("r", "h", Pull::Never);
    world.groups.demand(id, Demand::Urgent, world.now);
    assert_eq!(world.start(), [id]);
    world.groups.stopped(id);
    world.groups.demand(id, Demand::Urgent, world.now);
    assert_eq!(world.start(), [id]);
}
