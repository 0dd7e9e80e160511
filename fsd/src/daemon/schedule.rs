//! When the next fetch of a view is due. Pure: the time and the randomness are passed in.
//!
//! A fetch that worked is repeated after the view's interval, with jitter. One that failed is repeated after ten seconds, doubling
//! up to five minutes, each wait a random time between half and all of it and never less than ten seconds. `Retry-After` holds the
//! host back for everything, demands included.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::{Duration, Instant};

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
    failures: u32,
    due: Option<Instant>,
    held_until: Option<Instant>,
}

impl Schedule {
    /// A schedule that fetches every so often, or (`None`) only on demand. Nothing is due before the first outcome was told.
    pub fn new(every: Option<Duration>) -> Self {
        Schedule { every, failures: 0, due: None, held_until: None }
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
        self.due = self.every.map(|every| now + random.between(every - every / 10, every + every / 10));
    }

    /// A fetch failed; `host_wait` is the host's `Retry-After`.
    pub fn failed(&mut self, now: Instant, host_wait: Option<Duration>, random: &mut dyn Random) {
        self.held_until = host_wait.map(|wait| now + wait.min(LONGEST_HOLD));
        let whole = FIRST_RETRY.saturating_mul(1 << self.failures.min(16)).min(LONGEST_RETRY);
        self.failures = self.failures.saturating_add(1);
        let retry = now + random.between(whole / 2, whole).max(FIRST_RETRY);
        // A view that never pulls by itself does not begin to because a demand failed.
        self.due = self.every.map(|_| self.held_until.map_or(retry, |until| until.max(retry)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Always the same point between low and high, in percent.
    struct Fixed(u32);

    impl Random for Fixed {
        fn between(&mut self, low: Duration, high: Duration) -> Duration {
            low + (high - low) * self.0 / 100
        }
    }

    fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn polls_every_interval_with_jitter_to_both_sides() {
        let now = Instant::now();
        for (percent, wait) in [(0, 270), (50, 300), (100, 330)] {
            let mut schedule = Schedule::new(Some(secs(300)));
            assert_eq!(schedule.due(), None);
            schedule.succeeded(now, &mut Fixed(percent));
            assert_eq!(schedule.due(), Some(now + secs(wait)));
        }
    }

    #[test]
    fn failures_double_the_wait_up_to_five_minutes() {
        let now = Instant::now();
        let mut schedule = Schedule::new(Some(secs(3600)));
        for wait in [10, 20, 40, 80, 160, 300, 300, 300] {
            schedule.failed(now, None, &mut Fixed(100));
            assert_eq!(schedule.due(), Some(now + secs(wait)));
        }
        let mut schedule = Schedule::new(Some(secs(3600)));
        // Half of each, but never under ten seconds.
        for wait in [10, 10, 20, 40, 80, 150, 150] {
            schedule.failed(now, None, &mut Fixed(0));
            assert_eq!(schedule.due(), Some(now + secs(wait)));
        }
    }

    #[test]
    fn a_fetch_that_works_ends_the_backing_off() {
        let now = Instant::now();
        let mut schedule = Schedule::new(Some(secs(60)));
        schedule.failed(now, None, &mut Fixed(100));
        schedule.failed(now, Some(secs(500)), &mut Fixed(100));
        schedule.succeeded(now, &mut Fixed(50));
        assert_eq!((schedule.due(), schedule.held(now)), (Some(now + secs(60)), None));
        schedule.failed(now, None, &mut Fixed(100));
        assert_eq!(schedule.due(), Some(now + secs(10)));
    }

    #[test]
    fn the_host_is_left_alone_as_long_as_it_asks() {
        let now = Instant::now();
        let mut schedule = Schedule::new(Some(secs(60)));
        schedule.failed(now, Some(secs(120)), &mut Fixed(100));
        assert_eq!(schedule.due(), Some(now + secs(120)));
        assert_eq!(schedule.held(now + secs(20)), Some(secs(100)));
        assert_eq!(schedule.held(now + secs(120)), None);
        // A shorter wish than our own wait changes nothing.
        schedule.failed(now, Some(secs(3)), &mut Fixed(100));
        assert_eq!(schedule.due(), Some(now + secs(20)));
        schedule.failed(now, Some(Duration::MAX), &mut Fixed(100));
        assert_eq!(schedule.held(now), Some(LONGEST_HOLD));
    }

    #[test]
    fn a_view_that_never_pulls_is_never_due() {
        let now = Instant::now();
        let mut schedule = Schedule::new(None);
        schedule.succeeded(now, &mut Fixed(0));
        assert_eq!(schedule.due(), None);
        schedule.failed(now, Some(secs(30)), &mut Fixed(0));
        assert_eq!((schedule.due(), schedule.held(now)), (None, Some(secs(30))));
    }

    #[test]
    fn system_randomness_stays_within_its_bounds_and_varies() {
        let mut random = SystemRandom::default();
        let drawn: Vec<_> = (0..100).map(|_| random.between(secs(5), secs(10))).collect();
        assert!(drawn.iter().all(|d| (secs(5)..=secs(10)).contains(d)));
        assert!(drawn.iter().any(|d| *d != drawn[0]));
        assert_eq!(random.between(secs(7), secs(7)), secs(7));
    }
}
