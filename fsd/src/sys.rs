//! What the system offers only through `unsafe` calls: the allocator's settings, descriptors that arrive as numbers or change
//! what they stand for, and signals to threads.
//!
//! The crate's only unsafe code; each block says why it is sound.

use std::ffi::CString;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
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
pub fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    Ok(receive(socket.as_fd(), &mut [0])?.1)
}

/// Receives bytes into `buffer`, and the descriptor that came with them; zero bytes at the end of the other side's sending. Of a message with several
/// descriptors the first counts, and the others are closed.
///
/// # Errors
/// What receiving gave; `InvalidData` when a message is longer than `buffer`.
#[allow(unsafe_code)]
pub fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    const MOST: usize = 4;
    let mut parts = [IoSliceMut::new(buffer)];
    let mut space = nix::cmsg_space!([RawFd; MOST]);
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC)?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(descriptors) = control {
            for descriptor in descriptors {
                // SAFETY: the kernel has just put this descriptor into our table; nobody else knows its number.
                received.push(unsafe { OwnedFd::from_raw_fd(descriptor) });
            }
        }
    }
    if message.flags.contains(MsgFlags::MSG_TRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the message is too long"));
    }
    Ok((message.bytes, received.into_iter().next()))
}

/// Takes a descriptor over that a call has just given as a number.
#[allow(unsafe_code)]
pub(crate) fn own(number: RawFd) -> OwnedFd {
    // SAFETY: the callers pass what `accept` has just returned, which nobody else knows.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Makes the descriptor with this number stand for what `with` stands for, whoever uses it. Calls that are under way go on with what it stood
/// for before. The caller sees to it that the number is open meanwhile, and is the one it means.
///
/// # Errors
/// What the system said.
#[allow(unsafe_code)]
pub(crate) fn replace(descriptor: RawFd, with: impl AsFd) -> io::Result<()> {
    // SAFETY: the number stays open and its owner's: dup3 closes the old file and puts the new one there in one step. The owned descriptor
    // that nix gives back is given up at once, so that it is not closed here.
    let number = unsafe { nix::unistd::dup3_raw(with, descriptor, OFlag::O_CLOEXEC) }?.into_raw_fd();
    debug_assert_eq!(number, descriptor);
    Ok(())
}

/// Makes system calls of threads that [`interrupt`] is called for end with EINTR, instead of ignoring the signal it uses.
///
/// # Errors
/// What the system said.
#[allow(unsafe_code)]
pub fn make_interruptible() -> io::Result<()> {
    extern "C" fn nothing(_: libc::c_int) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::empty(), SigSet::empty());
    // SAFETY: the handler does nothing, which is safe at any moment. SIGURG is ignored otherwise, and nothing here uses it.
    unsafe { sigaction(Signal::SIGURG, &action) }?;
    Ok(())
}

/// Interrupts the system call that a thread of this process is in.
pub fn interrupt(thread: libc::pid_t) {
    signal_thread(thread, Signal::SIGURG);
}

/// Sends a signal to one thread of this process.
#[allow(unsafe_code)]
pub(crate) fn signal_thread(thread: libc::pid_t, signal: Signal) {
    // SAFETY: tgkill takes three integers; a thread that has ended meanwhile is an error that does not matter.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal as libc::c_int) };
}

/// A copy of the mount at `path` that is in no namespace and may be written to, whatever the one at `path` says.
///
/// # Errors
/// `PermissionDenied` without `CAP_SYS_ADMIN`; `ENOSYS` on kernels older than Linux 5.12.
#[allow(unsafe_code)]
pub fn writable_copy(path: &Path) -> io::Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_uint = 1;
    const MOUNT_ATTR_RDONLY: u64 = 1;
    /// `struct mount_attr` of linux/mount.h.
    #[repr(C)]
    struct Attributes {
        set: u64,
        clear: u64,
        propagation: u64,
        namespace: u64,
    }
    let path = CString::new(path.as_os_str().as_bytes())?;
    let flags = OPEN_TREE_CLONE | libc::O_CLOEXEC as libc::c_uint;
    // SAFETY: the path is a C string that lives through the call; the other arguments are numbers.
    let tree = unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) };
    let tree = libc::c_int::try_from(Errno::result(tree)?).map_err(io::Error::other)?;
    // SAFETY: the call has just made this descriptor; nobody else knows its number.
    let tree = unsafe { OwnedFd::from_raw_fd(tree) };
    let attributes = Attributes { set: 0, clear: MOUNT_ATTR_RDONLY, propagation: 0, namespace: 0 };
    // SAFETY: the empty path is a C string, and the kernel only reads the structure, whose size it is told; both live through the call.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attributes,
            size_of::<Attributes>(),
        )
    };
    Errno::result(done)?;
    Ok(tree)
}
