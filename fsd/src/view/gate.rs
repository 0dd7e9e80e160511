//! Lets a switch wait until every reply that was built before a moment is on its way, without ever holding a new one up.
//!
//! Handlers enter with [`Gate::enter`] and keep the guard until their reply is written. [`Gate::mark`] sets the pending mark and returns once
//! no handler is left that may not have seen it. Two counters take turns: those who enter before the turn are waited for, those after are
//! not, so the wait ends also under an endless stream of requests.
//!
//! What it counts with comes from `super::sync`, so that a test can put this file beside atomics of its own and try all orders.

use super::sync::{AtomicBool, AtomicUsize, Ordering, pause};

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
            pause(spins);
            spins = spins.saturating_add(1);
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
