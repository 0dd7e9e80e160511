//! The mount itself: with `mount(2)` where we may, else through the set-uid helper `fusermount3`.
//!
//! The helper's protocol (libfuse, `fusermount.c`): `_FUSE_COMMFD` names a socket on which it sends the open `/dev/fuse`. Here the socket is
//! its standard input, so that no other descriptor has to survive the exec.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, umount2};

use super::{MountOptions, Notify};
use crate::sys::receive_descriptor;

const DEVICE: &str = "/dev/fuse";
const HELPER: &str = "fusermount3";
const SUBTYPE: &str = "gitmount";

/// Mounts at the target and gives the descriptor to serve it by; the kernel's INIT is the first thing to be read from it.
///
/// # Errors
/// What the system or the helper said.
pub(super) fn mount(options: &MountOptions) -> io::Result<OwnedFd> {
    match directly(options) {
        Err(error) if options.notify == Notify::Inotify => Err(error),
        Err(error) if matches!(error.raw_os_error().map(Errno::from_raw), Some(Errno::EPERM | Errno::EACCES)) => through_helper(options),
        other => other,
    }
}

fn directly(options: &MountOptions) -> io::Result<OwnedFd> {
    let device = OpenOptions::new().read(true).write(true).open(DEVICE).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), format!("{DEVICE} is missing: load the kernel module \"fuse\"")),
        _ => error,
    })?;
    let (user, group) = (nix::unistd::getuid(), nix::unistd::getgid());
    let mut data = format!("fd={},rootmode=40000,user_id={user},group_id={group},default_permissions", device.as_raw_fd());
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let safe = MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    // Events need a file system that can be opened for writing; then only its mounts are read-only.
    let flags = if options.notify == Notify::Inotify { safe } else { safe | MsFlags::MS_RDONLY };
    let kind = format!("fuse.{SUBTYPE}");
    nix::mount::mount(Some(options.source.as_str()), &options.target, Some(kind.as_str()), flags, Some(data.as_str()))?;
    if options.notify == Notify::Inotify {
        let this_mount = safe | MsFlags::MS_RDONLY | MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
        nix::mount::mount(None::<&str>, &options.target, None::<&str>, this_mount, None::<&str>).inspect_err(|_| {
            // The first error is the one to tell.
            let _ = unmount(&options.target, true);
        })?;
    }
    Ok(device.into())
}

fn through_helper(options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut words = format!("ro,nosuid,nodev,default_permissions,subtype={SUBTYPE},fsname={}", plain(&options.source));
    if options.allow_other {
        words.push_str(",allow_other");
    }
    let mut command = Command::new(HELPER);
    command.args(["-o", &words, "--"]).arg(&options.target).env("_FUSE_COMMFD", "0");
    command.stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut helper = command.spawn().map_err(no_helper)?;
    // The command still holds its end of the socket: without closing it the end of the helper would not be seen.
    drop(command);
    let device = receive_descriptor(&ours)?;
    drop(ours);
    let mut said = String::new();
    if let Some(stderr) = helper.stderr.take() {
        const LONGEST: u64 = 4096;
        stderr.take(LONGEST).read_to_string(&mut said)?;
    }
    let status = helper.wait()?;
    match device {
        Some(device) if status.success() => Ok(device),
        _ => Err(io::Error::other(last_line(&said))),
    }
}

/// The device of what is mounted at `target`, by the kernel's list: `stat` there would be a question to this very process, and one that is killed
/// while it waits for its own answer cannot end.
pub(super) fn device_at(target: &Path) -> Option<u64> {
    // The list has no symbolic links in it. The last name is not looked at: it is the mount.
    let place = std::fs::canonicalize(target.parent()?).ok()?.join(target.file_name()?);
    device_in(&std::fs::read("/proc/self/mountinfo").ok()?, &place)
}

/// See proc_pid_mountinfo(5): the third word is the device, the fifth the place, some characters of it as three octal digits.
fn device_in(table: &[u8], target: &Path) -> Option<u64> {
    let mut escaped = Vec::new();
    for byte in target.as_os_str().as_bytes() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => escaped.extend_from_slice(format!("\\{byte:03o}").as_bytes()),
            _ => escaped.push(*byte),
        }
    }
    let mut devices = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(2);
        let device = words.next()?;
        (words.nth(1)? == escaped).then_some(device)
    });
    // What was mounted last hides the others.
    let (major, minor) = str::from_utf8(devices.next_back()?).ok()?.split_once(':')?;
    Some(nix::sys::stat::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// Unmounts the FUSE mount at `target`; without the right to do so itself, through `fusermount3`.
///
/// # Errors
/// `ResourceBusy` when somebody uses it and `lazy` is false; `InvalidInput` when nothing is mounted there.
pub fn unmount(target: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() } | MntFlags::UMOUNT_NOFOLLOW;
    match umount2(target, flags) {
        Err(Errno::EPERM) => {}
        other => return other.map_err(io::Error::from),
    }
    let mut command = Command::new(HELPER);
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(target).output().map_err(no_helper)?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let kind = if said.to_lowercase().contains("busy") { io::ErrorKind::ResourceBusy } else { io::ErrorKind::Other };
    Err(io::Error::new(kind, last_line(&said)))
}

/// Unmounts at once, whoever uses it: who waits for an answer gets an error, and so does everybody who asks later.
///
/// # Errors
/// What the system said.
pub(super) fn abort(target: &Path) -> io::Result<()> {
    Ok(umount2(target, MntFlags::MNT_FORCE | MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW)?)
}

/// Requests of the FUSE mount with this device that are not answered; `None` where the kernel's list (fusectl) is not mounted.
pub(super) fn waiting(device: u64) -> Option<usize> {
    let connection = nix::sys::stat::minor(device);
    std::fs::read_to_string(format!("/sys/fs/fuse/connections/{connection}/waiting")).ok()?.trim().parse().ok()
}

fn no_helper(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::NotFound {
        return io::Error::new(error.kind(), format!("{HELPER} is missing: install the package \"fuse3\", or run as root"));
    }
    error
}

fn last_line(said: &str) -> String {
    let line = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("fusermount3 failed and said nothing");
    line.trim().to_owned()
}

/// A mount source as the helper's options can carry it.
fn plain(source: &str) -> String {
    source.chars().map(|c| if c == ',' || c == '\\' || c.is_control() { '_' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_cannot_add_options() {
        assert_eq!(plain("https://h/a,dev,suid\\\n.git"), "https://h/a_dev_suid__.git");
    }

    #[test]
    fn the_helpers_last_words_are_told() {
        assert_eq!(last_line("usage:\nfusermount3: mountpoint is not empty\n\n"), "fusermount3: mountpoint is not empty");
        assert_eq!(last_line(""), "fusermount3 failed and said nothing");
    }

    #[test]
    fn the_mount_on_top_is_found_under_any_name() {
        let table = b"22 1 8:1 / / rw - ext4 /dev/sda1 rw\n40 22 0:39 / /a\\040b rw - fuse x rw\n41 40 0:40 / /a\\040b rw - fuse y rw\n";
        assert_eq!(device_in(table, Path::new("/a b")), Some(nix::sys::stat::makedev(0, 40)));
        assert_eq!(device_in(table, Path::new("/a")), None);
        assert_eq!(device_in(b"nonsense\n\n", Path::new("/a")), None);
    }

    #[test]
    fn nothing_to_unmount_is_an_error() {
        let dir = tempfile::tempdir().expect("a directory");
        assert!(unmount(dir.path(), false).is_err());
    }
}
