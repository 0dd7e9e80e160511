//! The two-phase switch from snapshot A to B.
//!
//! Invariant: every lookup that starts before [`View::switch_to`] swaps the pointer sees A, every one after it B, and nothing that the kernel
//! cached from A outlives the swap. Nested mounts, working directories, open files and half-read listings go on.
//!
//! 1. Plan: walk both trees below the directories the kernel knows; equal ids prune whole sub-trees. Nothing is held up meanwhile. Directories
//!    that are loaded from here on are recorded, and which of the changed names the kernel knows is looked at later.
//! 2. Mark: from here on replies tell A with lifetime zero, and directories' attributes too, so that a listing the kernel caches meanwhile is
//!    dropped when their mtime moves. Wait until no reply built before the mark is on its way. What was loaded since the plan began is
//!    planned now: the kernel may have cached it.
//! 3. Tell: EXPIRE each changed name, invalidate attributes and listing of each changed directory. No handler waits meanwhile: the kernel
//!    holds the parent directory's lock during a notification, and blocking a lookup then would deadlock.
//! 4. Swap, in one step under the table's lock: this is the moment of the switch.
//! 5. Clear the mark.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use bstr::{BStr, BString, ByteSlice};
use gitmount_store::error::Result;
use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::{Entry, EntryKind, Tree};

use super::{Snapshot, Switched, View, time_of};
use crate::inode::{Carry, DirPlan, DirVersion, NodeId, RemovedDir, TablePlan, Time};

/// Whom a switch tells about changes.
pub trait Kernel: Sync {
    /// The entry `name` of `parent` has to be looked up again; mounts below it stay.
    fn expire(&self, parent: NodeId, name: &BStr);
    /// Attributes and listing of `dir` have to be read again.
    fn invalidate(&self, dir: NodeId);
    /// Returns when everything above has been told.
    fn flush(&self) {}
}

impl View {
    /// Switches to `commit` of the same repository. One switch at a time; a later one waits.
    ///
    /// # Errors
    /// When the commit or a tree of it cannot be read, or has no directory at the view's path; the old snapshot is then served on.
    pub fn switch_to(&self, commit: CommitId, kernel: &dyn Kernel) -> Result<Switched> {
        let _one = self.switching.lock();
        let began = Instant::now();
        self.tell_untold(kernel);
        let old = self.current();
        let info = self.objects.commit(commit)?;
        let root = self.objects.tree_at(info.tree, &self.options.path)?;
        let new = Snapshot { commit, root };
        let time = time_of(info.time);
        let mut changed = 0;
        if root == old.root {
            let plan = TablePlan { keep: Some((commit, root, time)), ..TablePlan::default() };
            self.table.apply(plan, || self.snapshot.store(Arc::new(new)), |_, _, _| Ok(()))?;
        } else {
            let now = time_of(SystemTime::now());
            self.table.begin_switch();
            let done = self.two_phases(new, time, now, kernel);
            if done.is_err() {
                self.table.abort_switch();
            }
            changed = done?;
        }
        let took = began.elapsed();
        if commit != old.commit {
            self.let_go(kernel);
            self.say_if_hidden();
        }
        Ok(Switched { old: old.commit, new: commit, changed, took })
    }

    fn two_phases(&self, new: Snapshot, time: Time, now: Time, kernel: &dyn Kernel) -> Result<usize> {
        let mut planner = Planner::new(self, now);
        planner.walk(new.root)?;
        self.gate.mark();
        let done = (|| {
            planner.run_late(&self.table.late(), &|node| self.table.dir(node))?;
            let changed = planner.tell(kernel);
            kernel.flush();
            let Planner { mut plan, moves, .. } = planner;
            plan.keep = Some((new.commit, new.root, time));
            let done = || self.snapshot.store(Arc::new(new));
            self.table.apply(plan, done, |late, current, plan| Planner::late(self, now, late, current, moves, plan))?;
            Ok(changed)
        })();
        self.gate.clear();
        done
    }
}

/// What becomes of a directory that was not loaded when its parent was planned.
#[derive(Debug, Clone, Copy)]
enum Move {
    /// It shows this tree, and this is the mtime of whatever changes in it: in a later second than anything in it had before, also than
    /// what it had and lost, since a directory's own time moves with every change in it.
    To(ObjectId, Time),
    Removed,
}

/// A name that changes. The kernel need not be told of an entry it never looked up; that something was not there it may always remember.
struct Name {
    dir: NodeId,
    name: BString,
    was: Option<(Arc<DirVersion>, u32)>,
}

impl Name {
    fn is_known(&self) -> bool {
        self.was.as_ref().is_none_or(|(version, index)| version.lookups(*index as usize) > 0)
    }
}

/// Notifications from which on they are worth two threads.
const MANY: usize = 512;

/// Collects what changes between two trees below the directories that are loaded.
struct Planner<'a> {
    view: &'a View,
    now: Time,
    plan: TablePlan,
    names: Vec<Name>,
    listings: Vec<NodeId>,
    /// Directories that change but are not loaded (yet).
    moves: std::collections::HashMap<NodeId, Move>,
}

impl<'a> Planner<'a> {
    fn new(view: &'a View, now: Time) -> Self {
        Planner { view, now, plan: TablePlan::default(), names: vec![], listings: vec![], moves: Default::default() }
    }

    /// Plans everything below the root, which becomes `root`.
    fn walk(&mut self, root: ObjectId) -> Result<()> {
        let was = match self.view.table.locate(NodeId::ROOT) {
            Some(crate::inode::Location::Root(_, time)) => time,
            _ => self.now,
        };
        let time = was.bump(self.now);
        self.plan.root = Some((root, time));
        self.listings.push(NodeId::ROOT);
        self.run(vec![(NodeId::ROOT, Move::To(root, time))], &|node| self.view.table.dir(node))
    }

    /// Plans directories that were loaded while the switch was under way. Their replies had lifetime zero: nobody is told.
    fn late(
        view: &'a View,
        now: Time,
        late: &[NodeId],
        current: &dyn Fn(NodeId) -> Option<Arc<DirVersion>>,
        moves: std::collections::HashMap<NodeId, Move>,
        plan: &mut TablePlan,
    ) -> Result<()> {
        let mut planner = Planner { moves, ..Planner::new(view, now) };
        planner.run_late(late, current)?;
        plan.dirs.append(&mut planner.plan.dirs);
        plan.removed.append(&mut planner.plan.removed);
        Ok(())
    }

    /// Plans directories that were loaded since their parents were planned.
    fn run_late(&mut self, late: &[NodeId], current: &dyn Fn(NodeId) -> Option<Arc<DirVersion>>) -> Result<()> {
        // A late directory was either on the planned frontier, or below another late one: starting at the frontier reaches both.
        let start = late.iter().filter_map(|node| self.moves.remove_entry(node)).collect();
        self.run(start, current)
    }

    /// Tells of the names that the kernel knows, and of the listings; the number of names. Most of it is time in the kernel, so two
    /// threads do it when it is much.
    fn tell(&self, kernel: &dyn Kernel) -> usize {
        let expire = |names: &[Name]| {
            let known = names.iter().filter(|name| name.is_known());
            known.map(|name| kernel.expire(name.dir, name.name.as_bstr())).count()
        };
        let invalidate = |listings: &[NodeId]| listings.iter().for_each(|dir| kernel.invalidate(*dir));
        if self.names.len() + self.listings.len() < MANY {
            invalidate(&self.listings);
            return expire(&self.names);
        }
        let (names, listings) = (self.names.split_at(self.names.len() / 2), self.listings.split_at(self.listings.len() / 2));
        std::thread::scope(|scope| {
            let half = || {
                invalidate(listings.0);
                expire(names.0)
            };
            let other = std::thread::Builder::new().name("tell".into()).spawn_scoped(scope, half);
            invalidate(listings.1);
            let told = expire(names.1);
            told + match other {
                Ok(other) => other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(_) => half(),
            }
        })
    }

    fn run(&mut self, mut work: Vec<(NodeId, Move)>, current: &dyn Fn(NodeId) -> Option<Arc<DirVersion>>) -> Result<()> {
        while let Some((node, to)) = work.pop() {
            let Some(old) = current(node) else {
                self.moves.insert(node, to);
                continue;
            };
            let before = self.view.tree(old.tree)?;
            match to {
                Move::Removed => {
                    let entries: Vec<_> = before.entries().iter().map(|e| (e.kind, e.id)).collect();
                    // Whoever is in it must not go on seeing what was cached of it.
                    self.listings.push(node);
                    for (index, entry) in before.entries().iter().enumerate() {
                        self.names.push(Name { dir: node, name: entry.name.clone(), was: Some((old.clone(), index as u32)) });
                        if entry.kind == EntryKind::Directory {
                            work.push((old.entry(index).0, Move::Removed));
                        }
                    }
                    self.plan.removed.push(RemovedDir { node, old, entries });
                }
                Move::To(tree, _) if tree == old.tree => {}
                Move::To(tree, time) => {
                    let after = self.view.tree(tree)?;
                    self.diff(node, (&old, &before), (tree, &after), time, &mut work);
                }
            }
        }
        Ok(())
    }

    /// Plans one directory whose tree changes, and puts its changed sub-directories on `work`.
    fn diff(
        &mut self,
        node: NodeId,
        (old, before): (&Arc<DirVersion>, &Tree),
        (tree, after): (ObjectId, &Tree),
        changed_at: Time,
        work: &mut Vec<(NodeId, Move)>,
    ) {
        let mut entries = Vec::with_capacity(after.entries().len());
        let mut gone = vec![];
        let mut was = before.entries().iter().enumerate().peekable();
        let leave = |planner: &mut Self, index: usize, entry: &Entry, work: &mut Vec<(NodeId, Move)>, gone: &mut Vec<_>| {
            gone.push((index as u32, entry.kind, entry.id));
            if entry.kind == EntryKind::Directory {
                work.push((old.entry(index).0, Move::Removed));
            }
            planner.names.push(Name { dir: node, name: entry.name.clone(), was: Some((old.clone(), index as u32)) });
        };
        for entry in after.entries() {
            while let Some((index, removed)) = was.next_if(|(_, e)| e.name < entry.name) {
                leave(self, index, removed, work, &mut gone);
            }
            let carry = match was.next_if(|(_, e)| e.name == entry.name) {
                Some((index, same)) if same.id == entry.id && same.kind == entry.kind => {
                    Carry::Keep { old: index as u32, time: old.entry(index).1 }
                }
                Some((index, dir)) if dir.kind == EntryKind::Directory && entry.kind == EntryKind::Directory => {
                    let (child, was) = old.entry(index);
                    let time = was.bump(changed_at);
                    work.push((child, Move::To(entry.id, time)));
                    self.listings.push(child);
                    Carry::Keep { old: index as u32, time }
                }
                Some((index, module)) if module.kind == EntryKind::Submodule && entry.kind == EntryKind::Submodule => {
                    let (child, was) = old.entry(index);
                    self.listings.push(child);
                    Carry::Keep { old: index as u32, time: was.bump(changed_at) }
                }
                Some((index, changed)) => {
                    leave(self, index, changed, work, &mut gone);
                    Carry::Fresh(changed_at)
                }
                None => {
                    // The kernel may remember that there was none.
                    self.names.push(Name { dir: node, name: entry.name.clone(), was: None });
                    Carry::Fresh(changed_at)
                }
            };
            entries.push(carry);
        }
        for (index, removed) in was {
            leave(self, index, removed, work, &mut gone);
        }
        self.plan.dirs.push(DirPlan { node, old: old.clone(), tree, entries, gone });
    }
}
