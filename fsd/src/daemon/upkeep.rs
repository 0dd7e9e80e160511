//! The store's upkeep by a daemon: packs are merged after fetches with news, and the store is kept under its limit.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use gitmount_store::Fault;
use gitmount_store::maintenance;
use gitmount_store::repository::Repository;
use gitmount_store::store::Store;

use super::shown::lock;

/// What looks after the store.
#[derive(Debug)]
pub struct Upkeep {
    store: Arc<Store>,
    limit: Option<u64>,
    stop: AtomicBool,
    bytes: AtomicU64,
    /// What was said last of a limit that cannot be kept.
    said: Mutex<Option<String>>,
}

impl Upkeep {
    /// Looks after `store`, which may take `limit` bytes.
    pub fn new(store: Arc<Store>, limit: Option<u64>) -> Self {
        Upkeep { store, limit, stop: AtomicBool::new(false), bytes: AtomicU64::new(0), said: Mutex::default() }
    }

    /// Bytes that the store may take.
    pub fn limit(&self) -> Option<u64> {
        self.limit
    }

    /// After a fetch of `repository` with news.
    pub fn after_news(&self, repository: &Repository) {
        match maintenance::maintain(repository, &self.stop) {
            Ok(None) => {}
            Ok(Some(report)) => tracing::info!(url = %repository.url(), ?report, "packed the repository"),
            Err(error) if error.fault() == Fault::Cancelled => {}
            Err(error) => tracing::warn!(url = %repository.url(), %error, "the repository cannot be packed; it works on as it is"),
        }
        self.measure();
    }

    /// Removes what is not needed while the store is over its limit, and notes how big it is.
    pub fn measure(&self) {
        let mut said = lock(&self.said);
        match self.store.shrink(self.limit.unwrap_or(u64::MAX), &|_| false) {
            Ok(report) => {
                self.bytes.store(report.bytes_after, Ordering::Relaxed);
                if !report.removed.is_empty() {
                    tracing::info!(removed = ?report.removed, bytes = report.bytes_after, "repositories that nobody uses were removed");
                }
                let shortage = report.shortage();
                if *said != shortage {
                    if let Some(shortage) = &shortage {
                        tracing::warn!("{shortage}");
                    }
                    *said = shortage;
                }
            }
            Err(error) => tracing::warn!(%error, "the store cannot be kept under its limit"),
        }
    }

    /// Bytes on disk, when it was looked at last.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Interrupts what runs.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}
