//! Walks over commits alone: how deep the history below a commit goes, and which of the cuts in it are still of use.

use std::collections::{HashSet, VecDeque};

use super::Objects;
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::repository::shallow::Boundary;

/// A walk that only tidies up gives up after this many commits.
const TIDY_LIMIT: usize = 100_000;

impl Objects {
    /// The parents of a commit.
    pub(crate) fn parents(&self, id: ObjectId) -> Result<Vec<ObjectId>> {
        self.with_object(id, gix::object::Kind::Commit, |data| parents(id, data, self.hash()))
    }

    /// Checks that `commit` is there with `depth` commits of history (0: all of it) and that the history ends only at `boundary`.
    ///
    /// `None` when something within `depth` is missing. Else the commits to add to the boundary, because parents of theirs that
    /// lie beyond `depth` are not there.
    pub(crate) fn adopt(&self, commit: ObjectId, depth: u32, boundary: &Boundary) -> Result<Option<Boundary>> {
        let mut cuts = Boundary::new();
        if !self.contains(commit)? {
            return Ok(None);
        }
        let mut seen = HashSet::from([commit]);
        let mut queue = VecDeque::from([(commit, 1u32)]);
        while let Some((id, level)) = queue.pop_front() {
            let parents = self.parents(id)?;
            if parents.is_empty() {
                continue;
            }
            let enough = depth != 0 && level >= depth;
            let listed = boundary.contains(&id);
            if listed || !parents.iter().all(|parent| seen.contains(parent) || self.contains_now(parent)) {
                if !enough {
                    return Ok(None);
                }
                if !listed {
                    cuts.insert(id);
                }
                continue;
            }
            queue.extend(parents.into_iter().filter(|parent| seen.insert(*parent)).map(|parent| (parent, level.saturating_add(1))));
        }
        Ok(Some(cuts))
    }

    /// The part of `boundary` that is reached from `tips`; all of it when finding out would take long.
    pub(crate) fn tidy(&self, tips: &[ObjectId], boundary: &Boundary) -> Boundary {
        let mut reached = Boundary::new();
        let mut seen: HashSet<ObjectId> = tips.iter().copied().collect();
        let mut stack = tips.to_vec();
        while let Some(id) = stack.pop() {
            if boundary.contains(&id) {
                reached.insert(id);
                continue;
            }
            if seen.len() > TIDY_LIMIT {
                return boundary.clone();
            }
            match self.parents(id) {
                Ok(parents) => stack.extend(parents.into_iter().filter(|parent| seen.insert(*parent))),
                // Not this walk's business: `verify` reports it.
                Err(_) => return boundary.clone(),
            }
        }
        reached
    }

    /// Whether `id` is there, as far as the last listing of packs knows.
    pub(crate) fn contains_now(&self, id: &gix::hash::oid) -> bool {
        self.database.contains_now(id)
    }
}

pub(super) fn parents(id: ObjectId, data: &[u8], hash: gix::hash::Kind) -> Result<Vec<ObjectId>> {
    let commit = gix::objs::CommitRef::from_bytes(data, hash)
        .map_err(|err| StoreError::new(Fault::Corrupt, format!("commit {id} is malformed")).caused_by(err))?;
    Ok(commit.parents().collect())
}
