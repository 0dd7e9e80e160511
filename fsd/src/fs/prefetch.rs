//! Puts files into the kernel's page cache before a reader that walks the tree asks for them.
//!
//! A cold walk (`tar`, `grep -r`, `cp -r`) waits for one message per file. Here such a walk is recognised by its order: the first file of a
//! directory that was just listed, then the next ones. Each file it has to ask for doubles a window of bytes, up to a bound; that much is
//! inflated and stored ahead (`FUSE_NOTIFY_STORE`), in this directory and in those listed next. Meanwhile the files of the directories that
//! come after are inflated (`ahead`), so that the walk never waits for zlib. A reader in any other order closes the window, so a walk
//! that only lists, or random reads, store nothing. So does a machine that is short of memory.
//!
//! Promises: what is stored is what a read would have given; at most one window is stored for each read that was asked for; nothing waits
//! for this.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use gitmount_store::ids::ObjectId;
use gitmount_store::objects::{Entry, EntryKind, Objects};
use lru::LruCache;
use parking_lot::{Condvar, Mutex};

use super::blobs::Blobs;
use crate::inode::{DirVersion, NodeId};
use crate::view::View;
use crate::view::trees::Listing;

mod ahead;
mod pressure;

use ahead::Ahead;
use pressure::Pressure;

/// The kernel's page cache, for files that the kernel knows.
pub trait PageCache: Send + Sync {
    /// Stores a whole file, now or soon; false when the kernel does not (any longer) know the node or takes nothing.
    fn store(&self, node: NodeId, data: &[u8]) -> bool;
    /// Whether it takes anything at all now; while not, files are kept inflated here for who asks next.
    fn stores(&self) -> bool {
        true
    }
    /// Nothing will be stored for a while.
    fn rest(&self) {}
}

/// The window a first file in order opens, in bytes, and the largest.
const WINDOW: (u64, u64) = (512 << 10, 8 << 20);
/// Larger files are left to the kernel's own read-ahead.
const LARGEST: u64 = 1 << 20;
/// Who reads a directory's files again so much later than they were read or stored does it anew, since the kernel has dropped them.
const ANEW: Duration = Duration::from_secs(1);
/// Directories whose progress is remembered.
const DIRECTORIES: NonZeroUsize = NonZeroUsize::new(512).expect("not zero");
/// Directories that may wait to be stored, and listings that may wait to be noticed.
const QUEUE: usize = 64;
/// Threads.
const WORKERS: usize = 2;
/// A thread without work stays this long.
const LINGER: Duration = Duration::from_millis(200);

/// The prefetcher of one mount.
pub struct Prefetch {
    view: Arc<View>,
    blobs: Arc<Blobs>,
    cache: Arc<dyn PageCache>,
    state: Mutex<State>,
    work: Condvar,
    /// Never locked together with `state`: trees are read under this lock, and handlers take the other one.
    ahead: Mutex<Ahead>,
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
    /// How far each listed directory has been read or is being stored.
    progress: LruCache<NodeId, Progress>,
    /// Directories with files to store; the one that was listed last comes first, since its reader is there.
    stack: Vec<Listed>,
    /// What the walk did, for [`Ahead`].
    steps: VecDeque<Step>,
    workers: usize,
    idle: usize,
}

#[derive(Debug)]
struct Progress {
    /// The entry that comes next.
    next: usize,
    since: Instant,
}

impl Progress {
    fn new(next: usize) -> Self {
        Progress { next, since: Instant::now() }
    }
}

#[derive(Debug, Clone)]
struct Listed {
    dir: NodeId,
    version: Arc<DirVersion>,
    listing: Arc<Listing>,
}

#[derive(Debug)]
enum Step {
    Listed(NodeId, ObjectId),
    Reads(NodeId),
}

/// What a thread does next.
#[derive(Debug)]
enum Work {
    /// Store this file.
    Store { dir: NodeId, index: usize, node: NodeId, id: ObjectId },
    /// Inflate this blob, whose file the kernel does not know yet.
    Keep(ObjectId),
}

impl Prefetch {
    /// A prefetcher that has seen nothing yet.
    pub fn new(view: Arc<View>, blobs: Arc<Blobs>, cache: Arc<dyn PageCache>) -> Self {
        let state = State {
            window: 0,
            credit: 0,
            progress: LruCache::new(DIRECTORIES),
            stack: Vec::new(),
            steps: VecDeque::new(),
            workers: 0,
            idle: 0,
        };
        Prefetch { view, blobs, cache, state: Mutex::new(state), work: Condvar::new(), ahead: Mutex::default() }
    }

    /// The last entry of `dir` is about to be listed.
    pub fn listing(&self, dir: NodeId) {
        self.state.lock().begin(dir);
    }

    /// `dir` was listed to its end.
    pub fn listed(self: &Arc<Self>, dir: NodeId, version: &Arc<DirVersion>, listing: &Arc<Listing>) {
        let mut state = self.state.lock();
        state.begin(dir);
        if state.credit > 0 {
            state.note(Step::Listed(dir, version.tree));
            self.enqueue(&mut state, Listed { dir, version: version.clone(), listing: listing.clone() });
        }
    }

    /// The kernel asked for the beginning of the file that is entry `index` of `dir`.
    pub fn asked(self: &Arc<Self>, dir: NodeId, index: usize, version: &Arc<DirVersion>, listing: &Arc<Listing>) {
        let mut state = self.state.lock();
        let (next, anew) = match state.progress.get(&dir) {
            None => return,
            Some(progress) if index >= progress.next => (progress.next, false),
            Some(progress) if progress.since.elapsed() < ANEW => return,
            Some(_) => (0, true),
        };
        // Nobody has to ask for an empty file.
        let left_out = |(at, entry)| is_file(entry) && listing.size(at, self.view.objects()).is_ok_and(|size| size > 0);
        if listing.entries().iter().enumerate().take(index).skip(next).any(left_out) {
            if !anew {
                state.close();
            }
            return;
        }
        state.progress.put(dir, Progress::new(index + 1));
        state.window = (state.window * 2).clamp(WINDOW.0, WINDOW.1);
        state.credit = state.window;
        state.note(Step::Reads(dir));
        self.enqueue(&mut state, Listed { dir, version: version.clone(), listing: listing.clone() });
    }

    fn enqueue(self: &Arc<Self>, state: &mut State, listed: Listed) {
        state.stack.retain(|known| known.dir != listed.dir);
        if state.stack.len() >= QUEUE {
            state.stack.remove(0);
        }
        state.stack.push(listed);
        if state.idle > 0 {
            self.work.notify_one();
        } else if state.workers < WORKERS {
            let prefetch = self.clone();
            if thread::Builder::new().name("prefetch".into()).spawn(move || prefetch.run()).is_ok() {
                state.workers += 1;
            }
        }
    }

    fn run(&self) {
        let mut pressure = Pressure::default();
        while let Some(work) = self.next() {
            if pressure.is_short() {
                self.state.lock().close();
                self.ahead.lock().clear(&self.blobs);
                continue;
            }
            match work {
                Work::Store { id, .. } if !self.cache.stores() => {
                    let _ = self.blobs.keep(id);
                }
                Work::Store { dir, index, node, id } => {
                    // What cannot be read is told to the reader who asks for it.
                    let Ok(blob) = self.blobs.inflate(id) else { continue };
                    self.blobs.forget(id);
                    if !self.cache.store(node, &blob) {
                        self.state.lock().refused(dir, index);
                    }
                }
                Work::Keep(id) => {
                    let _ = self.blobs.keep(id);
                }
            }
        }
    }

    /// Waits for work; `None` when there was none for a while, and the thread is to end.
    fn next(&self) -> Option<Work> {
        let mut waited = false;
        loop {
            let mut state = self.state.lock();
            if let Some(work) = state.claim(self.view.objects()) {
                if state.idle > 0 && !state.stack.is_empty() {
                    self.work.notify_one();
                }
                return Some(work);
            }
            let steps = std::mem::take(&mut state.steps);
            let walks = state.credit > 0;
            drop(state);
            if walks && let Some(id) = self.look_ahead(steps) {
                return Some(Work::Keep(id));
            }
            let mut state = self.state.lock();
            if !state.stack.is_empty() || !state.steps.is_empty() {
                continue;
            }
            if waited {
                state.workers -= 1;
                let last = state.workers == 0;
                drop(state);
                if last {
                    // The walk has ended, or it would have asked for more.
                    self.ahead.lock().clear(&self.blobs);
                    self.cache.rest();
                }
                return None;
            }
            state.idle += 1;
            waited = self.work.wait_for(&mut state, LINGER).timed_out();
            state.idle -= 1;
        }
    }

    fn look_ahead(&self, steps: VecDeque<Step>) -> Option<ObjectId> {
        let mut ahead = self.ahead.lock();
        for step in steps {
            match step {
                Step::Listed(dir, tree) => ahead.listed(&self.view, &self.blobs, dir, tree),
                Step::Reads(dir) => ahead.reads(&self.view, dir),
            }
        }
        ahead.next(&self.view)
    }
}

impl State {
    fn note(&mut self, step: Step) {
        if self.steps.len() >= QUEUE {
            self.steps.pop_front();
        }
        self.steps.push_back(step);
    }

    /// The files of `dir` may be read in order from now on, or have been for a while.
    fn begin(&mut self, dir: NodeId) {
        if self.progress.get(&dir).is_none_or(|progress| progress.since.elapsed() >= ANEW) {
            self.progress.put(dir, Progress::new(0));
        }
    }

    /// Nothing more is stored until a walk is recognised again.
    fn close(&mut self) {
        (self.window, self.credit) = (0, 0);
        self.stack.clear();
        self.steps.clear();
    }

    /// The next file to store.
    fn claim(&mut self, objects: &Objects) -> Option<Work> {
        while let Some(Listed { dir, version, listing }) = self.stack.last() {
            if let Some(progress) = self.progress.get_mut(dir) {
                for (index, entry) in listing.entries().iter().enumerate().skip(progress.next) {
                    if !is_file(entry) || version.lookups(index) == 0 {
                        continue;
                    }
                    let Ok(size) = listing.size(index, objects) else { continue };
                    if !is_stored(size) {
                        continue;
                    }
                    if self.credit < size {
                        self.credit = 0;
                        self.stack.clear();
                        return None;
                    }
                    self.credit -= size;
                    *progress = Progress::new(index + 1);
                    return Some(Work::Store { dir: *dir, index, node: version.entry(index).0, id: entry.id });
                }
            }
            self.stack.pop();
        }
        None
    }

    /// The kernel did not take a file: its directory is left to the reader.
    fn refused(&mut self, dir: NodeId, index: usize) {
        self.stack.retain(|listed| listed.dir != dir);
        if let Some(progress) = self.progress.get_mut(&dir) {
            progress.next = progress.next.min(index);
        }
    }
}

fn is_file(entry: &Entry) -> bool {
    matches!(entry.kind, EntryKind::File | EntryKind::Executable)
}

/// Whether files of this size are stored ahead.
fn is_stored(size: u64) -> bool {
    size > 0 && size <= LARGEST
}
