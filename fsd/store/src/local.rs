//! A repository of the user's on the local disk: opened read-only, nothing copied, nothing written; its refs are watched, not polled.
//!
//! The user named it, so who owns it does not matter (git's `safe.directory` guards against running what its config says; nothing of
//! it is run here). Neither the user's nor the system's git config has influence.

use std::path::{Path, PathBuf};

use gix::bstr::ByteSlice;

use crate::error::{Fault, Result, StoreError};
use crate::ids::{CommitId, ObjectId};
use crate::objects::Objects;

mod watch;

pub use watch::RefWatch;

/// A local repository (bare, or the `.git` of a work tree, also a linked work tree).
#[derive(Debug)]
pub struct LocalRepository {
    git_dir: PathBuf,
    common_dir: PathBuf,
    objects: Objects,
}

impl LocalRepository {
    /// Finds the repository at `path` or, like git, above it.
    ///
    /// # Errors
    /// [`Fault::NotFound`] when there is none.
    pub fn discover(path: &Path) -> Result<Self> {
        let options = gix::discover::upwards::Options {
            trust: gix::discover::upwards::TrustPolicy::Assume(gix::sec::Trust::Full),
            ..Default::default()
        };
        let (found, _) = gix::discover::upwards_opts(path, options).map_err(|err| {
            let message = format!("no git repository was found at {} or above it: name one, or a directory inside of one", path.display());
            StoreError::new(Fault::NotFound, message).caused_by(err)
        })?;
        let (git_dir, _) = found.into_repository_and_work_tree_directories();
        let absolute = |dir: &Path| {
            std::fs::canonicalize(dir)
                .map_err(|err| StoreError::new(Fault::Disk, format!("directory {} cannot be read", dir.display())).caused_by(err))
        };
        let git_dir = absolute(&git_dir)?;
        let repository = open(&git_dir)?;
        let common_dir = absolute(repository.common_dir())?;
        let objects = Objects::open(common_dir.join("objects"), repository.object_hash())?;
        Ok(LocalRepository { git_dir, common_dir, objects })
    }

    /// Its git directory, absolute.
    pub fn git_dir(&self) -> PathBuf {
        self.git_dir.clone()
    }

    /// Resolves a revision expression (`main~3`, `v1.2`, `HEAD@{1}`, `:/text`, an abbreviated id) to a commit. A plain name that is both
    /// a branch and a tag is the branch.
    ///
    /// # Errors
    /// [`Fault::NotFound`] when there is no such revision, or when it names something that leads to no commit.
    pub fn resolve(&self, revision: &str) -> Result<CommitId> {
        // Opened anew each time: config, packed refs and packs may all have changed.
        let repository = open(&self.git_dir)?;
        let at = self.git_dir.display();
        let id = match branch(&repository, revision) {
            Some(id) => id,
            None => {
                let unborn = || repository.head().is_ok_and(|head| head.is_unborn());
                let found = repository.rev_parse_single(revision.as_bytes().as_bstr());
                found.map(gix::Id::detach).map_err(|err| {
                    let message = if revision == "HEAD" && unborn() {
                        format!("repository {at} has no commit yet: commit something, or name another ref")
                    } else {
                        format!("revision {revision:?} does not exist in repository {at}: give a branch, a tag or a commit of it")
                    };
                    StoreError::new(Fault::NotFound, message).caused_by(err)
                })?
            }
        };
        let object = repository.find_object(id).map_err(|err| {
            StoreError::new(Fault::Corrupt, format!("object {id} of revision {revision:?} is missing in {at}")).caused_by(err)
        })?;
        let kind = object.kind;
        let commit = object.peel_to_kind(gix::object::Kind::Commit).map_err(|err| {
            let message =
                format!("revision {revision:?} of repository {at} is a {kind} that leads to no commit: give a branch, a tag or a commit");
            StoreError::new(Fault::NotFound, message).caused_by(err)
        })?;
        Ok(CommitId::new(commit.id))
    }

    /// Read access to its objects, alternates included; sees what is added later.
    pub fn objects(&self) -> Objects {
        self.objects.clone()
    }

    /// Watches what refs are made of (HEAD, refs/, packed-refs, reftable; logs too). Start it before resolving, so that nothing that
    /// happens in between is missed.
    pub fn watch(&self) -> Result<RefWatch> {
        RefWatch::new(&self.git_dir, &self.common_dir)
    }
}

/// The branch of exactly this name: it wins over a tag, where git itself would take the tag.
fn branch(repository: &gix::Repository, name: &str) -> Option<ObjectId> {
    if name == "HEAD" || name.starts_with("refs/") || ObjectId::from_hex(name.as_bytes()).is_ok() {
        return None;
    }
    let full = gix::refs::FullName::try_from(format!("refs/heads/{name}")).ok()?;
    let mut reference = repository.try_find_reference(full.as_ref()).ok()??;
    reference.peel_to_id().ok().map(gix::Id::detach)
}

fn open(git_dir: &Path) -> Result<gix::Repository> {
    let options = gix::open::Options::isolated().with(gix::sec::Trust::Full).open_path_as_is(true);
    let repository = options.open(git_dir).map_err(|err| {
        let fault = if git_dir.exists() { Fault::Corrupt } else { Fault::NotFound };
        StoreError::new(fault, format!("repository {} cannot be opened: is it still there?", git_dir.display())).caused_by(err)
    })?;
    Ok(repository.to_thread_local())
}
