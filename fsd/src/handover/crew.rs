//! A bounded number of threads for one kind of work.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// They need next to nothing.
const STACK: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Crew {
    name: &'static str,
    most: usize,
    working: Arc<AtomicUsize>,
}

/// The right to be one of the threads.
#[derive(Debug)]
pub(super) struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Crew {
    pub(super) fn new(name: &'static str, most: usize) -> Self {
        Crew { name, most, working: Arc::default() }
    }

    /// A place, while there is one.
    pub(super) fn place(&self) -> Option<Place> {
        let place = Place(Arc::clone(&self.working));
        (self.working.fetch_add(1, Ordering::SeqCst) < self.most).then_some(place)
    }

    /// Starts a thread, which keeps its place while it works; false when the system gives none, and `work` is dropped.
    pub(super) fn start(&self, place: Place, work: impl FnOnce() + Send + 'static) -> bool {
        let run = move || {
            work();
            drop(place);
        };
        thread::Builder::new().name(self.name.into()).stack_size(STACK).spawn(run).is_ok()
    }
}
