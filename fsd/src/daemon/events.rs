//! What happens to views, told to those who watch and to the log, and remembered for a while.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use gitmount_proto::fsd::v1 as proto;
pub use gitmount_proto::fsd::v1::event::Kind;
use gitmount_store::ids::CommitId;
use tokio::sync::broadcast;

use super::health::millis;

/// Events that are remembered of a view.
const REMEMBERED: usize = 100;

/// Events that a watcher may be behind.
const BEHIND: usize = 1024;

/// The events of all views.
#[derive(Debug)]
pub struct Events {
    sender: broadcast::Sender<proto::Event>,
}

impl Default for Events {
    fn default() -> Self {
        Events { sender: broadcast::Sender::new(BEHIND) }
    }
}

impl Events {
    /// From now on.
    pub fn watch(&self) -> broadcast::Receiver<proto::Event> {
        self.sender.subscribe()
    }

    /// Tells everybody.
    pub fn tell(&self, event: proto::Event) {
        let shown: Vec<_> = event.targets.iter().map(|target| String::from_utf8_lossy(target)).collect();
        let targets = shown.join(" ");
        let volumes: Vec<_> = event.volumes.iter().map(|v| format!("{}/{}", v.namespace, v.name)).collect();
        let volumes = volumes.join(" ");
        let proto::Event { url, r#ref: reference, commit, message, .. } = &event;
        match event.kind() {
            Kind::FetchFailed | Kind::Stale | Kind::Replaced => {
                tracing::warn!(%url, r#ref = %reference, %commit, %targets, %volumes, "{message}")
            }
            _ => tracing::info!(%url, r#ref = %reference, %commit, %targets, %volumes, "{message}"),
        }
        // Nobody watches: nobody is told.
        let _ = self.sender.send(event);
    }
}

/// The last events of one view.
#[derive(Debug, Default)]
pub struct Ring(Mutex<VecDeque<proto::Event>>);

impl Ring {
    /// Remembers one, and forgets the oldest where there are too many.
    pub fn push(&self, event: proto::Event) {
        let mut ring = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if ring.len() == REMEMBERED {
            ring.pop_front();
        }
        ring.push_back(event);
    }

    /// All, oldest first.
    pub fn all(&self) -> Vec<proto::Event> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }
}

/// The events of a mount without a daemon: they are remembered, and told nobody.
#[derive(Debug, Default)]
pub struct Diary {
    /// What of each event is always the same.
    about: proto::Event,
    ring: Ring,
}

impl Diary {
    /// An empty one of a mount at `target`.
    pub fn new(url: &str, reference: &str, target: &Path) -> Self {
        let targets = vec![target.as_os_str().as_encoded_bytes().to_vec()];
        let about = proto::Event { url: url.into(), r#ref: reference.into(), targets, ..Default::default() };
        Diary { about, ring: Ring::default() }
    }

    /// What is shown, for sentences.
    pub fn subject(&self) -> String {
        format!("{} at {}", self.about.url, self.about.r#ref)
    }

    /// Remembers what happened while `commit` was shown.
    pub fn note(&self, kind: Kind, commit: CommitId, message: String) {
        self.ring.push(proto::Event { kind: kind.into(), time_ms: now(), message, commit: commit.to_string(), ..self.about.clone() });
    }

    /// All, oldest first.
    pub fn all(&self) -> Vec<proto::Event> {
        self.ring.all()
    }
}

/// The time of an event that happens now.
pub fn now() -> u64 {
    millis(SystemTime::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_keeps_the_last_hundred() {
        let ring = Ring::default();
        for n in 0..250 {
            ring.push(proto::Event { time_ms: n, ..Default::default() });
        }
        let times: Vec<u64> = ring.all().iter().map(|event| event.time_ms).collect();
        assert_eq!(times, (150..250).collect::<Vec<_>>());
    }
}
