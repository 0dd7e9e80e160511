//! Statistics of volumes. The daemon counts; what it said last is the answer while it does not answer.

use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use gitmount_proto::csi::v1 as csi;
use gitmount_proto::csi::v1::volume_usage::Unit;
use lru::LruCache;

use crate::daemon::Daemon;
use crate::health::{self, Health};

/// Targets whose numbers are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(4096).expect("it is not zero");

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counted {
    bytes: i64,
    inodes: i64,
}

/// The numbers of all targets.
#[derive(Debug)]
pub struct Statistics(Mutex<LruCache<String, Counted>>);

impl Default for Statistics {
    fn default() -> Self {
        Statistics(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl Statistics {
    /// How much is at a target, and how its view is doing; answers within a second.
    pub async fn of(&self, target: &str, daemon: &Daemon, health: &Health) -> csi::NodeGetVolumeStatsResponse {
        let (counted, seen) = tokio::join!(daemon.statistics(target), health.look());
        let counted = match counted {
            Ok(answer) => {
                let signed = |n: Option<u64>| n.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
                let before = self.remembered(target);
                // Not counted yet for the newest commit: the last numbers are nearer than none.
                let counted =
                    Counted { bytes: signed(answer.bytes).unwrap_or(before.bytes), inodes: signed(answer.inodes).unwrap_or(before.inodes) };
                self.lock().put(target.to_owned(), counted);
                counted
            }
            Err(_) => self.remembered(target),
        };
        let trouble = match &seen.away {
            Some(error) => Some(error.to_string()),
            None => health::at(&seen.views, target).and_then(|(view, _)| health::trouble(view)),
        };
        csi::NodeGetVolumeStatsResponse {
            usage: usage(counted),
            volume_condition: Some(csi::VolumeCondition { abnormal: trouble.is_some(), message: trouble.unwrap_or_else(|| "well".into()) }),
        }
    }

    /// Nothing is there any more.
    pub fn forget(&self, target: &str) {
        self.lock().pop(target);
    }

    fn remembered(&self, target: &str) -> Counted {
        self.lock().get(target).copied().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<String, Counted>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A read-only tree is always full.
fn usage(counted: Counted) -> Vec<csi::VolumeUsage> {
    let of = |total: i64, unit: Unit| csi::VolumeUsage { available: 0, total, used: total, unit: unit.into() };
    vec![of(counted.bytes, Unit::Bytes), of(counted.inodes, Unit::Inodes)]
}
