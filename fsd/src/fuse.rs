//! The adapter to the kernel: mounting, session, notifications; no logic.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use fuser::{Config, MountOption, Session, SessionACL};
use gitmount_store::ids::CommitId;
use nix::mount::{MntFlags, umount2};
use parking_lot::{Condvar, Mutex};

use crate::fs::FileSystem;
use crate::view::{Switched, View};

mod adapter;
mod counts;
mod notify;

use adapter::Adapter;
pub use counts::RequestCounts;
use counts::Requests;
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
        let session = Session::new(adapter, &options.target, &config(options))?;
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
        set_read_ahead(&options.target);
        Ok(Arc::new(Mount { fs, target: options.target.clone(), notifier, requests, finished }))
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

/// Unmounts the FUSE mount at `target`; without the right to do so itself, through `fusermount3`.
///
/// # Errors
/// `ResourceBusy` when somebody uses it and `lazy` is false; `InvalidInput` when nothing is mounted there.
pub fn unmount(target: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() } | MntFlags::UMOUNT_NOFOLLOW;
    match umount2(target, flags) {
        Err(nix::errno::Errno::EPERM) => {}
        other => return other.map_err(io::Error::from),
    }
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(target).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    let kind = if said.contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, said))
}

fn config(options: &MountOptions) -> Config {
    let mut config = Config::default();
    config.mount_options = vec![
        MountOption::FSName(plain(&options.source)),
        MountOption::Subtype("gitmount".into()),
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::DefaultPermissions,
    ];
    config.acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
    config.n_threads = Some(options.threads.max(2));
    config
}

/// A mount source as mount options can carry it.
fn plain(source: &str) -> String {
    source.chars().map(|c| if c == ',' || c == '\\' || c.is_control() { '_' } else { c }).collect()
}

/// Larger reads of big files, where we may set it (root); without it the kernel asks for 128 KiB at a time.
fn set_read_ahead(target: &Path) {
    let Ok(stat) = nix::sys::stat::stat(target) else { return };
    let (major, minor) = (nix::sys::stat::major(stat.st_dev), nix::sys::stat::minor(stat.st_dev));
    let knob = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, READ_AHEAD_KIB.to_string()) {
        tracing::debug!(%knob, %error, "the read-ahead stays at the kernel's default");
    }
}
