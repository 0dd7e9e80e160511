//! Who has a repository open: each process that has keeps a shared lock on a file in it, so that nobody removes the repository meanwhile,
//! and a killed process never keeps it. The file's time says when the repository was last in use.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::durable::disk;
use crate::error::Result;

const FILE: &str = "gitmount-in-use";
/// How often a lock that a removal has is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// Held by whoever has the repository open, or, exclusively, by whoever removes it.
#[derive(Debug)]
pub(crate) struct InUse {
    file: Flock<File>,
}

impl InUse {
    /// Takes part in using the repository at `git_dir`; `None` when it is not there (any more).
    pub(crate) fn share(git_dir: &Path) -> Result<Option<Self>> {
        loop {
            match lock(git_dir, FlockArg::LockSharedNonblock)? {
                Attempt::Taken(file) => {
                    let in_use = InUse { file };
                    in_use.touch();
                    return Ok(Some(in_use));
                }
                Attempt::Absent => return Ok(None),
                // Removing takes one rename.
                Attempt::Busy => std::thread::sleep(RETRY),
            }
        }
    }

    /// Keeps everybody else out; `None` when somebody is in, or the repository is not there.
    pub(crate) fn alone(git_dir: &Path) -> Result<Option<Self>> {
        Ok(match lock(git_dir, FlockArg::LockExclusiveNonblock)? {
            Attempt::Taken(file) => Some(InUse { file }),
            Attempt::Absent | Attempt::Busy => None,
        })
    }

    /// When the repository at `git_dir` was last opened or closed.
    pub(crate) fn last(git_dir: &Path) -> SystemTime {
        let time = |path: &Path| std::fs::metadata(path).and_then(|meta| meta.modified()).ok();
        time(&git_dir.join(FILE)).or_else(|| time(git_dir)).unwrap_or(SystemTime::UNIX_EPOCH)
    }

    /// Says that it is in use now. Only bookkeeping: failing is no reason to fail.
    pub(crate) fn touch(&self) {
        if let Err(err) = self.file.set_modified(SystemTime::now()) {
            tracing::debug!("the time of use cannot be written: {err}");
        }
    }
}

enum Attempt {
    Taken(Flock<File>),
    Busy,
    Absent,
}

fn lock(git_dir: &Path, how: FlockArg) -> Result<Attempt> {
    let path = git_dir.join(FILE);
    loop {
        let file = match OpenOptions::new().create(true).truncate(false).write(true).open(&path) {
            Ok(file) => file,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Attempt::Absent),
            Err(err) => return Err(disk(&path, "opened", err)),
        };
        let file = match Flock::lock(file, how) {
            Ok(file) => file,
            Err((_, Errno::EWOULDBLOCK)) => return Ok(Attempt::Busy),
            Err((_, Errno::EINTR)) => continue,
            Err((_, err)) => return Err(disk(&path, "locked", err.into())),
        };
        // Between opening and locking the repository may have been moved away; what is locked is then of no repository.
        let locked = file.metadata().map_err(|err| disk(&path, "read", err))?;
        if std::fs::metadata(&path).is_ok_and(|there| (there.dev(), there.ino()) == (locked.dev(), locked.ino())) {
            return Ok(Attempt::Taken(file));
        }
    }
}
