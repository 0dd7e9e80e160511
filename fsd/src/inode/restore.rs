//! The table as records, and records as a table again.
//!
//! How often the kernel has looked something up is not written: it changes with every message. So what was restored counts as looked up for
//! ever. That can keep an orphan longer than needed, and never lets one go too early.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::EntryKind;
use parking_lot::RwLock;

use super::journal::{self, Journal, JournalError};
use super::record::{self, Changed, Left, Record, Run, Switch, Version};
use super::{
    Carry, DirPlan, DirVersion, FOR_EVER, First, Ids, Inner, Kept, Listed, NodeId, Place, Ranges, RemovedDir, Table, TablePlan, Time,
    counters,
};

/// Ids left out at every resume, so that none is used twice even when the last records could not be written.
const JUMP: u64 = 1 << 24;
/// Orphans in one record.
const ORPHANS: usize = 1024;

/// What a restored table serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Served {
    /// The commit.
    pub commit: CommitId,
    /// The tree of the root.
    pub root: ObjectId,
}

impl Table {
    /// From now on keeps a journal at `path`, in place of what is there. A table that serves no commit yet could not be restored.
    pub fn write_journal(&mut self, path: &Path) {
        self.journal = Some(Journal::create(path, &self.inner));
    }

    /// The table that another process kept a journal of; it is kept on.
    ///
    /// # Errors
    /// See [`JournalError`].
    pub fn restore(path: &Path) -> Result<(Self, Served), JournalError> {
        let mut restored: Option<Inner> = None;
        let read = journal::read(path, |record| apply(&mut restored, record))?;
        let mut inner = restored.ok_or_else(|| JournalError::Damaged(path.to_owned()))?;
        if !read.whole {
            tracing::warn!(path = %path.display(), records = read.records, "the node journal ends in a record that was not written to its end");
        }
        inner.next += JUMP * u64::from(read.resumes);
        for current in inner.dirs.values() {
            current.lookups.iter().for_each(|count| count.store(FOR_EVER, Ordering::Relaxed));
        }
        let commit = inner.kept.first().ok_or_else(|| JournalError::Damaged(path.to_owned()))?.commit;
        let served = Served { commit, root: inner.root.0 };
        let inner = Arc::new(RwLock::new(inner));
        let journal = Some(Journal::create(path, &inner));
        Ok((Table { inner, journal }, served))
    }

    /// What is wrong with writing the journal, while something is.
    pub fn journal_error(&self) -> Option<String> {
        self.journal.as_ref().and_then(|journal| journal.error())
    }
}

impl Inner {
    /// The whole table as records.
    pub(super) fn describe(&self, mut each: impl FnMut(&Record)) {
        each(&Record::State { next: self.next, root: self.root, kept: self.kept.clone(), untold: self.untold.clone() });
        for (node, current) in &self.dirs {
            let older = self.older(*node).map(|version| described(version)).collect();
            each(&Record::Dir { node: *node, parent: self.parent(*node), current: described(current), older });
        }
        let orphans = self.places.iter().filter_map(|(node, place)| match place {
            Place::Orphan(orphan) => Some((*node, *orphan)),
            Place::Entry { .. } | Place::Snapshot { .. } => None,
        });
        let orphans: Vec<_> = orphans.collect();
        for some in orphans.chunks(ORPHANS) {
            each(&Record::Orphans(some.to_vec()));
        }
    }

    /// A switch as the record of it; to be asked before the switch.
    pub(super) fn describe_switch(&self, plan: &TablePlan) -> Record {
        let mut first = self.next;
        let dirs = plan.dirs.iter().map(|dir| {
            let old = &dir.old;
            let left = dir.gone.iter().filter(|(index, ..)| old.lookups(*index as usize) > 0).copied().collect();
            let steps = record::steps(&dir.entries, |index| old.entry(index as usize).1);
            let changed = Changed { node: dir.node, tree: dir.tree, first, steps, left };
            first += dir.entries.len() as u64;
            changed
        });
        let dirs: Vec<_> = dirs.collect();
        let removed = plan.removed.iter().map(|dir| {
            let known = dir.entries.iter().enumerate().filter(|(index, _)| dir.old.lookups(*index) > 0);
            (dir.node, known.map(|(index, (kind, id))| (index as u32, *kind, *id)).collect())
        });
        let removed = removed.collect();
        let keep = plan.keep.map(|(commit, tree, time)| Kept { commit, node: NodeId(first), tree, time });
        let known = |node: &NodeId| matches!(self.places.get(node), Some(Place::Snapshot { lookups: 1.., .. }));
        let retired = plan.retired.iter().map(|node| (*node, known(node))).collect();
        Record::Switch(Switch { root: plan.root, dirs, removed, keep, retired })
    }

    fn insert(&mut self, node: NodeId, current: Version, older: Vec<Version>) -> Option<()> {
        let current = restored(current)?;
        match &current.ids {
            Ids::Range { first, .. } if !current.is_empty() => {
                self.ranges.insert(first.id(), node, current.len() as u32);
            }
            Ids::Range { .. } => {}
            Ids::Listed(list) => {
                self.places
                    .extend(list.0.iter().enumerate().map(|(index, (id, _))| (*id, Place::Entry { dir: node, index: index as u32 })));
            }
        }
        let older = older.into_iter().map(|version| restored(version).map(Arc::new)).collect::<Option<VecDeque<_>>>()?;
        if !older.is_empty() {
            self.older.insert(node, older);
        }
        self.dirs.insert(node, Arc::new(current));
        Some(())
    }

    fn repeat(&mut self, switch: Switch) -> Option<()> {
        let Switch { root, dirs, removed, keep, retired } = switch;
        let mut plans = Vec::with_capacity(dirs.len());
        for Changed { node, tree, first, steps, left } in dirs {
            let old = self.dirs.get(&node)?.clone();
            let entries = record::carries(&steps, old.len() as u32, |index| old.entry(index as usize).1)?;
            let mut stays = vec![false; old.len()];
            for carry in &entries {
                if let Carry::Keep { old, .. } = carry {
                    *stays.get_mut(*old as usize)? = true;
                }
            }
            let gone = gone(&old, &stays, &left)?;
            plans.push((first, DirPlan { node, old, tree, entries, gone }));
        }
        let mut removals = Vec::with_capacity(removed.len());
        for (node, left) in removed {
            let old = self.dirs.get(&node)?.clone();
            let entries = gone(&old, &vec![false; old.len()], &left)?.into_iter().map(|(_, kind, id)| (kind, id)).collect();
            removals.push(RemovedDir { node, old, entries });
        }
        self.root = root.unwrap_or(self.root);
        self.untold.clear();
        for (first, plan) in plans {
            self.counting_from(first, |inner| inner.replace(plan));
        }
        for plan in removals {
            self.remove(plan);
        }
        if let Some(Kept { commit, node, tree, time }) = keep {
            self.counting_from(node.0, |inner| inner.keep(commit, tree, time));
            self.know(node, true);
        }
        for (node, known) in retired {
            self.know(node, known);
            self.retire(node);
        }
        Some(())
    }

    /// Gives ids from `first` on, as the process before did.
    fn counting_from(&mut self, first: u64, give: impl FnOnce(&mut Self)) {
        let next = std::mem::replace(&mut self.next, first);
        give(self);
        self.next = self.next.max(next);
    }

    /// Whether the kernel knows the root of a kept snapshot.
    fn know(&mut self, node: NodeId, known: bool) {
        if let Some(Place::Snapshot { lookups, .. }) = self.places.get_mut(&node) {
            *lookups = if known { FOR_EVER.into() } else { 0 };
        }
    }
}

/// The entries of `old` that do not stay, in order; those that are not in `left` count as never looked up, and everything else as known.
fn gone(old: &DirVersion, stays: &[bool], left: &[Left]) -> Option<Vec<Left>> {
    let known: HashMap<u32, Left> = left.iter().map(|left| (left.0, *left)).collect();
    if known.keys().any(|index| stays.get(*index as usize) != Some(&false)) {
        return None;
    }
    let mut gone = Vec::new();
    for (index, stays) in stays.iter().enumerate() {
        let known = known.get(&(index as u32));
        let count = if *stays || known.is_some() { FOR_EVER } else { 0 };
        old.lookups[index].store(count, Ordering::Relaxed);
        if !stays {
            // What was never looked up leaves no trace, so it does not matter what it was.
            gone.push(known.copied().unwrap_or((index as u32, EntryKind::File, old.tree)));
        }
    }
    Some(gone)
}

fn described(version: &DirVersion) -> Version {
    let (range, runs) = match &version.ids {
        Ids::Range { first, time } => (true, vec![(first.id(), version.len() as u32, *time)]),
        Ids::Listed(list) => (false, runs(&list.0)),
    };
    Version { tree: version.tree, generation: version.generation, range, runs }
}

fn runs(list: &[(NodeId, Time)]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (node, time) in list {
        match runs.last_mut() {
            Some((first, len, of)) if of == time && *first + u64::from(*len) == node.0 => *len += 1,
            _ => runs.push((node.0, 1, *time)),
        }
    }
    runs
}

fn restored(version: Version) -> Option<DirVersion> {
    let Version { tree, generation, range, runs } = version;
    let (ids, len) = match (range, runs.as_slice()) {
        (true, [(first, len, time)]) => (Ids::Range { first: First::new(*first), time: *time }, *len as usize),
        (true, _) => return None,
        (false, runs) => {
            let list: Box<[_]> =
                runs.iter().flat_map(|(first, len, time)| (0..u64::from(*len)).map(|n| (NodeId(first.wrapping_add(n)), *time))).collect();
            let len = list.len();
            (Ids::Listed(Box::new(Listed(list))), len)
        }
    };
    Some(DirVersion { tree, generation, ids, lookups: counters(len) })
}

/// Takes one more record into account; `None` when it makes no sense.
fn apply(table: &mut Option<Inner>, record: Record) -> Option<()> {
    match (table, record) {
        (table @ None, Record::State { next, root, kept, untold }) => {
            let snapshot = |k: &Kept| (k.node, Place::Snapshot { tree: k.tree, time: k.time, lookups: FOR_EVER.into() });
            let places = kept.iter().map(snapshot).collect();
            *table = Some(Inner {
                next,
                root,
                dirs: HashMap::new(),
                older: HashMap::new(),
                ranges: Ranges::default(),
                places,
                kept,
                untold,
                late: None,
            });
        }
        (None, _) | (Some(_), Record::State { .. }) => return None,
        (Some(inner), Record::Dir { node, parent: _, current, older }) => inner.insert(node, current, older)?,
        (Some(inner), Record::Orphans(orphans)) => {
            inner.places.extend(orphans.into_iter().map(|(node, orphan)| (node, Place::Orphan(orphan))));
        }
        (Some(inner), Record::Load { node, parent: _, tree, first, len, time }) => {
            let runs = vec![(first, len, time)];
            inner.insert(node, Version { tree, generation: 0, range: true, runs }, vec![])?;
            inner.next = inner.next.max(first.checked_add(u64::from(len))?);
        }
        (Some(inner), Record::Switch(switch)) => inner.repeat(switch)?,
        (Some(inner), Record::Forgotten(nodes)) => {
            for node in nodes {
                if let Some(Place::Orphan(_)) = inner.places.get(&node) {
                    inner.places.remove(&node);
                }
            }
        }
    }
    Some(())
}
