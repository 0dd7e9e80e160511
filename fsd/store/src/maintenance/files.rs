//! The files of an objects directory: what there is, and its removal in an order that never leaves an index without its pack.

use std::path::{Path, PathBuf};

use gix::hashtable::HashSet;

use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::objects::pack::{Pack, PackAccess};
use crate::points;
use crate::repository::durable::{self, disk};

/// What is in an objects directory.
pub(super) struct Files {
    directory: PathBuf,
    /// The `.pack` files.
    pub(super) packs: Vec<PathBuf>,
    /// Loose objects, with the ids that their names say.
    pub(super) loose: Vec<(PathBuf, ObjectId)>,
    /// Bytes of all of them, and of what belongs to the packs.
    pub(super) bytes: u64,
}

impl Files {
    pub(super) fn list(directory: &Path) -> Result<Self> {
        let mut files = Files { directory: directory.to_owned(), packs: Vec::new(), loose: Vec::new(), bytes: 0 };
        for path in entries(&directory.join("pack"))? {
            files.count(&path)?;
            if path.extension().is_some_and(|extension| extension == "pack") {
                files.packs.push(path);
            }
        }
        for dir in entries(directory)? {
            let Some(first) = dir.file_name().and_then(|name| name.to_str()).filter(|name| name.len() == 2).map(str::to_owned) else {
                continue;
            };
            for path in entries(&dir)? {
                let id = path.file_name().and_then(|name| name.to_str()).map(|rest| format!("{first}{rest}"));
                if let Some(id) = id.and_then(|hex| ObjectId::from_hex(hex.as_bytes()).ok()) {
                    files.count(&path)?;
                    files.loose.push((path, id));
                }
            }
        }
        Ok(files)
    }

    fn count(&mut self, path: &Path) -> Result<()> {
        self.bytes += std::fs::metadata(path).map_err(|err| disk(path, "read", err))?.len();
        Ok(())
    }

    /// Removes all of it but the pack `keep`. Readers that have a pack mapped go on reading it.
    pub(super) fn remove(&self, keep: Option<&Path>) -> Result<()> {
        for (path, _) in &self.loose {
            durable::remove(path)?;
        }
        remove_packs(&self.directory.join("pack"), &self.packs, keep)
    }
}

/// Removes the packs `packs` of the pack directory `directory`, but for `keep`.
pub(super) fn remove_packs(directory: &Path, packs: &[PathBuf], keep: Option<&Path>) -> Result<()> {
    for pack in packs.iter().filter(|pack| Some(pack.as_path()) != keep) {
        // First the index, by which it is found.
        for extension in ["idx", points::EXTENSION, "rev", "bitmap", "mtimes", "pack"] {
            durable::remove(&pack.with_extension(extension))?;
        }
    }
    durable::sync_directory(directory)
}

/// Reads a new pack's index back: it must be whole and lead to an entry for each object.
pub(super) fn check_index(pack: &Path, ids: &HashSet<ObjectId>, hash: gix::hash::Kind) -> Result<()> {
    let wrong = |what: &str| StoreError::new(Fault::Corrupt, format!("the new pack {} {what}", pack.display()));
    let written = Pack::open(&pack.with_extension("idx"), hash)?;
    let index = written.index();
    index
        .verify_checksum(&mut gix::progress::Discard, &std::sync::atomic::AtomicBool::new(false))
        .map_err(|err| wrong("has a broken index").caused_by(err))?;
    for id in ids {
        let offset = written.offset_of(id).ok_or_else(|| wrong(&format!("lacks object {id}")))?;
        written.entry(offset)?;
    }
    Ok(())
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let listing = match std::fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(err) if matches!(err.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => return Ok(vec![]),
        Err(err) => return Err(disk(dir, "read", err)),
    };
    let paths: std::io::Result<Vec<PathBuf>> = listing.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut paths = paths.map_err(|err| disk(dir, "read", err))?;
    paths.sort();
    Ok(paths)
}
