//! Lets a switch wait until every reply that was built before a moment is on its way, without ever holding a new one up.
//!
//! Handlers enter with [`Gate::enter`] and keep the guard until their reply is written. [`Gate::mark`] sets the pending mark and returns once
//! no handler is left that may not have seen it. Two counters take turns: those who enter before the turn are waited for, those after are
//! not, so the wait ends also under an endless stream of requests.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// The gate of one view.
#[derive(Debug, Default)]
pub struct Gate {
    pending: AtomicBool,
    turn: AtomicUsize,
    inside: [AtomicUsize; 2],
}

/// A handler inside the gate.
#[derive(Debug)]
pub struct Inside<'a> {
    gate: &'a Gate,
    slot: usize,
    /// Whether a switch is pending: the reply tells the old snapshot, with lifetime zero.
    pub pending: bool,
}

impl Gate {
    /// Enters. Never blocks.
    pub fn enter(&self) -> Inside<'_> {
        loop {
            let turn = self.turn.load(Ordering::SeqCst);
            let slot = turn & 1;
            self.inside[slot].fetch_add(1, Ordering::SeqCst);
            if self.turn.load(Ordering::SeqCst) == turn {
                // Read after the turn was confirmed: who enters after `mark` took the turn sees the mark.
                return Inside { gate: self, slot, pending: self.pending.load(Ordering::SeqCst) };
            }
            self.inside[slot].fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Sets the pending mark and waits until no handler is inside that entered before it was set. One caller at a time.
    pub fn mark(&self) {
        self.pending.store(true, Ordering::SeqCst);
        self.drain();
    }

    /// Waits until no handler is inside that entered before this call. One caller at a time.
    pub fn drain(&self) {
        let slot = self.turn.fetch_add(1, Ordering::SeqCst) & 1;
        let mut spins = 0u32;
        while self.inside[slot].load(Ordering::SeqCst) != 0 {
            spins += 1;
            if spins < 64 {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Clears the pending mark.
    pub fn clear(&self) {
        self.pending.store(false, Ordering::SeqCst);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.inside[self.slot].fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn mark_waits_for_those_before_it_only() {
        let gate = Arc::new(Gate::default());
        let early = gate.enter();
        assert!(!early.pending);
        let marker = thread::spawn({
            let gate = gate.clone();
            move || gate.mark()
        });
        while !gate.enter().pending {
            thread::yield_now();
        }
        let late = gate.enter();
        assert!(late.pending);
        assert!(!marker.is_finished());
        drop(early);
        marker.join().expect("the marker ends although a late handler is inside");
        drop(late);
        gate.clear();
        assert!(!gate.enter().pending);
    }

    #[test]
    fn ends_under_a_stream_of_handlers() {
        let gate = Gate::default();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        drop(gate.enter());
                    }
                });
            }
            for _ in 0..200 {
                gate.mark();
                assert!(gate.enter().pending);
                gate.clear();
            }
            stop.store(true, Ordering::Relaxed);
        });
        assert_eq!(gate.inside[0].load(Ordering::SeqCst) + gate.inside[1].load(Ordering::SeqCst), 0);
    }
}
