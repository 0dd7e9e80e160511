//! What all views of a daemon share.

use std::sync::{Arc, Mutex};

use gitmount_store::store::Store;

use super::events::Events;
use super::fetches::Fetches;
use super::metrics::Metrics;
use super::state::StateDir;
use super::upkeep::Upkeep;
use crate::fuse::Feature;
use crate::handover::Keeper;
use crate::view::caches::Caches;

/// Made once, at the start.
#[derive(Debug)]
pub struct Context {
    /// The state directory.
    pub state: StateDir,
    /// The store.
    pub store: Arc<Store>,
    /// The fetches.
    pub fetches: Fetches,
    /// Who keeps the mounts while no daemon runs.
    pub keeper: Option<Keeper>,
    /// Who is told what happens.
    pub events: Events,
    /// What is measured.
    pub metrics: Arc<Metrics>,
    /// What looks after the store.
    pub upkeep: Arc<Upkeep>,
    /// What all views keep in memory.
    pub caches: Arc<Caches>,
    /// Held while a tree is counted.
    pub measuring: Mutex<()>,
    /// Snapshots that stay readable beside the current one.
    pub keep_snapshots: usize,
    /// What is not asked of the kernel.
    pub without: Vec<Feature>,
}
