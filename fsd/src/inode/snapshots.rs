//! Roots of the snapshots that are kept beside the live tree: no switch changes anything below them.

use std::convert::Infallible;

use bstr::BStr;
use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::EntryKind;

use super::{Inner, NodeId, Orphan, Place, Table, TablePlan, Time};

/// A snapshot that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kept {
    /// The commit.
    pub commit: CommitId,
    /// The root of its tree.
    pub node: NodeId,
    /// The tree.
    pub tree: ObjectId,
    /// The mtime of everything in it.
    pub time: Time,
}

impl Table {
    /// The kept snapshots, the one served last first.
    pub fn kept(&self) -> Vec<Kept> {
        self.inner.read().kept.clone()
    }

    /// The kept snapshot whose root is `node`.
    pub fn kept_at(&self, node: NodeId) -> Option<Kept> {
        self.inner.read().kept.iter().find(|k| k.node == node).copied()
    }

    /// Looks the snapshot of the commit with the full id `name` up, and counts it as known to the kernel.
    pub fn find_kept(&self, name: &BStr) -> Option<Kept> {
        let mut inner = self.inner.write();
        let found = inner.kept.iter().find(|k| k.commit.to_string() == *name).copied()?;
        if let Some(Place::Snapshot { lookups, .. }) = inner.places.get_mut(&found.node) {
            *lookups += 1;
        }
        Some(found)
    }

    /// Snapshots that are kept no longer and that the kernel may still know by name: also those of a process that was killed before it told.
    pub fn untold(&self) -> Vec<CommitId> {
        self.inner.read().untold.clone()
    }

    /// The kernel has been told of them.
    pub fn told(&self) {
        self.inner.write().untold.clear();
    }

    /// Keeps the snapshot of `commit` as the one served last. One that is kept already stays the node it is.
    pub fn keep(&self, commit: CommitId, tree: ObjectId, time: Time) {
        let plan = TablePlan { keep: Some((commit, tree, time)), ..TablePlan::default() };
        match self.apply(plan, || (), |_, _, _| Ok::<(), Infallible>(())) {
            Ok(()) => {}
            Err(never) => match never {},
        }
    }
}

impl Inner {
    pub(super) fn keep(&mut self, commit: CommitId, tree: ObjectId, time: Time) {
        if let Some(known) = self.kept.iter().position(|k| k.commit == commit) {
            self.kept[..=known].rotate_right(1);
            return;
        }
        let node = NodeId(self.take_ids(1));
        self.places.insert(node, Place::Snapshot { tree, time, lookups: 0 });
        self.kept.insert(0, Kept { commit, node, tree, time });
    }

    /// Keeps the snapshot whose root is `node` no longer: a dead directory while the kernel knows it, else gone.
    pub(super) fn retire(&mut self, node: NodeId) {
        self.untold.extend(self.kept.iter().filter(|k| k.node == node).map(|k| k.commit));
        self.kept.retain(|k| k.node != node);
        let Some(Place::Snapshot { tree, time, lookups }) = self.places.remove(&node) else { return };
        if lookups > 0 {
            self.places.insert(node, Place::Orphan(Orphan { kind: EntryKind::Directory, id: tree, time, lookups }));
        }
    }
}
