//! Versioned node ids: what a node id stands for never changes under it.
//!
//! Promises:
//!
//! - A *file or symlink* id stands for one object and mode for ever. A changed file is a new node; the old one is an *orphan* that stays
//!   readable until the kernel forgets it.
//! - A *directory* id stands for a path. It survives switches; a directory that a commit removes is dead from then on, also when a later
//!   commit brings the path back (that is a new node).
//! - Ids are never reused within a mount.
//! - With a journal, all of this holds across processes: what the kernel may rely on is written first.
//!
//! The ids of a directory's entries are one range while nothing in it has changed, so a directory costs some hundred bytes and its
//! entries four each (how often the kernel looked them up). Names and objects are not kept: they come from the tree object.

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::EntryKind;
use parking_lot::RwLock;

use journal::Journal;
use ranges::Ranges;
use record::Record;

mod journal;
mod ranges;
mod record;
mod restore;
mod snapshots;
mod switch;
pub use journal::JournalError;
pub use restore::Served;
pub use snapshots::Kept;
pub use switch::{Carry, DirPlan, RemovedDir, TablePlan};

#[cfg(test)]
mod tests;

/// A node id, as the kernel knows it; also the `st_ino` that users see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The root of every mount (`FUSE_ROOT_ID`).
    pub const ROOT: NodeId = NodeId(1);
    /// `.gitmount` at the root.
    pub const HIDDEN: NodeId = NodeId(2);
    /// `.gitmount/commit`, the parent of the kept snapshots' roots.
    pub const COMMITS: NodeId = NodeId(3);
    /// The first id that a table gives.
    const FIRST: u64 = 4;
}

/// A point in time: nanoseconds since 1970, UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub i64);

impl Time {
    const SECOND: i64 = 1_000_000_000;

    /// The time a changed file gets: `now`, but in a later whole second than `self`, since `.pyc` files and make compare seconds.
    #[must_use]
    pub fn bump(self, now: Time) -> Time {
        let next_second = (self.0.div_euclid(Self::SECOND) + 1).saturating_mul(Self::SECOND);
        Time(now.0.max(next_second))
    }
}

/// How many earlier listings of a directory are kept for readers that are halfway through one: the first number always, up to the second
/// while they have few entries together.
const OLDER_LISTINGS: (usize, usize) = (3, 32);
/// What few entries are.
const OLDER_ENTRIES: usize = 50_000;
/// A count of look-ups that forgets do not lower: of what an earlier process told the kernel, nobody knows how often.
const FOR_EVER: u32 = 1 << 31;

/// One version of a directory's listing: which tree, and which node each of its entries is.
#[derive(Debug)]
pub struct DirVersion {
    /// The tree object whose entries, in order, these are.
    pub tree: ObjectId,
    /// Counts the versions of this directory; part of readdir cookies.
    pub generation: u32,
    ids: Ids,
    lookups: Box<[AtomicU32]>,
}

/// Small, since there is one for each directory of each view: a list is behind a thin pointer, which takes the place of the time where
/// there is no first id.
#[derive(Debug)]
enum Ids {
    Range { first: First, time: Time },
    Listed(Box<Listed>),
}

/// The first id of a range, never zero in memory.
#[derive(Debug, Clone, Copy)]
struct First(NonZeroU64);

impl First {
    fn new(id: u64) -> Self {
        First(NonZeroU64::MIN.saturating_add(id))
    }

    fn id(self) -> u64 {
        self.0.get() - 1
    }
}

#[derive(Debug)]
struct Listed(Box<[(NodeId, Time)]>);

const _: () = assert!(size_of::<Ids>() == 16 && size_of::<DirVersion>() <= 72, "every directory of every view has one");

impl DirVersion {
    fn range(tree: ObjectId, first: u64, len: u32, time: Time) -> Self {
        DirVersion { tree, generation: 0, ids: Ids::Range { first: First::new(first), time }, lookups: counters(len as usize) }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.lookups.len()
    }

    /// Whether the directory is empty.
    pub fn is_empty(&self) -> bool {
        self.lookups.is_empty()
    }

    /// The node and mtime of entry `index`.
    ///
    /// # Panics
    /// When `index` is not below [`DirVersion::len`].
    pub fn entry(&self, index: usize) -> (NodeId, Time) {
        assert!(index < self.len(), "entry {index} of {}", self.len());
        match &self.ids {
            Ids::Range { first, time } => (NodeId(first.id() + index as u64), *time),
            Ids::Listed(list) => list.0[index],
        }
    }

    /// How often the kernel has looked entry `index` up and not forgotten it.
    pub fn lookups(&self, index: usize) -> u32 {
        self.lookups[index].load(Ordering::Relaxed)
    }
}

fn counters(len: usize) -> Box<[AtomicU32]> {
    (0..len).map(|_| AtomicU32::new(0)).collect()
}

/// Lowers a count of look-ups.
fn less(lookups: &mut u64, count: u64) {
    if *lookups < u64::from(FOR_EVER) {
        *lookups = lookups.saturating_sub(count);
    }
}

/// A node that the current snapshot no longer has but the kernel still knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orphan {
    /// What it was; a directory is dead (ENOENT below it).
    pub kind: EntryKind,
    /// Its object.
    pub id: ObjectId,
    /// Its mtime.
    pub time: Time,
    lookups: u64,
}

/// Where a node is.
#[derive(Debug, Clone)]
pub enum Location {
    /// The root directory or that of a kept snapshot, with its tree and mtime.
    Root(ObjectId, Time),
    /// Entry `index` of the current version of a directory.
    Entry {
        /// The directory.
        dir: NodeId,
        /// Its current version.
        version: Arc<DirVersion>,
        /// Which entry.
        index: usize,
    },
    /// No longer in the tree.
    Orphan(Orphan),
}

#[derive(Debug)]
enum Place {
    Entry {
        dir: NodeId,
        index: u32,
    },
    Orphan(Orphan),
    /// The root of a kept snapshot.
    Snapshot {
        tree: ObjectId,
        time: Time,
        lookups: u64,
    },
}

#[derive(Debug)]
struct Inner {
    next: u64,
    root: (ObjectId, Time),
    /// The current listing of each loaded directory. Many views have many: nothing is here that can be found elsewhere.
    dirs: HashMap<NodeId, Arc<DirVersion>>,
    /// Earlier listings of those that have changed lately.
    older: HashMap<NodeId, VecDeque<Arc<DirVersion>>>,
    /// The entries of directories that have not changed since they were loaded.
    ranges: Ranges,
    places: HashMap<NodeId, Place>,
    /// The kept snapshots, the one served last first.
    kept: Vec<Kept>,
    /// Snapshots that are kept no longer, while the kernel may not have been told.
    untold: Vec<CommitId>,
    /// Directories loaded since the switch that is under way began.
    late: Option<Vec<NodeId>>,
}

/// The node table of one mount.
#[derive(Debug)]
pub struct Table {
    inner: Arc<RwLock<Inner>>,
    /// Written under the lock of `inner`.
    journal: Option<Arc<Journal>>,
}

impl Table {
    /// A table that knows only the root.
    pub fn new(root: ObjectId, time: Time) -> Self {
        let inner = Inner {
            next: NodeId::FIRST,
            root: (root, time),
            dirs: HashMap::new(),
            older: HashMap::new(),
            ranges: Ranges::default(),
            places: HashMap::new(),
            kept: Vec::new(),
            untold: Vec::new(),
            late: None,
        };
        Table { inner: Arc::new(RwLock::new(inner)), journal: None }
    }

    /// Where `node` is; `None` when the table does not know it.
    pub fn locate(&self, node: NodeId) -> Option<Location> {
        self.inner.read().locate(node)
    }

    /// The current version of a loaded directory.
    pub fn dir(&self, node: NodeId) -> Option<Arc<DirVersion>> {
        self.inner.read().dirs.get(&node).cloned()
    }

    /// The parent of a loaded directory (the root is its own).
    pub fn parent(&self, node: NodeId) -> NodeId {
        self.inner.read().parent(node)
    }

    /// The version of a loaded directory that has `generation`, when it is current or still kept.
    pub fn listing(&self, node: NodeId, generation: u32) -> Option<Arc<DirVersion>> {
        let inner = self.inner.read();
        let current = inner.dirs.get(&node)?;
        std::iter::once(current).chain(inner.older(node)).find(|v| v.generation == generation).cloned()
    }

    /// Loads a directory: gives its `len` entries ids. `at` is where the directory was found and `tree` what was read there; when a switch
    /// came in between, nothing is loaded and `None` says to look again. Loading twice gives the first result.
    pub fn load(&self, node: NodeId, at: &Location, tree: ObjectId, len: u32) -> Option<Arc<DirVersion>> {
        let mut inner = self.inner.write();
        if let Some(current) = inner.dirs.get(&node) {
            return (current.tree == tree).then(|| current.clone());
        }
        let time = match (at, inner.locate(node)?) {
            (Location::Root(..), Location::Root(root, time)) if root == tree => time,
            (Location::Entry { version: seen, .. }, Location::Entry { version, index, .. }) if Arc::ptr_eq(seen, &version) => {
                version.entry(index).1
            }
            _ => return None,
        };
        let parent = inner.parent(node);
        let first = inner.take_ids(u64::from(len));
        if let Some(journal) = &self.journal {
            journal.append(&Record::Load { node, parent, tree, first, len, time });
        }
        let version = Arc::new(DirVersion::range(tree, first, len, time));
        if len > 0 {
            inner.ranges.insert(first, node, len);
        }
        inner.dirs.insert(node, version.clone());
        if let Some(late) = &mut inner.late {
            late.push(node);
        }
        Some(version)
    }

    /// Counts a lookup of each of `indices` that a reply is about to give the kernel. False (and nothing counted) when `version` is no
    /// longer current: build the reply anew.
    pub fn count(&self, dir: NodeId, version: &Arc<DirVersion>, indices: impl IntoIterator<Item = usize>) -> bool {
        let inner = self.inner.read();
        if !inner.dirs.get(&dir).is_some_and(|current| Arc::ptr_eq(current, version)) {
            return false;
        }
        for index in indices {
            version.lookups[index].fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Counts one lookup of `node`, wherever it is now, for a reply that the kernel answers with a forget. Unknown nodes are not counted,
    /// nor is their forget.
    pub fn hold(&self, node: NodeId) {
        let mut inner = self.inner.write();
        match inner.locate(node) {
            Some(Location::Entry { version, index, .. }) => {
                version.lookups[index].fetch_add(1, Ordering::Relaxed);
            }
            Some(Location::Orphan(_)) => {
                if let Some(Place::Orphan(orphan)) = inner.places.get_mut(&node) {
                    orphan.lookups += 1;
                }
            }
            Some(Location::Root(..)) => {
                if let Some(Place::Snapshot { lookups, .. }) = inner.places.get_mut(&node) {
                    *lookups += 1;
                }
            }
            None => {}
        }
    }

    /// The kernel forgets `count` lookups of `node`.
    pub fn forget(&self, node: NodeId, count: u64) {
        let outside = match self.inner.read().locate(node) {
            Some(Location::Entry { version, index, .. }) => {
                let less = |now: u32| (now < FOR_EVER).then(|| now.saturating_sub(u32::try_from(count).unwrap_or(u32::MAX)));
                // Under the read lock, so no switch copies the counter meanwhile.
                let _ = version.lookups[index].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                false
            }
            Some(Location::Orphan(_)) => true,
            Some(Location::Root(..)) => node != NodeId::ROOT,
            None => false,
        };
        if outside {
            let mut inner = self.inner.write();
            match inner.places.get_mut(&node) {
                Some(Place::Orphan(orphan)) => {
                    less(&mut orphan.lookups, count);
                    if orphan.lookups == 0 {
                        inner.places.remove(&node);
                        if let Some(journal) = &self.journal {
                            journal.forget(node);
                        }
                    }
                }
                Some(Place::Snapshot { lookups, .. }) => less(lookups, count),
                Some(Place::Entry { .. }) | None => {}
            }
        }
    }

    /// The objects of former commits that the kernel still knows.
    pub fn orphans(&self) -> Vec<ObjectId> {
        let inner = self.inner.read();
        inner.places.values().filter_map(|place| if let Place::Orphan(orphan) = place { Some(orphan.id) } else { None }).collect()
    }

    /// Directories loaded and orphans kept, for statistics.
    pub fn size(&self) -> (usize, usize) {
        let inner = self.inner.read();
        (inner.dirs.len(), inner.places.values().filter(|p| matches!(p, Place::Orphan(_))).count())
    }
}

impl Inner {
    fn take_ids(&mut self, count: u64) -> u64 {
        let first = self.next;
        self.next += count;
        first
    }

    fn older(&self, node: NodeId) -> impl Iterator<Item = &Arc<DirVersion>> {
        self.older.get(&node).into_iter().flatten()
    }

    /// The parent of a directory: the root is its own, and the root of a dead one.
    fn parent(&self, node: NodeId) -> NodeId {
        match self.locate(node) {
            Some(Location::Entry { dir, .. }) => dir,
            Some(Location::Root(..)) if node != NodeId::ROOT => NodeId::COMMITS,
            Some(Location::Root(..) | Location::Orphan(_)) | None => NodeId::ROOT,
        }
    }

    fn locate(&self, node: NodeId) -> Option<Location> {
        if node == NodeId::ROOT {
            return Some(Location::Root(self.root.0, self.root.1));
        }
        let (dir, index) = match self.places.get(&node) {
            Some(Place::Orphan(orphan)) => return Some(Location::Orphan(*orphan)),
            Some(Place::Snapshot { tree, time, .. }) => return Some(Location::Root(*tree, *time)),
            Some(Place::Entry { dir, index }) => (*dir, *index as usize),
            None => self.ranges.find(node)?,
        };
        let version = self.dirs.get(&dir)?.clone();
        Some(Location::Entry { dir, version, index })
    }
}
