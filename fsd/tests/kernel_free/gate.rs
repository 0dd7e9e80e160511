//! The gate with real threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use gitmount_fsd::view::gate::Gate;

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
    // Nobody is inside: this ends.
    gate.drain();
    gate.drain();
}
