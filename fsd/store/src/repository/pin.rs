//! Pins: refs that keep a commit from being removed while somebody serves it. Each pin has an owner file that its process keeps locked; when
//! the process dies the lock goes with it, and the next maintenance sweeps the pin.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::lock::Lock;
use super::refs::Refs;
use super::{clean, durable};
use crate::error::Result;
use crate::ids::CommitId;

/// Where owner files are, beside the refs of the pins; `lock` in it is held while pins are made and while maintenance removes objects.
const OWNERS: &str = "gitmount-pins";

static NEXT: AtomicU64 = AtomicU64::new(0);

/// Keeps a commit from being removed by maintenance while it lives, across processes (and, when the process dies, not longer than until the
/// next maintenance).
#[derive(Debug)]
pub struct Pin {
    commit: CommitId,
    reference: PathBuf,
    owner: PathBuf,
    _lock: Lock,
}

impl Pin {
    /// The pinned commit.
    pub fn commit(&self) -> CommitId {
        self.commit
    }

    /// Makes a pin; the caller holds the lock of [`lock_path`] and has checked that the commit is there.
    pub(super) fn new(git_dir: &Path, refs: &Refs, commit: CommitId) -> Result<Self> {
        let owners = git_dir.join(OWNERS);
        let (owner, lock) = loop {
            let nanoseconds = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
            let name = format!("{:x}-{:x}-{nanoseconds:x}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
            let owner = owners.join(&name);
            // Another process with the same number (another PID namespace) can only have an older time.
            if !owner.exists()
                && let Some(lock) = Lock::try_take(&owner)?
            {
                break (name, lock);
            }
        };
        let reference = refs.pins().join(&owner);
        let pin = Pin { commit, reference, owner: owners.join(owner), _lock: lock };
        // It need not outlive the machine: its owner does not.
        durable::place(&pin.reference, format!("{commit}\n").as_bytes())?;
        Ok(pin)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // The ref first: an owner file without ref keeps nothing, and maintenance takes what is left.
        for path in [&self.reference, &self.owner] {
            if let Err(err) = durable::remove(path) {
                tracing::warn!("a pin is left for maintenance: {err}");
            }
        }
    }
}

/// The lock that orders making pins and removing objects.
pub(super) fn lock_path(git_dir: &Path) -> Result<PathBuf> {
    let owners = git_dir.join(OWNERS);
    std::fs::create_dir_all(&owners).map_err(|err| durable::disk(&owners, "created", err))?;
    Ok(owners.join("lock"))
}

/// Removes the pins whose processes are gone. The caller holds the lock of [`lock_path`].
pub(super) fn sweep(git_dir: &Path, refs: &Refs) -> Result<()> {
    let owners = git_dir.join(OWNERS);
    clean::remove_locks(&refs.pins(), &[])?;
    for (reference, _) in refs.all_pins()? {
        let Some(name) = reference.file_name() else { continue };
        let owner = owners.join(name);
        if owner.exists() && Lock::try_take(&owner)?.is_none() {
            continue;
        }
        durable::remove(&reference)?;
        durable::remove(&owner)?;
    }
    Ok(())
}
