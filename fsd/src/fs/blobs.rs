//! Inflated blobs of middle size, bounded in bytes. Several reads of one blob at once inflate it once.

use std::collections::HashMap;
use std::sync::Arc;

use gitmount_store::error::Result;
use gitmount_store::ids::ObjectId;
use gitmount_store::objects::Objects;
use lru::LruCache;
use parking_lot::{Condvar, Mutex};

type Blob = Arc<Vec<u8>>;

/// An inflation that is under way.
#[derive(Debug, Default)]
struct Flight {
    waiting: usize,
    result: Option<Blob>,
    finished: bool,
}

/// The cache of one file system.
#[derive(Debug)]
pub struct Blobs {
    objects: Objects,
    limit: u64,
    state: Mutex<State>,
    inflated: Condvar,
}

#[derive(Debug)]
struct State {
    map: LruCache<ObjectId, Blob>,
    bytes: u64,
    /// What is being inflated right now; whoever waits for it leaves a mark to get the result.
    busy: HashMap<ObjectId, Flight>,
}

impl Blobs {
    /// An empty cache of at most `limit` bytes (one bigger blob is kept alone).
    pub fn new(objects: Objects, limit: u64) -> Self {
        let state = State { map: LruCache::unbounded(), bytes: 0, busy: HashMap::new() };
        Blobs { objects, limit, state: Mutex::new(state), inflated: Condvar::new() }
    }

    /// The whole blob `id`, kept for the next read of it.
    pub fn get(&self, id: ObjectId) -> Result<Blob> {
        if let Some(blob) = self.state.lock().map.get(&id) {
            return Ok(blob.clone());
        }
        let blob = self.share(id)?;
        let mut state = self.state.lock();
        if state.map.get(&id).is_none() {
            state.bytes += blob.len() as u64;
            state.map.put(id, blob.clone());
            while state.bytes > self.limit && state.map.len() > 1 {
                if let Some((_, old)) = state.map.pop_lru() {
                    state.bytes -= old.len() as u64;
                }
            }
        }
        Ok(blob)
    }

    /// The whole blob `id`, not kept; those who want it while it is inflated share it.
    pub fn share(&self, id: ObjectId) -> Result<Blob> {
        let mut state = self.state.lock();
        if let Some(blob) = state.map.get(&id) {
            return Ok(blob.clone());
        }
        if let Some(flight) = state.busy.get_mut(&id) {
            flight.waiting += 1;
            while state.busy.get(&id).is_some_and(|f| !f.finished) {
                self.inflated.wait(&mut state);
            }
            let result = state.busy.get_mut(&id).and_then(|flight| {
                flight.waiting -= 1;
                flight.result.clone()
            });
            if state.busy.get(&id).is_some_and(|flight| flight.waiting == 0) {
                state.busy.remove(&id);
            }
            drop(state);
            // It failed for whoever inflated it: this caller gets an error of its own.
            return result.map_or_else(|| self.objects.blob(id).map(Arc::new), Ok);
        }
        state.busy.insert(id, Flight::default());
        drop(state);
        let blob = self.objects.blob(id).map(Arc::new);
        let mut state = self.state.lock();
        if let Some(flight) = state.busy.get_mut(&id) {
            if flight.waiting == 0 {
                state.busy.remove(&id);
            } else {
                flight.finished = true;
                flight.result = blob.as_ref().ok().cloned();
                self.inflated.notify_all();
            }
        }
        blob
    }
}
