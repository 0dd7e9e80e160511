//! The object database of one repository with its alternates: which packs there are, and where an object is.
//!
//! The list of packs is read when it is missed: an object that is not found makes it be read again, so packs that a later fetch adds
//! and packs that a repack replaces are seen without being told. Packs that are mapped go on being read after they were removed.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;

use super::loose::Loose;
use super::pack::{Pack, PackAccess};
use crate::error::{Fault, Result, StoreError};

pub(crate) struct Database {
    directory: PathBuf,
    hash: gix::hash::Kind,
    known: ArcSwap<Known>,
    refreshing: Mutex<()>,
    /// A reader found something broken or missing.
    pub(super) damage: AtomicBool,
}

/// How often packs are listed for one object: a bound instead of trust that nobody replaces them all the time.
const MANY_LISTINGS: usize = 64;

/// The packs and loose directories of one moment.
#[derive(Default)]
pub(crate) struct Known {
    /// Packs with the most objects first.
    pub(crate) packs: Vec<Arc<Pack>>,
    /// The objects directories: the repository's own first, then its alternates.
    pub(crate) directories: Vec<PathBuf>,
}

/// Where an object is.
pub(super) enum Found {
    Packed(Arc<Pack>, u64),
    Loose(Box<Loose>),
}

impl Database {
    pub(super) fn open(directory: PathBuf, hash: gix::hash::Kind) -> Result<Self> {
        let known = read_known(&directory, hash, &Known::default())?;
        Ok(Database { directory, hash, known: ArcSwap::from_pointee(known), refreshing: Mutex::new(()), damage: AtomicBool::new(false) })
    }

    pub(super) fn hash(&self) -> gix::hash::Kind {
        self.hash
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn known(&self) -> Arc<Known> {
        self.known.load_full()
    }

    /// Finds `id`; `None` when it is nowhere even after the packs were listed again.
    pub(super) fn find(&self, id: &gix::hash::oid) -> Result<Option<Found>> {
        // A pack may go between listing and opening it, and one that is moved while the directory is read may be missed: only two listings
        // that are the same say that the object is nowhere.
        for _ in 0..MANY_LISTINGS {
            let known = self.known.load();
            if let Some(found) = known.find(id)? {
                return Ok(Some(found));
            }
            let before = Arc::clone(&known);
            drop(known);
            if !self.refresh(&before)? {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Whether `id` is there, as far as the last listing of packs knows.
    pub(super) fn contains_now(&self, id: &gix::hash::oid) -> bool {
        let known = self.known.load();
        known.packs.iter().any(|pack| pack.offset_of(id).is_some()) || {
            let hex = id.to_hex().to_string();
            known.directories.iter().any(|dir| dir.join(&hex[..2]).join(&hex[2..]).exists())
        }
    }

    /// Lists the packs again unless somebody else did since `before`; whether anything can have changed.
    pub(super) fn refresh(&self, before: &Arc<Known>) -> Result<bool> {
        let _one = self.refreshing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let current = self.known.load_full();
        if !Arc::ptr_eq(&current, before) {
            return Ok(true);
        }
        self.list(&current)
    }

    /// Lists the packs again, whoever else did: from a moment after the call.
    pub(super) fn relist(&self) -> Result<()> {
        let _one = self.refreshing.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.list(&self.known.load_full()).map(drop)
    }

    /// Replaces the list `current` by what is there; whether that is something else. The lock of refreshing is held.
    fn list(&self, current: &Arc<Known>) -> Result<bool> {
        let fresh = read_known(&self.directory, self.hash, current)?;
        let same = fresh.directories == current.directories
            && fresh.packs.len() == current.packs.len()
            && fresh.packs.iter().zip(&current.packs).all(|(a, b)| Arc::ptr_eq(a, b));
        if !same {
            self.known.store(Arc::new(fresh));
        }
        Ok(!same)
    }
}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Database").field(&self.directory).finish()
    }
}

impl Known {
    fn find(&self, id: &gix::hash::oid) -> Result<Option<Found>> {
        for pack in &self.packs {
            if let Some(offset) = pack.offset_of(id)
                && pack.data()?.is_some()
            {
                return Ok(Some(Found::Packed(Arc::clone(pack), offset)));
            }
        }
        for directory in &self.directories {
            if let Some(loose) = Loose::open(directory, id)? {
                return Ok(Some(Found::Loose(Box::new(loose))));
            }
        }
        Ok(None)
    }
}

fn read_known(directory: &Path, hash: gix::hash::Kind, before: &Known) -> Result<Known> {
    let unreadable = |dir: &Path| StoreError::new(Fault::Disk, format!("object directory {} cannot be read", dir.display()));
    let mut directories = vec![directory.to_owned()];
    let alternates = gix::odb::alternate::resolve(directory.to_owned(), directory)
        .map_err(|err| StoreError::new(Fault::Corrupt, format!("alternates of {} cannot be read", directory.display())).caused_by(err))?;
    directories.extend(alternates);
    let mut packs = Vec::new();
    for dir in &directories {
        let entries = match std::fs::read_dir(dir.join("pack")) {
            Ok(entries) => entries,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => continue,
            Err(err) => return Err(unreadable(dir).caused_by(err)),
        };
        for entry in entries {
            let path = entry.map_err(|err| unreadable(dir).caused_by(err))?.path();
            if path.extension().is_none_or(|extension| extension != "idx") {
                continue;
            }
            let pack_path = path.with_extension("pack");
            let reused = before.packs.iter().find(|pack| pack.path() == pack_path && pack.is_current());
            match reused.map_or_else(|| Pack::open(&path, hash).map(Arc::new), |pack| Ok(Arc::clone(pack))) {
                Ok(pack) => packs.push(pack),
                // One bad index must not hide the other packs; what is only in it will be reported as missing.
                Err(_) if !path.exists() => {}
                Err(err) => tracing::warn!(index = %path.display(), "ignoring a pack index that cannot be read: {err}"),
            }
        }
    }
    packs.sort_by(|a, b| b.index().num_objects().cmp(&a.index().num_objects()).then_with(|| a.path().cmp(b.path())));
    Ok(Known { packs, directories })
}
