//! Which claim a PersistentVolume is bound to: events go there, too.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::PersistentVolume;
use kube::{Api, Client};
use lru::LruCache;

/// How long the API server may take; without an answer there is no event on the claim.
const LIMIT: Duration = Duration::from_secs(2);

/// A binding is looked up again after this.
const FRESH: Duration = Duration::from_secs(60);

/// Bindings that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(1024).expect("it is not zero");

/// A claim.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Claim {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// The API server's PersistentVolumes.
pub struct Claims {
    volumes: Option<Api<PersistentVolume>>,
    known: Mutex<LruCache<String, (Instant, Option<Claim>)>>,
}

impl std::fmt::Debug for Claims {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Claims")
    }
}

impl Claims {
    /// Without a client no claim is known.
    pub fn new(client: Option<Client>) -> Self {
        Claims { volumes: client.map(Api::all), known: Mutex::new(LruCache::new(REMEMBERED)) }
    }

    /// The claim of a PersistentVolume.
    pub async fn of(&self, volume: &str) -> Option<Claim> {
        let volumes = self.volumes.as_ref()?;
        if let Some((at, claim)) = self.known().get(volume)
            && at.elapsed() < FRESH
        {
            return claim.clone();
        }
        let found = match tokio::time::timeout(LIMIT, volumes.get_opt(volume)).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::warn!(volume, %error, "the PersistentVolume cannot be read: its claim gets no event");
                return None;
            }
            Err(_) => {
                tracing::warn!(volume, "the API server does not answer: the claim gets no event");
                return None;
            }
        };
        let claim = found.and_then(|volume| volume.spec?.claim_ref).map(|claim| Claim {
            namespace: claim.namespace.unwrap_or_default(),
            name: claim.name.unwrap_or_default(),
            uid: claim.uid.unwrap_or_default(),
        });
        self.known().put(volume.to_owned(), (Instant::now(), claim.clone()));
        claim
    }

    fn known(&self) -> std::sync::MutexGuard<'_, LruCache<String, (Instant, Option<Claim>)>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
