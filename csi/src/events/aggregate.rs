//! Which events are one: the same on the same object, with the same message, within ten minutes.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::Told;

/// How long after the last of a kind another one is counted to it.
const WINDOW: Duration = Duration::from_secs(600);

/// Kinds that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

/// What to do with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    /// Post a new one.
    Create,
    /// Raise the count of the posted one.
    Count {
        /// Its name.
        name: String,
        /// The new count.
        count: i32,
    },
}

#[derive(Debug)]
struct Posted {
    name: String,
    count: i32,
    last: Instant,
}

/// The events that were posted lately.
#[derive(Debug)]
pub(super) struct Aggregate(LruCache<Told, Posted>);

impl Default for Aggregate {
    fn default() -> Self {
        Aggregate(LruCache::new(REMEMBERED))
    }
}

impl Aggregate {
    /// What to do with an event that happens now.
    pub(super) fn step(&mut self, told: &Told, now: Instant) -> Step {
        match self.0.get(told) {
            Some(posted) if now.saturating_duration_since(posted.last) <= WINDOW => {
                Step::Count { name: posted.name.clone(), count: posted.count.saturating_add(1) }
            }
            _ => Step::Create,
        }
    }

    /// It was posted under this name, with this count.
    pub(super) fn posted(&mut self, told: Told, name: String, count: i32, now: Instant) {
        self.0.put(told, Posted { name, count, last: now });
    }

    /// What was posted is gone.
    pub(super) fn forget(&mut self, told: &Told) {
        self.0.pop(told);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Object, Reason};
    use super::*;

    fn told(message: &str) -> Told {
        let object = Object { kind: "Pod", namespace: "n".into(), name: "p".into(), uid: "u".into() };
        Told { object, reason: Reason::Refused, message: message.into() }
    }

    #[test]
    fn equal_events_within_the_window_are_counted() {
        let (mut aggregate, start) = (Aggregate::default(), Instant::now());
        let (event, mut count) = (told("why"), 1);
        assert_eq!(aggregate.step(&event, start), Step::Create);
        aggregate.posted(event.clone(), "p.1".into(), count, start);
        let mut now = start;
        // Each one opens the window anew: a refusal that is retried for an hour stays one line.
        for _ in 0..10 {
            now += WINDOW;
            count += 1;
            assert_eq!(aggregate.step(&event, now), Step::Count { name: "p.1".into(), count });
            aggregate.posted(event.clone(), "p.1".into(), count, now);
        }
        assert_eq!(aggregate.step(&event, now + WINDOW + Duration::from_secs(1)), Step::Create);
    }

    #[test]
    fn any_difference_makes_another_event() {
        let (mut aggregate, now) = (Aggregate::default(), Instant::now());
        aggregate.posted(told("why"), "p.1".into(), 1, now);
        assert_eq!(aggregate.step(&told("another"), now), Step::Create);
        let other = Told { reason: Reason::Stale, ..told("why") };
        assert_eq!(aggregate.step(&other, now), Step::Create);
        aggregate.forget(&told("why"));
        assert_eq!(aggregate.step(&told("why"), now), Step::Create);
    }
}
