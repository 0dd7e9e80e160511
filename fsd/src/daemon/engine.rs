//! The daemon: many views, each shown at any number of targets.
//!
//! - Publish and unpublish change what is shown; any of them may be repeated or cut off at any
//!   point, and be repeated by another daemon after that.
//! - Status, statistics and the log answer from memory, whatever hangs.
//!
//! Promises: no lock outlives its call; calls about different targets do not wait for each other, but where they make the same view; a call
//! about a target that another call works on waits for it, and an unpublish makes a publish in progress give up.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use gitmount_store::error::Result;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::UrlPolicy;
use gitmount_store::{Fault, StoreError};

use super::context::Context;
use super::credential::Fingerprint;
use super::events::Events;
use super::fetches::Fetches;
use super::metrics::Metrics;
use super::schedule::groups::Rules;
use super::shown::Shown;
use super::state::StateDir;
use super::upkeep::Upkeep;
use crate::fuse::Feature;
use crate::handover::Keeper;
use crate::view::caches::Caches;

mod create;
mod operations;
mod places;
mod publish;
mod restart;
mod volume;

/// How a daemon runs.
#[derive(Debug, Clone)]
pub struct Options {
    /// The state directory.
    pub state: PathBuf,
    /// The store.
    pub store: StoreOptions,
    /// Which URLs are allowed.
    pub policy: UrlPolicy,
    /// See [`Rules::interval`].
    pub demand_min_interval: Duration,
    /// Snapshots that stay readable beside the current one.
    pub keep_snapshots: usize,
    /// Bytes that the store may take.
    pub store_limit: Option<u64>,
    /// The socket of the holder.
    pub hold: Option<PathBuf>,
    /// What is not asked of the kernel.
    pub without: Vec<Feature>,
}

/// Fetches that run at the same time.
const WORKERS: usize = 8;

/// How long fetches may take to notice that they are to end.
const LAST_FETCHES: Duration = Duration::from_secs(10);

/// The daemon.
#[derive(Debug)]
pub struct Engine {
    context: Arc<Context>,
    policy: UrlPolicy,
    inner: Mutex<Inner>,
    changed: Condvar,
    /// Held while a mount that somebody took away is put back.
    mending: Mutex<()>,
}

#[derive(Debug, Default)]
struct Inner {
    views: Vec<Arc<Shown>>,
    /// Views that are gone, of which something is still open.
    ending: Vec<Weak<Shown>>,
    targets: HashMap<PathBuf, Arc<Shown>>,
    /// Targets that a call works on, with what makes it give up.
    busy: HashMap<PathBuf, Arc<AtomicBool>>,
    /// Views that are being made.
    making: HashSet<(String, Fingerprint)>,
    stopping: bool,
}

impl Engine {
    /// Opens the state directory and the store, and takes up again what an earlier daemon showed.
    ///
    /// # Errors
    /// When another daemon uses the state directory, or the disk fails.
    pub fn new(options: Options) -> Result<Arc<Self>> {
        let state = StateDir::open(&options.state)?;
        let store = Store::open(options.store)?;
        let rules = Rules { interval: options.demand_min_interval, workers: WORKERS };
        let no_thread =
            |e: std::io::Error| StoreError::new(Fault::Internal, format!("no thread can be started ({e}): raise the limit of processes"));
        let (upkeep, metrics) = (Arc::new(Upkeep::new(Arc::clone(&store), options.store_limit)), Arc::new(Metrics::default()));
        let fetches = Fetches::start(rules, Arc::clone(&upkeep), Arc::clone(&metrics)).map_err(no_thread)?;
        let keeper = options.hold.as_deref().map(Keeper::new).transpose().map_err(no_thread)?;
        let context = Arc::new(Context {
            keeper,
            state,
            store,
            fetches,
            events: Events::default(),
            metrics,
            upkeep,
            caches: Arc::default(),
            measuring: Mutex::default(),
            keep_snapshots: options.keep_snapshots,
            without: options.without,
        });
        let engine = Arc::new(Engine {
            context,
            policy: options.policy,
            inner: Mutex::default(),
            changed: Condvar::new(),
            mending: Mutex::default(),
        });
        engine.take_up()?;
        engine.context.metrics.include(&engine);
        engine.context.upkeep.measure();
        Ok(engine)
    }

    /// Ends it: fetches are interrupted, publishes given up, and every view left to the holder, or unmounted where it has none.
    pub fn stop(&self) {
        {
            let mut inner = self.lock();
            inner.stopping = true;
            inner.busy.values().for_each(|given_up| given_up.store(true, Ordering::SeqCst));
        }
        self.context.fetches.stop(LAST_FETCHES);
        let mut inner = self.lock();
        while !inner.busy.is_empty() {
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        let views = std::mem::take(&mut inner.views);
        inner.targets.clear();
        drop(inner);
        for view in views {
            view.leave();
            if let (Some(keeper), Some(mount)) = (&self.context.keeper, view.mount())
                && keeper.is_holding(&view.id)
            {
                mount.detach();
                tracing::info!(view = %view.id, "the mount waits for the next daemon");
                continue;
            }
            for target in view.targets() {
                self.take_away(&view, &target.path(), false);
            }
        }
    }

    /// The views that there are.
    pub fn shown(&self) -> Vec<Arc<Shown>> {
        self.lock().views.clone()
    }

    /// Whether it is being stopped.
    pub fn is_stopping(&self) -> bool {
        self.lock().stopping
    }

    /// Bytes of the store, when it was looked at last.
    pub fn store_bytes(&self) -> u64 {
        self.context.upkeep.bytes()
    }

    /// Bytes that the store may take, when it has a limit.
    pub fn store_limit(&self) -> Option<u64> {
        self.context.upkeep.limit()
    }

    /// What all views keep in memory.
    pub fn caches(&self) -> &Caches {
        &self.context.caches
    }

    /// All metrics, as Prometheus reads them.
    ///
    /// # Errors
    /// None that is known.
    pub fn metrics(&self) -> std::result::Result<String, std::fmt::Error> {
        self.context.metrics.render()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other call works on `target`, then works on it; with `take_over` the other call is made to give up.
    fn claim(&self, target: &Path, take_over: bool) -> Result<Claim<'_>> {
        let mut inner = self.lock();
        while let Some(given_up) = inner.busy.get(target) {
            if take_over {
                given_up.store(true, Ordering::SeqCst);
            }
            inner = self.changed.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        if inner.stopping {
            return Err(StoreError::new(Fault::Cancelled, "the daemon is being stopped: ask the next one"));
        }
        let given_up = Arc::new(AtomicBool::new(false));
        inner.busy.insert(target.to_owned(), Arc::clone(&given_up));
        Ok(Claim { engine: self, target: target.to_owned(), given_up })
    }
}

/// What is in a store was allowed when it was fetched.
fn any_url() -> UrlPolicy {
    UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] }
}

/// A call's hold on a target.
#[derive(Debug)]
struct Claim<'a> {
    engine: &'a Engine,
    target: PathBuf,
    given_up: Arc<AtomicBool>,
}

impl Claim<'_> {
    /// Whether another call wants the target gone.
    fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<()> {
        if self.is_given_up() {
            return Err(StoreError::new(Fault::Cancelled, "it was unpublished meanwhile"));
        }
        Ok(())
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.engine.lock().busy.remove(&self.target);
        self.engine.changed.notify_all();
    }
}
