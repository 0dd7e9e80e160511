//! Temporary directories, the directory that all test binaries share, locks between them, and what a test may demand of the machine.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use tempfile::TempDir;

/// A directory that goes with its last holder.
pub fn dir() -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix("gitmount-test-").tempdir().context("no temporary directory could be made")?;
    // Tests that change the user must be able to enter it.
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
    Ok(dir)
}

/// The directory of cargo's profile that the running program was built in (`target/debug`).
pub fn profile_dir() -> Result<PathBuf> {
    let exe = std::env::current_exe()?;
    let dir = exe.parent().context("a program lies in a directory")?;
    // Test binaries lie in `deps`, other programs beside it.
    let profile = if dir.ends_with("deps") { dir.parent() } else { Some(dir) };
    Ok(profile.context("`deps` lies in the profile's directory")?.to_owned())
}

/// The cargo target directory that the running program was built in.
pub fn target_dir() -> Result<PathBuf> {
    Ok(profile_dir()?.parent().context("a profile's directory lies in the target directory")?.to_owned())
}

/// The directory that all test binaries of this target directory share; it outlives a run.
pub fn shared_dir() -> Result<PathBuf> {
    let dir = target_dir()?.join("tmp/gitmount-tests");
    fs::create_dir_all(&dir)?;
    Ok(dir)
}

/// A lock between test binaries (and with other runs on the machine), held until dropped.
pub type Lock = Flock<File>;

/// Takes the lock `name`, alone.
pub fn exclusive(name: &str) -> Result<Lock> {
    lock(name, FlockArg::LockExclusive)
}

/// Takes the lock `name` together with others that share it.
pub fn shared(name: &str) -> Result<Lock> {
    lock(name, FlockArg::LockShared)
}

fn lock(name: &str, how: FlockArg) -> Result<Lock> {
    let path = std::env::temp_dir().join(format!("gitmount-tests-{name}.lock"));
    let file = File::options().create(true).truncate(false).write(true).open(&path)?;
    let at_once = match how {
        FlockArg::LockShared => FlockArg::LockSharedNonblock,
        _ => FlockArg::LockExclusiveNonblock,
    };
    let file = match Flock::lock(file, at_once) {
        Ok(lock) => return Ok(lock),
        Err((file, _)) => file,
    };
    eprintln!("waiting for the lock {} of another test or bench", path.display());
    Flock::lock(file, how).map_err(|(_, e)| anyhow::anyhow!("{} could not be locked: {e}", path.display()))
}

/// Drops the kernel's clean dentries, inodes and, with `pages`, page cache. Tests that count messages hold the lock `kernel-caches`
/// exclusively, as do those that call this.
pub fn drop_caches(pages: bool) -> Result<()> {
    require_root()?;
    nix::unistd::sync();
    fs::write("/proc/sys/vm/drop_caches", if pages { "3" } else { "2" }).context("/proc/sys/vm/drop_caches could not be written")
}

/// Fails unless the tests run as root.
pub fn require_root() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("this test needs root (it mounts, changes users or drops the kernel's caches): run it as root");
    }
    Ok(())
}

/// Fails unless FUSE file systems can be mounted.
pub fn require_fuse() -> Result<()> {
    if !Path::new("/dev/fuse").exists() {
        bail!("this test needs /dev/fuse: load the module `fuse`, or give the container that device and CAP_SYS_ADMIN");
    }
    crate::run::require("fusermount3", "fuse3")
}

/// Gives `/dev/fuse` the mode that udev gives it on every distribution; containers and small systems without udev may lack it, and then no
/// account but root can mount.
pub fn open_fuse_to_all() -> Result<()> {
    require_root()?;
    fs::set_permissions("/dev/fuse", fs::Permissions::from_mode(0o666)).context("/dev/fuse could not be given the mode 0666")
}

/// Every file below `dir`, but not in what is mounted there, that has `text` in it.
pub fn files_with(dir: &Path, text: &str) -> Result<Vec<PathBuf>> {
    let device = dir.symlink_metadata()?.dev();
    let (mut found, mut left) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let meta = path.symlink_metadata()?;
            if meta.is_dir() && meta.dev() == device {
                left.push(path);
            } else if meta.is_file() && fs::read(&path)?.windows(text.len()).any(|window| window == text.as_bytes()) {
                found.push(path);
            }
        }
    }
    Ok(found)
}

/// A small tmpfs, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk {
    dir: TempDir,
}

impl SmallDisk {
    /// Mounts one of `bytes` bytes.
    pub fn new(bytes: u64) -> Result<Self> {
        require_root()?;
        let dir = dir()?;
        nix::mount::mount(
            Some("tmpfs"),
            dir.path(),
            Some("tmpfs"),
            nix::mount::MsFlags::empty(),
            Some(format!("size={bytes},mode=755").as_str()),
        )
        .context("a small tmpfs could not be mounted")?;
        Ok(SmallDisk { dir })
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Gives it another size.
    pub fn resize(&self, bytes: u64) -> Result<()> {
        let flags = nix::mount::MsFlags::MS_REMOUNT;
        nix::mount::mount(None::<&str>, self.dir.path(), None::<&str>, flags, Some(format!("size={bytes}").as_str()))
            .context("the small tmpfs could not be given another size")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // A daemon that is on its way out may still hold a file for a moment.
        for _ in 0..50 {
            if nix::mount::umount(self.dir.path()).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = nix::mount::umount2(self.dir.path(), nix::mount::MntFlags::MNT_DETACH);
    }
}
