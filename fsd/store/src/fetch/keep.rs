//! The pack of a fetch and what comes after it: its objects are checked, and then the refs are moved. What the host does not give by its id is
//! fetched with the branches and tags.

use super::pick::Target;
use super::receive::Received;
use super::remote::Remote;
use super::{Fetch, Fetched, Item, MAX_TAGS, tag_target};
use crate::error::{Fault, Result, StoreError};
use crate::ids::{CommitId, ObjectId};
use crate::objects::reach::Limits;
use crate::refspec::RefSpec;
use crate::repository::lock::Lock;
use crate::repository::shallow::Boundary;

/// The depth of a commit with its parents.
const WITH_PARENTS: u32 = 2;

impl Fetch<'_> {
    /// Receives all open items in one pack. Where the host refuses a commit id, the names come first and then each commit by itself.
    pub(super) fn receive(&self, mut remote: Remote<'_>, items: &mut [Item<'_>], lock: &Lock) -> Result<()> {
        let mut open: Vec<&mut Item<'_>> = items.iter_mut().filter(|item| item.is_open()).collect();
        let lead = self.lead(&open)?;
        let depth = if lead.is_some() { WITH_PARENTS } else { self.depth };
        let refused = match remote.receive(self, &wanted(&open), depth, lead) {
            Ok(mut received) => {
                remote.finish();
                if lead.is_some() {
                    // The parents were a help to the host, and are no part of the history here.
                    let commits = open.iter().filter_map(|item| item.target.as_ref()).map(|target| target.commit);
                    received.cut = Some(commits.collect());
                }
                return self.keep(&received, &mut open, lock);
            }
            Err(err) if err.fault() == Fault::NotFound && open.iter().any(|item| item.is_commit()) => err,
            Err(err) => return Err(err),
        };
        // A connection that saw an error is of no more use.
        drop(remote);
        if let [only] = open.as_mut_slice() {
            return self.with_all_refs(vec![(&mut **only, refused)], lock);
        }
        let (mut names, commits): (Vec<_>, Vec<_>) = open.into_iter().partition(|item| !item.is_commit());
        if !names.is_empty() {
            let mut remote = self.connect()?;
            let received = remote.receive(self, &wanted(&names), self.depth, None)?;
            remote.finish();
            self.keep(&received, &mut names, lock)?;
        }
        let mut left = Vec::new();
        for item in commits {
            let mut remote = self.connect()?;
            let mut this = [item];
            match remote.receive(self, &wanted(&this), self.depth, None) {
                Ok(received) => {
                    remote.finish();
                    self.keep(&received, &mut this, lock)?;
                }
                Err(err) if err.fault() == Fault::NotFound => {
                    let [item] = this;
                    left.push((item, err));
                }
                Err(err) => return Err(err),
            }
        }
        if left.is_empty() { Ok(()) } else { self.with_all_refs(left, lock) }
    }

    /// When the parents of what is open are to be asked for as well, although one commit of history is enough: the commit that is here and
    /// most likely to be one of them.
    ///
    /// A ref that is fetched for the first time is often a child of the default branch. A host that is asked for a depth of one cannot see
    /// that, and git's then walks the whole tree of a commit that is here to find out what not to send: on a big tree that takes many times
    /// as long as all the rest. It does not when the parent is in sight and the first commit that it is told of. Later fetches of a ref do
    /// without, since among the parents may be old branches that were merged.
    fn lead(&self, open: &[&mut Item<'_>]) -> Result<Option<ObjectId>> {
        if self.damaged || self.depth != 1 || open.iter().any(|item| item.is_commit()) {
            return Ok(None);
        }
        for item in open {
            if self.repository.known(item.spec)?.is_some() {
                return Ok(None);
            }
        }
        Ok(self.repository.known(&RefSpec::Head)?.map(CommitId::id).or(self.repository.tips()?.first().copied()))
    }

    /// Fetches commits that the host does not give by their ids: with the whole history of all branches and tags.
    fn with_all_refs(&self, items: Vec<(&mut Item<'_>, StoreError)>, lock: &Lock) -> Result<()> {
        let mut remote = self.connect()?;
        let listed = remote.ls_refs(&["refs/heads/".into(), "refs/tags/".into()])?;
        let mut wants: Vec<ObjectId> = listed.iter().map(|listed| listed.id).collect();
        wants.sort_unstable();
        wants.dedup();
        let mut received = None;
        if !wants.is_empty() {
            received = Some(remote.receive(self, &wants, 0, None)?);
            self.repository.objects().relist()?;
        }
        remote.finish();
        let mut found = Vec::new();
        for (item, refused) in items {
            let id = item.target.as_ref().map(|target| target.id);
            match id {
                Some(id) if received.is_some() && self.repository.objects().contains(id)? => found.push(item),
                _ => {
                    let message =
                        format!("commit {} does not exist in {}, or no branch or tag leads to it", item.spec, self.repository.url());
                    item.fail(StoreError::new(Fault::NotFound, message).caused_by(refused))?;
                }
            }
        }
        match received {
            Some(received) if found.is_empty() => received.discard(self.repository),
            Some(received) => self.keep(&received, &mut found, lock),
            None => Ok(()),
        }
    }

    /// Ends a fetch that received objects: from here on they are part of the repository. When the objects are not what was asked for they
    /// are removed again.
    pub(super) fn keep(&self, received: &Received, items: &mut [&mut Item<'_>], _lock: &Lock) -> Result<()> {
        self.repository.objects().relist()?;
        let (mut cut, mut joined) = (Boundary::new(), Boundary::new());
        for update in &received.shallow {
            use gix::protocol::fetch::response::ShallowUpdate;
            match update {
                ShallowUpdate::Shallow(id) => cut.insert(*id),
                ShallowUpdate::Unshallow(id) => joined.insert(*id),
            };
        }
        let mut found = Vec::with_capacity(items.len());
        for (position, item) in items.iter_mut().enumerate() {
            let Some(Target { id, .. }) = item.target else { continue };
            let checked = self.peel(item.spec, id).and_then(|commit| {
                self.check_complete(commit, received, &cut)?;
                Ok(CommitId::new(commit))
            });
            let failed = match checked {
                Ok(commit) => {
                    found.push((position, commit));
                    continue;
                }
                Err(err) => item.fail(err),
            };
            if let Err(err) = failed {
                received.discard(self.repository)?;
                return Err(err);
            }
        }
        if found.is_empty() {
            return received.discard(self.repository);
        }
        if let Some(tips) = &received.cut {
            (cut, joined) = (tips.clone(), Boundary::new());
        }
        let commits: Vec<(&RefSpec, CommitId)> = found.iter().map(|(position, commit)| (items[*position].spec, *commit)).collect();
        self.record(&commits, &cut, &joined)?;
        self.repository.record_packs(&[])?;
        for (position, commit) in found {
            let item = &mut items[position];
            let ref_name = item.target.take().and_then(|target| target.ref_name);
            item.outcome = Some(Ok(Fetched { commit, ref_name, received: received.any() }));
        }
        Ok(())
    }

    /// Follows annotated tags, also tags of tags, to the commit.
    fn peel(&self, spec: &RefSpec, mut id: ObjectId) -> Result<ObjectId> {
        let objects = self.repository.objects();
        let mut content = Vec::new();
        for _ in 0..MAX_TAGS {
            if objects.header(id)?.0 != gix::object::Kind::Tag || matches!(spec, RefSpec::Commit(_)) {
                self.check_kind(spec, id)?;
                return Ok(id);
            }
            objects.read(id, &mut content)?;
            id = tag_target(id, &content, objects.hash())?;
        }
        Err(StoreError::new(Fault::Corrupt, format!("more than {MAX_TAGS} tags of tags lead to {id}")))
    }

    /// Checks that the tree that is going to be served is there to its last blob: a host can leave objects out of a pack. What was there
    /// before is complete below, since no incomplete commit is ever kept: so the work goes with what is new, not with the whole tree.
    fn check_complete(&self, commit: ObjectId, received: &Received, cut: &Boundary) -> Result<()> {
        let objects = self.repository.objects();
        let fresh = received.pack.as_ref().filter(|pack| pack.fresh).map(|pack| pack.path.as_path());
        let older: Vec<_> = objects.packs().into_iter().filter(|pack| fresh.is_some_and(|fresh| pack.path() != fresh)).collect();
        let known = |id: &gix::hash::oid| !self.damaged && older.iter().any(|pack| pack.index().lookup(id).is_some());
        let incomplete =
            |err| StoreError::new(Fault::Corrupt, format!("{} sent an incomplete commit {commit}", self.repository.url())).caused_by(err);
        // Parents that came along are found by whoever asks for them later, so they must be whole, too.
        let depth = if received.cut.is_some() { WITH_PARENTS } else { 1 };
        let limits = Limits { boundary: cut, depth, skip: &known, stop: self.stop, problem: &mut |err| Err(incomplete(err)) };
        for id in objects.reach(&[commit], limits)?.ids {
            if !objects.contains_now(&id) {
                return Err(incomplete(StoreError::new(Fault::Corrupt, format!("object {id} is missing"))));
            }
        }
        Ok(())
    }
}

/// The objects to ask for, each once.
fn wanted(items: &[&mut Item<'_>]) -> Vec<ObjectId> {
    let mut ids: Vec<ObjectId> = items.iter().filter_map(|item| item.target.as_ref()).map(|target| target.id).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
