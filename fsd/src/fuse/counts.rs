//! Counts the kernel's messages and the time their answers take, by operation, and those that are being answered right now, so that serving
//! can end between two of them. No lock is taken for that, and the clock is read twice a message.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Requests the kernel has sent so far, by operation, sorted by name; only those that happened.
pub type RequestCounts = Vec<(&'static str, u64)>;

/// How long the answers to them took together, by operation, sorted by name; only those that happened.
pub type RequestTimes = Vec<(&'static str, Duration)>;

macro_rules! operations {
    ($($variant:ident $name:literal),* $(,)?) => {
        /// What the kernel asks for.
        #[derive(Debug, Clone, Copy)]
        #[repr(usize)]
        pub(super) enum Operation { $(#[doc = $name] $variant),* }

        const NAMES: &[&str] = &[$($name),*];
    };
}

operations! {
    Access "access", Forget "forget", Getattr "getattr", Getxattr "getxattr", Ioctl "ioctl", Listxattr "listxattr", Lookup "lookup",
    Lseek "lseek", Open "open", Opendir "opendir", Other "other", Read "read", Readdir "readdir", Readdirplus "readdirplus",
    Readlink "readlink", Statfs "statfs", Write "write",
}

/// The counters of one mount.
#[derive(Debug)]
pub(super) struct Requests {
    counts: [AtomicU64; NAMES.len()],
    answers: Arc<Answers>,
    stopping: AtomicBool,
    parked: (Mutex<bool>, Condvar),
}

impl Default for Requests {
    fn default() -> Self {
        Requests {
            counts: std::array::from_fn(|_| AtomicU64::new(0)),
            answers: Arc::new(Answers { under_way: AtomicUsize::new(0), nanos: std::array::from_fn(|_| AtomicU64::new(0)) }),
            stopping: AtomicBool::new(false),
            parked: (Mutex::new(false), Condvar::new()),
        }
    }
}

#[derive(Debug)]
struct Answers {
    under_way: AtomicUsize,
    /// From the begin of the handler to the answer.
    nanos: [AtomicU64; NAMES.len()],
}

/// A handler at work. While serving ends, its thread stays here and reads no further request.
#[derive(Debug)]
pub(super) struct Busy<'a> {
    requests: &'a Requests,
    answering: Option<Answering>,
}

impl Busy<'_> {
    /// For a request whose answer outlives its handler: keep it until the answer is written.
    pub(super) fn answering(&mut self) -> Answering {
        let timed = self.answering.as_mut().and_then(|answering| answering.timed.take());
        Answering::new(&self.requests.answers, timed)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.answering = None;
        if self.requests.stopping.load(Ordering::SeqCst) {
            let mut ended = self.requests.parked.0.lock();
            while !*ended {
                self.requests.parked.1.wait(&mut ended);
            }
        }
    }
}

/// A request that is not answered yet.
#[derive(Debug)]
pub(super) struct Answering {
    answers: Arc<Answers>,
    /// What it is and since when, unless another one notes the time.
    timed: Option<(Operation, Instant)>,
}

impl Answering {
    fn new(answers: &Arc<Answers>, timed: Option<(Operation, Instant)>) -> Self {
        answers.under_way.fetch_add(1, Ordering::SeqCst);
        Answering { answers: Arc::clone(answers), timed }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if let Some((operation, since)) = self.timed {
            let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.answers.nanos[operation as usize].fetch_add(nanos, Ordering::Relaxed);
        }
        self.answers.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Requests {
    /// Counts a request; keep what is returned until its handler returns.
    pub(super) fn begin(&self, operation: Operation) -> Busy<'_> {
        self.counts[operation as usize].fetch_add(1, Ordering::Relaxed);
        Busy { requests: self, answering: Some(Answering::new(&self.answers, Some((operation, Instant::now())))) }
    }

    pub(super) fn counts(&self) -> RequestCounts {
        let all = NAMES.iter().zip(&self.counts).map(|(name, count)| (*name, count.load(Ordering::Relaxed)));
        all.filter(|(_, count)| *count > 0).collect()
    }

    pub(super) fn times(&self) -> RequestTimes {
        let all = NAMES.iter().zip(&self.answers.nanos).map(|(name, nanos)| (*name, nanos.load(Ordering::Relaxed)));
        all.filter(|(_, nanos)| *nanos > 0).map(|(name, nanos)| (name, Duration::from_nanos(nanos))).collect()
    }

    /// Requests that were read and are not answered yet.
    pub(super) fn unanswered(&self) -> usize {
        self.answers.under_way.load(Ordering::SeqCst)
    }

    /// From now on every thread that has answered reads no further request. Waits until all that were read are answered; false when they are
    /// not within `limit`.
    pub(super) fn drain(&self, limit: Duration) -> bool {
        self.stopping.store(true, Ordering::SeqCst);
        let end = Instant::now() + limit;
        while self.unanswered() > 0 {
            if Instant::now() > end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Lets the threads go that [`Requests::drain`] kept from reading.
    pub(super) fn release(&self) {
        *self.parked.0.lock() = true;
        self.parked.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draining_waits_for_answers_and_keeps_threads_from_reading_on() {
        let requests = Requests::default();
        let late = requests.begin(Operation::Lookup).answering();
        assert!(!requests.drain(Duration::from_millis(5)), "one is not answered");
        std::thread::scope(|scope| {
            let handler = scope.spawn(|| drop(requests.begin(Operation::Read)));
            drop(late);
            assert!(requests.drain(Duration::from_secs(60)));
            assert!(!handler.is_finished(), "it would read the next request");
            requests.release();
        });
        assert_eq!(requests.counts(), [("lookup", 1), ("read", 1)]);
    }

    #[test]
    fn the_time_of_a_late_answer_counts_until_it_is_given() {
        let requests = Requests::default();
        let mut busy = requests.begin(Operation::Read);
        let late = busy.answering();
        drop(busy);
        assert!(requests.times().is_empty() && requests.unanswered() == 1);
        std::thread::sleep(Duration::from_millis(2));
        drop(late);
        let times = requests.times();
        assert!(times.len() == 1 && times[0].0 == "read" && times[0].1 >= Duration::from_millis(2), "{times:?}");
    }
}
