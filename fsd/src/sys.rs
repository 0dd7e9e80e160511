//! What the system offers only through `unsafe` calls: the allocator's settings, and descriptors that arrive as numbers.
//!
//! The crate's only unsafe code; each block says why it is sound.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};

/// Sets the allocator up. Call it before threads are started.
///
/// Inflated blobs come and go in sizes up to some MiB. With the C library's defaults they leave holes in one heap a thread; these settings
/// give every buffer above 512 KiB back as soon as it is dropped, keep the heaps few, and some MiB in them for the next blob.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn set_up_memory() {
    const HEAPS: i32 = 2;
    const OWN_MAPPING_FROM: i32 = 512 << 10;
    const TRIM_FROM: i32 = 4 << 20;
    for (parameter, value) in [(libc::M_ARENA_MAX, HEAPS), (libc::M_MMAP_THRESHOLD, OWN_MAPPING_FROM), (libc::M_TRIM_THRESHOLD, TRIM_FROM)]
    {
        // SAFETY: mallopt takes two integers and only changes the allocator's settings; it is called before other threads exist.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Sets the allocator up: nothing to do for this C library.
#[cfg(not(target_env = "gnu"))]
pub fn set_up_memory() {}

/// Receives the one descriptor that the other end of `socket` sends; `None` when it closes without.
///
/// # Errors
/// What receiving gave.
#[allow(unsafe_code)]
pub fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut byte = [0u8];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut space = nix::cmsg_space!(RawFd);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control
            && let Some(descriptor) = descriptors.first()
        {
            // SAFETY: the kernel has just put this descriptor into our table; nobody else knows its number.
            return Ok(Some(unsafe { OwnedFd::from_raw_fd(*descriptor) }));
        }
    }
    Ok(None)
}
