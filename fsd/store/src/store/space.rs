//! Whole repositories that go: the least recently used when the store is over its limit, those that nothing was ever fetched into, and those
//! that somebody wants gone. A repository that a process has open, or in which something is kept by name, stays.
//!
//! It goes in two steps, a rename into `<root>/trash` and then the removal there, so that a crash leaves no half repository; what is left in
//! the trash goes when the store is opened next.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Store, name_of};
use crate::error::{Fault, Result, StoreError};
use crate::repository::in_use::InUse;
use crate::repository::{self, durable};
use crate::url::RepoUrl;

/// What a killed process was creating is removed when it is this old; it takes a moment.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// What [`Store::shrink`] did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShrinkReport {
    /// The limit that was to be kept, in bytes.
    pub limit: u64,
    /// Bytes on disk before.
    pub bytes_before: u64,
    /// Bytes on disk after.
    pub bytes_after: u64,
    /// URLs of the repositories that were removed, least recently used first.
    pub removed: Vec<String>,
}

impl ShrinkReport {
    /// One sentence when the limit could not be kept, since all that is left is in use.
    pub fn shortage(&self) -> Option<String> {
        (self.bytes_after > self.limit).then(|| {
            let mib = |bytes: u64| bytes.div_ceil(1 << 20);
            format!(
                "the store needs {} MiB for repositories in use and is limited to {} MiB: raise --store-limit to at least {0} MiB, or \
                 unmount something",
                mib(self.bytes_after),
                mib(self.limit)
            )
        })
    }
}

impl Store {
    /// Removes the least recently used repositories that nobody has open and in which nothing is kept, until the store takes no more than
    /// `limit` bytes. Those of which `in_use` says so by their directory stay as well.
    pub fn shrink(&self, limit: u64, in_use: &dyn Fn(&Path) -> bool) -> Result<ShrinkReport> {
        let mut all = Vec::new();
        for dir in self.directories()? {
            all.push((InUse::last(&dir), used(&dir)?, dir));
        }
        all.sort();
        let total = all.iter().map(|(_, bytes, _)| bytes).sum();
        let mut report = ShrinkReport { limit, bytes_before: total, bytes_after: total, removed: Vec::new() };
        for (_, bytes, dir) in all {
            if report.bytes_after <= limit {
                break;
            }
            if in_use(&dir) {
                continue;
            }
            let url = recorded(&dir);
            if self.remove(&dir, |_| Ok(true))? {
                report.bytes_after -= bytes;
                report.removed.push(url);
            }
        }
        Ok(report)
    }

    /// Removes the repository of `url`; `false` when there is none.
    ///
    /// # Errors
    /// [`Fault::Usage`] when it is in use.
    pub fn drop_repository(&self, url: &RepoUrl) -> Result<bool> {
        let dir = self.repos_dir().join(format!("{}.git", name_of(&url.normalized())));
        if !dir.exists() {
            return Ok(false);
        }
        if self.remove(&dir, |_| Ok(true))? || !dir.exists() {
            return Ok(true);
        }
        Err(StoreError::new(Fault::Usage, format!("repository {url} is in use: unmount what is mounted from it first")))
    }

    /// Removes repositories that nothing was ever fetched into, such as those of mistyped URLs, unless somebody has them open. Gives their
    /// URLs.
    pub fn remove_empty(&self) -> Result<Vec<String>> {
        let mut removed = Vec::new();
        for dir in self.directories()? {
            let url = recorded(&dir);
            if self.remove(&dir, repository::is_empty)? {
                removed.push(url);
            }
        }
        Ok(removed)
    }

    /// Where repositories are until they are removed.
    fn trash_dir(&self) -> PathBuf {
        self.options.root.join("trash")
    }

    /// Removes what killed processes left: repositories half removed, and half created.
    pub(super) fn sweep(&self) -> Result<()> {
        for path in entries(&self.trash_dir())? {
            remove_all(&path)?;
        }
        for path in entries(&self.repos_dir())? {
            let created = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".new-"));
            let age = std::fs::metadata(&path).and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
            if created && age.is_some_and(|age| age > ABANDONED) {
                remove_all(&path)?;
            }
        }
        Ok(())
    }

    fn directories(&self) -> Result<Vec<PathBuf>> {
        let mut all = entries(&self.repos_dir())?;
        all.retain(|path| path.extension().is_some_and(|extension| extension == "git"));
        Ok(all)
    }

    /// Removes the repository at `dir` if nobody uses it and `wanted` says so then; whether it did.
    fn remove(&self, dir: &Path, wanted: impl FnOnce(&Path) -> Result<bool>) -> Result<bool> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let Some(_alone) = InUse::alone(dir)? else { return Ok(false) };
        if repository::is_kept(dir)? || !wanted(dir)? {
            return Ok(false);
        }
        let trash = self.trash_dir();
        std::fs::create_dir_all(&trash).map_err(|err| durable::disk(&trash, "created", err))?;
        let aside = trash.join(format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        // Something of a former process with the same number can only be left when it was not to be removed.
        remove_all(&aside)?;
        std::fs::rename(dir, &aside).map_err(|err| durable::disk(dir, "removed", err))?;
        durable::sync_directory(&self.repos_dir())?;
        remove_all(&aside)?;
        Ok(true)
    }
}

fn recorded(dir: &Path) -> String {
    repository::recorded_url(dir).ok().flatten().unwrap_or_else(|| dir.display().to_string())
}

/// The bytes that `path` and what is below it take on the disk. What goes meanwhile takes none.
fn used(path: &Path) -> Result<u64> {
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(0) };
    let mut bytes = meta.blocks() * 512;
    if meta.is_dir() {
        for entry in entries(path)? {
            bytes += used(&entry)?;
        }
    }
    Ok(bytes)
}

/// What is in a directory; one that is not there is empty.
fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let unreadable = |err| durable::disk(dir, "read", err);
    match std::fs::read_dir(dir) {
        Ok(listing) => listing.map(|entry| entry.map(|entry| entry.path()).map_err(unreadable)).collect(),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        Err(err) => Err(unreadable(err)),
    }
}

/// Removes a directory; others may be doing so, too.
fn remove_all(path: &Path) -> Result<()> {
    loop {
        match std::fs::remove_dir_all(path) {
            Ok(()) => return Ok(()),
            Err(_) if !path.exists() => return Ok(()),
            // Somebody else removed an entry between listing and removing it: there is less now.
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
            Err(err) => return Err(durable::disk(path, "removed", err)),
        }
    }
}
