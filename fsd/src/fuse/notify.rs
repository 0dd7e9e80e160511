//! Notifications to the kernel, written straight to the descriptor: the library's notifier does not know `FUSE_EXPIRE_ONLY`.
//!
//! Message layouts: `struct fuse_out_header`, `fuse_notify_inval_entry_out`, `fuse_notify_inval_inode_out`, `fuse_notify_store_out` of linux/fuse.h.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use bstr::BStr;
use nix::errno::Errno;

use super::features::{Feature, Features};
use crate::fs::prefetch::PageCache;
use crate::inode::NodeId;
use crate::sys;
use crate::view::switch::Kernel;

const FUSE_NOTIFY_INVAL_INODE: i32 = 2;
const FUSE_NOTIFY_INVAL_ENTRY: i32 = 3;
const FUSE_NOTIFY_STORE: i32 = 4;
const FUSE_NOTIFY_RESEND: i32 = 7;
const FUSE_EXPIRE_ONLY: u32 = 1;
const HEADER: usize = 16;
const STORE_OUT: u32 = 24;

/// Sends notifications of one mount.
#[derive(Debug)]
pub(super) struct Notifier {
    device: OwnedFd,
    features: Arc<Features>,
}

impl Notifier {
    pub(super) fn new(device: OwnedFd, features: Arc<Features>) -> Self {
        Notifier { device, features }
    }

    /// Sends to `closed` from now on, so that nobody is told any more and the mount is not held.
    pub(super) fn close(&self, closed: &UnixStream) -> io::Result<()> {
        sys::replace(self.device.as_raw_fd(), closed)
    }

    /// Has the kernel send again whatever it has sent and got no answer to, where it can.
    pub(super) fn resend(&self) {
        if self.features.have(Feature::Resend) {
            self.send(FUSE_NOTIFY_RESEND, &[]);
        }
    }

    fn send(&self, code: i32, parts: &[&[u8]]) {
        let length = HEADER + parts.iter().map(|p| p.len()).sum::<usize>();
        let mut message = Vec::with_capacity(length);
        message.extend_from_slice(&(length as u32).to_ne_bytes());
        message.extend_from_slice(&code.to_ne_bytes());
        message.extend_from_slice(&0u64.to_ne_bytes());
        for part in parts {
            message.extend_from_slice(part);
        }
        match nix::unistd::write(&self.device, &message) {
            // ENOENT: the kernel does not know the entry; ENOTDIR and ENOTEMPTY: nothing to expire. ENODEV: unmounted meanwhile.
            // EPIPE: detached meanwhile.
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENOTEMPTY | Errno::ENODEV | Errno::ENOTCONN | Errno::EPIPE) => {}
            Err(error) => tracing::warn!(code, %error, "the kernel refused a notification"),
        }
    }
}

impl PageCache for Notifier {
    fn store(&self, node: NodeId, data: &[u8]) -> bool {
        let Ok(size) = u32::try_from(data.len()) else { return false };
        let head = (HEADER as u32 + STORE_OUT).saturating_add(size).to_ne_bytes();
        let code = FUSE_NOTIFY_STORE.to_ne_bytes();
        let (unique, offset, padding) = (0u64.to_ne_bytes(), 0u64.to_ne_bytes(), 0u32.to_ne_bytes());
        let parts: [&[u8]; 8] = [&head, &code, &unique, &node.0.to_ne_bytes(), &offset, &size.to_ne_bytes(), &padding, data];
        nix::sys::uio::writev(&self.device, &parts.map(IoSlice::new)).is_ok()
    }
}

impl Kernel for Notifier {
    fn expire(&self, parent: NodeId, name: &BStr) {
        let flags = if self.features.have(Feature::ExpireOnly) { FUSE_EXPIRE_ONLY } else { 0 };
        let length = name.len() as u32;
        self.send(FUSE_NOTIFY_INVAL_ENTRY, &[&parent.0.to_ne_bytes(), &length.to_ne_bytes(), &flags.to_ne_bytes(), name, b"\0"]);
    }

    fn invalidate(&self, dir: NodeId) {
        // Offset 0, length 0: attributes and everything cached of the listing.
        self.send(FUSE_NOTIFY_INVAL_INODE, &[&dir.0.to_ne_bytes(), &0i64.to_ne_bytes(), &0i64.to_ne_bytes()]);
    }
}
