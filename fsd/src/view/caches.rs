//! What the views of a process keep in memory together: decoded trees and inflated blobs, each bounded in bytes however many views there
//! are. A key names the object database, too: nobody finds what only another repository has.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gitmount_store::ids::ObjectId;
use gitmount_store::objects::Objects;
use lru::LruCache;
use parking_lot::Mutex;

use super::trees::Listing;

/// Bytes of decoded trees kept by default.
const TREES: u64 = 8 << 20;
/// Bytes of inflated blobs kept by default.
const BLOBS: u64 = 8 << 20;
/// Trees kept whatever their size: each page of a listing needs the directory and its parent, and neither may push the other out.
const TREES_AT_LEAST: usize = 4;
/// A blob bigger than the bound is kept alone.
const BLOBS_AT_LEAST: usize = 1;

/// An object database, among those that use the same caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Source(usize);

/// The caches. Give the same ones to all views of a process.
#[derive(Debug)]
pub struct Caches {
    trees: Bounded<Arc<Listing>>,
    blobs: Bounded<Arc<Vec<u8>>>,
    sources: Mutex<HashMap<PathBuf, Source>>,
}

impl Caches {
    /// Empty caches of about `trees` bytes of decoded trees and `blobs` bytes of inflated blobs.
    pub fn new(trees: u64, blobs: u64) -> Self {
        Caches { trees: Bounded::new(trees, TREES_AT_LEAST), blobs: Bounded::new(blobs, BLOBS_AT_LEAST), sources: Mutex::default() }
    }

    /// The key of an object database: views of one repository share what they keep.
    pub fn source(&self, objects: &Objects) -> Source {
        let mut sources = self.sources.lock();
        let next = Source(sources.len());
        *sources.entry(objects.directory().to_owned()).or_insert(next)
    }

    /// Decoded trees.
    pub fn trees(&self) -> &Bounded<Arc<Listing>> {
        &self.trees
    }

    /// Inflated blobs.
    pub fn blobs(&self) -> &Bounded<Arc<Vec<u8>>> {
        &self.blobs
    }
}

impl Default for Caches {
    fn default() -> Self {
        Caches::new(TREES, BLOBS)
    }
}

/// The values that were used last, bounded in bytes.
#[derive(Debug)]
pub struct Bounded<V> {
    limit: u64,
    at_least: usize,
    kept: Mutex<Kept<V>>,
    hits: AtomicU64,
    misses: AtomicU64,
}

/// How much a cache was of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Use {
    /// What was asked for and there.
    pub hits: u64,
    /// What was asked for and not there.
    pub misses: u64,
    /// Bytes that are kept now, as far as they were told.
    pub bytes: u64,
}

#[derive(Debug)]
struct Kept<V> {
    map: LruCache<(Source, ObjectId), (V, u64)>,
    bytes: u64,
}

impl<V: Clone> Bounded<V> {
    fn new(limit: u64, at_least: usize) -> Self {
        let kept = Mutex::new(Kept { map: LruCache::unbounded(), bytes: 0 });
        Bounded { limit, at_least, kept, hits: AtomicU64::new(0), misses: AtomicU64::new(0) }
    }

    /// What is kept for an object.
    pub fn get(&self, source: Source, id: ObjectId) -> Option<V> {
        let found = self.look(source, id);
        let counter = if found.is_some() { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// The same for who asked already, or asks for nobody: it is not counted.
    pub fn look(&self, source: Source, id: ObjectId) -> Option<V> {
        self.kept.lock().map.get(&(source, id)).map(|(value, _)| value.clone())
    }

    /// Keeps `value`, which takes `bytes`; what was kept for the object before stays and is returned.
    pub fn put(&self, source: Source, id: ObjectId, value: V, bytes: u64) -> V {
        // Dropped after the lock: giving memory back takes time.
        let mut old = Vec::new();
        let mut kept = self.kept.lock();
        if let Some((first, _)) = kept.map.get(&(source, id)) {
            return first.clone();
        }
        kept.bytes += bytes;
        kept.map.put((source, id), (value.clone(), bytes));
        while kept.bytes > self.limit && kept.map.len() > self.at_least {
            let Some((_, (value, bytes))) = kept.map.pop_lru() else { break };
            kept.bytes -= bytes;
            old.push(value);
        }
        drop(kept);
        value
    }

    /// Keeps an object no longer.
    pub fn remove(&self, source: Source, id: ObjectId) {
        let mut kept = self.kept.lock();
        let removed = kept.map.pop(&(source, id));
        if let Some((_, bytes)) = &removed {
            kept.bytes -= bytes;
        }
        drop(kept);
    }

    /// How much it was of use so far.
    pub fn used(&self) -> Use {
        Use { hits: self.hits.load(Ordering::Relaxed), misses: self.misses.load(Ordering::Relaxed), bytes: self.bytes() }
    }

    /// Bytes that are kept now, as far as they were told.
    pub fn bytes(&self) -> u64 {
        self.kept.lock().bytes
    }
}
