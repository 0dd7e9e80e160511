//! Decoded trees, and the sizes of what is in them.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use gitmount_store::error::Result;
use gitmount_store::ids::ObjectId;
use gitmount_store::objects::{Objects, Tree};

use super::caches::{Caches, Source};

/// A decoded tree. It remembers the sizes of its blobs: a listing, a read and the prefetcher all want to know them.
#[derive(Debug)]
pub struct Listing {
    tree: Tree,
    /// One more than the size, 0 while it is not known.
    sizes: Box<[AtomicU64]>,
}

impl Listing {
    fn new(tree: Tree) -> Self {
        let sizes = tree.entries().iter().map(|_| AtomicU64::new(0)).collect();
        Listing { tree, sizes }
    }

    /// The size of the blob that is entry `index`.
    ///
    /// # Errors
    /// When its header cannot be read.
    pub fn size(&self, index: usize, objects: &Objects) -> Result<u64> {
        match self.sizes[index].load(Ordering::Relaxed) {
            0 => {
                let size = objects.blob_size(self.tree.entries()[index].id)?;
                self.sizes[index].store(size.saturating_add(1), Ordering::Relaxed);
                Ok(size)
            }
            known => Ok(known - 1),
        }
    }

    /// What it takes in memory, about.
    fn weight(&self) -> u64 {
        const ALLOCATION: usize = 16;
        const ITSELF: usize = 160;
        let names: usize = self.tree.entries().iter().map(|e| e.name.len() + ALLOCATION).sum();
        (names + size_of_val(self.tree.entries()) + size_of_val(&*self.sizes) + ITSELF) as u64
    }
}

impl Deref for Listing {
    type Target = Tree;

    fn deref(&self) -> &Tree {
        &self.tree
    }
}

/// Decoded trees of one object database.
#[derive(Debug)]
pub struct Trees {
    objects: Objects,
    caches: Arc<Caches>,
    source: Source,
}

impl Trees {
    /// Trees of `objects`, kept in `caches`.
    pub fn new(objects: Objects, caches: Arc<Caches>) -> Self {
        let source = caches.source(&objects);
        Trees { objects, caches, source }
    }

    /// The tree `id`.
    pub fn get(&self, id: ObjectId) -> Result<Arc<Listing>> {
        if let Some(tree) = self.caches.trees().get(self.source, id) {
            return Ok(tree);
        }
        let tree = Arc::new(Listing::new(self.objects.tree(id)?));
        let weight = tree.weight();
        Ok(self.caches.trees().put(self.source, id, tree, weight))
    }
}
