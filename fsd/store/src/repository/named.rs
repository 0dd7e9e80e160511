//! What is kept by name, whether its process lives or not: commits that the views of a daemon serve, and single objects that are still
//! open in them. Nothing here is swept: whoever made a name removes it.

use std::path::{Path, PathBuf};

use super::refs::{self, Refs};
use super::{Repository, durable};
use crate::error::{Fault, Result, StoreError};
use crate::ids::{CommitId, ObjectId};

/// Where the lists of single objects are, in the git directory: a file a name, an id a line.
const LISTS: &str = "gitmount-keep";

impl Repository {
    /// Keeps a commit that is present, with everything below it, under `name` until [`Repository::unpin_named`], across processes and
    /// crashes. A name stands for one commit: naming another one moves it in one step.
    ///
    /// # Errors
    /// [`Fault::NotFound`] when the commit is not there, [`Fault::Usage`] for an empty name or one that is no file name when encoded.
    pub fn pin_named(&self, name: &str, commit: CommitId) -> Result<()> {
        let path = file(&self.refs.named(), name)?;
        let _lock = self.lock_pins()?;
        self.close(commit)?;
        durable::write(&path, format!("{commit}\n").as_bytes())
    }

    /// Ends what [`Repository::pin_named`] began; a name that there is not is fine.
    pub fn unpin_named(&self, name: &str) -> Result<()> {
        let path = file(&self.refs.named(), name)?;
        let _lock = self.lock_pins()?;
        forget(&path)
    }

    /// All named pins, sorted by name.
    pub fn named_pins(&self) -> Result<Vec<(String, CommitId)>> {
        let mut all = Vec::new();
        for (path, id) in self.refs.all_named()? {
            if let Some(name) = path.file_name().and_then(|name| name.to_str()).and_then(refs::decode) {
                all.push((name, CommitId::new(id)));
            }
        }
        all.sort();
        Ok(all)
    }

    /// Keeps single objects that are present (blobs of former commits that are still open) under `name`, instead of those that were kept
    /// under it before; an empty list removes it. Names are as in [`Repository::pin_named`], and independent of those.
    ///
    /// # Errors
    /// As [`Repository::pin_named`]; the former list stands then.
    pub fn keep_objects(&self, name: &str, ids: &[ObjectId]) -> Result<()> {
        let path = file(&self.git_dir.join(LISTS), name)?;
        let _lock = self.lock_pins()?;
        if ids.is_empty() {
            return forget(&path);
        }
        let mut text = String::with_capacity(ids.len() * 41);
        for id in ids {
            self.require(*id)?;
            text.push_str(&id.to_string());
            text.push('\n');
        }
        durable::write(&path, text.as_bytes())
    }

    /// Every object of every list.
    pub(crate) fn kept_objects(&self) -> Result<Vec<ObjectId>> {
        let mut all = Vec::new();
        for path in refs::list(&self.git_dir.join(LISTS))? {
            let text = match std::fs::read(&path) {
                Ok(text) => text,
                Err(err) if err.kind() == std::io::ErrorKind::NotFound => continue,
                Err(err) => return Err(durable::disk(&path, "read", err)),
            };
            for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
                let id = ObjectId::from_hex(line)
                    .map_err(|err| StoreError::new(Fault::Corrupt, format!("file {} is malformed", path.display())).caused_by(err))?;
                all.push(id);
            }
        }
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    /// Checks that an object is there to be kept. The lock of the pins is held, so that it stays.
    pub(super) fn require(&self, id: ObjectId) -> Result<()> {
        let objects = self.objects.load();
        // Packs that were removed go on being read while nobody looks: they are no place to keep something in.
        objects.relist()?;
        if objects.contains(id)? {
            return Ok(());
        }
        Err(StoreError::new(Fault::NotFound, format!("object {id} is not in the store: fetch it first")))
    }
}

/// Whether single objects are kept.
pub(super) fn has_lists(git_dir: &Path) -> Result<bool> {
    Ok(!refs::list(&git_dir.join(LISTS))?.is_empty())
}

/// Removes what killed processes left half written. The caller holds the lock of the pins.
pub(super) fn sweep(git_dir: &Path, refs: &Refs) -> Result<()> {
    super::clean::remove_locks(&refs.named(), &[])?;
    super::clean::remove_locks(&git_dir.join(LISTS), &[])
}

/// The file of `name` in `dir`.
fn file(dir: &Path, name: &str) -> Result<PathBuf> {
    let encoded = refs::encode(name);
    // Long names are encoded by their hash, which nothing leads back from.
    if name.is_empty() || refs::decode(&encoded).as_deref() != Some(name) {
        return Err(StoreError::new(
            Fault::Usage,
            format!("name {name:?} is empty or too long to keep something under: give a shorter one"),
        ));
    }
    Ok(dir.join(encoded))
}

fn forget(path: &Path) -> Result<()> {
    durable::remove(path)?;
    // Durable, too: a name that comes back after a crash would keep its objects for ever.
    match path.parent() {
        Some(dir) if dir.exists() => durable::sync_directory(dir),
        _ => Ok(()),
    }
}
