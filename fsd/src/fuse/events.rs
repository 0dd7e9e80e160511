//! inotify events for what a switch changed: the kernel raises none for changes that it does not make itself.
//!
//! Each changed file is opened for writing and closed again, by a writable copy of the mount that is in no namespace; watchers on the
//! read-only mounts of the same tree see `CLOSE_WRITE` with the file's name. Nothing is ever written, and every write operation is answered
//! EROFS. This happens after the switch, on a thread of its own, and a switch never waits for it.
//!
//! The copy keeps the file system alive, so it is let go as soon as nothing of it is mounted in this namespace any more, whoever
//! unmounted it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use bstr::{BStr, ByteSlice};
use gitmount_store::ids::ObjectId;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::{Condvar, Mutex};

use crate::sys;
use crate::view::View;

/// Whether watchers are told of switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Notify {
    /// They are not. The file system itself is read-only.
    #[default]
    None,
    /// inotify watchers are; root only. The file system is writable by its flags, and all its mounts are read-only.
    Inotify,
}

/// Files told of one switch; a watcher that has so much to do looks at everything anyway.
const MOST: usize = 10_000;

/// Raises the events of one mount.
#[derive(Debug)]
pub(super) struct Events {
    shared: Arc<Shared>,
    /// Closed to end the thread that watches the mount.
    _stop: PipeWriter,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// None once it was let go.
    writable: Option<Arc<OwnedFd>>,
    /// The switches that are not told yet, as one.
    pending: Option<(ObjectId, ObjectId)>,
}

impl Events {
    /// For the mount of `view` at `target`, with the device number `device`, which is being served.
    ///
    /// # Errors
    /// When there is no right to copy a mount, or the kernel is older than Linux 5.12.
    pub(super) fn start(view: Arc<View>, target: &Path, device: u64) -> io::Result<Self> {
        let writable = sys::writable_copy(target).map_err(|error| {
            let why = "inotify events need root (CAP_SYS_ADMIN) and Linux 5.12; leave `notify` out, and have watchers poll";
            io::Error::new(error.kind(), format!("{why} ({error})"))
        })?;
        let state = State { writable: Some(Arc::new(writable)), pending: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let (stopped, stop) = io::pipe()?;
        let table = File::open("/proc/self/mountinfo")?;
        thread::Builder::new().name("events".into()).spawn({
            let shared = shared.clone();
            move || shared.raise_all(&view)
        })?;
        thread::Builder::new().name("events-mount".into()).spawn({
            let shared = shared.clone();
            move || shared.until_unmounted(table, &stopped, device)
        })?;
        Ok(Events { shared, _stop: stop })
    }

    /// Tells watchers of a switch, later.
    pub(super) fn switched(&self, old: ObjectId, new: ObjectId) {
        let mut state = self.shared.state.lock();
        let from = state.pending.map_or(old, |(from, _)| from);
        state.pending = Some((from, new));
        self.shared.changed.notify_all();
    }

    /// Lets the writable copy go: the mount is over.
    pub(super) fn end(&self) {
        self.shared.end();
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn end(&self) {
        self.state.lock().writable = None;
        self.changed.notify_all();
    }

    fn raise_all(&self, view: &View) {
        loop {
            let (writable, (old, new)) = {
                let mut state = self.state.lock();
                loop {
                    let Some(writable) = state.writable.clone() else { return };
                    match state.pending.take() {
                        Some(pending) => break (writable, pending),
                        None => {
                            drop(writable);
                            self.changed.wait(&mut state);
                        }
                    }
                }
            };
            match view.changed_files(old, new, MOST) {
                Ok(files) => {
                    for path in &files {
                        if self.state.lock().writable.is_none() {
                            return;
                        }
                        raise(&writable, path.as_bstr());
                    }
                    if files.len() == MOST {
                        tracing::info!("more than {MOST} files changed at once: watchers are told of the first {MOST}");
                    }
                }
                Err(error) => tracing::warn!(%error, "watchers cannot be told of a switch"),
            }
        }
    }

    fn until_unmounted(&self, mut table: File, stopped: &PipeReader, device: u64) {
        loop {
            // Reading from the start also waits for the next change from here on.
            match is_mounted(&mut table, device) {
                Ok(true) => {}
                Ok(false) => return self.end(),
                Err(error) => return tracing::warn!(%error, "cannot watch the mounts: unmount with `gitmount unmount`"),
            }
            let mut polled = [PollFd::new(table.as_fd(), PollFlags::POLLPRI), PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
            match poll(&mut polled, PollTimeout::NONE) {
                Err(Errno::EINTR) | Ok(_) => {}
                Err(error) => return tracing::warn!(%error, "cannot watch the mounts: unmount with `gitmount unmount`"),
            }
            if polled[1].any() == Some(true) {
                return;
            }
        }
    }
}

/// Opens a file for writing and closes it. What is gone, or no file, after yet another switch is told of by that one.
fn raise(writable: &OwnedFd, path: &BStr) {
    if let Err(error) = open(writable, path) {
        tracing::debug!(%path, %error, "no event is raised");
    }
}

fn open(writable: &OwnedFd, path: &BStr) -> nix::Result<OwnedFd> {
    let flags = OFlag::O_WRONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    // A link that a commit put there in the meantime must not lead to anything else on this machine.
    let within = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_XDEV;
    openat2(writable, OsStr::from_bytes(path), OpenHow::new().flags(flags).resolve(within))
}

/// Whether the file system `device` is mounted anywhere in this namespace.
fn is_mounted(table: &mut File, device: u64) -> io::Result<bool> {
    io::Seek::rewind(table)?;
    let mut text = Vec::new();
    table.read_to_end(&mut text)?;
    let number = format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device));
    Ok(text.lines().any(|line| line.split(|&b| b == b' ').nth(2) == Some(number.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_outside_is_opened() {
        let dir = tempfile::tempdir().unwrap();
        let (inside, outside) = (dir.path().join("in"), dir.path().join("out"));
        for path in [&inside, &outside] {
            std::fs::create_dir(path).unwrap();
            std::fs::write(path.join("file"), "").unwrap();
        }
        std::os::unix::fs::symlink(&outside, inside.join("absolute")).unwrap();
        std::os::unix::fs::symlink("../out", inside.join("relative")).unwrap();
        std::os::unix::fs::symlink("file", inside.join("link")).unwrap();
        let root = OwnedFd::from(File::open(&inside).unwrap());
        assert!(open(&root, "file".into()).is_ok());
        for path in ["absolute/file", "relative/file", "link", "../out/file"] {
            assert!(open(&root, path.into()).is_err(), "{path}");
        }
    }

    #[test]
    fn a_device_that_is_mounted_is_found() {
        let mut table = File::open("/proc/self/mountinfo").unwrap();
        let device = nix::sys::stat::stat("/proc").unwrap().st_dev;
        assert!(is_mounted(&mut table, device).unwrap() && !is_mounted(&mut table, u64::MAX).unwrap());
    }
}
