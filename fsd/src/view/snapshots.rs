//! Snapshots that are kept beside the live tree, for readers who must see one commit from start to end.
//!
//! Each commit the view serves is kept from the moment of the switch to it until [`ViewOptions::keep_snapshots`] others were served after it.
//! Below its root nothing ever changes. When it is kept no longer its directories are dead (ENOENT) and its files can be read by whoever
//! has them open.
//!
//! Letting go needs no mark: first everything below becomes dead, then [`Gate::drain`] waits for the replies that were built before, and
//! only then the kernel is told. Whatever is built after says ENOENT, which nobody caches.
//!
//! [`ViewOptions::keep_snapshots`]: super::ViewOptions::keep_snapshots
//! [`Gate::drain`]: super::gate::Gate::drain

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use bstr::{BString, ByteSlice};
use gitmount_store::ids::CommitId;
use gitmount_store::objects::EntryKind;

use super::switch::Kernel;
use super::{View, time_of};
use crate::inode::{DirVersion, NodeId, RemovedDir, TablePlan, Time};

/// The name at the root below which snapshots are found. A tree that has such an entry itself shows its own.
pub const HIDDEN_NAME: &str = ".gitmount";

impl View {
    /// The commits whose objects must stay: the one that is served, and the kept snapshots.
    pub fn pinned(&self) -> Vec<CommitId> {
        self.table.kept().iter().map(|k| k.commit).collect()
    }

    /// Whether the snapshots can be reached by name.
    pub fn shows_snapshots(&self) -> bool {
        self.tree(self.current().root).is_ok_and(|tree| tree.find(HIDDEN_NAME.into()).is_none())
    }

    /// Says once that a tree with an entry of this name hides the snapshots.
    pub(super) fn say_if_hidden(&self) {
        if !self.shows_snapshots() && !self.said_hidden.swap(true, Ordering::Relaxed) {
            tracing::warn!("the tree has a {HIDDEN_NAME} of its own: snapshots cannot be reached by name while it has");
        }
    }

    /// From now on the kernel is told when the list of snapshots changes.
    pub fn commits_are_known(&self) {
        self.commits_known.store(true, Ordering::SeqCst);
    }

    /// When the list of snapshots last changed.
    pub fn commits_time(&self) -> Time {
        Time(self.commits_time.load(Ordering::Relaxed))
    }

    /// Lets go of the snapshots that are too many, after a switch.
    pub(super) fn let_go(&self, kernel: &dyn Kernel) {
        let kept = self.table.kept();
        let old = kept.get(self.options.keep_snapshots.saturating_add(1)..).unwrap_or_default();
        let mut told = Told::default();
        self.commits_time.store(self.commits_time().bump(time_of(SystemTime::now())).0, Ordering::Relaxed);
        if !old.is_empty() {
            self.table.begin_switch();
            let mut plan = TablePlan { retired: old.iter().map(|k| k.node).collect(), ..TablePlan::default() };
            self.remove_below(plan.retired.clone(), &|node| self.table.dir(node), &mut plan.removed, &mut told);
            let extend = |late: &[NodeId], current: &dyn Fn(NodeId) -> Option<Arc<DirVersion>>, plan: &mut TablePlan| {
                // What was loaded meanwhile hangs below what was there before, or is a root itself.
                let start = late.iter().copied().filter(|node| told.frontier.contains(node)).collect();
                self.remove_below(start, current, &mut plan.removed, &mut told);
                Ok::<(), std::convert::Infallible>(())
            };
            match self.table.apply(plan, || (), extend) {
                Ok(()) => {}
                Err(never) => match never {},
            }
        }
        if self.commits_known.load(Ordering::SeqCst) {
            self.gate.drain();
            let commits: Vec<_> = old.iter().map(|kept| kept.commit).collect();
            self.tell(&commits, &told, kernel);
        } else {
            self.table.told();
        }
    }

    /// Tells of snapshots that a process before let go of and was killed before it told: their names may come back as other nodes.
    pub(super) fn tell_untold(&self, kernel: &dyn Kernel) {
        let commits = self.table.untold();
        if !commits.is_empty() {
            self.gate.drain();
            self.tell(&commits, &Told::default(), kernel);
        }
    }

    fn tell(&self, commits: &[CommitId], told: &Told, kernel: &dyn Kernel) {
        for commit in commits {
            kernel.expire(NodeId::COMMITS, commit.to_string().as_str().into());
        }
        kernel.invalidate(NodeId::COMMITS);
        for (dir, name) in &told.names {
            kernel.expire(*dir, name.as_bstr());
        }
        for dir in &told.dirs {
            kernel.invalidate(*dir);
        }
        kernel.flush();
        self.table.told();
    }

    /// Collects the loaded directories from `work` on downwards.
    fn remove_below(
        &self,
        mut work: Vec<NodeId>,
        current: &dyn Fn(NodeId) -> Option<Arc<DirVersion>>,
        removed: &mut Vec<RemovedDir>,
        told: &mut Told,
    ) {
        while let Some(node) = work.pop() {
            let Some(old) = current(node) else {
                told.frontier.push(node);
                continue;
            };
            told.dirs.push(node);
            let mut entries = Vec::with_capacity(old.len());
            // Where the objects are gone already nobody reads its files to the end either.
            if let Ok(tree) = self.tree(old.tree) {
                for (index, entry) in tree.entries().iter().enumerate() {
                    entries.push((entry.kind, entry.id));
                    if old.lookups(index) > 0 {
                        told.names.push((node, entry.name.clone()));
                    }
                    if entry.kind == EntryKind::Directory {
                        work.push(old.entry(index).0);
                    }
                }
            }
            removed.push(RemovedDir { node, old, entries });
        }
    }
}

/// Whom to tell of the end of snapshots.
#[derive(Debug, Default)]
struct Told {
    dirs: Vec<NodeId>,
    names: Vec<(NodeId, BString)>,
    /// Directories that were not loaded.
    frontier: Vec<NodeId>,
}
