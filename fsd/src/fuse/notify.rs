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
use super::relay::{Courier, Relay};
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
const STORE_OUT: usize = 24;
/// The most bytes of a file in one message that goes through somebody else: whole pages.
pub(crate) const LONGEST_STORED: usize = 128 << 10;
/// The longest such message.
pub(crate) const LONGEST_STORE: usize = HEADER + STORE_OUT + LONGEST_STORED;
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
    /// Whether this process may store data; locked while it does.
    storing: RwLock<bool>,
    /// Stores it where this process may not.
    relay: Relay,
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").field("device", &self.device).field("features", &self.features).finish_non_exhaustive()
    }
}

impl Notifier {
    pub(super) fn new(device: OwnedFd, features: Arc<Features>) -> Self {
        Notifier {
            device,
            features,
            through: OnceLock::new(),
            batch: Mutex::default(),
            storing: RwLock::new(true),
            relay: Relay::default(),
        }
    }

    /// From now on another process tells the kernel of changes.
    pub(super) fn send_through(&self, through: Messenger) {
        // The first one stays.
        let _ = self.through.set(through);
    }

    /// From now on another process stores data where this one may not.
    pub(super) fn store_through(&self, courier: Courier) {
        self.relay.open_with(courier);
    }

    /// This process stores nothing itself from now on, and waits for what is being stored. That waits in turn for readers of the same file, so
    /// requests have to be answered meanwhile.
    pub(super) fn stop_storing(&self) {
        *self.storing.write() = false;
    }

    /// Nothing is stored from now on, whoever would do it.
    pub(super) fn end_storing(&self) {
        self.stop_storing();
        self.relay.end();
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

/// What comes before `size` bytes of a file that are to be stored.
pub(super) fn store_header(node: NodeId, offset: u64, size: u32) -> [u8; HEADER + STORE_OUT] {
    let mut header = [0; HEADER + STORE_OUT];
    let length = ((HEADER + STORE_OUT) as u32).saturating_add(size);
    header[..4].copy_from_slice(&length.to_ne_bytes());
    header[4..8].copy_from_slice(&FUSE_NOTIFY_STORE.to_ne_bytes());
    header[16..24].copy_from_slice(&node.0.to_ne_bytes());
    header[24..32].copy_from_slice(&offset.to_ne_bytes());
    header[32..36].copy_from_slice(&size.to_ne_bytes());
    header
}

/// The message that stores data at the beginning of `bytes`; nothing when it is not whole yet.
///
/// # Errors
/// When `bytes` begins with anything else.
pub(crate) fn next_store(bytes: &[u8]) -> Result<Option<&[u8]>, NoStore> {
    let word = |at: usize| bytes.get(at..at + 4).and_then(|word| word.try_into().ok()).map(u32::from_ne_bytes);
    let Some(size) = word(HEADER + 16).filter(|_| bytes.len() >= HEADER + STORE_OUT) else { return Ok(None) };
    let length = HEADER + STORE_OUT + size as usize;
    let stores = word(4) == Some(FUSE_NOTIFY_STORE as u32) && bytes[8..HEADER] == [0; 8];
    if !stores || length > LONGEST_STORE || word(0) != u32::try_from(length).ok() {
        return Err(NoStore);
    }
    Ok(bytes.get(..length))
}

/// Not a message that stores data.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoStore;

impl PageCache for Notifier {
    fn stores(&self) -> bool {
        *self.storing.read() || self.relay.takes()
    }

    fn store(&self, node: NodeId, data: &[u8]) -> bool {
        let Ok(size) = u32::try_from(data.len()) else { return false };
        let storing = self.storing.read();
        if !*storing {
            drop(storing);
            return self.relay.store(node, data);
        }
        nix::sys::uio::writev(&self.device, &[IoSlice::new(&store_header(node, 0, size)), IoSlice::new(data)]).is_ok()
    }

    fn rest(&self) {
        self.relay.rest();
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
