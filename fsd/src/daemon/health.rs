//! What is known of a view's fetches: when, how many, and why the last one failed.

use std::time::{SystemTime, UNIX_EPOCH};

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::{Fault, StoreError};

/// How a view is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The last fetch worked, or none is needed.
    Ok,
    /// The host did not answer when the mount began, and has not since: the last known commit is served.
    Stale,
    /// The last fetch failed: the commit of the last one that worked is served.
    Failing,
    /// The ref, or the repository, is gone: its last commit is served.
    Gone,
}

impl From<State> for proto::State {
    fn from(state: State) -> Self {
        match state {
            State::Ok => proto::State::Ok,
            State::Stale => proto::State::Stale,
            State::Failing => proto::State::Failing,
            State::Gone => proto::State::Gone,
        }
    }
}

/// The record of a view.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Health {
    /// How it is doing.
    pub state: State,
    /// Start of the last fetch.
    pub last_attempt: Option<SystemTime>,
    /// Start of the last fetch that worked.
    pub last_success: Option<SystemTime>,
    /// Why the last fetch failed.
    pub error: Option<String>,
    /// Fetches tried.
    pub fetches: u64,
    /// Fetches that failed.
    pub failures: u64,
    /// Moves to another commit.
    pub switches: u64,
}

impl Default for Health {
    fn default() -> Self {
        Health { state: State::Ok, last_attempt: None, last_success: None, error: None, fetches: 0, failures: 0, switches: 0 }
    }
}

impl Health {
    /// A fetch begins.
    pub fn attempted(&mut self, now: SystemTime) {
        self.last_attempt = Some(now);
        self.fetches += 1;
    }

    /// The fetch that began last worked. Gives whether the view is well again after it was not.
    pub fn succeeded(&mut self) -> bool {
        let recovered = self.state != State::Ok;
        self.state = State::Ok;
        self.last_success = self.last_attempt;
        self.error = None;
        recovered
    }

    /// The fetch that began last failed. Gives whether the view was well before.
    pub fn failed(&mut self, error: &StoreError) -> bool {
        let first = self.state == State::Ok;
        self.failures += 1;
        self.error = Some(error.to_string());
        self.state = match (self.state, error.fault()) {
            (_, Fault::NotFound) => State::Gone,
            (State::Stale, Fault::Unreachable) => State::Stale,
            _ => State::Failing,
        };
        first
    }

    /// The mount begins with what the store has, since the host does not answer.
    pub fn stale(&mut self, error: &StoreError) {
        self.failures += 1;
        self.error = Some(error.to_string());
        self.state = State::Stale;
    }
}

/// Milliseconds since 1970; 0 for a clock that stands before it.
pub fn millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(fault: Fault) -> StoreError {
        StoreError::new(fault, "what happened")
    }

    #[test]
    fn states_follow_the_outcomes() {
        let mut health = Health::default();
        health.attempted(UNIX_EPOCH);
        assert!(!health.succeeded());
        assert!(health.failed(&error(Fault::Unreachable)));
        assert_eq!(health.state, State::Failing);
        assert!(!health.failed(&error(Fault::NotFound)), "only the first failure is news");
        assert_eq!((health.state, health.error.as_deref()), (State::Gone, Some("what happened")));
        assert!(health.succeeded());
        assert_eq!((health.state, health.error), (State::Ok, None));
    }

    #[test]
    fn stale_lasts_until_the_host_answers() {
        let mut health = Health::default();
        health.stale(&error(Fault::Unreachable));
        health.failed(&error(Fault::Unreachable));
        assert_eq!(health.state, State::Stale);
        health.failed(&error(Fault::Refused));
        assert_eq!((health.state, health.last_success), (State::Failing, None));
    }

    #[test]
    fn success_is_dated_by_its_start() {
        let mut health = Health::default();
        let start = UNIX_EPOCH + std::time::Duration::from_millis(1500);
        health.attempted(start);
        health.succeeded();
        assert_eq!(health.last_success.map(millis), Some(1500));
    }
}
