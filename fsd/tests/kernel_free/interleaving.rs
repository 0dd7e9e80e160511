//! The protocol of the switch in every order that a scheduler can think of: mark, tell, swap, clear; and die, drain, tell.
//!
//! The gate is the real one, compiled here a second time over atomics whose order of events is chosen at random, and by priorities that
//! change at random (PCT), which finds rare orders with few changes sooner. What the kernel keeps of a name is one cell: a reply with an
//! unlimited lifetime fills it, and being told empties it. It must never hold on to what is not served any more.

use shuttle::sync::Arc;
use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;

mod sync {
    pub(super) use shuttle::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    pub(super) fn pause(_: u32) {
        shuttle::thread::yield_now();
    }
}

#[path = "../../src/view/gate.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod gate;

use gate::Gate;

/// A file system of one name, and the kernel's memory of it.
#[derive(Default)]
struct Bed {
    gate: Gate,
    /// The commit that is served.
    served: AtomicUsize,
    /// What the kernel takes the name for without asking.
    kept: Mutex<Option<usize>>,
}

impl Bed {
    /// Answers a look-up, as the adapter does.
    fn look(&self) {
        let inside = self.gate.enter();
        let answer = self.served.load(Ordering::SeqCst);
        if !inside.pending {
            *self.kept.lock().expect("no panic") = Some(answer);
        }
        drop(inside);
    }

    /// Serves the next commit, as a switch does.
    fn switch(&self) {
        let next = self.served.load(Ordering::SeqCst) + 1;
        self.gate.mark();
        *self.kept.lock().expect("no panic") = None;
        self.served.store(next, Ordering::SeqCst);
        // From here on no look-up may find what was before.
        assert!(self.kept.lock().expect("no panic").is_none_or(|kept| kept == next), "an old reply outlived the switch");
        self.gate.clear();
    }

    /// Takes the name away for good, as letting go of a snapshot does: who asks later gets an error, which nobody keeps.
    fn let_go(&self) {
        self.served.store(GONE, Ordering::SeqCst);
        self.gate.drain();
        *self.kept.lock().expect("no panic") = None;
    }

    fn look_at_snapshot(&self) {
        let inside = self.gate.enter();
        let answer = self.served.load(Ordering::SeqCst);
        if answer != GONE {
            *self.kept.lock().expect("no panic") = Some(answer);
        }
        drop(inside);
    }
}

const GONE: usize = usize::MAX;

fn explore(run: fn()) {
    let rounds = if std::env::var_os("GITMOUNT_TORTURE").is_some() { 100_000 } else { 1500 };
    shuttle::check_random(run, rounds);
    shuttle::check_pct(run, rounds, 3);
}

#[test]
fn no_reply_from_before_the_mark_outlives_the_switch() {
    explore(|| {
        let bed = Arc::new(Bed::default());
        let handlers: Vec<_> = (0..2)
            .map(|_| {
                let bed = bed.clone();
                thread::spawn(move || (0..2).for_each(|_| bed.look()))
            })
            .collect();
        for _ in 0..2 {
            bed.switch();
        }
        for handler in handlers {
            handler.join().expect("no panic");
        }
        assert!(bed.kept.lock().expect("no panic").is_none_or(|kept| kept == 2), "an old reply came late");
    });
}

#[test]
fn no_reply_about_a_snapshot_outlives_its_end() {
    explore(|| {
        let bed = Arc::new(Bed::default());
        let handlers: Vec<_> = (0..3)
            .map(|_| {
                let bed = bed.clone();
                thread::spawn(move || bed.look_at_snapshot())
            })
            .collect();
        bed.let_go();
        for handler in handlers {
            handler.join().expect("no panic");
        }
        assert!(bed.kept.lock().expect("no panic").is_none(), "the kernel still knows a snapshot that is gone");
    });
}

#[test]
#[should_panic(expected = "an old reply")]
fn without_the_mark_it_does() {
    // The check itself: a switch that does not wait is found out.
    shuttle::check_random(
        || {
            let bed = Arc::new(Bed::default());
            let handler = thread::spawn({
                let bed = bed.clone();
                move || bed.look()
            });
            *bed.kept.lock().expect("no panic") = None;
            bed.served.store(1, Ordering::SeqCst);
            handler.join().expect("no panic");
            assert!(bed.kept.lock().expect("no panic").is_none_or(|kept| kept == 1), "an old reply came late");
        },
        2000,
    );
}
