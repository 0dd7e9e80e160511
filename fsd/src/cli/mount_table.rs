//! The kernel's table of mounts, and what a directory is as a place to mount on.

use std::path::{Path, PathBuf};

use super::exit::{CliError, Result, cause};
use crate::control::runtime::RuntimeDir;
use gitmount_proto::mount_table;

/// What `/proc/self/mountinfo` calls our mounts when fusermount3 made them, and when root did it directly.
const FS_TYPES: [&[u8]; 2] = [b"fuse.gitmount", b"fuse"];

/// One line of the table about what is, or (see [`MountPoint::is_ours`]) may be, a mount of ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountPoint {
    /// Where, absolute.
    pub target: PathBuf,
    /// What: the repository, as the mount's process named it.
    pub source: String,
    /// Whether the table names us; for a mount that root made it only says that it is one of FUSE.
    pub named: bool,
}

impl MountPoint {
    /// Whether it is one of ours: the table says so, or the runtime directory has its socket.
    pub fn is_ours(&self, runtime: &RuntimeDir) -> bool {
        self.named || runtime.socket(&self.target).exists()
    }

    /// Whether its process died.
    pub fn is_dead(&self) -> bool {
        std::fs::metadata(&self.target).is_err_and(|e| e.raw_os_error() == Some(libc::ENOTCONN))
    }
}

/// The mounts in this mount namespace that are or may be ours.
pub fn mount_points() -> Result<Vec<MountPoint>> {
    let table = mount_table::read().map_err(|e| CliError::other(format!("/proc/self/mountinfo cannot be read ({e})")))?;
    Ok(ours(table))
}

fn ours(table: Vec<mount_table::Entry>) -> Vec<MountPoint> {
    let fuse = table.into_iter().filter(|entry| FS_TYPES.contains(&entry.kind.as_slice()));
    fuse.map(|entry| MountPoint {
        target: entry.target,
        source: String::from_utf8_lossy(&entry.source).into_owned(),
        named: entry.kind == FS_TYPES[0],
    })
    .collect()
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

/// Checks that `target` (absolute) is an empty directory on which nothing of ours is mounted.
pub fn check_target(target: &Path, runtime: &RuntimeDir) -> Result<()> {
    let shown = target.display();
    let first = format!("unmount it first with `gitmount unmount {shown}`");
    if let Some(mount) = mount_points()?.iter().rev().find(|m| m.target == target) {
        if mount.is_dead() {
            return Err(CliError::usage(format!("{shown} is a mount whose process died: {first}")));
        }
        if mount.is_ours(runtime) {
            return Err(CliError::usage(format!("{shown} is already a gitmount mount: {first}")));
        }
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
            98 22 0:52 / /mnt/\xff ro - fuse /src ro\n\
            torn line";
        let mount =
            |target: &[u8], source: &str, named| MountPoint { target: OsStr::from_bytes(target).into(), source: source.into(), named };
        assert_eq!(
            ours(mount_table::parse(table)),
            [mount(b"/mnt/a b\\c", "https://example.com/a.git", true), mount(b"/mnt/\xff", "/src", false)]
        );
    }

    #[test]
    fn each_unfit_target_has_its_own_sentence() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let runtime = RuntimeDir::at(dir.path().join("run")).unwrap();
        let cases = [
            (absolute(&dir.path().join("missing")).unwrap_err(), "does not exist"),
            (check_target(&file, &runtime).unwrap_err(), "is not a directory"),
            (check_target(dir.path(), &runtime).unwrap_err(), "is not empty"),
        ];
        for (error, what) in cases {
            assert!(error.code == 2 && error.message.contains(what), "{error:?}");
        }
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        check_target(&empty, &runtime).unwrap();
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
