//! Stores files in the kernel's page cache through another process, over a pipe.
//!
//! Storing waits, whatever the signal, for readers of the same file. Here only a pipe is waited for, and not for long: this process can always
//! end. What is written are `FUSE_NOTIFY_STORE` messages of linux/fuse.h, one after the other; the other process hands each to the kernel.

use std::fmt;
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use parking_lot::Mutex;

use super::notify::{LONGEST_STORED, store_header};
use crate::inode::NodeId;

/// Opens a pipe to the other process, for writing and not blocking; nothing when that process takes none.
pub type Courier = Box<dyn Fn() -> Option<OwnedFd> + Send + Sync>;

/// How long a full pipe is waited for, in milliseconds.
const PATIENCE: u16 = 1000;
/// How long no pipe is opened after one was refused or full for too long.
const PAUSE: Duration = Duration::from_secs(10);

/// The way through another process.
#[derive(Default)]
pub(super) struct Relay {
    courier: OnceLock<Courier>,
    way: Mutex<Way>,
}

#[derive(Debug, Default)]
enum Way {
    #[default]
    Closed,
    Open(OwnedFd),
    /// Until then.
    Barred(Instant),
    Ended,
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("way", &self.way).finish_non_exhaustive()
    }
}

impl Relay {
    /// From now on there is a way.
    pub(super) fn open_with(&self, courier: Courier) {
        // The first one stays.
        let _ = self.courier.set(courier);
    }

    /// Whether it is worth a try.
    pub(super) fn takes(&self) -> bool {
        self.courier.get().is_some()
            && match *self.way.lock() {
                Way::Closed | Way::Open(_) => true,
                Way::Barred(until) => until <= Instant::now(),
                Way::Ended => false,
            }
    }

    /// Sends a whole file; false when it was not, or perhaps not.
    pub(super) fn store(&self, node: NodeId, data: &[u8]) -> bool {
        let Some(courier) = self.courier.get() else { return false };
        let way = &mut *self.way.lock();
        match way {
            Way::Open(_) => {}
            Way::Ended => return false,
            Way::Barred(until) if *until > Instant::now() => return false,
            Way::Closed | Way::Barred(_) => match courier() {
                Some(pipe) => *way = Way::Open(pipe),
                None => {
                    *way = Way::Barred(Instant::now() + PAUSE);
                    return false;
                }
            },
        }
        let Way::Open(pipe) = way else { return false };
        let sent = data.chunks(LONGEST_STORED).enumerate().try_for_each(|(part, bytes)| {
            let offset = (part * LONGEST_STORED) as u64;
            write(pipe, &store_header(node, offset, bytes.len() as u32), bytes)
        });
        if let Err(error) = sent {
            tracing::debug!(%error, "the holder stores nothing in the page cache for now");
            *way = Way::Barred(Instant::now() + PAUSE);
        }
        sent.is_ok()
    }

    /// Nothing is to be stored for a while.
    pub(super) fn rest(&self) {
        let way = &mut *self.way.lock();
        if matches!(way, Way::Open(_)) {
            *way = Way::Closed;
        }
    }

    /// Stores nothing from now on.
    pub(super) fn end(&self) {
        *self.way.lock() = Way::Ended;
    }
}

fn write(pipe: &OwnedFd, head: &[u8], data: &[u8]) -> nix::Result<()> {
    let mut parts = [IoSlice::new(head), IoSlice::new(data)];
    let mut rest = &mut parts[..];
    while !rest.is_empty() {
        match nix::sys::uio::writev(pipe, rest) {
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => match poll(&mut [PollFd::new(pipe.as_fd(), PollFlags::POLLOUT)], PollTimeout::from(PATIENCE)) {
                Ok(0) => return Err(Errno::ETIMEDOUT),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::unistd::pipe2;

    use super::*;

    /// A relay whose pipes nobody reads unless the test does, and how many were asked for.
    fn relay(refuses: bool) -> (Relay, Arc<Mutex<Vec<File>>>, Arc<AtomicUsize>) {
        let (relay, ends, asked) = (Relay::default(), Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
        let (kept, counted) = (ends.clone(), asked.clone());
        relay.open_with(Box::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            if refuses {
                return None;
            }
            let (read, write) = pipe2(OFlag::O_CLOEXEC).expect("a pipe");
            fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("sets");
            kept.lock().push(File::from(read));
            Some(write)
        }));
        (relay, ends, asked)
    }

    #[test]
    fn a_big_file_goes_in_pieces_of_whole_pages() {
        let (relay, ends, asked) = relay(false);
        let data: Vec<u8> = (0..300_000u32).map(|n| n as u8).collect();
        std::thread::scope(|scope| {
            let sends = scope.spawn(|| relay.store(NodeId(5), &data) && relay.store(NodeId(6), b"small"));
            while ends.lock().is_empty() {
                std::thread::yield_now();
            }
            let mut end = ends.lock().pop().expect("is open");
            let mut got = Vec::new();
            for (node, length) in [(5, LONGEST_STORED), (5, LONGEST_STORED), (5, 300_000 - 2 * LONGEST_STORED), (6, 5)] {
                let mut message = vec![0; 40 + length];
                end.read_exact(&mut message).expect("is sent");
                assert_eq!(message[..40], store_header(NodeId(node), if node == 5 { got.len() as u64 } else { 0 }, length as u32));
                if node == 5 {
                    got.extend_from_slice(&message[40..]);
                } else {
                    assert_eq!(&message[40..], b"small");
                }
            }
            assert!(sends.join().expect("no panic") && got == data);
            relay.rest();
            assert_eq!(end.read(&mut [0]).expect("reads"), 0, "it is closed while nothing is stored");
        });
        assert!(relay.takes());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_full_pipe_is_given_up_and_not_tried_again_at_once() {
        let (relay, _ends, asked) = relay(false);
        assert!(!relay.store(NodeId(5), &vec![0; 1 << 20]), "nobody reads");
        assert!(!relay.takes() && !relay.store(NodeId(5), b"more"));
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn what_is_refused_is_not_asked_for_again_at_once() {
        let (relay, _ends, asked) = relay(true);
        assert!(relay.takes());
        assert!(!relay.store(NodeId(5), b"data") && !relay.store(NodeId(5), b"data") && !relay.takes());
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn nothing_is_stored_without_a_way_or_after_the_end() {
        assert!(!Relay::default().takes() && !Relay::default().store(NodeId(5), b"data"));
        let (relay, _ends, asked) = relay(false);
        relay.end();
        relay.rest();
        assert!(!relay.takes() && !relay.store(NodeId(5), b"data"));
        assert_eq!(asked.load(Ordering::SeqCst), 0);
    }
}
