//! The read-only volumes that there are, watched, and the demands that are stamped on them.
//!
//! Promises: who asks for a demand is answered once a value that is later than the question is on the volume; those who ask at the same time
//! share one write.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use serde_json::json;
use tokio_stream::StreamExt as _;

use super::payload::Push;
use super::repository::{Repository, follows};
use crate::demands::{EXPECTED, REQUESTED};

/// How long one write may take.
const LIMIT: Duration = Duration::from_secs(10);

/// What of a PersistentVolume matters here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Volume {
    /// The PersistentVolume's name.
    pub name: String,
    /// The namespace of its claim; `None` while it has none.
    pub namespace: Option<String>,
    /// The Secret of its webhook.
    pub secret: Option<String>,
    repository: Option<Repository>,
    followed: String,
}

impl Volume {
    /// Reads one; `None` when it is another driver's.
    pub fn of(volume: &PersistentVolume) -> Option<Self> {
        let spec = volume.spec.as_ref()?;
        let csi = spec.csi.as_ref().filter(|csi| csi.driver == crate::DRIVER)?;
        let attributes = csi.volume_attributes.clone().unwrap_or_default();
        let bound = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        Some(Volume {
            name: volume.metadata.name.clone()?,
            namespace: spec.claim_ref.as_ref().filter(|_| bound).and_then(|claim| claim.namespace.clone()),
            secret: attributes.get("webhookSecret").cloned(),
            repository: attributes.get("url").and_then(|url| Repository::parse(url)),
            followed: attributes.get("ref").cloned().unwrap_or_default(),
        })
    }

    /// Whether a push that was verified by a Secret concerns it; with the commit that it follows to.
    pub fn concerned(&self, namespace: &str, secret: &str, push: &Push) -> Option<Option<String>> {
        let named = self.namespace.as_deref() == Some(namespace) && self.secret.as_deref() == Some(secret);
        if !named || !self.repository.as_ref().is_some_and(|own| push.repositories.contains(own)) {
            return None;
        }
        let of = |(name, commit): &(String, Option<String>)| {
            follows(&self.followed, name, push.default_branch.as_deref()).then(|| commit.clone())
        };
        push.refs.iter().find_map(of)
    }
}

/// When a volume was stamped last: the question is older than the write.
type Stamped = Arc<tokio::sync::Mutex<Option<(Instant, Option<String>)>>>;

/// All volumes of the driver.
pub struct Volumes {
    api: Api<PersistentVolume>,
    known: Mutex<HashMap<String, Volume>>,
    listed: tokio::sync::watch::Sender<bool>,
    stamped: Mutex<HashMap<String, Stamped>>,
}

impl std::fmt::Debug for Volumes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Volumes({})", self.known().len())
    }
}

impl Volumes {
    /// None is known until [`watch`](Self::watch) has listed them.
    pub fn new(client: Client) -> Self {
        let listed = tokio::sync::watch::Sender::new(false);
        Volumes { api: Api::all(client), known: Mutex::default(), listed, stamped: Mutex::default() }
    }

    /// Watches for ever.
    pub async fn watch(&self) {
        let mut said = false;
        let mut fresh: HashMap<String, Volume> = HashMap::new();
        let mut stream = std::pin::pin!(watcher(self.api.clone(), watcher::Config::default()));
        let mut wait = Duration::from_millis(200);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => {
                    said = false;
                    wait = Duration::from_millis(200);
                    self.take(event, &mut fresh);
                }
                Err(error) => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!(%error, "the PersistentVolumes cannot be watched");
                    }
                    tokio::time::sleep(wait).await;
                    wait = (wait * 2).min(Duration::from_secs(10));
                }
            }
        }
    }

    fn take(&self, event: Event<PersistentVolume>, fresh: &mut HashMap<String, Volume>) {
        match event {
            Event::Init => fresh.clear(),
            Event::InitApply(object) => {
                if let Some(volume) = Volume::of(&object) {
                    fresh.insert(volume.name.clone(), volume);
                }
            }
            Event::InitDone => {
                *self.known() = std::mem::take(fresh);
                let all = self.known().keys().cloned().collect::<std::collections::HashSet<_>>();
                self.stamps().retain(|name, _| all.contains(name));
                self.listed.send_replace(true);
            }
            Event::Apply(object) => {
                let name = object.metadata.name.clone().unwrap_or_default();
                match Volume::of(&object) {
                    Some(volume) => drop(self.known().insert(name, volume)),
                    None => drop(self.known().remove(&name)),
                }
            }
            Event::Delete(object) => {
                let name = object.metadata.name.unwrap_or_default();
                self.known().remove(&name);
                self.stamps().remove(&name);
            }
        }
    }

    /// Whether they were listed.
    pub fn is_listed(&self) -> bool {
        *self.listed.borrow()
    }

    /// Waits until they were listed.
    pub async fn listed(&self) {
        // The sender lives as long as this does.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// The names of all.
    pub fn names(&self) -> Vec<String> {
        self.known().keys().cloned().collect()
    }

    /// Those that a push concerns, each with the commit that it follows to.
    pub fn concerned(&self, namespace: &str, secret: &str, push: &Push) -> Vec<(String, Option<String>)> {
        let known = self.known();
        known.values().filter_map(|volume| Some((volume.name.clone(), volume.concerned(namespace, secret, push)?))).collect()
    }

    /// Demands a pull of every volume, since webhooks may have been missed. What cannot be written is tried again, a few times.
    pub async fn demand_all(&self) {
        let names = self.names();
        tracing::info!(volumes = names.len(), "demanding a pull of every volume, since webhooks may have been missed");
        for name in names {
            let mut wait = Duration::from_millis(500);
            for _ in 0..6 {
                match self.demand(&name, None).await {
                    Ok(_) => break,
                    Err(error) => tracing::warn!(volume = name, %error, "a volume cannot be marked"),
                }
                tokio::time::sleep(wait).await;
                wait *= 2;
            }
        }
    }

    /// Demands a pull of a volume; `commit` is what is expected. `false` when the volume is gone.
    ///
    /// # Errors
    /// When the API server does not take it.
    pub async fn demand(&self, name: &str, commit: Option<String>) -> kube::Result<bool> {
        let asked = Instant::now();
        let stamped = Arc::clone(self.stamps().entry(name.to_owned()).or_default());
        let mut last = stamped.lock().await;
        // Somebody else's write began after this question, and says the same.
        if last.as_ref().is_some_and(|(at, expected)| *at > asked && *expected == commit) {
            return Ok(true);
        }
        let began = Instant::now();
        let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string();
        let patch = json!({ "metadata": { "annotations": { REQUESTED: now, EXPECTED: commit } } });
        let (parameters, patch) = (PatchParams::default(), Patch::Merge(patch));
        let write = self.api.patch_metadata(name, &parameters, &patch);
        let away = || kube::Error::Service("the API server does not answer".into());
        match tokio::time::timeout(LIMIT, write).await.map_err(|_| away())? {
            Ok(_) => {
                *last = Some((began, commit));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, Volume>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stamps(&self) -> MutexGuard<'_, HashMap<String, Stamped>> {
        self.stamped.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(driver: &str, phase: &str, attributes: serde_json::Value) -> PersistentVolume {
        serde_json::from_value(json!({
            "metadata": { "name": "franchises" },
            "spec": {
                "csi": { "driver": driver, "volumeHandle": "franchises", "volumeAttributes": attributes },
                "claimRef": { "namespace": "sites", "name": "data" },
            },
            "status": { "phase": phase },
        }))
        .unwrap()
    }

    fn push(refs: &[&str]) -> Push {
        Push {
            repositories: vec![Repository::parse("ssh://git@code.example.com/data/f.git").unwrap()],
            refs: refs.iter().map(|name| ((*name).to_owned(), Some("c".into()))).collect(),
            default_branch: Some("main".into()),
        }
    }

    #[test]
    fn a_push_concerns_what_names_the_secret_in_its_namespace_and_follows_the_ref() {
        let attributes = json!({"url": "https://code.example.com/data/f", "ref": "main", "webhookSecret": "hook"});
        let volume = Volume::of(&volume("git.liken.sh", "Bound", attributes)).unwrap();
        assert_eq!(volume.concerned("sites", "hook", &push(&["refs/heads/x", "refs/heads/main"])), Some(Some("c".into())));
        for (namespace, secret, refs) in
            [("other", "hook", "refs/heads/main"), ("sites", "other", "refs/heads/main"), ("sites", "hook", "refs/heads/x")]
        {
            assert_eq!(volume.concerned(namespace, secret, &push(&[refs])), None);
        }
    }

    #[test]
    fn others_and_unbound_ones_are_not_concerned() {
        let attributes = json!({"url": "https://code.example.com/data/f", "webhookSecret": "hook"});
        assert_eq!(Volume::of(&volume("nfs.csi.k8s.io", "Bound", attributes.clone())), None);
        let unbound = Volume::of(&volume("git.liken.sh", "Available", attributes)).unwrap();
        assert_eq!(unbound.concerned("sites", "hook", &push(&["refs/heads/main"])), None);
        let silent = Volume::of(&volume("git.liken.sh", "Bound", json!({"url": "https://code.example.com/data/f"}))).unwrap();
        assert_eq!(silent.concerned("sites", "", &push(&["refs/heads/main"])), None, "a volume without a webhook has none");
    }
}
