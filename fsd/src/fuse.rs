//! The adapter to the kernel: mounting, session, notifications; no logic.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Config, Session, SessionACL};
use gitmount_store::error::{Fault, StoreError};
use gitmount_store::ids::CommitId;
use parking_lot::{Condvar, Mutex};

use crate::fs::FileSystem;
use crate::sys;
use crate::view::{Switched, View};

mod adapter;
mod counts;
mod events;
mod features;
mod mount;
mod notify;
mod relay;
mod session;

use adapter::Adapter;
use counts::Requests;
pub use counts::{RequestCounts, RequestTimes};
use events::Events;
pub use events::Notify;
pub use features::{Feature, UnknownFeature};
pub use mount::unmount;
pub use notify::Messenger;
use notify::Notifier;
pub(crate) use notify::{LONGEST_STORE, next_store, split_notifications};
pub use relay::Courier;
pub(crate) use session::is_gone;

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
    /// What is not asked of the kernel, to see how it works on older ones.
    pub without: Vec<Feature>,
    /// Whether watchers are told of switches.
    pub notify: Notify,
    /// The device of a mount that is resumed, where that is known: the target may have been unmounted meanwhile.
    pub device: Option<u64>,
}

impl MountOptions {
    /// The defaults.
    pub fn new(target: impl Into<PathBuf>, source: impl Into<String>) -> Self {
        MountOptions {
            target: target.into(),
            allow_other: false,
            source: source.into(),
            threads: 4,
            without: vec![],
            notify: Notify::None,
            device: None,
        }
    }
}

/// What one sequential read asks for at most, in KiB, where the kernel lets us say so.
const READ_AHEAD_KIB: u32 = 1024;

/// How long a graceful stop waits for answers that are under way.
const DRAIN: Duration = Duration::from_secs(5);
/// How long it waits for the threads afterwards.
const THREADS_END: Duration = Duration::from_secs(2);

/// A live mount. Dropping it unmounts, unless it was [detached](Mount::detach).
#[derive(Debug)]
pub struct Mount {
    fs: Arc<FileSystem>,
    target: PathBuf,
    notifier: Arc<Notifier>,
    requests: Arc<Requests>,
    finished: Arc<(Mutex<bool>, Condvar)>,
    /// `st_dev`: tells this mount from a later one at the same place.
    device: Option<u64>,
    detached: Mutex<bool>,
    /// Whether an earlier process may have taken requests along that nobody answers any more.
    lossy: bool,
    events: Option<Events>,
    /// The number of the descriptor that the session reads, and what keeps it open.
    descriptor: (RawFd, fuser::Notifier),
}

/// A session that is agreed on with the kernel and not served yet.
struct Opened {
    session: Session<Adapter>,
    fs: Arc<FileSystem>,
    notifier: Arc<Notifier>,
    requests: Arc<Requests>,
}

impl Opened {
    fn new<T>(
        view: Arc<View>,
        options: &MountOptions,
        session: impl FnOnce(Adapter, SessionACL, Config) -> io::Result<(Session<Adapter>, T)>,
    ) -> io::Result<(Self, T)> {
        let fs = Arc::new(FileSystem::new(view));
        let requests = Arc::new(Requests::default());
        let adapter = Adapter::new(fs.clone(), requests.clone(), options);
        let features = adapter.features();
        let acl = if options.allow_other { SessionACL::All } else { SessionACL::Owner };
        let mut config = Config::default();
        config.n_threads = Some(options.threads.max(2));
        let (session, rest) = session(adapter, acl, config)?;
        let notifier = Arc::new(Notifier::new(session.as_fd().try_clone_to_owned()?, features));
        fs.prefetch_into(notifier.clone());
        Ok((Opened { session, fs, notifier, requests }, rest))
    }

    fn serve(self, options: &MountOptions, lossy: bool) -> io::Result<Arc<Mount>> {
        let Opened { session, fs, notifier, requests } = self;
        let finished = Arc::new((Mutex::new(false), Condvar::new()));
        let descriptor = (session.as_fd().as_raw_fd(), session.notifier());
        thread::Builder::new().name("fuse".into()).spawn({
            let finished = finished.clone();
            move || {
                if let Err(error) = session.run() {
                    tracing::debug!(%error, "the FUSE session ended");
                }
                *finished.0.lock() = true;
                finished.1.notify_all();
            }
        })?;
        let device = options.device.or_else(|| mount::device_at(&options.target));
        set_read_ahead(device);
        let events = match (options.notify, device) {
            (Notify::None, _) => None,
            (Notify::Inotify, Some(device)) => Some(Events::start(fs.view().clone(), &options.target, device)?),
            (Notify::Inotify, None) => return Err(io::Error::other("the mount cannot be looked at")),
        };
        let detached = Mutex::new(false);
        Ok(Arc::new(Mount {
            fs,
            target: options.target.clone(),
            notifier,
            requests,
            finished,
            device,
            detached,
            lossy,
            events,
            descriptor,
        }))
    }
}

impl Mount {
    /// Mounts `view`; when this returns the tree is served. The mount ends with this process.
    ///
    /// # Errors
    /// What mounting gave: no /dev/fuse, no right to mount, no `fusermount3`, a target that is no directory.
    pub fn new(view: Arc<View>, options: &MountOptions) -> io::Result<Arc<Self>> {
        Self::mounted(view, options, true, &|_, _| Ok(()))
    }

    /// Mounts `view` so that another process can go on serving it with [`Mount::resume`]: `deposit` gets the descriptor of the mount and what
    /// was agreed on with the kernel, before anything is served. This process stores nothing ahead in the kernel's page cache: that waits,
    /// whatever the signal, for readers of the same file, who wait for this process, and so one that is killed in this moment could not end
    /// (seen once in 100 to 200 kills under load). Another one [can](Mount::store_through).
    ///
    /// # Errors
    /// As [`Mount::new`], and what `deposit` gave; then nothing is mounted.
    pub fn begin(
        view: Arc<View>,
        options: &MountOptions,
        deposit: &dyn Fn(BorrowedFd<'_>, &[u8]) -> io::Result<()>,
    ) -> io::Result<Arc<Self>> {
        Self::mounted(view, options, false, deposit)
    }

    fn mounted(
        view: Arc<View>,
        options: &MountOptions,
        stores: bool,
        deposit: &dyn Fn(BorrowedFd<'_>, &[u8]) -> io::Result<()>,
    ) -> io::Result<Arc<Self>> {
        let device = mount::mount(options)?;
        let mounted = (|| {
            let (opened, recorded) = Opened::new(view, options, |adapter, acl, config| session::greet(adapter, &device, acl, config))?;
            deposit(device.as_fd(), &recorded)?;
            drop(device);
            if !stores {
                opened.notifier.stop_storing();
            }
            opened.serve(options, false)
        })();
        mounted.inspect_err(|_| {
            // The first error is the one to tell.
            let _ = unmount(&options.target, true);
        })
    }

    /// Goes on serving a mount of a process that is gone: `device` and `recorded` are what [`Mount::begin`] deposited, and `view` what that
    /// process served, resumed from its journal. Requests that it had read and not answered are answered now.
    ///
    /// # Errors
    /// `NotConnected` when the mount is gone, `InvalidData` when `recorded` is damaged. The mount itself is left as it is.
    pub fn resume(view: Arc<View>, options: &MountOptions, device: OwnedFd, recorded: &[u8]) -> io::Result<Arc<Self>> {
        let (opened, ()) =
            Opened::new(view, options, |adapter, acl, config| Ok((session::resume(adapter, &device, recorded, acl, config)?, ())))?;
        drop(device);
        opened.notifier.stop_storing();
        // Before the first request is read, so that nothing is sent twice.
        let resent = opened.notifier.resend();
        opened.serve(options, !resent)
    }

    /// From now on `messenger` tells the kernel of changes, and not this process unless it says false. Telling waits for the locks of
    /// directories, whatever the signal, and who has such a lock may wait for this process: killed in this moment, a process that tells cannot
    /// end, and nobody starts the next one before it has.
    pub fn notify_through(&self, messenger: Messenger) {
        self.notifier.send_through(messenger);
    }

    /// From now on what `courier` opens a pipe to stores files ahead in the kernel's page cache, where this process may not: see [`Mount::begin`].
    pub fn store_through(&self, courier: Courier) {
        self.notifier.store_through(courier);
    }

    /// Ends serving without unmounting, for a process that will [resume](Mount::resume) it: what was read from the kernel is answered first.
    /// Readers wait from now on, except for what is cached, and nothing here uses the mount any more.
    pub fn detach(&self) {
        // A switch that has begun to tell the kernel is ended first, and no other begins.
        if std::mem::replace(&mut *self.detached.lock(), true) || self.is_finished() {
            return;
        }
        self.end_events();
        self.notifier.end_storing();
        if !self.requests.drain(DRAIN) {
            tracing::warn!(target_dir = %self.target.display(), "some requests are not answered yet; they are answered by whoever resumes the mount");
        }
        if let Err(error) = self.end_threads() {
            tracing::warn!(%error, "the threads of a detached mount cannot be ended");
        }
    }

    /// Puts a closed socket in the place of the device and wakes whoever still waits for a request.
    fn end_threads(&self) -> io::Result<()> {
        let (closed, other) = UnixStream::pair()?;
        drop(other);
        sys::make_interruptible()?;
        self.notifier.close(&closed)?;
        sys::replace(self.descriptor.0, &closed)?;
        self.requests.release();
        let end = Instant::now() + THREADS_END;
        while !self.is_finished() && Instant::now() < end {
            for task in std::fs::read_dir("/proc/self/task")?.flatten() {
                let ours = std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.starts_with("fuser-"));
                if let Some(id) = task.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| ours) {
                    sys::interrupt(id);
                }
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// Switches to another commit of the same repository: every lookup that starts after this sees the new tree.
    ///
    /// # Errors
    /// As [`View::switch_to`]; the old commit is then served on. A detached mount does not switch.
    pub fn switch(&self, commit: CommitId) -> gitmount_store::error::Result<Switched> {
        let detached = self.detached.lock();
        if *detached {
            return Err(StoreError::new(Fault::Cancelled, "the mount is being handed over to another process"));
        }
        let old = self.view().current().root;
        let switched = self.view().switch_to(commit, &*self.notifier)?;
        if let Some(events) = &self.events {
            events.switched(old, self.view().current().root);
        }
        Ok(switched)
    }

    /// The view.
    pub fn view(&self) -> &Arc<View> {
        self.fs.view()
    }

    /// Where it is mounted.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The device that the kernel's table of mounts shows for it.
    pub fn device(&self) -> Option<u64> {
        self.device
    }

    /// Messages of the kernel so far.
    pub fn requests(&self) -> RequestCounts {
        self.requests.counts()
    }

    /// How long the answers to them took.
    pub fn request_times(&self) -> RequestTimes {
        self.requests.times()
    }

    /// Unmounts; lazily when `lazy` (a busy mount goes away with its last user). On kernels that cannot send requests again, a lazy one ends the
    /// mount for everybody when somebody waits for a process that was killed: nobody would ever answer that.
    ///
    /// # Errors
    /// `ResourceBusy` when somebody uses it and `lazy` is false.
    pub fn unmount(&self, lazy: bool) -> io::Result<()> {
        if self.device.is_some() && self.device != mount::device_at(&self.target) {
            // Detached already, and something else stands there now.
            return Ok(());
        }
        if lazy && self.keeps_somebody_waiting() {
            tracing::warn!(target_dir = %self.target.display(), "readers wait for a process that was killed: the mount is ended under them");
            mount::abort(&self.target)?;
        } else {
            unmount(&self.target, lazy)?;
        }
        self.end_events();
        Ok(())
    }

    /// Whether there are requests that only a process had which is gone.
    fn keeps_somebody_waiting(&self) -> bool {
        // Where the kernel does not tell how many there are, there may be some.
        self.lossy && self.device.and_then(mount::waiting).is_none_or(|waiting| waiting > self.requests.unanswered())
    }

    fn end_events(&self) {
        if let Some(events) = &self.events {
            events.end();
        }
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
            && !*self.detached.lock()
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
