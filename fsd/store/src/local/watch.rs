//! Tells that refs may have moved, from inotify on the directories refs live in. Git writes a ref as `<name>.lock` and renames it, so lock
//! files are noise and the rename is the signal; a ref name with slashes makes directories, which are watched as they appear.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use crate::error::{Fault, Result, StoreError};

/// Changes that follow each other within this are one.
const QUIET: Duration = Duration::from_millis(20);
/// A stream of changes is reported at the latest after this.
const LONGEST: Duration = Duration::from_millis(500);
/// What in a git directory decides where refs stand.
const REF_NAMES: [&str; 5] = ["HEAD", "packed-refs", "refs", "logs", "reftable"];

/// Tells when refs may have moved (inotify).
#[derive(Debug)]
pub struct RefWatch {
    inotify: Inotify,
    watched: HashMap<WatchDescriptor, Watched>,
    roots: Vec<PathBuf>,
}

/// How often a repository that is gone is looked for.
const RETRY: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    /// A git directory itself: only [`REF_NAMES`] count in it.
    root: bool,
}

impl RefWatch {
    pub(super) fn new(git_dir: &Path, common_dir: &Path) -> Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).map_err(|err| {
            let message = "refs cannot be watched: the system allows no more inotify instances (fs.inotify.max_user_instances)";
            StoreError::new(Fault::Disk, message).caused_by(err)
        })?;
        let mut roots = vec![git_dir.to_owned()];
        if common_dir != git_dir {
            roots.push(common_dir.to_owned());
        }
        let mut watch = RefWatch { inotify, watched: HashMap::new(), roots };
        watch.add_roots()?;
        Ok(watch)
    }

    /// Blocks until refs may have moved (bursts within 20 ms are one), or until `stop_fd`, when given, becomes readable (`Ok(false)`).
    pub fn wait(&mut self, stop_fd: Option<BorrowedFd<'_>>) -> Result<bool> {
        loop {
            let limit = self.is_lost().then_some(RETRY);
            match self.poll(stop_fd, limit)? {
                Woken::Stop => return Ok(false),
                Woken::Changes if self.drain()? => break,
                Woken::Changes => {}
                Woken::Nothing => {
                    self.add_roots()?;
                    if !self.is_lost() {
                        break;
                    }
                }
            }
        }
        let started = Instant::now();
        while started.elapsed() < LONGEST && self.poll(None, Some(QUIET))? == Woken::Changes {
            self.drain()?;
        }
        Ok(true)
    }

    /// Whether the repository is gone: it may be made again at its place.
    fn is_lost(&self) -> bool {
        !self.watched.values().any(|watched| watched.root)
    }

    /// Waits for events; the stop descriptor comes first.
    fn poll(&self, stop_fd: Option<BorrowedFd<'_>>, limit: Option<Duration>) -> Result<Woken> {
        let mut fds = vec![PollFd::new(self.inotify.as_fd(), PollFlags::POLLIN)];
        fds.extend(stop_fd.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        let timeout = limit.map_or(PollTimeout::NONE, |limit| PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
        loop {
            match poll(&mut fds, timeout) {
                Ok(0) => return Ok(Woken::Nothing),
                Ok(_) if fds.get(1).is_some_and(|fd| fd.any().unwrap_or(true)) => return Ok(Woken::Stop),
                Ok(_) => return Ok(Woken::Changes),
                Err(Errno::EINTR) => {}
                Err(err) => return Err(StoreError::new(Fault::Internal, "waiting for changes of refs failed").caused_by(err)),
            }
        }
    }

    /// Takes all events that are there; whether any of them is about refs.
    fn drain(&mut self) -> Result<bool> {
        let mut moved = false;
        loop {
            let events = match self.inotify.read_events() {
                Ok(events) => events,
                Err(Errno::EAGAIN) => return Ok(moved),
                Err(Errno::EINTR) => continue,
                Err(err) => return Err(StoreError::new(Fault::Internal, "reading changes of refs failed").caused_by(err)),
            };
            for event in &events {
                moved |= self.take(event)?;
            }
        }
    }

    fn take(&mut self, event: &InotifyEvent) -> Result<bool> {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            // Events were lost, perhaps of new directories.
            self.add_roots()?;
            return Ok(true);
        }
        let Some(watched) = self.watched.get(&event.wd) else { return Ok(false) };
        if event.mask.contains(AddWatchFlags::IN_IGNORED) {
            let root = watched.root;
            self.watched.remove(&event.wd);
            return Ok(root);
        }
        let Some(name) = &event.name else { return Ok(false) };
        let bytes = name.as_encoded_bytes();
        if bytes.ends_with(b".lock") || watched.root && !REF_NAMES.iter().any(|known| known.as_bytes() == bytes) {
            return Ok(false);
        }
        if event.mask.contains(AddWatchFlags::IN_ISDIR) {
            let path = watched.path.join(name);
            self.add_below(&path)?;
        }
        Ok(true)
    }

    fn add_roots(&mut self) -> Result<()> {
        for root in self.roots.clone() {
            self.add(&root, true)?;
            for name in REF_NAMES {
                self.add_below(&root.join(name))?;
            }
        }
        Ok(())
    }

    /// Watches `path` and the directories below it; what is no directory, or is gone already, is skipped.
    fn add_below(&mut self, path: &Path) -> Result<()> {
        if !path.is_dir() {
            return Ok(());
        }
        // The watch first, the listing after: a directory made in between is seen by one of the two.
        self.add(path, false)?;
        let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
        for entry in entries.flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                self.add_below(&entry.path())?;
            }
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, root: bool) -> Result<()> {
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_ONLYDIR;
        match self.inotify.add_watch(path, flags) {
            Ok(descriptor) => {
                self.watched.insert(descriptor, Watched { path: path.to_owned(), root });
                Ok(())
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(()),
            Err(err) => {
                let message = format!("directory {} cannot be watched (fs.inotify.max_user_watches may be too low)", path.display());
                Err(StoreError::new(Fault::Disk, message).caused_by(err))
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Woken {
    Changes,
    Stop,
    Nothing,
}
