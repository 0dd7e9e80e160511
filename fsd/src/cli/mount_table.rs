//! The kernel's table of mounts, and what a directory is as a place to mount on.

use std::path::{Path, PathBuf};

use super::exit::{CliError, Result, cause};
use crate::daemon::standing;
use gitmount_proto::mount_table::{self, Entry};

/// A mount of gitmount's that one sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// Where, absolute.
    pub target: PathBuf,
    /// What: the repository, as the mount's process named it.
    pub source: String,
    device: u64,
}

impl MountPoint {
    fn new(entry: &Entry) -> Self {
        MountPoint { target: entry.target.clone(), source: String::from_utf8_lossy(&entry.source).into_owned(), device: entry.device }
    }

    /// Whether its process died.
    pub fn is_dead(&self) -> bool {
        standing::is_dead(&self.target, self.device)
    }
}

/// The gitmount mounts in this mount namespace that one sees.
pub fn mount_points() -> Result<Vec<MountPoint>> {
    Ok(ours(&standing::table()?))
}

fn ours(table: &[Entry]) -> Vec<MountPoint> {
    let seen = table.iter().filter(|entry| entry.is_gitmount() && mount_table::hider(table, entry).is_none());
    seen.map(MountPoint::new).collect()
}

/// The gitmount mount at `target` (absolute).
///
/// # Errors
/// When there is one that something else hides.
pub fn at(target: &Path) -> Result<Option<MountPoint>> {
    let table = standing::table()?;
    let mut ours = table.iter().filter(|entry| entry.is_gitmount() && entry.target == target).peekable();
    if let Some(seen) = ours.clone().find(|entry| mount_table::hider(&table, entry).is_none()) {
        return Ok(Some(MountPoint::new(seen)));
    }
    match ours.peek().and_then(|entry| mount_table::hider(&table, entry)) {
        Some(by) => Err(CliError::usage(standing::covered(target, by))),
        None => Ok(None),
    }
}

/// The absolute name of a mount point, as the kernel's table has it; also of one whose process died, which cannot be looked into.
pub fn absolute(dir: &Path) -> Result<PathBuf> {
    match dir.canonicalize() {
        Ok(path) => Ok(path),
        Err(error) => {
            let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
            let dead = error.raw_os_error() == Some(libc::ENOTCONN);
            match (dead, whole.parent().and_then(|p| p.canonicalize().ok()), whole.file_name()) {
                (true, Some(parent), Some(name)) => Ok(parent.join(name)),
                _ if dir.to_string_lossy().contains("://") => {
                    Err(CliError::usage(format!("{} is a URL: give the URL first and then the directory", dir.display())))
                }
                _ if error.kind() == std::io::ErrorKind::NotFound => {
                    let shown = dir.display();
                    Err(CliError::usage(format!("{shown} does not exist: give an empty directory (`mkdir {shown}` makes one)")))
                }
                _ => Err(CliError::usage(format!(
                    "{} cannot be reached ({}): give an empty directory of your own",
                    dir.display(),
                    cause(&error)
                ))),
            }
        }
    }
}

#[cfg(test)]
pub(super) fn example(target: &str, source: &str) -> MountPoint {
    MountPoint { target: target.into(), source: source.into(), device: 0 }
}

/// Checks that `target` (absolute) is an empty directory on which nothing of ours is mounted.
pub fn check_target(target: &Path) -> Result<()> {
    let shown = target.display();
    let first = format!("unmount it first with `gitmount unmount {shown}`");
    if let Some(mount) = at(target)? {
        let what = if mount.is_dead() { "a mount whose process died" } else { "already a gitmount mount" };
        return Err(CliError::usage(format!("{shown} is {what}: {first}")));
    }
    let meta = std::fs::metadata(target)
        .map_err(|e| CliError::usage(format!("{shown} cannot be looked into ({}): give an empty directory of your own", cause(&e))))?;
    if !meta.is_dir() {
        return Err(CliError::usage(format!("{shown} is not a directory: give an empty directory")));
    }
    let mut entries = std::fs::read_dir(target)
        .map_err(|e| CliError::usage(format!("{shown} cannot be listed ({}): give an empty directory of your own", cause(&e))))?;
    if entries.next().is_some() {
        return Err(CliError::usage(format!("{shown} is not empty: give an empty directory, so that the mount hides nothing")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    use super::*;

    #[test]
    fn finds_our_mounts_and_unescapes_their_names() {
        let table = b"22 1 254:1 / / rw,relatime - ext4 /dev/vda1 rw\n\
            96 22 0:50 / /mnt/a\\040b\\134c rw,nosuid shared:5 master:1 - fuse.gitmount https://example.com/a.git ro,user_id=0\n\
            97 22 0:51 / /mnt/other rw - fuse.sshfs host: rw\n\
            98 22 0:52 / /mnt/\xff ro - fuse.gitmount /src ro\n\
            99 22 0:53 / /mnt/hidden ro - fuse.gitmount /src ro\n\
            100 99 0:54 / /mnt/hidden rw - tmpfs none rw\n\
            torn line";
        let mount = |target: &[u8], source: &str, minor| MountPoint {
            target: OsStr::from_bytes(target).into(),
            source: source.into(),
            device: nix::sys::stat::makedev(0, minor),
        };
        assert_eq!(
            ours(&mount_table::parse(table)),
            [mount(b"/mnt/a b\\c", "https://example.com/a.git", 50), mount(b"/mnt/\xff", "/src", 52)]
        );
    }

    #[test]
    fn each_unfit_target_has_its_own_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let cases = [
            (absolute(&dir.path().join("missing")).unwrap_err(), "does not exist"),
            (check_target(&file).unwrap_err(), "is not a directory"),
            (check_target(dir.path()).unwrap_err(), "is not empty"),
        ];
        for (error, what) in cases {
            assert!(error.code == 2 && error.message.contains(what), "{error:?}");
        }
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        check_target(&empty).unwrap();
    }

    #[test]
    fn names_are_absolute_and_without_links() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().canonicalize().unwrap().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink(&real, dir.path().join("link")).unwrap();
        assert_eq!(absolute(&dir.path().join("link/../link")).unwrap(), real);
    }
}
