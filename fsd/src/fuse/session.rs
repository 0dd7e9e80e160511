//! Sessions over a descriptor that lives longer than the process.
//!
//! The library wants to greet the kernel itself (INIT, once a mount). It gets one end of a socket pair instead, on which the recorded INIT is
//! replayed; then the live `/dev/fuse` takes the socket's number. The first mount and every resume go this way. What is recorded is the
//! kernel's INIT and what it was answered, one after the other, so that a later process, and a later release, does what was agreed on then:
//! what the answer did not take is not offered again.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use fuser::{Config, Session, SessionACL};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use super::adapter::Adapter;
use crate::sys;

/// Of `struct fuse_in_header`, `fuse_init_in`, `fuse_out_header` and `fuse_init_out` in linux/fuse.h: where the flags are, and the least
/// lengths that have them.
const IN_FLAGS: usize = 52;
const IN_FLAGS2: usize = 56;
const OUT_FLAGS: usize = 28;
const OUT_FLAGS2: usize = 48;
const LEAST_IN: usize = 60;
const LEAST_OUT: usize = 52;
const OPCODE: usize = 4;
const FUSE_INIT: u32 = 26;
/// Says that there is a second word of flags.
const FUSE_INIT_EXT: u32 = 1 << 30;
/// More than the kernel wants to have room for, with or without INIT answered.
const BUFFER: usize = 1 << 20;

/// Greets the kernel on a new mount; gives the session and what is to be recorded.
pub(super) fn greet(adapter: Adapter, device: &OwnedFd, acl: SessionACL, config: Config) -> io::Result<(Session<Adapter>, Vec<u8>)> {
    let request = read(device.as_fd())?;
    let (session, reply) = replay(adapter, device, &request, acl, config)?;
    nix::unistd::write(device, &reply)?;
    Ok((session, [request, reply].concat()))
}

/// Goes on with a mount that was greeted before.
pub(super) fn resume(adapter: Adapter, device: &OwnedFd, recorded: &[u8], acl: SessionACL, config: Config) -> io::Result<Session<Adapter>> {
    let request = agreed(recorded)
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the recorded greeting of the kernel is damaged: mount it anew"))?;
    if is_gone(device.as_fd()) {
        return Err(io::Error::new(io::ErrorKind::NotConnected, "the mount is gone"));
    }
    Ok(replay(adapter, device, &request, acl, config)?.0)
}

/// Whether the mount behind a `/dev/fuse` descriptor has ended.
pub(crate) fn is_gone(device: BorrowedFd<'_>) -> bool {
    let mut polled = [PollFd::new(device, PollFlags::POLLOUT)];
    // An error of poll says nothing about the mount.
    poll(&mut polled, PollTimeout::ZERO).is_ok()
        && polled[0].revents().is_some_and(|events| events.intersects(PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL))
}

fn read(device: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0; BUFFER];
    let length = loop {
        match nix::unistd::read(device, &mut buffer) {
            Ok(length) => break length,
            Err(Errno::EINTR | Errno::EAGAIN | Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
    };
    buffer.truncate(length);
    Ok(buffer)
}

/// Has the library answer `request` on a socket, and gives it `device` afterwards.
fn replay(adapter: Adapter, device: &OwnedFd, request: &[u8], acl: SessionACL, config: Config) -> io::Result<(Session<Adapter>, Vec<u8>)> {
    let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
    nix::unistd::write(&ours, request)?;
    let session = Session::from_fd(adapter, theirs, acl, config)?;
    let reply = read(ours.as_fd())?;
    sys::replace(session.as_fd().as_raw_fd(), device)?;
    Ok((session, reply))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The recorded INIT, offering only what its recorded answer took.
fn agreed(recorded: &[u8]) -> Option<Vec<u8>> {
    let length = word(recorded, 0)? as usize;
    let (request, reply) = recorded.split_at_checked(length)?;
    let whole = length >= LEAST_IN && reply.len() >= LEAST_OUT && word(reply, 0)? as usize == reply.len();
    if !whole || word(request, OPCODE)? != FUSE_INIT {
        return None;
    }
    let mut request = request.to_vec();
    for (offered, taken, always) in [(IN_FLAGS, OUT_FLAGS, FUSE_INIT_EXT), (IN_FLAGS2, OUT_FLAGS2, 0)] {
        let flags = word(&request, offered)? & (word(reply, taken)? | always);
        request[offered..offered + 4].copy_from_slice(&flags.to_ne_bytes());
    }
    Some(request)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(offered: (u32, u32), taken: (u32, u32)) -> Vec<u8> {
        let (mut request, mut reply) = (vec![0u8; 104], vec![0u8; 80]);
        let put = |bytes: &mut Vec<u8>, at: usize, word: u32| bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
        put(&mut request, 0, 104);
        put(&mut request, OPCODE, FUSE_INIT);
        put(&mut request, IN_FLAGS, offered.0);
        put(&mut request, IN_FLAGS2, offered.1);
        put(&mut reply, 0, 80);
        put(&mut reply, OUT_FLAGS, taken.0);
        put(&mut reply, OUT_FLAGS2, taken.1);
        [request, reply].concat()
    }

    #[test]
    fn what_was_not_taken_is_not_offered_again() {
        let recorded = greeting((FUSE_INIT_EXT | 0b1111, 0b110), (0b0101, 0b100));
        let request = agreed(&recorded).expect("is whole");
        assert_eq!(word(&request, IN_FLAGS), Some(FUSE_INIT_EXT | 0b0101));
        assert_eq!(word(&request, IN_FLAGS2), Some(0b100));
        assert_eq!(request.len(), 104);
    }

    #[test]
    fn a_damaged_record_is_refused_whatever_is_missing() {
        let recorded = greeting((1, 1), (1, 1));
        for length in 0..recorded.len() {
            assert!(agreed(&recorded[..length]).is_none(), "{length}");
        }
        let mut other = recorded;
        other[OPCODE] = 1;
        assert!(agreed(&other).is_none(), "another request than INIT");
    }
}
