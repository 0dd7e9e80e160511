//! Which fetches run when, for many views at many hosts. Pure: the time and the randomness are passed in.
//!
//! Views of one repository that present the same credential and want the same depth are one group: one fetch is for all of them. The rules:
//!
//! - One fetch of a repository runs at a time, whatever its groups.
//! - A group is fetched as often as its most eager member wants, with jitter, and after failures as [`Schedule`] says.
//! - An urgent demand (somebody waits) is due at once. A demand is due at once, or, when the last fetch began less than the interval ago, at
//!   the end of the interval: twenty of them cost one fetch.
//! - A demand is answered by a fetch that began after it, and by no fetch that failed.
//! - `Retry-After` holds back all of a host, demands included.
//! - Of the fetches that may run at the same time, one host has half at most, so that one that is silent does not starve the others.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use super::{LONGEST_HOLD, Random, Schedule};
use crate::daemon::policy::Pull;

/// The number of a group.
pub type GroupId = u64;

/// The number of a member of a group.
pub type MemberId = u64;

/// The limits.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// Demands within this time of a fetch's start wait for its end; also the shortest wait after a failure.
    pub interval: Duration,
    /// Fetches that run at the same time.
    pub workers: usize,
}

/// How much of a hurry a demand is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Demand {
    /// Somebody waits for the outcome.
    Urgent,
    /// Somebody said that there is news.
    Noted,
}

#[derive(Debug)]
struct Group {
    repository: String,
    host: String,
    members: BTreeMap<MemberId, Pull>,
    schedule: Schedule,
    /// The start of the last fetch.
    began: Option<Instant>,
    /// The demand that no fetch has answered: when it is due.
    demanded: Option<Instant>,
    running: bool,
}

impl Group {
    fn ready(&self) -> Option<Instant> {
        if self.running {
            return None;
        }
        match (self.schedule.due(), self.demanded) {
            (Some(due), Some(demanded)) => Some(due.min(demanded)),
            (due, demanded) => due.or(demanded),
        }
    }

    fn every(&self) -> Option<Duration> {
        self.members.values().filter_map(|pull| if let Pull::Every(every) = pull { Some(*every) } else { None }).min()
    }
}

/// All groups.
#[derive(Debug)]
pub struct Groups {
    rules: Rules,
    next: u64,
    groups: HashMap<GroupId, Group>,
    held: HashMap<String, Instant>,
}

/// What to do now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Next {
    /// Groups whose fetch begins now.
    pub start: Vec<GroupId>,
    /// When to ask again, if nothing happens before.
    pub wake: Option<Instant>,
}

impl Groups {
    /// No groups yet.
    pub fn new(rules: Rules) -> Self {
        Groups { rules, next: 0, groups: HashMap::new(), held: HashMap::new() }
    }

    /// A new group without members.
    pub fn add(&mut self, repository: &str, host: &str) -> GroupId {
        self.next += 1;
        let group = Group {
            repository: repository.to_owned(),
            host: host.to_owned(),
            members: BTreeMap::new(),
            schedule: Schedule::new(None).with_first_retry(self.rules.interval),
            began: None,
            demanded: None,
            running: false,
        };
        self.groups.insert(self.next, group);
        self.next
    }

    /// Forgets a group, also one whose fetch still runs.
    pub fn remove(&mut self, id: GroupId) {
        self.groups.remove(&id);
    }

    /// A view joins. It is not fetched for that: its first commit is demanded.
    pub fn join(&mut self, id: GroupId, member: MemberId, pull: Pull, now: Instant) {
        self.change(id, now, |group| {
            group.members.insert(member, pull);
        });
    }

    /// A view leaves.
    pub fn leave(&mut self, id: GroupId, member: MemberId, now: Instant) {
        self.change(id, now, |group| {
            group.members.remove(&member);
        });
    }

    fn change(&mut self, id: GroupId, now: Instant, change: impl FnOnce(&mut Group)) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        let before = group.every();
        change(group);
        if group.every() != before {
            group.schedule.set_every(group.every(), now);
        }
    }

    /// Notes a demand; gives when it is due, but for what the host says.
    pub fn demand(&mut self, id: GroupId, demand: Demand, now: Instant) -> Option<Instant> {
        let interval = self.rules.interval;
        let group = self.groups.get_mut(&id)?;
        let due = match (demand, group.began) {
            (Demand::Noted, Some(began)) => now.max(began + interval),
            _ => now,
        };
        let due = group.demanded.map_or(due, |already| already.min(due));
        group.demanded = Some(due);
        Some(due)
    }

    /// How much longer a group's host wants to be left alone.
    pub fn held(&self, id: GroupId, now: Instant) -> Option<Duration> {
        let until = self.held.get(&self.groups.get(&id)?.host)?;
        until.checked_duration_since(now).filter(|left| !left.is_zero())
    }

    /// Which fetches begin now; they count as running from here on.
    pub fn next(&mut self, now: Instant) -> Next {
        self.held.retain(|_, until| *until > now);
        let mut ready: Vec<(Instant, GroupId)> = self.groups.iter().filter_map(|(id, group)| Some((group.ready()?, *id))).collect();
        // Who waits longest comes first.
        ready.sort_unstable();
        let mut running = 0;
        let mut by_host: HashMap<String, usize> = HashMap::new();
        let mut repositories: HashSet<String> = HashSet::new();
        for group in self.groups.values().filter(|group| group.running) {
            running += 1;
            *by_host.entry(group.host.clone()).or_default() += 1;
            repositories.insert(group.repository.clone());
        }
        let mut next = Next::default();
        for (due, id) in ready {
            let Some(group) = self.groups.get_mut(&id) else { continue };
            let due = self.held.get(&group.host).map_or(due, |until| due.max(*until));
            if due > now {
                next.wake = Some(next.wake.map_or(due, |wake| wake.min(due)));
                continue;
            }
            let at_host = by_host.entry(group.host.clone()).or_default();
            // What has no room now is looked at when a fetch ends.
            if running == self.rules.workers || *at_host == (self.rules.workers / 2).max(1) || repositories.contains(&group.repository) {
                continue;
            }
            running += 1;
            *at_host += 1;
            repositories.insert(group.repository.clone());
            (group.running, group.began, group.demanded) = (true, Some(now), None);
            next.start.push(id);
        }
        next
    }

    /// A fetch worked, whatever it said of single refs.
    pub fn worked(&mut self, id: GroupId, now: Instant, random: &mut dyn Random) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.running = false;
        group.schedule.succeeded(now, random);
    }

    /// A fetch failed; `host_wait` is the host's `Retry-After`.
    pub fn failed(&mut self, id: GroupId, now: Instant, host_wait: Option<Duration>, random: &mut dyn Random) {
        let Some(group) = self.groups.get_mut(&id) else { return };
        group.running = false;
        group.schedule.failed(now, host_wait, random);
        if let Some(wait) = host_wait {
            let until = now + wait.min(LONGEST_HOLD);
            let held = self.held.entry(group.host.clone()).or_insert(until);
            *held = until.max(*held);
        }
        // What was demanded is still wanted; those who waited have their answer.
        if group.members.values().any(|pull| *pull == Pull::OnDemand) {
            group.demanded = match (group.demanded, group.schedule.retry()) {
                (Some(demanded), Some(retry)) => Some(demanded.min(retry)),
                (demanded, retry) => demanded.or(retry),
            };
        }
    }

    /// A fetch was stopped by us: nothing is known of the host.
    pub fn stopped(&mut self, id: GroupId) {
        if let Some(group) = self.groups.get_mut(&id) {
            group.running = false;
        }
    }
}

#[cfg(test)]
mod tests;
