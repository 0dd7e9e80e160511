//! One mount, all of it: the first fetch, the view, the mount itself, the thread that follows, and the answers to the control socket.
//!
//! [`Prepared::new`] does what may take long and fail; [`Prepared::mount`] is quick. Until then nothing is mounted, and nothing stays behind
//! when it is given up.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Instant, SystemTime};

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::credential::Auth;
use gitmount_store::error::Result;
use gitmount_store::fetch::{FetchRequest, Progress};
use gitmount_store::ids::CommitId;
use gitmount_store::local::LocalRepository;
use gitmount_store::objects::Objects;
use gitmount_store::path::RepoPath;
use gitmount_store::refspec::RefSpec;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::RepoUrl;
use gitmount_store::{Fault, StoreError};
use nix::unistd::{Gid, Uid};

use super::events::{Diary, Kind};
use super::follow::{Follow, Follower, Served, record};
use super::health::{Health, State, millis};
use super::measure;
use super::policy::{Offline, Pull};
use super::schedule::{Random, Schedule, SystemRandom};
use super::standing::{self, Standing};
use super::upstream::{Hold, Local, Remote, Upstream};
use crate::control::{Failure, Operations};
use crate::fuse::{Feature, Mount, MountOptions, Notify};
use crate::view::{View, ViewOptions};

/// The repository that is mounted.
#[derive(Debug, Clone)]
pub enum Source {
    /// At a host.
    Remote(Box<RemoteSource>),
    /// On the local disk.
    Local {
        /// The repository, or a directory in it; absolute.
        path: PathBuf,
        /// A revision expression.
        revision: String,
    },
}

/// A repository at a host.
#[derive(Debug, Clone)]
pub struct RemoteSource {
    /// Where.
    pub url: RepoUrl,
    /// What is followed.
    pub spec: RefSpec,
    /// Commits of history; 0 for all.
    pub depth: u32,
    /// What is presented to the host.
    pub auth: Auth,
    /// What to do when the host does not answer now.
    pub offline: Offline,
}

/// What to mount, and how.
#[derive(Debug, Clone)]
pub struct Config {
    /// The repository.
    pub source: Source,
    /// The sub-directory that becomes the root.
    pub path: RepoPath,
    /// When to look for news.
    pub pull: Pull,
    /// An existing, empty directory, absolute.
    pub target: PathBuf,
    /// Let other users in.
    pub allow_other: bool,
    /// Snapshots kept below `.gitmount/commit` beside the one that is served.
    pub keep_snapshots: usize,
    /// What is not asked of the kernel.
    pub without: Vec<Feature>,
    /// Whether inotify watchers are told of switches.
    pub notify: Notify,
    /// The store; of a local repository only big blobs go there, while they are read.
    pub store: StoreOptions,
}

/// Everything that a mount needs, fetched and pinned.
pub struct Prepared {
    config: Config,
    url: String,
    ref_name: String,
    store: Option<PathBuf>,
    upstream: Arc<dyn Upstream>,
    local: Option<Arc<LocalRepository>>,
    view: Arc<View>,
    hold: Hold,
    health: Health,
    schedule: Schedule,
    random: Box<dyn Random>,
    warning: Option<String>,
}

const SPOOL_LIMIT: u64 = 8 << 30;
const SPOOL_THRESHOLD: u64 = 8 << 20;
const THREADS: usize = 4;

impl Prepared {
    /// Fetches what is to be served and opens a view of it.
    pub fn new(config: Config, progress: &dyn Progress, stop: &Arc<AtomicBool>) -> Result<Self> {
        let store = Store::open(config.store.clone())?;
        let (upstream, objects, local, url, ref_name, offline, every): (Arc<dyn Upstream>, Box<dyn Fn() -> Objects>, _, _, _, _, _) =
            match &config.source {
                Source::Remote(remote) => {
                    let RemoteSource { url, spec, depth, auth, offline } = &**remote;
                    let repository = store.repository(url)?;
                    let request = FetchRequest { spec: spec.clone(), depth: *depth, auth: auth.clone() };
                    let opened = Arc::clone(&repository);
                    // Only the first fetch tells which hash the repository has, so its objects are opened after it.
                    let objects = Box::new(move || opened.objects());
                    // A commit never moves.
                    let every = match (config.pull, spec) {
                        (Pull::Never | Pull::OnDemand, _) | (_, RefSpec::Commit(_)) => None,
                        (Pull::Every(every), _) => Some(every),
                    };
                    (Arc::new(Remote { repository, request }), objects, None, url.to_string(), spec.to_string(), *offline, every)
                }
                Source::Local { path, revision } => {
                    let repository = Arc::new(LocalRepository::discover(path)?);
                    let opened = Arc::clone(&repository);
                    let objects = Box::new(move || opened.objects());
                    let upstream = Local { repository: Arc::clone(&repository), revision: revision.clone() };
                    (Arc::new(upstream), objects, Some(repository), path.display().to_string(), revision.clone(), Offline::Refuse, None)
                }
            };

        let (mut health, mut schedule) = (Health::default(), Schedule::new(every));
        let mut random: Box<dyn Random> = Box::<SystemRandom>::default();
        let mut warning = None;
        health.attempted(SystemTime::now());
        let commit = match upstream.fetch(progress, stop) {
            Ok(commit) => {
                health.succeeded();
                schedule.succeeded(Instant::now(), &mut *random);
                commit
            }
            Err(error) => {
                let Some(commit) = stale(&*upstream, offline, &error)? else { return Err(error) };
                warning = Some(format!("{error}; the last known commit {commit} is served instead"));
                health.stale(&error);
                schedule.failed(Instant::now(), error.host_wait(), &mut *random);
                commit
            }
        };
        let hold = upstream.pin(commit)?;
        let options = ViewOptions {
            path: config.path.clone(),
            ref_name: ref_name.clone(),
            spool_dir: store.spool_dir(),
            spool_limit: SPOOL_LIMIT,
            spool_threshold: SPOOL_THRESHOLD,
            caches: Arc::default(),
            uid: Uid::effective().as_raw(),
            gid: Gid::effective().as_raw(),
            keep_snapshots: config.keep_snapshots,
            journal: None,
        };
        let view = View::new(objects(), commit, options)?;
        if !view.shows_snapshots() {
            warning.get_or_insert_with(|| "the tree has a .gitmount of its own: it hides the snapshots while it is there".to_owned());
        }
        let store = local.is_none().then(|| store.root().to_owned());
        Ok(Prepared { config, url, ref_name, store, upstream, local, view, hold, health, schedule, random, warning })
    }

    /// What the user should know although it works.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The commit that will be served.
    pub fn commit(&self) -> CommitId {
        self.view.current().commit
    }

    /// Mounts it and starts to follow the ref. When this returns the tree is served.
    pub fn mount(self) -> Result<Arc<Serving>> {
        let options = MountOptions {
            target: self.config.target.clone(),
            allow_other: self.config.allow_other,
            source: self.url.clone(),
            threads: THREADS,
            without: self.config.without.clone(),
            notify: self.config.notify,
            device: None,
        };
        let commit = self.commit();
        let mount = Mount::new(self.view, &options).map_err(|e| cannot_mount(&options, &e))?;
        let diary = Arc::new(Diary::new(&self.url, &self.ref_name, &self.config.target));
        diary.note(Kind::Published, commit, format!("{} is shown at {}", diary.subject(), self.config.target.display()));
        if let Some(warning) = self.warning {
            let kind = if self.health.state == State::Stale { Kind::Stale } else { Kind::Notice };
            diary.note(kind, commit, warning);
        }
        measure::note(&mount, &diary);
        let health = Arc::new(Mutex::new(self.health));
        let follow = Follow::start(Follower {
            upstream: self.upstream,
            served: Arc::clone(&mount) as Arc<dyn Served>,
            health: Arc::clone(&health),
            schedule: self.schedule,
            random: self.random,
            holds: vec![(commit, self.hold)],
            diary: Arc::clone(&diary),
        })
        .map_err(no_thread)?;
        let serving = Arc::new(Serving {
            target: self.config.target,
            url: self.url,
            ref_name: self.ref_name,
            path: self.config.path,
            store: self.store,
            mount,
            health,
            diary,
            follow: Arc::new(follow),
            watch: OnceLock::new(),
            detached: AtomicBool::new(false),
        });
        if let (Some(local), Pull::Every(_)) = (self.local, self.config.pull) {
            let watch = Watch::start(local, Arc::clone(&serving.follow))?;
            // Set once, here: the cell is empty.
            let _ = serving.watch.set(watch);
        }
        Ok(serving)
    }
}

/// The last known commit, when it may be served in place of what could not be fetched.
fn stale(upstream: &dyn Upstream, offline: Offline, error: &StoreError) -> Result<Option<CommitId>> {
    // A host that answers and refuses is no reason to show what it showed once.
    if offline == Offline::AllowStale && error.fault() == Fault::Unreachable { upstream.known() } else { Ok(None) }
}

fn cannot_mount(options: &MountOptions, error: &std::io::Error) -> StoreError {
    let internal = Fault::Internal;
    let (fault, hint) = match error.kind() {
        _ if error.to_string().contains("no write access") => (Fault::Usage, "give a directory of your own"),
        std::io::ErrorKind::NotFound => (internal, "install fuse3 and load the kernel module `fuse`"),
        std::io::ErrorKind::PermissionDenied => {
            (internal, "/dev/fuse must be open to this user (mode 0666), and the directory must be the user's own")
        }
        _ => (internal, "make sure that /dev/fuse exists and that fusermount3 is installed"),
    };
    StoreError::new(fault, format!("{} cannot be mounted ({error}): {hint}", options.target.display()))
}

fn no_thread(error: std::io::Error) -> StoreError {
    StoreError::new(Fault::Internal, format!("no thread can be started ({error}): raise the limit of processes"))
}

/// The thread that watches a local repository's refs.
#[derive(Debug)]
struct Watch {
    stop: Option<std::io::PipeWriter>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn start(repository: Arc<LocalRepository>, follow: Arc<Follow>) -> Result<Self> {
        let mut watch = repository.watch()?;
        let (stopped, stop) = std::io::pipe().map_err(no_thread)?;
        // Between the first look at the ref and the watch it may have moved.
        follow.moved();
        let thread = std::thread::Builder::new().name("watch".into()).spawn(move || {
            loop {
                match watch.wait(Some(stopped.as_fd())) {
                    Ok(true) => follow.moved(),
                    Ok(false) => return,
                    Err(error) => return tracing::error!(%error, "the refs are not watched any more; `gitmount pull` still works"),
                }
            }
        });
        Ok(Watch { stop: Some(stop), thread: Some(thread.map_err(no_thread)?) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(mut stop) = self.stop.take() {
            // Closing it wakes the thread as well.
            let _ = stop.write_all(b"x");
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A mount that is served. It ends when it is unmounted, by whomever.
#[derive(Debug)]
pub struct Serving {
    target: PathBuf,
    url: String,
    ref_name: String,
    path: RepoPath,
    store: Option<PathBuf>,
    mount: Arc<Mount>,
    health: Arc<Mutex<Health>>,
    diary: Arc<Diary>,
    follow: Arc<Follow>,
    watch: OnceLock<Watch>,
    detached: AtomicBool,
}

impl Serving {
    /// Unmounts; a busy mount is refused unless `lazy`, and one that somebody else's mount hides in any case.
    pub fn unmount(&self, lazy: bool) -> std::io::Result<()> {
        if let Some(covered) = self.covered() {
            return Err(std::io::Error::other(covered));
        }
        self.mount.unmount(lazy)?;
        self.detached.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Blocks until the mount is gone, then ends the threads and lets go of the commit.
    pub fn wait(&self) {
        self.mount.wait();
        self.follow.stop();
    }

    /// That something hides it, and what to do.
    fn covered(&self) -> Option<String> {
        match standing::look(&standing::table().ok()?, &self.target, self.mount.device()) {
            Standing::Covered(by) => Some(standing::covered(&self.target, &by)),
            _ => None,
        }
    }

    fn serves(&self, target: &Path) -> Option<()> {
        (self.target == target).then_some(())
    }
}

impl Operations for Serving {
    fn views(&self) -> Vec<proto::View> {
        use std::os::unix::ffi::OsStrExt;
        let health = record(&self.health).clone();
        let covered = self.covered();
        let state = match covered {
            _ if self.detached.load(Ordering::SeqCst) => proto::State::Detached,
            Some(_) => proto::State::Covered,
            None => health.state.into(),
        };
        vec![proto::View {
            url: self.url.clone(),
            r#ref: self.ref_name.clone(),
            path: self.path.as_bstr().to_vec(),
            commit: self.mount.view().current().commit.to_string(),
            state: state.into(),
            last_attempt_ms: health.last_attempt.map(millis),
            last_success_ms: health.last_success.map(millis),
            error: covered.into_iter().chain(health.error).collect::<Vec<_>>().join("; "),
            mounts: vec![self.target.as_os_str().as_bytes().to_vec()],
            store: self.store.as_ref().map(|s| s.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
            requests: self.mount.requests().into_iter().map(|(name, count)| (name.to_owned(), count)).collect(),
            ..Default::default()
        }]
    }

    fn pull(&self, target: &Path) -> Option<std::result::Result<proto::Pulled, Failure>> {
        self.serves(target)?;
        Some(self.follow.pull())
    }

    fn unmount(&self, target: &Path, lazy: bool) -> Option<std::result::Result<(), Failure>> {
        self.serves(target)?;
        if let Some(covered) = self.covered() {
            return Some(Err(Failure::new(Fault::Usage, covered)));
        }
        Some(Serving::unmount(self, lazy).map_err(|error| {
            let shown = target.display();
            if error.raw_os_error() == Some(libc::EBUSY) {
                let hint = format!("close what is open there, or detach it with `gitmount unmount --lazy {shown}`");
                return Failure::new(Fault::Internal, format!("{shown} is busy: {hint}"));
            }
            Failure::new(Fault::Internal, format!("{shown} cannot be unmounted ({error})"))
        }))
    }

    fn log(&self, target: &Path) -> Option<Vec<proto::Event>> {
        self.serves(target)?;
        Some(self.diary.all())
    }

    fn statistics(&self, target: &Path) -> Option<proto::StatisticsResponse> {
        self.serves(target)?;
        let health = record(&self.health).clone();
        let requests = self.mount.requests();
        Some(proto::StatisticsResponse {
            requests: requests.into_iter().map(|(name, count)| proto::Requests { operation: name.to_owned(), count }).collect(),
            fetches: health.fetches,
            fetch_failures: health.failures,
            switches: health.switches,
            ..Default::default()
        })
    }
}
