//! Notifications to the kernel, written straight to the descriptor: the library's notifier does not know `FUSE_EXPIRE_ONLY`.
//!
//! Message layouts: `struct fuse_out_header`, `fuse_notify_inval_entry_out`, `fuse_notify_inval_inode_out`, `fuse_notify_store_out` of linux/fuse.h.

use std::fmt;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};

use bstr::BStr;
use nix::errno::Errno;
use parking_lot::{Mutex, RwLock};

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
/// Bytes that are sent through somebody else at once, about.
const BATCH: usize = 16 << 10;

/// Sends notification messages (one or more, as they are written to the device) for this process; false when it cannot.
pub type Messenger = Box<dyn Fn(&[u8]) -> bool + Send + Sync>;

/// Sends notifications of one mount.
pub(super) struct Notifier {
    device: OwnedFd,
    features: Arc<Features>,
    through: OnceLock<Messenger>,
    /// What is to be sent through somebody else.
    batch: Mutex<Vec<u8>>,
    /// Whether data may be stored; locked while it is.
    storing: RwLock<bool>,
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("device", &self.device).field("features", &self.features).finish_non_exhaustive()
    }
}

impl Notifier {
    pub(super) fn new(device: OwnedFd, features: Arc<Features>) -> Self {
        Notifier { device, features, through: OnceLock::new(), batch: Mutex::default(), storing: RwLock::new(true) }
    }

    /// From now on another process tells the kernel of changes.
    pub(super) fn send_through(&self, through: Messenger) {
        // The first one stays.
        let _ = self.through.set(through);
    }

    /// Stores nothing from now on, and waits for what is being stored. That waits in turn for readers of the same file, so requests have to be
    /// answered meanwhile.
    pub(super) fn stop_storing(&self) {
        *self.storing.write() = false;
    }

    /// Sends to `closed` from now on, so that nobody is told any more and the mount is not held.
    pub(super) fn close(&self, closed: &UnixStream) -> io::Result<()> {
        sys::replace(self.device.as_raw_fd(), closed)
    }

    /// Has the kernel send again whatever it has sent and got no answer to; false where it cannot.
    pub(super) fn resend(&self) -> bool {
        let can = self.features.have(Feature::Resend);
        if can {
            self.send(FUSE_NOTIFY_RESEND, &[]);
        }
        can
    }

    /// Tells the kernel of a change, at the latest with [`Kernel::flush`].
    fn tell(&self, code: i32, parts: &[&[u8]]) {
        if self.through.get().is_none() {
            return self.send(code, parts);
        }
        let mut batch = self.batch.lock();
        batch.extend_from_slice(&message(code, parts));
        if batch.len() >= BATCH {
            self.empty(&mut batch);
        }
    }

    fn empty(&self, batch: &mut Vec<u8>) {
        let all = std::mem::take(batch);
        if all.is_empty() || self.through.get().is_some_and(|through| through(&all)) {
            return;
        }
        split_notifications(&all).into_iter().flatten().for_each(|message| self.write(message));
    }

    fn send(&self, code: i32, parts: &[&[u8]]) {
        self.write(&message(code, parts));
    }

    fn write(&self, message: &[u8]) {
        match nix::unistd::write(&self.device, message) {
            // ENOENT: the kernel does not know the entry; ENOTDIR and ENOTEMPTY: nothing to expire. ENODEV: unmounted meanwhile.
            // EPIPE: detached meanwhile.
            Ok(_) | Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ENOTEMPTY | Errno::ENODEV | Errno::ENOTCONN | Errno::EPIPE) => {}
            Err(error) => tracing::warn!(%error, "the kernel refused a notification"),
        }
    }
}

fn message(code: i32, parts: &[&[u8]]) -> Vec<u8> {
    let length = HEADER + parts.iter().map(|p| p.len()).sum::<usize>();
    let mut message = Vec::with_capacity(length);
    message.extend_from_slice(&(length as u32).to_ne_bytes());
    message.extend_from_slice(&code.to_ne_bytes());
    message.extend_from_slice(&0u64.to_ne_bytes());
    for part in parts {
        message.extend_from_slice(part);
    }
    message
}

/// Notifications of changes one by one; `None` when there is anything else in `messages`.
pub(crate) fn split_notifications(mut messages: &[u8]) -> Option<Vec<&[u8]>> {
    let mut all = Vec::new();
    while !messages.is_empty() {
        let header = messages.get(..HEADER)?;
        let word = |at: usize| header[at..at + 4].try_into().ok();
        let (length, code) = (u32::from_ne_bytes(word(0)?) as usize, i32::from_ne_bytes(word(4)?));
        let notifies = header[8..] == [0; 8] && [FUSE_NOTIFY_INVAL_INODE, FUSE_NOTIFY_INVAL_ENTRY].contains(&code);
        let (message, rest) = messages.split_at_checked(length).filter(|_| notifies && length >= HEADER)?;
        all.push(message);
        messages = rest;
    }
    Some(all)
}

impl PageCache for Notifier {
    fn stores(&self) -> bool {
        *self.storing.read()
    }

    fn store(&self, node: NodeId, data: &[u8]) -> bool {
        let Ok(size) = u32::try_from(data.len()) else { return false };
        let storing = self.storing.read();
        if !*storing {
            return false;
        }
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
        self.tell(FUSE_NOTIFY_INVAL_ENTRY, &[&parent.0.to_ne_bytes(), &length.to_ne_bytes(), &flags.to_ne_bytes(), name, b"\0"]);
    }

    fn invalidate(&self, dir: NodeId) {
        // Offset 0, length 0: attributes and everything cached of the listing.
        self.tell(FUSE_NOTIFY_INVAL_INODE, &[&dir.0.to_ne_bytes(), &0i64.to_ne_bytes(), &0i64.to_ne_bytes()]);
    }

    fn flush(&self) {
        self.empty(&mut self.batch.lock());
    }
}
