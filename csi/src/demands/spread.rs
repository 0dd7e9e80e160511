//! When a node pulls for a demand: at a random time within the spread, and one time for all the demands on a repository that come before it.
//! Pure: the time and the randomness are passed in.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the demands of one push are gathered: the volumes of a repository are marked one after the other, and cost one pull.
const GATHER: Duration = Duration::from_millis(100);

/// What is planned for a demand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Planned {
    /// How long from now the repository is pulled.
    pub wait: Duration,
    /// Whether an earlier demand brings that pull, and this one needs none of its own.
    pub shared: bool,
}

/// The pulls of a node that wait for their time.
#[derive(Debug)]
pub struct Spread {
    over: Duration,
    planned: HashMap<String, Instant>,
}

impl Spread {
    /// Spreads pulls over this time.
    pub fn new(over: Duration) -> Self {
        Spread { over, planned: HashMap::new() }
    }

    /// Plans a pull of a repository for a demand that came now; `unit` is a random number from 0 to 1.
    pub fn plan(&mut self, url: &str, now: Instant, unit: f64) -> Planned {
        self.planned.retain(|_, at| *at > now);
        if let Some(at) = self.planned.get(url) {
            return Planned { wait: *at - now, shared: true };
        }
        let wait = self.over.mul_f64(unit).max(GATHER);
        self.planned.insert(url.to_owned(), now + wait);
        Planned { wait, shared: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn the_wait_is_a_part_of_the_spread() {
        for (unit, seconds) in [(0.25, 15), (0.5, 30), (1.0, 60)] {
            let planned = Spread::new(MINUTE).plan("a", Instant::now(), unit);
            assert_eq!(planned, Planned { wait: Duration::from_secs(seconds), shared: false });
        }
    }

    #[test]
    fn without_a_spread_only_the_marks_of_one_push_are_gathered() {
        let (mut spread, now) = (Spread::new(Duration::ZERO), Instant::now());
        assert_eq!(spread.plan("a", now, 0.9), Planned { wait: GATHER, shared: false });
        assert_eq!(spread.plan("a", now + GATHER / 2, 0.1), Planned { wait: GATHER / 2, shared: true });
        assert!(!spread.plan("b", now + GATHER / 2, 0.1).shared, "another repository has its own");
    }

    #[test]
    fn a_demand_whose_time_has_come_is_shared_no_more() {
        let (mut spread, now) = (Spread::new(MINUTE), Instant::now());
        assert_eq!(spread.plan("a", now, 0.5).wait, MINUTE / 2);
        assert_eq!(spread.plan("a", now + MINUTE / 4, 0.9), Planned { wait: MINUTE / 4, shared: true });
        assert_eq!(spread.plan("a", now + MINUTE / 2, 0.9), Planned { wait: MINUTE.mul_f64(0.9), shared: false });
    }
}
