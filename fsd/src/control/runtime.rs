//! The runtime directory: one socket for each mount point, named by a hash of it.
//!
//! The directory belongs to its user alone (mode 0700). Whoever binds or removes a socket holds the directory's lock meanwhile, so
//! that nobody removes a socket that was bound a moment ago.

use std::fmt::Write as _;
use std::fs::{DirBuilder, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use gitmount_proto::socket::{self, ConnectError};
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::Uid;
use sha2::{Digest, Sha256};

/// Nobody needs the lock for that long, unless mounting hangs.
const LOCK_LIMIT: Duration = Duration::from_secs(20);

/// An existing runtime directory that belongs to this user.
#[derive(Debug, Clone)]
pub struct RuntimeDir {
    path: PathBuf,
}

/// Where the runtime directory is: `$GITMOUNT_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/gitmount`, else for root `/run/gitmount`, else
/// `/tmp/gitmount-<uid>`.
pub fn location(env: impl Fn(&str) -> Option<PathBuf>, uid: Uid) -> PathBuf {
    let set = |name| env(name).filter(|p| p.is_absolute());
    if let Some(path) = set("GITMOUNT_RUNTIME_DIR") {
        return path;
    }
    if let Some(path) = set("XDG_RUNTIME_DIR") {
        return path.join("gitmount");
    }
    if uid.is_root() { PathBuf::from("/run/gitmount") } else { PathBuf::from(format!("/tmp/gitmount-{uid}")) }
}

impl RuntimeDir {
    /// The runtime directory of this process, created when missing.
    ///
    /// # Errors
    /// When it cannot be created, or when it belongs to somebody else or lets others in.
    pub fn open() -> Result<Self> {
        Self::at(location(|name| std::env::var_os(name).map(PathBuf::from), Uid::effective()))
    }

    /// The runtime directory `path`, see [`RuntimeDir::open`].
    pub fn at(path: PathBuf) -> Result<Self> {
        let shown = path.display();
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|e| {
            StoreError::new(
                Fault::Internal,
                format!("the runtime directory {shown} cannot be created ({e}): set GITMOUNT_RUNTIME_DIR to a directory of your own"),
            )
        })?;
        // Not followed: in /tmp anybody could have put a link there.
        let meta = std::fs::symlink_metadata(&path)
            .map_err(|e| StoreError::new(Fault::Internal, format!("the runtime directory {shown} cannot be read ({e})")))?;
        let mine = Uid::effective();
        if !meta.is_dir() || meta.uid() != mine.as_raw() {
            return Err(StoreError::new(
                Fault::Refused,
                format!(
                    "the runtime directory {shown} is no directory of user {mine}: set GITMOUNT_RUNTIME_DIR to a directory of your own"
                ),
            ));
        }
        if meta.mode() & 0o077 != 0 {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).map_err(|e| {
                StoreError::new(Fault::Refused, format!("the runtime directory {shown} is open to others and cannot be closed ({e})"))
            })?;
        }
        Ok(RuntimeDir { path })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket of the mount at `target` (absolute), whether it exists or not.
    pub fn socket(&self, target: &Path) -> PathBuf {
        let digest = Sha256::digest(target.as_os_str().as_bytes());
        let mut name = digest.iter().take(8).fold(String::new(), |mut name, byte| {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
            name
        });
        name.push_str(".sock");
        self.path.join(name)
    }

    /// All sockets in the directory, of live and dead processes, sorted by name.
    pub fn sockets(&self) -> Result<Vec<PathBuf>> {
        let failed = |e: std::io::Error| {
            StoreError::new(Fault::Internal, format!("the runtime directory {} cannot be read ({e})", self.path.display()))
        };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|e| e == "sock") {
                found.push(path);
            }
        }
        found.sort();
        Ok(found)
    }

    /// Waits for the directory's lock, which is held for as long as one mount takes.
    ///
    /// # Errors
    /// When somebody holds it for 20 seconds.
    pub fn lock(&self) -> Result<RuntimeLock> {
        let path = self.path.join("lock");
        let failed = |why: String| StoreError::new(Fault::Internal, format!("the lock {} cannot be taken ({why})", path.display()));
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(|e| failed(e.to_string()))?;
        let end = Instant::now() + LOCK_LIMIT;
        let lock = loop {
            file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(lock) => break lock,
                Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < end => file,
                Err((_, Errno::EWOULDBLOCK)) => return Err(failed(format!("another gitmount has held it for {LOCK_LIMIT:?}"))),
                Err((_, error)) => return Err(failed(error.desc().to_owned())),
            };
            std::thread::sleep(Duration::from_millis(5));
        };
        Ok(RuntimeLock { dir: self.clone(), _lock: lock })
    }
}

/// The lock of a runtime directory: while it is held nobody else binds or removes sockets there.
#[derive(Debug)]
pub struct RuntimeLock {
    dir: RuntimeDir,
    _lock: Flock<File>,
}

impl RuntimeLock {
    /// Binds the socket of `target`, on which nothing of gitmount is mounted. A leftover of a dead process is replaced, and so is the
    /// socket of a process whose mount was taken away but still has users.
    pub fn bind(&self, target: &Path) -> Result<Socket> {
        let path = self.dir.socket(target);
        let shown = path.display();
        match socket::probe(&path) {
            Ok(()) | Err(ConnectError::Dead(_)) => {
                std::fs::remove_file(&path)
                    .map_err(|e| StoreError::new(Fault::Internal, format!("the old socket {shown} cannot be removed ({e})")))?;
            }
            Err(ConnectError::Missing(_)) => {}
            Err(e) => return Err(StoreError::new(Fault::Internal, e.to_string())),
        }
        let listener = UnixListener::bind(&path).map_err(|e| {
            StoreError::new(Fault::Internal, format!("the socket {shown} cannot be made ({e}): set GITMOUNT_RUNTIME_DIR to a shorter path"))
        })?;
        let meta = std::fs::symlink_metadata(&path)
            .map_err(|e| StoreError::new(Fault::Internal, format!("the socket {shown} cannot be read ({e})")))?;
        Ok(Socket { dir: self.dir.clone(), path, identity: (meta.dev(), meta.ino()), listener: Some(listener) })
    }

    /// Removes `socket` if no process listens on it.
    pub fn remove_dead(&self, socket: &Path) {
        if matches!(socket::probe(socket), Err(ConnectError::Dead(_))) {
            // A leftover that stays does no harm.
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// A bound socket; its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    dir: RuntimeDir,
    path: PathBuf,
    identity: (u64, u64),
    listener: Option<UnixListener>,
}

impl Socket {
    /// The listening end; `None` from the second call on.
    pub fn take_listener(&mut self) -> Option<UnixListener> {
        self.listener.take()
    }

    /// The socket's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Another process may have taken the name over meanwhile (see `bind`); without the lock nothing is certain, so nothing is removed.
        let Ok(_lock) = self.dir.lock() else { return };
        if std::fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.identity) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(pairs: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<PathBuf> + 'a {
        move |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| PathBuf::from(v))
    }

    #[test]
    fn location_prefers_the_own_variable_then_xdg_then_the_user() {
        let user = Uid::from_raw(1000);
        assert_eq!(location(env(&[("GITMOUNT_RUNTIME_DIR", "/a"), ("XDG_RUNTIME_DIR", "/b")]), user), PathBuf::from("/a"));
        assert_eq!(location(env(&[("XDG_RUNTIME_DIR", "/b")]), user), PathBuf::from("/b/gitmount"));
        assert_eq!(location(env(&[("XDG_RUNTIME_DIR", "")]), user), PathBuf::from("/tmp/gitmount-1000"));
        assert_eq!(location(env(&[]), Uid::from_raw(0)), PathBuf::from("/run/gitmount"));
    }

    #[test]
    fn directory_is_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        RuntimeDir::at(path.clone()).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
    }

    #[test]
    fn a_link_in_the_place_of_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(RuntimeDir::at(link).is_err());
    }

    #[test]
    fn a_socket_is_replaced_by_the_next_mount_and_its_old_owner_leaves_that_alone() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(dir.path().join("r")).unwrap();
        let target = Path::new("/mnt/tree");
        let first = runtime.lock().unwrap().bind(target).unwrap();
        runtime.lock().unwrap().remove_dead(first.path());
        assert!(first.path().exists(), "a live socket was removed");

        let mut second = runtime.lock().unwrap().bind(target).unwrap();
        drop(first);
        assert!(second.path().exists(), "the old owner removed the new owner's socket");
        let path = second.path().to_owned();
        drop(second.take_listener());
        runtime.lock().unwrap().remove_dead(&path);
        assert_eq!(runtime.sockets().unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn dropping_a_socket_removes_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = RuntimeDir::at(dir.path().join("r")).unwrap();
        let socket = runtime.lock().unwrap().bind(Path::new("/mnt/a")).unwrap();
        assert_eq!(runtime.sockets().unwrap(), [socket.path()]);
        drop(socket);
        assert_eq!(runtime.sockets().unwrap(), Vec::<PathBuf>::new());
    }
}
