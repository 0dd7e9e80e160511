//! The lock of a repository across processes: `flock` on a file, so that a killed process never leaves it taken.

use std::fs::{File, OpenOptions};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::durable::disk;
use crate::error::{Fault, Result, StoreError};

/// How often a taken lock is tried again.
const RETRY: Duration = Duration::from_millis(20);

/// Held while it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
}

impl Lock {
    /// Takes the lock file at `path`, waiting until whoever has it is done or `stop` is set.
    pub(crate) fn take(path: &Path, stop: &AtomicBool) -> Result<Self> {
        loop {
            if let Some(lock) = Self::try_take(path)? {
                return Ok(lock);
            }
            if stop.load(Ordering::Relaxed) {
                return Err(StoreError::new(Fault::Cancelled, "cancelled while waiting for another fetch of the repository"));
            }
            std::thread::sleep(RETRY);
        }
    }

    /// Takes the lock file at `path` unless somebody has it.
    pub(crate) fn try_take(path: &Path) -> Result<Option<Self>> {
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(path).map_err(|err| disk(path, "opened", err))?;
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(file) => Ok(Some(Lock { _file: file })),
            Err((_, Errno::EWOULDBLOCK | Errno::EINTR)) => Ok(None),
            Err((_, err)) => Err(disk(path, "locked", err.into())),
        }
    }
}
