//! Everything below some commits: what a repack keeps, what `verify` wants complete, what a copy takes along.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::hashtable::HashSet;

use super::Objects;
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::repository::shallow::Boundary;

/// How far a walk goes.
pub(crate) struct Limits<'a> {
    /// Commits whose parents are not followed.
    pub(crate) boundary: &'a Boundary,
    /// How many commits of history; 0 is all of it.
    pub(crate) depth: u32,
    /// Objects that are not wanted, and what is below them neither.
    pub(crate) skip: &'a dyn Fn(&gix::hash::oid) -> bool,
    /// Ends the walk when it is set.
    pub(crate) stop: &'a AtomicBool,
    /// Told what is missing or broken; an error it gives ends the walk.
    pub(crate) problem: &'a mut dyn FnMut(StoreError) -> Result<()>,
}

/// What a walk found.
pub(crate) struct Reached {
    /// All objects, each once.
    pub(crate) ids: HashSet<ObjectId>,
    /// Commits whose parents were left out because of the depth.
    pub(crate) cuts: Boundary,
}

impl Objects {
    /// Walks from the commits `tips` to everything they need.
    pub(crate) fn reach(&self, tips: &[ObjectId], limits: Limits<'_>) -> Result<Reached> {
        let Limits { boundary, depth, skip, stop, problem } = limits;
        let mut reached = Reached { ids: HashSet::default(), cuts: Boundary::new() };
        let mut commits: VecDeque<(ObjectId, u32)> = VecDeque::new();
        for tip in tips {
            if !skip(tip) && reached.ids.insert(*tip) {
                commits.push_back((*tip, 1));
            }
        }
        let mut trees = Vec::new();
        while let Some((id, level)) = commits.pop_front() {
            match self.commit_links(id) {
                Ok((tree, parents)) => {
                    if !skip(&tree) && reached.ids.insert(tree) {
                        trees.push(tree);
                    }
                    if boundary.contains(&id) {
                        // Nothing beyond it was ever fetched.
                    } else if depth != 0 && level >= depth {
                        if !parents.is_empty() {
                            reached.cuts.insert(id);
                        }
                    } else {
                        for parent in parents {
                            if !skip(&parent) && reached.ids.insert(parent) {
                                commits.push_back((parent, level.saturating_add(1)));
                            }
                        }
                    }
                }
                Err(err) => problem(err)?,
            }
            while let Some(id) = trees.pop() {
                if stop.load(Ordering::Relaxed) {
                    return Err(StoreError::new(Fault::Cancelled, "cancelled while looking for what is needed"));
                }
                if let Err(err) = self.walk_tree(id, skip, &mut reached.ids, &mut trees) {
                    problem(err)?;
                }
            }
        }
        Ok(reached)
    }

    fn commit_links(&self, id: ObjectId) -> Result<(ObjectId, Vec<ObjectId>)> {
        self.with_object(id, gix::object::Kind::Commit, |data| {
            let commit = gix::objs::CommitRef::from_bytes(data, self.hash())
                .map_err(|err| StoreError::new(Fault::Corrupt, format!("commit {id} is malformed")).caused_by(err))?;
            Ok((commit.tree(), commit.parents().collect()))
        })
    }

    /// Adds what a tree names. Names do not matter here: a tree that cannot be shown is still kept whole.
    fn walk_tree(
        &self,
        id: ObjectId,
        skip: &dyn Fn(&gix::hash::oid) -> bool,
        ids: &mut HashSet<ObjectId>,
        trees: &mut Vec<ObjectId>,
    ) -> Result<()> {
        self.with_object(id, gix::object::Kind::Tree, |data| {
            for entry in gix::objs::TreeRefIter::from_bytes(data, self.hash()) {
                let entry = entry.map_err(|err| StoreError::new(Fault::Corrupt, format!("tree {id} is malformed")).caused_by(err))?;
                if entry.mode.is_commit() || skip(entry.oid) || !ids.insert(entry.oid.to_owned()) {
                    continue;
                }
                if entry.mode.is_tree() {
                    trees.push(entry.oid.to_owned());
                }
            }
            Ok(())
        })
    }
}
