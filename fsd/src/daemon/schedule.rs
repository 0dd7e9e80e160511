//! When the next fetch of a view is due. Pure: the time and the randomness are passed in.
//!
//! A fetch that worked is repeated after the view's interval, with jitter. One that failed is repeated after ten seconds, doubling
//! up to five minutes, each wait a random time between half and all of it and never less than ten seconds. `Retry-After` holds the
//! host back for everything, demands included.
//!
//! [`groups`] schedules the fetches of many views at many hosts by the same rules.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

pub mod groups;

/// The first wait after a failure, and the shortest ever.
const FIRST_RETRY: Duration = Duration::from_secs(10);

/// The longest wait after a failure, before the host's own wish.
const LONGEST_RETRY: Duration = Duration::from_secs(300);

/// No host holds a view back for longer, whatever it says.
const LONGEST_HOLD: Duration = Duration::from_secs(24 * 3600);

/// A source of random durations.
pub trait Random: Send {
    /// A duration that is at least `low` and at most `high`, uniformly; `low` when there is nothing between.
    fn between(&mut self, low: Duration, high: Duration) -> Duration;
}

/// Randomness from the system, good enough to keep mounts from fetching in step.
#[derive(Debug, Default)]
pub struct SystemRandom {
    state: RandomState,
    drawn: u64,
}

impl Random for SystemRandom {
    fn between(&mut self, low: Duration, high: Duration) -> Duration {
        let span = u64::try_from(high.saturating_sub(low).as_nanos()).unwrap_or(u64::MAX);
        let mut hasher = self.state.build_hasher();
        self.drawn += 1;
        hasher.write_u64(self.drawn);
        low + Duration::from_nanos(if span == u64::MAX { 0 } else { hasher.finish() % (span + 1) })
    }
}

/// The schedule of one view.
#[derive(Debug)]
pub struct Schedule {
    every: Option<Duration>,
    first_retry: Duration,
    failures: u32,
    due: Option<Instant>,
    retry: Option<Instant>,
    held_until: Option<Instant>,
}

impl Schedule {
    /// A schedule that fetches every so often, or (`None`) only on demand. Nothing is due before the first outcome was told.
    pub fn new(every: Option<Duration>) -> Self {
        Schedule { every, first_retry: FIRST_RETRY, failures: 0, due: None, retry: None, held_until: None }
    }

    /// The same with another first wait after a failure.
    pub fn with_first_retry(self, first_retry: Duration) -> Self {
        Schedule { first_retry, ..self }
    }

    /// Changes the interval: what was due later than one interval from now is due then.
    pub fn set_every(&mut self, every: Option<Duration>, now: Instant) {
        self.every = every;
        self.due = every.map(|every| self.due.map_or(now + every, |due| due.min(now + every)));
    }

    /// When to try again after a failure, also for who waits for more than the next poll; `None` after a success.
    pub fn retry(&self) -> Option<Instant> {
        self.retry
    }

    /// When the next fetch is due; `None` when only a demand brings one.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// How much longer the host wants to be left alone.
    pub fn held(&self, now: Instant) -> Option<Duration> {
        self.held_until.and_then(|until| until.checked_duration_since(now)).filter(|left| !left.is_zero())
    }

    /// A fetch worked.
    pub fn succeeded(&mut self, now: Instant, random: &mut dyn Random) {
        self.failures = 0;
        self.held_until = None;
        self.retry = None;
        self.due = self.every.map(|every| now + random.between(every - every / 10, every + every / 10));
    }

    /// A fetch failed; `host_wait` is the host's `Retry-After`.
    pub fn failed(&mut self, now: Instant, host_wait: Option<Duration>, random: &mut dyn Random) {
        self.held_until = host_wait.map(|wait| now + wait.min(LONGEST_HOLD));
        let whole = self.first_retry.saturating_mul(1 << self.failures.min(16)).min(LONGEST_RETRY.max(self.first_retry));
        self.failures = self.failures.saturating_add(1);
        let retry = now + random.between(whole / 2, whole).max(self.first_retry);
        self.retry = Some(self.held_until.map_or(retry, |until| until.max(retry)));
        // A view that never pulls by itself does not begin to because a demand failed.
        self.due = self.every.and(self.retry);
    }
}

#[cfg(test)]
mod tests;
