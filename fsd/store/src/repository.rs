//! One bare repository of the store: its objects, what was fetched into it, and what is pinned.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use crate::credential::Auth;
use crate::error::{Fault, Result, StoreError};
use crate::fetch::{self, FetchRequest, Fetched, Progress};
use crate::ids::{CommitId, ObjectId};
use crate::maintenance::heal;
use crate::objects::Objects;
use crate::refspec::RefSpec;
use crate::transport::NetOptions;
use crate::url::RepoUrl;

mod clean;
mod damage;
pub(crate) mod durable;
mod fingerprint;
pub(crate) mod in_use;
pub(crate) mod lock;
mod named;
mod pin;
mod refs;
pub(crate) mod shallow;

pub(crate) use damage::Condition;
use in_use::InUse;
use lock::Lock;
pub use pin::Pin;
use refs::Refs;
use shallow::Boundary;

/// The file whose lock is held around each write.
const LOCK_FILE: &str = "gitmount.lock";
/// How many (commit, depth) pairs are remembered as complete.
const COMPLETE: usize = 64;

/// One repository. Cheap to share; all methods may be called from any thread.
#[derive(Debug)]
pub struct Repository {
    git_dir: PathBuf,
    url: RepoUrl,
    net: NetOptions,
    refs: Refs,
    objects: ArcSwap<Objects>,
    /// Commits that are known to be there with this much history, so that a poll walks no history.
    complete: Mutex<Vec<(ObjectId, u32)>>,
    /// When everything was looked at and nothing was found.
    sound: Mutex<Option<Instant>>,
    in_use: InUse,
}

impl Drop for Repository {
    fn drop(&mut self) {
        self.in_use.touch();
    }
}

impl Repository {
    /// Opens the repository at `git_dir`, which exists since it is `in_use`, and cleans up after a killed fetch.
    pub(crate) fn open(git_dir: PathBuf, in_use: InUse, url: RepoUrl, net: NetOptions) -> Result<Self> {
        let objects = Objects::open(git_dir.join("objects"), object_format(&git_dir)?)?;
        let refs = Refs::new(&git_dir);
        let objects = ArcSwap::from_pointee(objects);
        let repository = Repository { git_dir, url, net, refs, objects, complete: Mutex::new(Vec::new()), sound: Mutex::new(None), in_use };
        // When somebody has the lock, what looks like a leftover is work in progress.
        if let Some(_lock) = Lock::try_take(&repository.lock_file())? {
            repository.clear_leftovers()?;
        }
        Ok(repository)
    }

    /// Resolves `request.spec` at the remote and brings the commit with everything below it. Waits when another fetch of this repository
    /// runs, in this process or another. All or nothing: after an error the repository is as before.
    pub fn fetch(&self, request: &FetchRequest, progress: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<Fetched> {
        fetch::run(self, request, progress, stop)
    }

    /// Fetches several specs with one connection, one request for refs and at most one pack (more only where the host refuses a commit id).
    ///
    /// # Errors
    /// The outer one is the host's, the network's or the disk's, and leaves the repository as before; an inner one is its spec's own, such as
    /// a ref that does not exist, and the other specs are fetched all the same. The results are in the order of `specs`.
    pub fn fetch_many(
        &self,
        specs: &[RefSpec],
        depth: u32,
        auth: &Auth,
        progress: &dyn Progress,
        stop: &Arc<AtomicBool>,
    ) -> Result<Vec<Result<Fetched>>> {
        fetch::run_many(self, specs, depth, auth, progress, stop)
    }

    /// Looks at every object, removes what is broken, and fetches each commit that is to be kept and is not whole, by its id. Gives those
    /// commits with what became of them; none when all is well. A fetch does the same for the refs that it fetches, when something is known
    /// to be broken.
    pub fn repair(&self, auth: &Auth, progress: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<Vec<(CommitId, Result<Fetched>)>> {
        let tips = {
            let _lock = self.lock(stop)?;
            heal::examine(self, stop)?;
            let tips = self.tips()?;
            let whole = heal::whole_tips(self, &tips, stop)?;
            tips.into_iter().filter(|tip| !whole.contains(tip)).map(CommitId::new).collect::<Vec<_>>()
        };
        let specs: Vec<RefSpec> = tips.iter().map(|tip| RefSpec::Commit(*tip)).collect();
        let fetched = self.fetch_many(&specs, 1, auth, progress, stop)?;
        Ok(tips.into_iter().zip(fetched).collect())
    }

    /// The commit the last successful fetch of `spec` gave, without asking the remote (any depth); `None` when it was never fetched.
    pub fn known(&self, spec: &RefSpec) -> Result<Option<CommitId>> {
        self.refs.fetched(spec)
    }

    /// Pins a commit that is present.
    ///
    /// # Errors
    /// [`Fault::NotFound`] when it is not.
    pub fn pin(&self, commit: CommitId) -> Result<Pin> {
        let _lock = self.lock_pins()?;
        self.close(commit)?;
        Pin::new(&self.git_dir, &self.refs, commit)
    }

    /// Read access to its objects; sees what later fetches bring.
    pub fn objects(&self) -> Objects {
        Objects::clone(&self.objects.load())
    }

    /// Its bare repository's directory.
    pub fn git_dir(&self) -> &Path {
        &self.git_dir
    }

    /// Where it is fetched from.
    pub fn url(&self) -> &RepoUrl {
        &self.url
    }

    pub(crate) fn net(&self) -> &NetOptions {
        &self.net
    }

    pub(crate) fn pack_dir(&self) -> PathBuf {
        self.git_dir.join("objects/pack")
    }

    /// Takes the repository's lock for writing and clears what a killed process left.
    pub(crate) fn lock(&self, stop: &AtomicBool) -> Result<Lock> {
        let lock = Lock::take(&self.lock_file(), stop)?;
        self.clear_leftovers()?;
        Ok(lock)
    }

    /// Clears what a killed process left, under both locks: pins and credentials are written under the second alone, also while others fetch.
    fn clear_leftovers(&self) -> Result<()> {
        let _pins = self.lock_pins()?;
        clean::leftovers(&self.git_dir)
    }

    /// Takes the lock that orders pinning and removing. Never held for long.
    pub(crate) fn lock_pins(&self) -> Result<Lock> {
        Lock::take(&pin::lock_path(&self.git_dir)?, &AtomicBool::new(false))
    }

    /// Keeps of the boundary only what is in `kept`. Both locks are held.
    pub(crate) fn shrink_boundary(&self, kept: impl Fn(&ObjectId) -> bool) -> Result<()> {
        let before = self.boundary()?;
        self.replace_boundary(&before, &before.iter().copied().filter(kept).collect())
    }

    /// Where its history is cut off.
    pub(crate) fn boundary(&self) -> Result<Boundary> {
        shallow::read(&shallow::path(&self.git_dir))
    }

    /// Adds to the boundary, and removes from it what has parents now. The repository's lock is held; as everywhere, the boundary is changed
    /// under that of the pins.
    pub(crate) fn move_boundary(&self, add: &Boundary, remove: &Boundary) -> Result<()> {
        let _pins = self.lock_pins()?;
        let before = self.boundary()?;
        self.replace_boundary(&before, &before.difference(remove).chain(add).copied().collect())
    }

    /// Drops from the boundary what no fetched or pinned commit leads to any more. The repository's lock is held.
    pub(crate) fn tidy_boundary(&self) -> Result<()> {
        let _pins = self.lock_pins()?;
        let before = self.boundary()?;
        self.replace_boundary(&before, &self.objects.load().tidy(&self.tips()?, &before))
    }

    /// Keeps of the boundary only what the commits `tips` lead to. The repository's lock is held.
    pub(crate) fn tidy_boundary_to(&self, tips: &[ObjectId]) -> Result<()> {
        let _pins = self.lock_pins()?;
        let before = self.boundary()?;
        self.replace_boundary(&before, &self.objects.load().tidy(tips, &before))
    }

    /// Checks that a commit that is to be pinned is there, and ends its history where it ends: when nothing led to it for a while it may
    /// have been dropped from the boundary. The lock of the pins is held.
    fn close(&self, commit: CommitId) -> Result<()> {
        self.require(commit.id())?;
        if self.tips()?.contains(&commit.id()) {
            return Ok(());
        }
        let before = self.boundary()?;
        let cuts = self.objects.load().adopt(commit.id(), 1, &before)?.unwrap_or_default();
        self.replace_boundary(&before, &before.union(&cuts).copied().collect())
    }

    fn replace_boundary(&self, before: &Boundary, after: &Boundary) -> Result<()> {
        if after != before {
            shallow::write(&shallow::path(&self.git_dir), after)?;
            self.forget_complete();
        }
        Ok(())
    }

    /// Records what a fetch of `spec` gave. The repository's lock is held.
    pub(crate) fn set_known(&self, spec: &RefSpec, commit: CommitId) -> Result<()> {
        if self.refs.fetched(spec)? == Some(commit) {
            self.refs.renew(spec);
            return Ok(());
        }
        self.refs.set_fetched(spec, commit)
    }

    pub(crate) fn renew(&self, spec: &RefSpec) {
        self.refs.renew(spec);
    }

    /// All commits that are to be kept: fetched ones, and those that are pinned in either way.
    pub(crate) fn tips(&self) -> Result<Vec<ObjectId>> {
        let mut tips: Vec<ObjectId> = self.refs.all_fetched()?.into_iter().map(|(_, id, _)| id).collect();
        tips.extend(self.refs.all_pins()?.into_iter().chain(self.refs.all_named()?).map(|(_, id)| id));
        tips.sort_unstable();
        tips.dedup();
        Ok(tips)
    }

    /// Drops pins of dead processes and fetched refs that nobody asked for within `unused`. Both locks are held.
    pub(crate) fn expire(&self, unused: Duration) -> Result<()> {
        pin::sweep(&self.git_dir, &self.refs)?;
        named::sweep(&self.git_dir, &self.refs)?;
        for (path, _, age) in self.refs.all_fetched()? {
            if age > unused {
                durable::remove(&path)?;
            }
        }
        Ok(())
    }

    /// Whether this commit was found complete to this depth before.
    pub(crate) fn is_complete(&self, commit: ObjectId, depth: u32) -> bool {
        self.complete.lock().unwrap_or_else(PoisonError::into_inner).contains(&(commit, depth))
    }

    pub(crate) fn set_complete(&self, commit: ObjectId, depth: u32) {
        let mut complete = self.complete.lock().unwrap_or_else(PoisonError::into_inner);
        if complete.len() == COMPLETE {
            complete.remove(0);
        }
        complete.push((commit, depth));
    }

    fn forget_complete(&self) {
        self.complete.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// Makes the repository one of `hash`, the remote's. The repository's lock is held.
    ///
    /// # Errors
    /// [`Fault::Corrupt`] when it has objects of another hash already.
    pub(crate) fn adopt_hash(&self, hash: gix::hash::Kind) -> Result<()> {
        let stored = object_format(&self.git_dir)?;
        if stored != hash {
            let in_use = !self.tips()?.is_empty() || self.has_packs()?;
            if in_use {
                let message = format!(
                    "repository {} has changed from {stored} to {hash} object ids: remove {} to fetch it anew",
                    self.url,
                    self.git_dir.display()
                );
                return Err(StoreError::new(Fault::Corrupt, message));
            }
            set_object_format(&self.git_dir, hash)?;
        }
        // Another process may have changed it, too.
        if self.objects.load().hash() != hash {
            self.objects.store(Arc::new(Objects::open(self.git_dir.join("objects"), hash)?));
        }
        Ok(())
    }

    fn has_packs(&self) -> Result<bool> {
        let dir = self.pack_dir();
        let mut entries = std::fs::read_dir(&dir).map_err(|err| durable::disk(&dir, "read", err))?;
        Ok(entries.any(|entry| entry.is_ok_and(|entry| entry.path().extension().is_some_and(|extension| extension == "idx"))))
    }

    fn lock_file(&self) -> PathBuf {
        self.git_dir.join(LOCK_FILE)
    }
}

fn config(git_dir: &Path) -> Result<gix::config::File> {
    let path = git_dir.join("config");
    gix::config::File::from_path_no_includes(path.clone(), gix::config::Source::Local)
        .map_err(|err| StoreError::new(Fault::Corrupt, format!("file {} cannot be read", path.display())).caused_by(err))
}

/// The hash that the repository's config says.
fn object_format(git_dir: &Path) -> Result<gix::hash::Kind> {
    let unknown = |name: &str| StoreError::new(Fault::Corrupt, format!("repository {} has objects of hash {name}", git_dir.display()));
    match config(git_dir)?.string("extensions.objectFormat") {
        None => Ok(gix::hash::Kind::Sha1),
        Some(name) => name.to_string().parse().map_err(|_| unknown(&name.to_string())),
    }
}

fn set_object_format(git_dir: &Path, hash: gix::hash::Kind) -> Result<()> {
    let mut config = config(git_dir)?;
    let failed = |err: gix::Error| StoreError::new(Fault::Internal, "the hash cannot be written into the config").caused_by(err);
    config.set_raw_value("core.repositoryFormatVersion", "1").map_err(failed)?;
    config.set_raw_value("extensions.objectFormat", hash.to_string().as_str()).map_err(failed)?;
    durable::write(&git_dir.join("config"), &config.to_bstring())
}

/// The URL that the repository at `git_dir` is of; `None` when it has none.
pub(crate) fn recorded_url(git_dir: &Path) -> Result<Option<String>> {
    Ok(config(git_dir)?.string("remote.origin.url").map(|url| url.to_string()))
}

/// Whether something in the repository at `git_dir`, which nobody has open, is kept by name.
pub(crate) fn is_kept(git_dir: &Path) -> Result<bool> {
    Ok(!Refs::new(git_dir).all_named()?.is_empty() || named::has_lists(git_dir)?)
}

/// Whether nothing was ever fetched into the repository at `git_dir`, which nobody has open.
pub(crate) fn is_empty(git_dir: &Path) -> Result<bool> {
    let packs = refs::list(&git_dir.join("objects/pack"))?;
    let unpacked = packs.iter().all(|path| path.extension().is_none_or(|extension| extension != "idx" && extension != "pack"));
    Ok(unpacked && Refs::new(git_dir).all_fetched()?.is_empty())
}

/// Makes a bare repository for `url` at `git_dir`, all at once: nobody sees half of one, and of two who make it one wins.
pub(crate) fn create(git_dir: &Path, url: &RepoUrl) -> Result<()> {
    let parent = git_dir.parent().ok_or_else(|| StoreError::new(Fault::Internal, "a repository has no directory to be in"))?;
    std::fs::create_dir_all(parent).map_err(|err| durable::disk(parent, "created", err))?;
    let temporary = tempfile::Builder::new().prefix(".new-").tempdir_in(parent).map_err(|err| durable::disk(parent, "written", err))?;
    let failed =
        |err: gix::Error| StoreError::new(Fault::Disk, format!("a repository cannot be created in {}", parent.display())).caused_by(err);
    gix::create::into(
        temporary.path(),
        gix::create::Kind::Bare,
        gix::create::Options { object_hash: Some(gix::hash::Kind::Sha1), ..Default::default() },
    )
    .map_err(failed)?;
    // Sample hooks are of no use where no hook ever runs.
    let _ = std::fs::remove_dir_all(temporary.path().join("hooks"));
    let mut config = config(temporary.path())?;
    config.set_raw_value("remote.origin.url", url.to_string().as_str()).map_err(failed)?;
    durable::write(&temporary.path().join("config"), &config.to_bstring())?;
    std::fs::create_dir_all(temporary.path().join("objects/pack")).map_err(|err| durable::disk(git_dir, "created", err))?;
    durable::sync_directory(temporary.path())?;
    let made = temporary.keep();
    match std::fs::rename(&made, git_dir) {
        Ok(()) => durable::sync_directory(parent),
        Err(err) => {
            let _ = std::fs::remove_dir_all(&made);
            // Somebody else was faster: theirs is as good.
            if git_dir.join("config").is_file() { Ok(()) } else { Err(durable::disk(git_dir, "created", err)) }
        }
    }
}
