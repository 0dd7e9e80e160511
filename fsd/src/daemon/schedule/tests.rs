//! The schedule of one view, with fixed times and drawn numbers.

use super::*;

/// Always the same point between low and high, in percent.
pub(super) struct Fixed(pub(super) u32);

impl Random for Fixed {
    fn between(&mut self, low: Duration, high: Duration) -> Duration {
        low + (high - low) * self.0 / 100
    }
}

pub(super) fn secs(n: u64) -> Duration {
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
