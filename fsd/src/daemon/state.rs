//! The daemon's state directory: what it must know again after a restart. Never a credential.
//!
//! ```text
//! lock                      held while a daemon uses the directory
//! salt                      makes fingerprints this node's own
//! views/<id>/view.json      what the view shows, and where
//! views/<id>/nodes          the node table's journal
//! mounts/<id>/              where the view is mounted; targets are bind mounts of it
//! ```
//!
//! Files are replaced as a whole and made durable, so a crash leaves the old one or the new one.

use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use super::record::Record;

/// A state directory that no other daemon uses.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    salt: Vec<u8>,
    _lock: Flock<File>,
}

impl StateDir {
    /// Opens or makes it.
    ///
    /// # Errors
    /// `Usage` when another daemon uses it, `Refused` when it is somebody else's.
    pub fn open(path: &Path) -> Result<Self> {
        make(path)?;
        let path = path.canonicalize().map_err(|e| failed(path, "found", &e))?;
        own(&path)?;
        let lock_path = path.join("lock");
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&lock_path)
            .map_err(|e| failed(&lock_path, "opened", &e))?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| match error {
            Errno::EWOULDBLOCK => StoreError::new(
                Fault::Usage,
                format!("another daemon uses the state directory {}: stop it first, or give another --state", path.display()),
            ),
            other => failed(&lock_path, "locked", &other.into()),
        })?;
        for dir in ["views", "mounts"] {
            make(&path.join(dir))?;
        }
        let salt = salt(&path.join("salt"))?;
        Ok(StateDir { path, salt, _lock: lock })
    }

    /// What makes this node's fingerprints its own.
    pub fn salt(&self) -> &[u8] {
        &self.salt
    }

    /// The directory itself, absolute.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the view `id` is mounted.
    pub fn mount_point(&self, id: &str) -> PathBuf {
        self.path.join("mounts").join(id)
    }

    /// All places where views are or were mounted, with the views' names.
    pub fn mount_points(&self) -> Result<Vec<(String, PathBuf)>> {
        let dir = self.path.join("mounts");
        let unreadable = |e: io::Error| failed(&dir, "read", &e);
        let mut points = Vec::new();
        for entry in fs::read_dir(&dir).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            points.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
        }
        Ok(points)
    }

    /// The node table's journal of the view `id`.
    pub fn journal(&self, id: &str) -> PathBuf {
        self.view_dir(id).join("nodes")
    }

    fn view_dir(&self, id: &str) -> PathBuf {
        self.path.join("views").join(id)
    }

    /// Makes the directories of a new view.
    pub fn create(&self, id: &str) -> Result<()> {
        make(&self.view_dir(id))?;
        make(&self.mount_point(id))
    }

    /// Forgets a view that is mounted no more. What cannot be removed is found again at the next start.
    pub fn remove(&self, id: &str) {
        let dir = self.view_dir(id);
        // The record first: a directory without one is no view.
        let _ = fs::remove_file(dir.join("view.json"));
        let _ = fs::remove_dir_all(&dir);
        // `remove_dir` and not more: if something is still mounted there, nothing of it may go.
        let _ = fs::remove_dir(self.mount_point(id));
    }

    /// Writes a view's record.
    pub fn write(&self, record: &Record) -> Result<()> {
        let text = serde_json::to_vec_pretty(record).expect("a record is made of strings, numbers and lists");
        replace(&self.view_dir(&record.id).join("view.json"), &text)
    }

    /// All records; what is no record of this version or the one before is told and left alone.
    pub fn records(&self) -> Result<Vec<Record>> {
        let dir = self.path.join("views");
        let mut records = Vec::new();
        for entry in fs::read_dir(&dir).map_err(|e| failed(&dir, "read", &e))? {
            let entry = entry.map_err(|e| failed(&dir, "read", &e))?;
            let Some(id) = entry.file_name().to_str().map(str::to_owned) else { continue };
            let file = entry.path().join("view.json");
            match fs::read(&file) {
                Ok(text) => match Record::read(&id, &text) {
                    Ok(record) => records.push(record),
                    Err(why) => tracing::error!(file = %file.display(), "a view is left alone: {why}"),
                },
                // A view whose record was not written yet, or is removed already.
                Err(error) if error.kind() == io::ErrorKind::NotFound => self.remove(&id),
                Err(error) => return Err(failed(&file, "read", &error)),
            }
        }
        Ok(records)
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Random bytes of the system.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let source = Path::new("/dev/urandom");
    File::open(source).and_then(|mut file| io::Read::read_exact(&mut file, &mut bytes)).map_err(|e| failed(source, "read", &e))?;
    Ok(bytes)
}

fn salt(path: &Path) -> Result<Vec<u8>> {
    const LENGTH: usize = 32;
    match fs::read(path) {
        Ok(salt) if salt.len() == LENGTH => return Ok(salt),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(path, "read", &error)),
        _ => {}
    }
    let salt: [u8; LENGTH] = random()?;
    replace(path, &salt)?;
    Ok(salt.to_vec())
}

/// Writes a file as a whole, durably.
fn replace(path: &Path, content: &[u8]) -> Result<()> {
    let written = (|| {
        let temporary = path.with_extension("new");
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
    })();
    written.map_err(|e| failed(path, "written", &e))
}

/// Makes sure that nobody else can write into a directory: what is in it is believed, down to what is unmounted.
fn own(path: &Path) -> Result<()> {
    let meta = fs::metadata(path).map_err(|e| failed(path, "looked at", &e))?;
    let (me, mode) = (nix::unistd::geteuid(), meta.mode());
    if meta.uid() != me.as_raw() {
        let text = format!("the state directory {} is of user {}, not of {me}: give one of its own", path.display(), meta.uid());
        return Err(StoreError::new(Fault::Refused, text));
    }
    if mode & 0o022 != 0 {
        fs::set_permissions(path, fs::Permissions::from_mode(mode & 0o755)).map_err(|e| failed(path, "closed to others", &e))?;
    }
    Ok(())
}

fn make(path: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|e| failed(path, "made", &e))
}

fn failed(path: &Path, what: &str, error: &io::Error) -> StoreError {
    StoreError::new(Fault::Disk, format!("{} cannot be {what} ({error}): look after the disk of --state", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_daemon_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateDir::open(dir.path()).unwrap();
        let error = StateDir::open(dir.path()).unwrap_err();
        assert!(error.fault() == Fault::Usage && error.to_string().contains("another daemon"), "{error}");
        let salt = first.salt().to_vec();
        drop(first);
        assert_eq!(StateDir::open(dir.path()).unwrap().salt(), salt);
    }

    #[test]
    fn a_directory_is_closed_to_others_and_one_of_somebody_else_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        drop(StateDir::open(dir.path()).unwrap());
        assert_eq!(fs::metadata(dir.path()).unwrap().mode() & 0o777, 0o755);
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
            let error = StateDir::open(dir.path()).unwrap_err();
            assert!(error.fault() == Fault::Refused && error.to_string().contains("65534"), "{error}");
        }
    }

    #[test]
    fn records_come_back_and_a_broken_one_does_not_hide_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let state = StateDir::open(dir.path()).unwrap();
        let record = super::super::record::tests::example();
        state.create(&record.id).unwrap();
        state.write(&record).unwrap();
        for (id, text) in [("half", "{\"version\":1,"), ("future", "{\"version\":99}")] {
            state.create(id).unwrap();
            fs::write(dir.path().join("views").join(id).join("view.json"), text).unwrap();
        }
        state.create("empty").unwrap();
        assert_eq!(state.records().unwrap(), std::slice::from_ref(&record));
        assert!(!dir.path().join("views/empty").exists() && dir.path().join("views/future").exists());
        state.remove(&record.id);
        assert!(state.records().unwrap().is_empty());
    }
}
