//! Events on pods and claims.
//!
//! Promises: telling never waits for the API server; the same event on the same object with the same message within ten minutes is one
//! event with a higher count, as the kubelet does it; the queue is bounded, and what does not fit is counted and logged.

mod aggregate;
mod post;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gitmount_proto::fsd::v1 as proto;
use tokio::sync::mpsc;

use crate::claims::Claim;
use crate::volume::Pod;

/// Events that wait to be posted.
const QUEUE: usize = 1024;

/// Longer messages are cut: the API server takes 1024 bytes.
const LONGEST: usize = 1024;

/// What is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// A publish was refused.
    Refused,
    /// The node's copy is served, since the host does not answer.
    Stale,
    /// The first fetch that failed after one that worked.
    FetchFailed,
    /// The first fetch that worked after one that failed.
    FetchRecovered,
    /// Nobody will bring the credential again after a restart.
    NoPublishSecret,
    /// The tree holds something that is not served as one may expect.
    Notice,
    /// A mount that nobody held was mounted anew.
    Replaced,
}

impl Reason {
    /// Its name in events.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Refused => "GitVolumeRefused",
            Reason::Stale => "GitVolumeStale",
            Reason::FetchFailed => "GitFetchFailed",
            Reason::FetchRecovered => "GitFetchRecovered",
            Reason::NoPublishSecret => "GitVolumeNoPublishSecret",
            Reason::Notice => "GitVolumeNotice",
            Reason::Replaced => "GitVolumeReplaced",
        }
    }

    /// Its type in events.
    pub fn kind(self) -> &'static str {
        match self {
            Reason::FetchRecovered | Reason::Notice => "Normal",
            Reason::Refused | Reason::Stale | Reason::FetchFailed | Reason::NoPublishSecret | Reason::Replaced => "Warning",
        }
    }
}

/// What an event is on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Object {
    /// `Pod` or `PersistentVolumeClaim`.
    pub kind: &'static str,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

impl Object {
    /// A pod; `None` when the kubelet did not tell which.
    pub fn pod(pod: &Pod) -> Option<Self> {
        let Pod { name, namespace, uid } = pod.clone();
        (!name.is_empty() && !namespace.is_empty()).then_some(Object { kind: "Pod", namespace, name, uid })
    }

    /// A claim.
    pub fn claim(claim: &Claim) -> Option<Self> {
        let Claim { namespace, name, uid } = claim.clone();
        (!name.is_empty()).then_some(Object { kind: "PersistentVolumeClaim", namespace, name, uid })
    }

    /// The pod and the claim of a target.
    pub fn of(volume: &proto::Volume) -> impl Iterator<Item = Self> {
        let pod = Pod { name: volume.pod.clone(), namespace: volume.namespace.clone(), uid: volume.pod_uid.clone() };
        let claim = Claim { namespace: volume.namespace.clone(), name: volume.claim.clone(), uid: volume.claim_uid.clone() };
        Object::pod(&pod).into_iter().chain(Object::claim(&claim))
    }
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Told {
    /// On what.
    pub object: Object,
    /// What.
    pub reason: Reason,
    /// One sentence, without credentials.
    pub message: String,
}

/// Takes events; a copy is cheap.
#[derive(Debug, Clone)]
pub struct Recorder {
    queue: mpsc::Sender<Told>,
    lost: Arc<AtomicU64>,
}

impl Recorder {
    /// A recorder that posts as `node`'s plugin; without a client events are only logged.
    pub fn start(client: Option<kube::Client>, node: &str) -> Self {
        let (queue, told) = mpsc::channel(QUEUE);
        let node = node.to_owned();
        tokio::spawn(async move { post::run(client, node, told).await });
        Recorder { queue, lost: Arc::default() }
    }

    /// A recorder whose events the caller receives.
    #[cfg(test)]
    pub fn collected() -> (Self, mpsc::Receiver<Told>) {
        let (queue, told) = mpsc::channel(QUEUE);
        (Recorder { queue, lost: Arc::default() }, told)
    }

    /// Tells an event on each of `objects`.
    pub fn tell(&self, objects: impl IntoIterator<Item = Object>, reason: Reason, message: &str) {
        for object in objects {
            let message = cut(message).to_owned();
            if self.queue.try_send(Told { object, reason, message }).is_err() {
                let lost = self.lost.fetch_add(1, Ordering::Relaxed) + 1;
                tracing::warn!(lost, "an event is lost: too many wait for the API server");
            }
        }
    }
}

fn cut(message: &str) -> &str {
    let mut end = message.len().min(LONGEST);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    &message[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_cut_between_characters() {
        let long = format!("{}ß", "x".repeat(LONGEST - 1));
        assert_eq!(cut(&long).len(), LONGEST - 1);
        assert_eq!(cut("short"), "short");
    }

    #[tokio::test]
    async fn telling_never_waits() {
        let (recorder, _told) = Recorder::collected();
        let object = Object { kind: "Pod", namespace: "n".into(), name: "p".into(), uid: "u".into() };
        for _ in 0..QUEUE + 10 {
            recorder.tell([object.clone()], Reason::Refused, "why");
        }
        assert_eq!(recorder.lost.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn a_target_has_its_pod_and_its_claim() {
        let volume = proto::Volume { namespace: "n".into(), pod: "p".into(), claim: "c".into(), ..Default::default() };
        let kinds: Vec<_> = Object::of(&volume).map(|object| object.kind).collect();
        assert_eq!(kinds, ["Pod", "PersistentVolumeClaim"]);
        assert_eq!(Object::of(&proto::Volume::default()).count(), 0, "a mount that was published by hand has neither");
    }
}
