//! Puts files into the kernel's page cache before a reader that walks the tree asks for them.
//!
//! A cold walk (`tar`, `grep -r`, `cp -r`) waits for one message per file. Here such a walk is recognised by its order: the first file of a
//! directory that was just listed, then the next ones. Each file it has to ask for doubles a window of bytes, up to a bound; that much is
//! inflated and stored ahead (`FUSE_NOTIFY_STORE`), in this directory and in those listed next. A reader in any other order closes the
//! window, so a walk that only lists, or random reads, store nothing.
//!
//! Promises: what is stored is what a read would have given; at most one window is stored for each read that was asked for; nothing waits
//! for this.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;

use gitmount_store::objects::{Entry, EntryKind};
use lru::LruCache;
use parking_lot::Mutex;

use super::blobs::Blobs;
use crate::inode::NodeId;
use crate::view::View;

/// The kernel's page cache, for files that the kernel knows.
pub trait PageCache: Send + Sync {
    /// Stores a whole file; false when the kernel does not (any longer) know the node or takes nothing.
    fn store(&self, node: NodeId, data: &[u8]) -> bool;
}

/// The window a first file in order opens, in bytes, and the largest.
const WINDOW: (u64, u64) = (512 << 10, 8 << 20);
/// Larger files are left to the kernel's own read-ahead.
const LARGEST: u64 = 1 << 20;
/// Directories whose progress is remembered.
const DIRECTORIES: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");
/// Directories that may wait to be stored.
const QUEUE: usize = 64;
/// Storing threads.
const WORKERS: usize = 1;

/// The prefetcher of one mount.
pub struct Prefetch {
    view: Arc<View>,
    blobs: Arc<Blobs>,
    cache: Arc<dyn PageCache>,
    state: Mutex<State>,
}

impl std::fmt::Debug for Prefetch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prefetch({:?})", self.state.lock())
    }
}

#[derive(Debug)]
struct State {
    window: u64,
    /// Bytes that may still be stored before a reader has to ask again.
    credit: u64,
    /// How far each listed directory has been read or stored.
    progress: LruCache<NodeId, usize>,
    queue: VecDeque<NodeId>,
    workers: usize,
}

impl Prefetch {
    /// A prefetcher that has seen nothing yet.
    pub fn new(view: Arc<View>, blobs: Arc<Blobs>, cache: Arc<dyn PageCache>) -> Self {
        let state = State { window: 0, credit: 0, progress: LruCache::new(DIRECTORIES), queue: VecDeque::new(), workers: 0 };
        Prefetch { view, blobs, cache, state: Mutex::new(state) }
    }

    /// `dir` was listed to its end.
    pub fn listed(self: &Arc<Self>, dir: NodeId) {
        let mut state = self.state.lock();
        if state.progress.get(&dir).is_none() {
            state.progress.put(dir, 0);
        }
        if state.credit > 0 {
            self.enqueue(&mut state, dir);
        }
    }

    /// The kernel asked for the beginning of the file that is entry `index` of `entries`, those of `dir`.
    pub fn asked(self: &Arc<Self>, dir: NodeId, index: usize, entries: &[Entry]) {
        let mut state = self.state.lock();
        let Some(&next) = state.progress.get(&dir) else { return };
        if index < next {
            return;
        }
        if entries[next..index].iter().any(is_file) {
            (state.window, state.credit) = (0, 0);
            return;
        }
        state.progress.put(dir, index + 1);
        state.window = (state.window * 2).clamp(WINDOW.0, WINDOW.1);
        state.credit = state.window;
        self.enqueue(&mut state, dir);
    }

    fn enqueue(self: &Arc<Self>, state: &mut State, dir: NodeId) {
        if state.queue.len() >= QUEUE || state.queue.contains(&dir) {
            return;
        }
        state.queue.push_back(dir);
        if state.workers < WORKERS {
            let prefetch = self.clone();
            if thread::Builder::new().name("prefetch".into()).spawn(move || prefetch.work()).is_ok() {
                state.workers += 1;
            }
        }
    }

    fn work(&self) {
        loop {
            let dir = {
                let mut state = self.state.lock();
                match state.queue.pop_front() {
                    Some(dir) => dir,
                    None => {
                        state.workers -= 1;
                        return;
                    }
                }
            };
            self.store(dir);
        }
    }

    /// Stores the files of `dir` from where its reader is, as far as the credit goes.
    fn store(&self, dir: NodeId) {
        let Some(version) = self.view.table().dir(dir) else { return };
        let Ok(tree) = self.view.tree(version.tree) else { return };
        for (index, entry) in tree.entries().iter().enumerate() {
            if !is_file(entry) || version.lookups(index) == 0 {
                continue;
            }
            if self.state.lock().progress.peek(&dir).is_none_or(|next| index < *next) {
                continue;
            }
            // What cannot be read is told to the reader who asks for it.
            let Ok(size) = self.view.objects().blob_size(entry.id) else { continue };
            if size == 0 || size > LARGEST {
                continue;
            }
            {
                let mut state = self.state.lock();
                if state.credit < size {
                    state.credit = 0;
                    return;
                }
                state.credit -= size;
            }
            let Ok(blob) = self.blobs.share(entry.id) else { continue };
            if !self.cache.store(version.entry(index).0, &blob) {
                return;
            }
            let mut state = self.state.lock();
            if let Some(next) = state.progress.get_mut(&dir) {
                *next = (*next).max(index + 1);
            }
        }
    }
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::File | EntryKind::Executable)
}
