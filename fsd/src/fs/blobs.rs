//! Inflated blobs of middle size. Several reads of one blob at once inflate it once.

use std::collections::HashMap;
use std::sync::Arc;

use gitmount_store::error::Result;
use gitmount_store::ids::ObjectId;
use gitmount_store::objects::Objects;
use parking_lot::{Condvar, Mutex};

use crate::view::caches::{Caches, Source};

type Blob = Arc<Vec<u8>>;

/// An inflation that is under way.
#[derive(Debug, Default)]
struct Flight {
    waiting: usize,
    result: Option<Blob>,
    finished: bool,
}

/// The blobs of one file system.
#[derive(Debug)]
pub struct Blobs {
    objects: Objects,
    caches: Arc<Caches>,
    source: Source,
    /// What is being inflated right now; whoever waits for it leaves a mark to get the result.
    busy: Mutex<HashMap<ObjectId, Flight>>,
    inflated: Condvar,
}

impl Blobs {
    /// Blobs of `objects`, kept in `caches`.
    pub fn new(objects: Objects, caches: Arc<Caches>) -> Self {
        let source = caches.source(&objects);
        Blobs { objects, caches, source, busy: Mutex::default(), inflated: Condvar::new() }
    }

    /// The whole blob `id` for a reader, kept for the next read of it.
    pub fn get(&self, id: ObjectId) -> Result<Blob> {
        self.caches.blobs().get(self.source, id).map_or_else(|| self.keep(id), Ok)
    }

    /// The whole blob `id`, kept for a read that may come.
    pub fn keep(&self, id: ObjectId) -> Result<Blob> {
        let blob = self.inflate(id)?;
        let bytes = blob.len() as u64;
        Ok(self.caches.blobs().put(self.source, id, blob, bytes))
    }

    /// Keeps a blob no longer.
    pub fn forget(&self, id: ObjectId) {
        self.caches.blobs().remove(self.source, id);
    }

    /// The whole blob `id` for a reader, not kept.
    pub fn share(&self, id: ObjectId) -> Result<Blob> {
        self.caches.blobs().get(self.source, id).map_or_else(|| self.inflate(id), Ok)
    }

    /// The whole blob `id`, not kept; those who want it while it is inflated share it.
    pub fn inflate(&self, id: ObjectId) -> Result<Blob> {
        self.share_with(id, || self.objects.blob(id).map(Arc::new))
    }

    fn share_with(&self, id: ObjectId, inflate: impl FnOnce() -> Result<Blob>) -> Result<Blob> {
        if let Some(blob) = self.caches.blobs().look(self.source, id) {
            return Ok(blob);
        }
        let mut busy = self.busy.lock();
        if let Some(flight) = busy.get_mut(&id) {
            flight.waiting += 1;
            while busy.get(&id).is_some_and(|f| !f.finished) {
                self.inflated.wait(&mut busy);
            }
            let result = busy.get_mut(&id).and_then(|flight| {
                flight.waiting -= 1;
                flight.result.clone()
            });
            if busy.get(&id).is_some_and(|flight| flight.waiting == 0) {
                busy.remove(&id);
            }
            drop(busy);
            // It failed for whoever inflated it: this caller gets an error of its own.
            return result.map_or_else(inflate, Ok);
        }
        busy.insert(id, Flight::default());
        drop(busy);
        let mut landing = Landing { blobs: self, id, result: None };
        let blob = inflate();
        landing.result = blob.as_ref().ok().cloned();
        blob
    }
}

/// Ends a flight when it is dropped, also by a panic: nobody waits for ever.
struct Landing<'a> {
    blobs: &'a Blobs,
    id: ObjectId,
    result: Option<Blob>,
}

impl Drop for Landing<'_> {
    fn drop(&mut self) {
        let mut busy = self.blobs.busy.lock();
        if let Some(flight) = busy.get_mut(&self.id) {
            if flight.waiting == 0 {
                busy.remove(&self.id);
            } else {
                flight.finished = true;
                flight.result = self.result.take();
                self.blobs.inflated.notify_all();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gitmount_store::local::LocalRepository;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn a_panic_while_inflating_wakes_those_who_wait() {
        let dir = tempfile::tempdir().unwrap();
        assert!(std::process::Command::new("git").args(["init", "-q", "--bare"]).arg(dir.path()).status().unwrap().success());
        let objects = LocalRepository::discover(dir.path()).unwrap().objects();
        let id = ObjectId::null(objects.hash());
        let blobs = Blobs::new(objects, Arc::default());
        std::thread::scope(|scope| {
            let waits = std::sync::OnceLock::new();
            let panics = || {
                waits.get_or_init(|| scope.spawn(|| blobs.share_with(id, || Ok(Arc::new(b"whole".to_vec())))));
                while blobs.busy.lock().get(&id).is_some_and(|flight| flight.waiting == 0) {
                    std::thread::yield_now();
                }
                panic!("on purpose");
            };
            catch_unwind(AssertUnwindSafe(|| blobs.share_with(id, panics))).unwrap_err();
            let blob = waits.into_inner().unwrap().join().unwrap();
            assert_eq!(blob.unwrap().as_slice(), b"whole");
        });
        assert!(blobs.busy.lock().is_empty());
    }
}
