//! What all transports share: the runtime their sockets live on, waiting under a limit that can be cancelled, and the slot for the first
//! failure. The threads that fetch are ordinary blocking threads.

use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use super::NetOptions;
use super::failure::lock;
use crate::error::{Fault, Result, StoreError};
use crate::url::RepoUrl;

/// How often a wait looks whether it was cancelled; well below the 100 ms that are promised.
const LOOK: Duration = Duration::from_millis(40);

/// The crate's runtime, started by the first connection.
fn runtime() -> Result<&'static Runtime> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime);
    }
    let started = Builder::new_multi_thread().worker_threads(2).max_blocking_threads(32).thread_name("gitmount-net").enable_all().build();
    let started =
        started.map_err(|e| StoreError::new(Fault::Internal, format!("the network threads could not be started: {e}")).caused_by(e))?;
    Ok(RUNTIME.get_or_init(|| started))
}

/// The most that a host may say besides the objects that it was asked for: refs, mostly, some hundred thousand where it lists all.
const MOST_TALK: u64 = 128 << 20;

/// How many times its idle limit a host may go on saying things, such as how far it is, without an object.
const LONGEST_TALK: u32 = 30;

/// What a host says besides the objects of a pack, which are what it was asked for: without bounds it could fill the memory, or go on for ever.
#[derive(Debug)]
pub(crate) struct Talk {
    /// Objects came since it was looked last.
    objects: AtomicBool,
    since: Mutex<Since>,
}

#[derive(Debug)]
struct Since {
    begin: Instant,
    bytes: u64,
}

impl Default for Talk {
    fn default() -> Self {
        Talk { objects: AtomicBool::new(false), since: Mutex::new(Since { begin: Instant::now(), bytes: 0 }) }
    }
}

impl Talk {
    /// Some bytes of objects came.
    pub(crate) fn objects_came(&self) {
        self.objects.store(true, Ordering::Relaxed);
    }

    /// The bytes since the last object with these `more`, and for how long they have come.
    fn heard(&self, more: usize) -> (u64, Duration) {
        let mut since = lock(&self.since);
        if self.objects.swap(false, Ordering::Relaxed) {
            *since = Since { begin: Instant::now(), bytes: 0 };
        }
        since.bytes += more as u64;
        (since.bytes, since.begin.elapsed())
    }
}

/// One connection's limits and its failure slot. Clones share the slot.
#[derive(Debug, Clone)]
pub(super) struct Wire {
    /// The repository's URL, for messages.
    pub(super) url: String,
    /// The host, for messages.
    pub(super) host: String,
    pub(super) idle: Duration,
    pub(super) connect: Duration,
    pub(super) failure: Arc<Mutex<Option<StoreError>>>,
    pub(super) talk: Arc<Talk>,
    stop: Arc<AtomicBool>,
}

impl Wire {
    pub(super) fn new(url: &RepoUrl, net: &NetOptions, stop: &Arc<AtomicBool>) -> Self {
        Wire {
            url: url.to_string(),
            host: url.authority(),
            idle: net.idle,
            connect: net.connect,
            failure: Arc::default(),
            talk: Arc::default(),
            stop: stop.clone(),
        }
    }

    /// Runs `work` on the crate's runtime until it is done, `limit` has passed, or somebody asked to stop. `doing` completes
    /// "host … did not finish …".
    pub(super) fn wait<T>(&self, limit: Duration, doing: &str, work: impl Future<Output = T>) -> Result<T> {
        runtime()?.block_on(async {
            tokio::pin!(work);
            let deadline = tokio::time::Instant::now() + limit;
            loop {
                if self.stop.load(Ordering::Relaxed) {
                    return Err(StoreError::new(Fault::Cancelled, format!("the fetch of {} was cancelled", self.url)));
                }
                let next = deadline.min(tokio::time::Instant::now() + LOOK);
                if let Ok(done) = tokio::time::timeout_at(next, &mut work).await {
                    return Ok(done);
                }
                if tokio::time::Instant::now() >= deadline {
                    let message = format!("host {} did not {doing} within {}", self.host, seconds(limit));
                    return Err(StoreError::new(Fault::Unreachable, message));
                }
            }
        })
    }

    /// Notes that `bytes` came from the host.
    ///
    /// # Errors
    /// When it talks too much or for too long without sending what it was asked for.
    pub(super) fn heard(&self, bytes: usize) -> Result<()> {
        let (all, time) = self.talk.heard(bytes);
        if all > MOST_TALK {
            let message = format!("host {} sends more than {} MiB of refs and messages without an object", self.host, MOST_TALK >> 20);
            return Err(StoreError::new(Fault::Corrupt, message));
        }
        let longest = self.idle.saturating_mul(LONGEST_TALK);
        if time > longest {
            let message = format!("host {} did not send any objects within {}", self.host, seconds(longest));
            return Err(StoreError::new(Fault::Unreachable, message));
        }
        Ok(())
    }

    /// Remembers a failure if it is the first, and gives what gix is to see of it.
    pub(super) fn fail(&self, error: StoreError) -> io::Error {
        let seen = io::Error::other(error.to_string());
        lock(&self.failure).get_or_insert(error);
        seen
    }

    /// What a write to a host that hung up gives: success, since the host's last words are still to be read and say more than the broken
    /// pipe. When there are none, the end of the data is what the reader finds.
    pub(super) fn hung_up(&self, done: io::Result<usize>, bytes: usize) -> io::Result<usize> {
        use io::ErrorKind as Kind;
        match done {
            Err(err) if matches!(err.kind(), Kind::BrokenPipe | Kind::ConnectionReset | Kind::ConnectionAborted) => Ok(bytes),
            done => done,
        }
    }

    /// An error that says that the host cannot be reached, and why.
    pub(super) fn unreachable(&self, cause: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        let message = format!("host {} cannot be reached: {}", self.host, super::failure::root_cause(&cause));
        StoreError::new(Fault::Unreachable, message).caused_by(cause)
    }
}

/// A limit in words.
fn seconds(limit: Duration) -> String {
    if limit.subsec_millis() == 0 { format!("{} s", limit.as_secs()) } else { format!("{} ms", limit.as_millis()) }
}
