//! Progress of a fetch. The working threads only count; one thread of its own reads the counters now and then and tells the caller's
//! [`Progress`], so that telling costs the work nothing, however slow the caller is.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gix::progress::{Count, Id, MessageLevel, NestedProgress, Progress as GixProgress, Step, StepShared, Unit};

use super::{Phase, Progress};
use crate::packing::Counts;

/// How often the caller is told.
const INTERVAL: Duration = Duration::from_millis(100);
/// Longest line of the host's that is passed on, in bytes.
const MAX_LINE: usize = 1000;

/// The counters of one fetch.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// How far the pack is.
    pub(super) pack: Counts,
    remote: Mutex<Remote>,
}

#[derive(Debug, Default)]
struct Remote {
    partial: String,
    lines: Vec<String>,
}

impl Counters {
    /// Takes a fragment of what the host says; lines end in CR or LF.
    pub(super) fn host_says(&self, fragment: &str) {
        let mut remote = self.remote.lock().unwrap_or_else(PoisonError::into_inner);
        for char in fragment.chars() {
            if matches!(char, '\r' | '\n') {
                let line = std::mem::take(&mut remote.partial);
                if !line.trim().is_empty() {
                    remote.lines.push(line);
                }
            } else if !char.is_control() && remote.partial.len() < MAX_LINE {
                remote.partial.push(char);
            }
        }
    }

    fn tell(&self, progress: &dyn Progress, told: &mut [u64; 3]) {
        let lines = std::mem::take(&mut self.remote.lock().unwrap_or_else(PoisonError::into_inner).lines);
        for line in lines {
            progress.remote(&line);
        }
        let total = |counter: &AtomicU64| Some(counter.load(Ordering::Relaxed)).filter(|total| *total > 0);
        let phases = [
            (Phase::Receiving, &self.pack.received, None),
            (Phase::Indexing, &self.pack.indexed, total(&self.pack.objects)),
            (Phase::Resolving, &self.pack.resolved, total(&self.pack.deltas)),
        ];
        for ((phase, done, total), told) in phases.into_iter().zip(told) {
            let done = done.load(Ordering::Relaxed);
            if done != *told {
                *told = done;
                progress.update(phase, done, total);
            }
        }
    }
}

/// Runs `work`, telling `progress` how the counters stand.
pub(super) fn watch<T>(progress: &dyn Progress, work: impl FnOnce(&Arc<Counters>) -> T) -> T {
    let counters = Arc::new(Counters::default());
    let done = AtomicBool::new(false);
    let result = std::thread::scope(|scope| {
        let teller = scope.spawn(|| {
            let mut told = [0; 3];
            while !done.load(Ordering::Relaxed) {
                std::thread::park_timeout(INTERVAL);
                counters.tell(progress, &mut told);
            }
        });
        // The teller must also end when the work panics.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&counters)));
        done.store(true, Ordering::Relaxed);
        teller.thread().unpark();
        result
    });
    result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// gix's view of the counters: only what the host says comes this way.
#[derive(Clone)]
pub(super) struct Gix {
    counters: Arc<Counters>,
    step: Arc<AtomicUsize>,
}

impl Gix {
    pub(super) fn new(counters: &Arc<Counters>) -> Self {
        Gix { counters: Arc::clone(counters), step: Arc::default() }
    }
}

impl Count for Gix {
    fn set(&self, step: Step) {
        self.step.store(step, Ordering::Relaxed);
    }

    fn step(&self) -> Step {
        self.step.load(Ordering::Relaxed)
    }

    fn inc_by(&self, step: Step) {
        self.step.fetch_add(step, Ordering::Relaxed);
    }

    fn counter(&self) -> StepShared {
        Arc::clone(&self.step)
    }
}

impl GixProgress for Gix {
    fn init(&mut self, _max: Option<Step>, _unit: Option<Unit>) {}

    fn set_name(&mut self, _name: String) {}

    fn name(&self) -> Option<String> {
        None
    }

    fn id(&self) -> Id {
        gix::progress::UNKNOWN
    }

    fn message(&self, _level: MessageLevel, message: String) {
        self.counters.host_says(&message);
    }
}

impl NestedProgress for Gix {
    type SubProgress = Gix;

    fn add_child(&mut self, _name: impl Into<String>) -> Self::SubProgress {
        self.clone()
    }

    fn add_child_with_id(&mut self, _name: impl Into<String>, _id: Id) -> Self::SubProgress {
        self.clone()
    }
}
