//! The adapter to the kernel: mounting, session, notifications; no logic.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use fuser::{Config, Session, SessionACL};
use gitmount_store::ids::CommitId;
use parking_lot::{Condvar, Mutex};

use crate::fs::FileSystem;
use crate::view::{Switched, View};

mod adapter;
mod counts;
mod mount;
mod notify;

use adapter::Adapter;
pub use counts::RequestCounts;
use counts::Requests;
pub use mount::unmount;
use notify::Notifier;

/// How a view is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// An existing, empty directory, absolute.
    pub target: PathBuf,
    /// Let other users in (`allow_other`).
    pub allow_other: bool,
    /// What `findmnt` shows as source; no credential.
    pub source: String,
    /// Threads that read from /dev/fuse (default 4).
    pub threads: usize,
}

impl MountOptions {
    /// The defaults.
    pub fn new(target: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        MountOptions { target: target.into(), allow_other: false, source: source.into(), threads: 4 }
    }
}

/// What one sequential read asks for at most, in KiB, where the kernel lets us say so.
const READ_AHEAD_KIB: u32 = 1024;

/// A live mount. Dropping it unmounts.
#[derive(Debug)]
pub struct Mount {
    fs: Arc<FileSystem>,
    target: PathBuf,
    notifier: Arc<Notifier>,
    requests: Arc<Requests>,
    finished: Arc<(Mutex<bool>, Condvar)>,
    /// `st_dev`: tells this mount from a later one at the same place.
    device: Option<u64>,
}

impl Mount {
    /// Mounts `view`; when this returns the tree is served.
    ///
    /// # Errors
    /// What mounting gave: no /dev/fuse, no right to mount, no `fusermount3`, a target that is no directory.
    pub fn new(view: Arc<View>, options: &MountOptions) -> io::Result<Arc<Self>> {
        let fs = Arc::new(FileSystem::new(view));
        let requests = Arc::new(Requests::default());
        let adapter = Adapter::new(fs.clone(), requests.clone(), options.allow_other);
        let features = adapter.features();
        let acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        let mut config = Config::default();
        config.n_threads = Some(options.threads.max(2));
        let device = mount::mount(options)?;
        let session = Session::from_fd(adapter, device, acl, config).inspect_err(|_| {
            // The mount's own error is the one to tell.
            let _ = unmount(&options.target, true);
        })?;
        let notifier = Arc::new(Notifier::new(session.as_fd().try_clone_to_owned()?, features));
        fs.prefetch_into(notifier.clone());
        let finished = Arc::new((Mutex::new(false), Condvar::new()));
        thread::Builder::new().name("fuse".into()).spawn({
            let finished = finished.clone();
            move || {
                if let Err(error) = session.run() {
                    tracing::warn!(%error, "the FUSE session ended");
                }
                *finished.0.lock() = true;
                finished.1.notify_all();
            }
        })?;
        let device = nix::sys::stat::stat(&options.target).ok().map(|stat| stat.st_dev);
        set_read_ahead(device);
        Ok(Arc::new(Mount { fs, target: options.target.clone(), notifier, requests, finished, device }))
    }

    /// Switches to another commit of the same repository: every lookup that starts after this sees the new tree.
    ///
    /// # Errors
    /// As [`View::switch_to`]; the old commit is then served on.
    pub fn switch(&self, commit: CommitId) -> gitmount_store::error::Result<Switched> {
        self.fs.view().switch_to(commit, &*self.notifier)
    }

    /// The view.
    pub fn view(&self) -> &Arc<View> {
        self.fs.view()
    }

    /// Where it is mounted.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Messages of the kernel so far.
    pub fn requests(&self) -> RequestCounts {
        self.requests.counts()
    }

    /// Unmounts; lazily when `lazy` (a busy mount goes away with its last user).
    ///
    /// # Errors
    /// `ResourceBusy` when somebody uses it and `lazy` is false.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        let there = nix::sys::stat::stat(&self.target)?.st_dev;
        if self.device.is_some_and(|ours| ours != there) {
            // Detached already, and something else stands there now.
            return Ok(());
        }
        unmount(&self.target, lazy)
    }

    /// Whether the mount is gone.
    pub fn is_finished(&self) -> bool {
        *self.finished.0.lock()
    }

    /// Blocks until the mount is gone, whoever unmounted it.
    pub fn wait(&self) {
        let mut finished = self.finished.0.lock();
        while !*finished {
            self.finished.1.wait(&mut finished);
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if !self.is_finished()
            && let Err(error) = self.unmount(true)
        {
            tracing::warn!(target_dir = %self.target.display(), %error, "cannot unmount");
        }
    }
}

/// Larger reads of big files, where we may set it (root); without it the kernel asks for 128 KiB at a time.
fn set_read_ahead(device: Option<u64>) {
    let Some(device) = device else { return };
    let (major, minor) = (nix::sys::stat::major(device), nix::sys::stat::minor(device));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%knob, %error, "the read-ahead stays at the kernel's default");
    }
}
