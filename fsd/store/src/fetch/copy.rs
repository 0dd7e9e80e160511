//! `file://`: no wire and no process, the other repository's objects are copied out of its own object store.

use gix::bstr::ByteSlice;

use super::pick::Target;
use super::{Fetch, Item, MAX_TAGS, Phase, monitor, prefixes, tag_target};
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::objects::Objects;
use crate::objects::reach::Limits;
use crate::packing;
use crate::repository::shallow;
use crate::transport::RemoteRef;

use super::receive::Received;

impl Fetch<'_> {
    /// Fetches from the repository that the URL's path names.
    pub(super) fn copy_from_disk(&self, items: &mut [Item<'_>]) -> Result<()> {
        let url = self.repository.url();
        let options = gix::open::Options::isolated().with(gix::sec::Trust::Full);
        let source = options.open(url.path()).map_err(|err| {
            let message = format!("{url} is no git repository: give the path of one, such as file:///srv/git/app.git");
            StoreError::new(Fault::NotFound, message).caused_by(err)
        })?;
        let source = source.to_thread_local();
        self.contacted.set(true);
        self.settle_commits(items, None)?;
        let objects = Objects::open(source.common_dir().join("objects"), source.object_hash())?;
        if items.iter().any(|item| item.is_open() && !item.is_commit()) {
            let listed = self.list(&source, &prefixes(items))?;
            self.settle_names(items, &listed, None)?;
        }
        let mut open: Vec<&mut Item<'_>> = items.iter_mut().filter(|item| item.is_open()).collect();
        if open.is_empty() {
            return Ok(());
        }
        let lock = self.repository.lock(self.stop)?;
        self.repository.adopt_hash(objects.hash())?;
        for item in &mut open {
            let Some(target) = &item.target else { continue };
            let (id, commit) = (target.id, target.commit);
            if !objects.contains(id)? {
                item.fail(StoreError::new(Fault::NotFound, format!("commit {id} does not exist in {url}")))?;
            } else if objects.header(commit)?.0 != gix::object::Kind::Commit {
                let message = format!("{:?} of {url} leads to no commit", item.spec.to_string());
                item.fail(StoreError::new(Fault::NotFound, message))?;
            }
        }
        open.retain(|item| item.is_open());
        let targets: Vec<Target> = open.iter().filter_map(|item| item.target.clone()).collect();
        if targets.is_empty() {
            return Ok(());
        }
        let received = self.copy(&objects, &targets, &shallow::read(&shallow::path(source.common_dir()))?)?;
        self.keep(&received, &mut open, &lock)
    }

    /// Those of the refs `names` that there are.
    fn list(&self, source: &gix::Repository, names: &[String]) -> Result<Vec<RemoteRef>> {
        let url = self.repository.url();
        let unreadable = |err| StoreError::new(Fault::Corrupt, format!("the refs of {url} cannot be read")).caused_by(err);
        let mut listed = Vec::new();
        for name in names {
            let Ok(full) = gix::refs::FullName::try_from(name.as_str()) else { continue };
            let Some(mut found) = source.try_find_reference(full.as_ref()).map_err(unreadable)? else { continue };
            let symref = found.target().try_name().and_then(|name| name.as_bstr().to_str().ok().map(str::to_owned));
            // A symbolic ref to nothing, as HEAD of an empty repository is.
            if let Some(target) = &symref
                && source.try_find_reference(target.as_str()).map_err(unreadable)?.is_none()
            {
                continue;
            }
            let id = found.follow_to_object().map_err(|err| unreadable(gix::Error::from_error(err)))?.detach();
            let peeled = found.peel_to_id().map_err(|err| unreadable(gix::Error::from_error(err)))?.detach();
            listed.push(RemoteRef { name: name.clone(), id, peeled: (peeled != id).then_some(peeled), symref });
        }
        Ok(listed)
    }

    fn copy(&self, source: &Objects, targets: &[Target], boundary: &shallow::Boundary) -> Result<Received> {
        let ours = self.repository.objects();
        ours.relist()?;
        self.progress.update(Phase::Indexing, 0, None);
        let cut_here = self.repository.boundary()?;
        // A commit that is here ends the walk only when its history is here as well.
        let full = cut_here.is_empty();
        let have = |id: &gix::hash::oid| {
            !self.damaged
                && ours.contains_now(id)
                && (full || !ours.header(id.to_owned()).is_ok_and(|(kind, _)| kind == gix::object::Kind::Commit))
        };
        let limits = Limits { boundary, depth: self.depth, skip: &have, stop: self.stop, problem: &mut Err };
        let commits: Vec<ObjectId> = targets.iter().map(|target| target.commit).collect();
        let mut reached = source.reach(&commits, limits)?;
        for target in targets {
            reached.ids.extend(tags(source, target.id)?);
        }
        let wanted: Vec<ObjectId> = reached.ids.iter().copied().filter(|id| !ours.contains_now(id)).collect();
        let pack = monitor::watch(self.progress, |counters| {
            packing::copy(source, wanted, &self.repository.pack_dir(), &counters.pack, self.stop)
        })?;
        use gix::protocol::fetch::response::ShallowUpdate;
        let mut shallow: Vec<ShallowUpdate> = reached.cuts.iter().copied().map(ShallowUpdate::Shallow).collect();
        for id in &reached.ids {
            if boundary.contains(id) {
                shallow.push(ShallowUpdate::Shallow(*id));
            } else if cut_here.contains(id) && !reached.cuts.contains(id) {
                // Its parents came along now.
                shallow.push(ShallowUpdate::Unshallow(*id));
            }
        }
        Ok(Received { pack, shallow, cut: None })
    }
}

/// The annotated tags from `id` to its commit.
fn tags(source: &Objects, mut id: ObjectId) -> Result<Vec<ObjectId>> {
    let mut tags = Vec::new();
    let mut content = Vec::new();
    while source.header(id)?.0 == gix::object::Kind::Tag && tags.len() < MAX_TAGS {
        source.read(id, &mut content)?;
        tags.push(id);
        id = tag_target(id, &content, source.hash())?;
    }
    Ok(tags)
}
