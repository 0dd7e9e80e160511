//! Decoded trees, bounded in bytes.

use std::sync::Arc;

use gitmount_store::error::Result;
use gitmount_store::ids::ObjectId;
use gitmount_store::objects::{Objects, Tree};
use lru::LruCache;
use parking_lot::Mutex;

/// Bytes of decoded trees kept.
const LIMIT: usize = 8 << 20;
/// Trees kept whatever their size: each page of a listing needs the directory and its parent, and neither may push the other out.
const AT_LEAST: usize = 4;

/// Decoded trees of one object database.
#[derive(Debug)]
pub struct Trees {
    objects: Objects,
    cache: Mutex<Cache>,
}

#[derive(Debug)]
struct Cache {
    map: LruCache<ObjectId, Arc<Tree>>,
    bytes: usize,
}

impl Trees {
    /// An empty cache over `objects`.
    pub fn new(objects: Objects) -> Self {
        Trees { objects, cache: Mutex::new(Cache { map: LruCache::unbounded(), bytes: 0 }) }
    }

    /// The tree `id`.
    pub fn get(&self, id: ObjectId) -> Result<Arc<Tree>> {
        if let Some(tree) = self.cache.lock().map.get(&id) {
            return Ok(tree.clone());
        }
        let tree = Arc::new(self.objects.tree(id)?);
        let mut cache = self.cache.lock();
        if let Some(first) = cache.map.get(&id) {
            return Ok(first.clone());
        }
        cache.bytes += weight(&tree);
        cache.map.put(id, tree.clone());
        while cache.bytes > LIMIT && cache.map.len() > AT_LEAST {
            if let Some((_, old)) = cache.map.pop_lru() {
                cache.bytes -= weight(&old);
            }
        }
        Ok(tree)
    }
}

/// What a decoded tree takes in memory, about.
fn weight(tree: &Tree) -> usize {
    const ALLOCATION: usize = 16;
    let names: usize = tree.entries().iter().map(|e| e.name.len() + ALLOCATION).sum();
    names + size_of_val(tree.entries()) + 128
}
