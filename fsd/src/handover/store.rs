//! Hands files that a daemon sends through a pipe to the kernel's page cache.
//!
//! Here for the same reason as telling the kernel of changes: storing waits, whatever the signal, for readers of the same file, who may wait for
//! the daemon. What a daemon that is killed had half written is not handed on.

use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::unistd::{read, write};

use crate::fuse::{LONGEST_STORE, next_store};

/// Hands every message that comes through `pipe` to `device`, until the pipe's end, the mount's, or something that is no such message.
pub(super) fn carry(pipe: &OwnedFd, device: &OwnedFd) {
    let mut buffer = vec![0; 2 * LONGEST_STORE];
    let mut filled = 0;
    loop {
        match read(pipe, &mut buffer[filled..]) {
            Ok(0) => return,
            Ok(length) => filled += length,
            Err(Errno::EINTR) => continue,
            Err(_) => return,
        }
        let mut done = 0;
        loop {
            let message = match next_store(&buffer[done..filled]) {
                Ok(Some(message)) => message,
                Ok(None) => break,
                Err(_) => return,
            };
            // A file that the kernel has forgotten meanwhile needs no storing.
            if write(device, message) == Err(Errno::ENODEV) {
                return;
            }
            done += message.len();
        }
        buffer.copy_within(done..filled, 0);
        filled -= done;
    }
}
