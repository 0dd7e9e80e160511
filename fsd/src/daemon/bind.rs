//! Targets: read-only bind mounts of a view's mount. Nothing here looks into a mount, so nothing waits for whoever serves it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use gitmount_proto::mount_table::{self, Entry};
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};
use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

use super::standing::{self, Standing};

/// The target's name as the kernel's table has it: its parent exists, itself it may not.
///
/// # Errors
/// `Usage` when it is no absolute path, or its parent is missing.
pub fn absolute(target: &Path) -> Result<PathBuf> {
    let shown = target.display();
    let usage = |what: &str| StoreError::new(Fault::Usage, format!("target {shown:?} {what}: give an absolute path of an empty directory"));
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else { return Err(usage("names no directory")) };
    if !target.is_absolute() {
        return Err(usage("is not absolute"));
    }
    let parent = parent.canonicalize().map_err(|e| usage(&format!("has a parent that cannot be reached ({e})")))?;
    Ok(parent.join(name))
}

/// Makes sure that `target` is an empty directory on which nothing is mounted; gives whether it had to be made.
///
/// # Errors
/// `Usage` when it is something else.
pub fn prepare(target: &Path) -> Result<bool> {
    match fs::create_dir(target) {
        Ok(()) => return Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed(target, "made", &error)),
    }
    let refuse = |what: &str| StoreError::new(Fault::Usage, format!("target {} {what}: give an empty directory", target.display()));
    // Not followed: a link would be mounted on at its end.
    if !fs::symlink_metadata(target).map_err(|e| failed(target, "looked at", &e))?.is_dir() {
        return Err(refuse("is no directory"));
    }
    if fs::read_dir(target).map_err(|e| failed(target, "listed", &e))?.next().is_some() {
        return Err(refuse("is not empty"));
    }
    Ok(false)
}

/// Shows the mount with this device, which is at `source`, at `target`: read-only, without devices and set-uid programs.
///
/// # Errors
/// What mounting gave, and when that mount went from `source` at this moment; then nothing is mounted.
pub fn bind(source: &Path, device: u64, target: &Path) -> Result<()> {
    const NONE: Option<&str> = None;
    mount(Some(source), target, NONE, MsFlags::MS_BIND, NONE).map_err(|e| failed(target, "mounted on", &e.into()))?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV;
    let bound = mount(NONE, target, NONE, flags, NONE).map_err(|e| failed(target, "mounted on read-only", &e.into()));
    bound.and_then(|()| is_bound(source, device, target)).inspect_err(|_| {
        // The first error is the one to tell.
        let _ = detach(target);
    })
}

/// Between a look at a source and its bind mount somebody may unmount it, and then its empty directory is what is shown.
fn is_bound(source: &Path, device: u64, target: &Path) -> Result<()> {
    // What somebody has laid over it meanwhile is theirs.
    if matches!(standing::look(&standing::table()?, target, Some(device)), Standing::Shown | Standing::Covered(_)) {
        return Ok(());
    }
    Err(StoreError::new(
        Fault::Cancelled,
        format!("{} was unmounted while it was to be shown at {}: ask again", source.display(), target.display()),
    ))
}

/// Takes away the mount on top at `target`, also when it is busy or nobody serves it; gives whether there was one.
///
/// # Errors
/// What unmounting gave.
pub fn detach(target: &Path) -> Result<bool> {
    match umount2(target, MntFlags::MNT_DETACH | MntFlags::UMOUNT_NOFOLLOW) {
        Ok(()) => Ok(true),
        Err(Errno::EINVAL | Errno::ENOENT) => Ok(false),
        Err(error) => Err(failed(target, "unmounted", &error.into())),
    }
}

/// Takes away what one sees at `target` while `which` says so of it. Of what is hidden nothing is touched.
///
/// # Errors
/// What unmounting gave.
pub fn detach_while(target: &Path, which: impl Fn(&Entry) -> bool) -> Result<()> {
    while mount_table::top(&standing::table()?, target).is_some_and(&which) {
        if !detach(target)? {
            return Ok(());
        }
    }
    Ok(())
}

fn failed(target: &Path, what: &str, error: &io::Error) -> StoreError {
    let fault = if error.raw_os_error() == Some(libc::ENOSPC) { Fault::Disk } else { Fault::Internal };
    StoreError::new(fault, format!("target {} cannot be {what} ({error})", target.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_an_empty_directory_or_made() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("t");
        assert!(prepare(&target).unwrap() && !prepare(&target).unwrap());
        fs::write(target.join("x"), "").unwrap();
        assert!(prepare(&target).unwrap_err().to_string().contains("not empty"));
        assert!(prepare(&target.join("x")).unwrap_err().to_string().contains("no directory"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(prepare(&link).unwrap_err().to_string().contains("no directory"));
    }

    #[test]
    fn a_target_is_absolute_and_its_parent_exists() {
        for bad in ["relative", "/", "/no-such-directory/x", "/tmp/.."] {
            assert_eq!(absolute(Path::new(bad)).unwrap_err().fault(), Fault::Usage, "{bad}");
        }
        assert_eq!(absolute(Path::new("/proc/../tmp/x")).unwrap(), Path::new("/tmp/x"));
    }

    #[test]
    fn nothing_to_detach_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!detach(&dir.path().join("missing")).unwrap() && !detach(dir.path()).unwrap());
        detach_while(dir.path(), |_| true).unwrap();
    }
}
