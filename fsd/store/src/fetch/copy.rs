//! `file://`: no wire and no process, the other repository's objects are copied out of its own object store.

use gix::bstr::ByteSlice;

use super::{Fetch, Fetched, MAX_TAGS, Phase, monitor, tag_target};
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::objects::Objects;
use crate::objects::reach::Limits;
use crate::packing;
use crate::refspec::RefSpec;
use crate::repository::shallow;
use crate::transport::RemoteRef;

use super::receive::Received;

impl Fetch<'_> {
    /// Fetches from the repository that the URL's path names.
    pub(super) fn copy_from_disk(&self) -> Result<Fetched> {
        let url = self.repository.url();
        let options = gix::open::Options::isolated().with(gix::sec::Trust::Full);
        let source = options.open(url.path()).map_err(|err| {
            let message = format!("{url} is no git repository: give the path of one, such as file:///srv/git/app.git");
            StoreError::new(Fault::NotFound, message).caused_by(err)
        })?;
        let source = source.to_thread_local();
        let objects = Objects::open(source.common_dir().join("objects"), source.object_hash())?;
        let (id, commit, ref_name) = match self.request.spec {
            RefSpec::Commit(commit) => (commit.id(), commit.id(), None),
            _ => {
                let target = self.pick(&self.list(&source)?)?;
                (target.id, target.commit, Some(target.ref_name))
            }
        };
        if let Some(done) = self.without_objects(commit, ref_name.as_deref(), None)? {
            return Ok(done);
        }
        let lock = self.repository.lock(self.stop)?;
        self.repository.adopt_hash(objects.hash())?;
        if !objects.contains(id)? {
            return Err(StoreError::new(Fault::NotFound, format!("commit {id} does not exist in {url}")));
        }
        let received = self.copy(&objects, id, commit, &shallow::read(&shallow::path(source.common_dir()))?)?;
        self.keep(&received, id, ref_name, &lock)
    }

    /// The refs that the request may mean, and HEAD.
    fn list(&self, source: &gix::Repository) -> Result<Vec<RemoteRef>> {
        let url = self.repository.url();
        let unreadable = |err| StoreError::new(Fault::Corrupt, format!("the refs of {url} cannot be read")).caused_by(err);
        let mut listed = Vec::new();
        for name in self.prefixes() {
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
            listed.push(RemoteRef { name, id, peeled: (peeled != id).then_some(peeled), symref });
        }
        Ok(listed)
    }

    fn copy(&self, source: &Objects, id: ObjectId, commit: ObjectId, boundary: &shallow::Boundary) -> Result<Received> {
        let ours = self.repository.objects();
        ours.relist()?;
        if source.header(commit)?.0 != gix::object::Kind::Commit {
            let message = format!("{:?} of {} leads to no commit", self.request.spec.to_string(), self.repository.url());
            return Err(StoreError::new(Fault::NotFound, message));
        }
        self.progress.update(Phase::Indexing, 0, None);
        let cut_here = self.repository.boundary()?;
        // A commit that is here ends the walk only when its history is here as well.
        let full = cut_here.is_empty();
        let have = |id: &gix::hash::oid| {
            ours.contains_now(id) && (full || !ours.header(id.to_owned()).is_ok_and(|(kind, _)| kind == gix::object::Kind::Commit))
        };
        let limits = Limits { boundary, depth: self.request.depth, skip: &have, problem: &mut Err };
        let mut reached = source.reach(&[commit], limits)?;
        reached.ids.extend(tags(source, id)?);
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
        Ok(Received { pack, shallow })
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
