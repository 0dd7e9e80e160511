//! What the gate counts and waits with.

pub(super) use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Lets others go on; longer after many times.
pub(super) fn pause(times: u32) {
    if times < 64 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(Duration::from_micros(50));
    }
}
