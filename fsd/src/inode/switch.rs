//! Moving the table from one snapshot to the next, in one step under the table's lock.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::EntryKind;

use super::{DirVersion, Ids, Inner, Listed, NodeId, OLDER_ENTRIES, OLDER_LISTINGS, Orphan, Place, Table, Time, counters};

/// What becomes of one entry of a directory's new listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carry {
    /// The same node as entry `old` before, with this mtime.
    Keep {
        /// Its index in the old listing.
        old: u32,
        /// Its mtime from now on.
        time: Time,
    },
    /// A node of its own.
    Fresh(Time),
}

/// The next version of one loaded directory.
#[derive(Debug)]
pub struct DirPlan {
    /// The directory.
    pub node: NodeId,
    /// The version this was planned from.
    pub old: Arc<DirVersion>,
    /// The new tree.
    pub tree: ObjectId,
    /// Its entries.
    pub entries: Vec<Carry>,
    /// Entries of the old listing whose nodes leave the tree: (old index, kind, object).
    pub gone: Vec<(u32, EntryKind, ObjectId)>,
}

/// A loaded directory that leaves the tree.
#[derive(Debug)]
pub struct RemovedDir {
    /// The directory.
    pub node: NodeId,
    /// The version this was planned from.
    pub old: Arc<DirVersion>,
    /// Kind and object of its entries.
    pub entries: Vec<(EntryKind, ObjectId)>,
}

/// A whole switch of the table.
#[derive(Debug, Default)]
pub struct TablePlan {
    /// The new root tree and the root's mtime.
    pub root: Option<(ObjectId, Time)>,
    /// Directories whose listing changes.
    pub dirs: Vec<DirPlan>,
    /// Directories that go.
    pub removed: Vec<RemovedDir>,
    /// The snapshot that is kept from now on: commit, tree and mtime.
    pub keep: Option<(CommitId, ObjectId, Time)>,
    /// Roots of snapshots that are kept no longer; what is loaded below them is in `removed`.
    pub retired: Vec<NodeId>,
}

impl Table {
    /// Starts to record directories that are loaded from now on; [`Table::apply`] hands them to its caller.
    pub fn begin_switch(&self) {
        self.inner.write().late = Some(Vec::new());
    }

    /// The directories that were loaded since then.
    pub fn late(&self) -> Vec<NodeId> {
        self.inner.read().late.clone().unwrap_or_default()
    }

    /// Ends a switch that will not be applied.
    pub fn abort_switch(&self) {
        self.inner.write().late = None;
    }

    /// Applies `plan` in one step. `extend` is asked, under the lock, for the plans of directories that were loaded since
    /// [`Table::begin_switch`] (it gets a locator for them and must not call the table); its error leaves the table as it was. `done` is called under the
    /// lock, too. The journal has the switch before anything changes.
    pub fn apply<E>(
        &self,
        mut plan: TablePlan,
        done: impl FnOnce(),
        extend: impl FnOnce(&[NodeId], &dyn Fn(NodeId) -> Option<Arc<DirVersion>>, &mut TablePlan) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut inner = self.inner.write();
        let late = inner.late.take().unwrap_or_default();
        if !late.is_empty() {
            let current = |node: NodeId| inner.dirs.get(&node).cloned();
            extend(&late, &current, &mut plan)?;
        }
        if let Some(journal) = &self.journal {
            journal.append(&inner.describe_switch(&plan));
        }
        // One switch at a time: whoever comes here has told of the one before.
        inner.untold.clear();
        if let Some(root) = plan.root {
            inner.root = root;
        }
        for dir in plan.dirs {
            inner.replace(dir);
        }
        for dir in plan.removed {
            inner.remove(dir);
        }
        if let Some((commit, tree, time)) = plan.keep {
            inner.keep(commit, tree, time);
        }
        for node in plan.retired {
            inner.retire(node);
        }
        done();
        Ok(())
    }
}

impl Inner {
    pub(super) fn replace(&mut self, plan: DirPlan) {
        let DirPlan { node, old, tree, entries, gone } = plan;
        self.drop_range(&old);
        for (index, kind, id) in gone {
            self.orphan(&old, index as usize, kind, id);
        }
        let first = self.take_ids(entries.len() as u64);
        let lookups = counters(entries.len());
        let mut list = Vec::with_capacity(entries.len());
        for (index, carry) in entries.iter().enumerate() {
            let (id, time) = match *carry {
                Carry::Keep { old: from, time } => {
                    let count = old.lookups(from as usize);
                    lookups[index].store(count, Ordering::Relaxed);
                    (old.entry(from as usize).0, time)
                }
                Carry::Fresh(time) => (NodeId(first + index as u64), time),
            };
            self.places.insert(id, Place::Entry { dir: node, index: index as u32 });
            list.push((id, time));
        }
        let generation = old.generation.wrapping_add(1);
        let version = DirVersion { tree, generation, ids: Ids::Listed(Box::new(Listed(list.into()))), lookups };
        if let Some(current) = self.dirs.get_mut(&node) {
            let older = self.older.entry(node).or_default();
            older.push_front(std::mem::replace(current, Arc::new(version)));
            while older.len() > OLDER_LISTINGS.1
                || older.len() > OLDER_LISTINGS.0 && older.iter().map(|v| v.len()).sum::<usize>() > OLDER_ENTRIES
            {
                older.pop_back();
            }
        }
    }

    pub(super) fn remove(&mut self, plan: RemovedDir) {
        let RemovedDir { node, old, entries } = plan;
        self.drop_range(&old);
        for (index, (kind, id)) in entries.into_iter().enumerate() {
            self.orphan(&old, index, kind, id);
        }
        self.dirs.remove(&node);
        self.older.remove(&node);
    }

    /// Takes an entry out of the tree: an orphan while the kernel knows it, else gone.
    fn orphan(&mut self, old: &DirVersion, index: usize, kind: EntryKind, id: ObjectId) {
        let (node, time) = old.entry(index);
        match old.lookups(index) {
            0 => {
                self.places.remove(&node);
            }
            lookups => {
                let orphan = Orphan { kind, id, time, lookups: u64::from(lookups) };
                self.places.insert(node, Place::Orphan(orphan));
            }
        }
    }

    fn drop_range(&mut self, version: &DirVersion) {
        // An empty directory has no range: the next one that was loaded may begin with the same id.
        if let Ids::Range { first, .. } = version.ids
            && !version.is_empty()
        {
            self.ranges.remove(first.id());
        }
    }
}
