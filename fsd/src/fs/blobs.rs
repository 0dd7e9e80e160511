//! Inflated blobs of middle size, bounded in bytes. Several reads of one blob at once inflate it once.

use std::collections::HashSet;
use std::sync::Arc;

use gitmount_store::error::Result;
use gitmount_store::ids::ObjectId;
use gitmount_store::objects::Objects;
use lru::LruCache;
use parking_lot::{Condvar, Mutex};

type Blob = Arc<Vec<u8>>;

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
    /// Who is being inflated right now.
    busy: HashSet<ObjectId>,
}

impl Blobs {
    /// An empty cache of at most `limit` bytes (one bigger blob is kept alone).
    pub fn new(objects: Objects, limit: u64) -> Self {
        let state = State { map: LruCache::unbounded(), bytes: 0, busy: HashSet::new() };
        Blobs { objects, limit, state: Mutex::new(state), inflated: Condvar::new() }
    }

    /// The whole blob `id`.
    pub fn get(&self, id: ObjectId) -> Result<Blob> {
        let mut state = self.state.lock();
        loop {
            if let Some(blob) = state.map.get(&id) {
                return Ok(blob.clone());
            }
            if state.busy.contains(&id) {
                self.inflated.wait(&mut state);
                continue;
            }
            break;
        }
        state.busy.insert(id);
        drop(state);
        let blob = self.objects.blob(id).map(Arc::new);
        let mut state = self.state.lock();
        state.busy.remove(&id);
        if let Ok(blob) = &blob {
            state.bytes += blob.len() as u64;
            state.map.put(id, blob.clone());
            while state.bytes > self.limit && state.map.len() > 1 {
                if let Some((_, old)) = state.map.pop_lru() {
                    state.bytes -= old.len() as u64;
                }
            }
        }
        drop(state);
        self.inflated.notify_all();
        blob
    }
}
