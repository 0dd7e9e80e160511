//! What a killed fetch leaves behind. Only called under the repository's locks, so that nothing of a live process can be hit.

use std::path::{Path, PathBuf};

use super::durable;
use crate::error::Result;

/// Temporary files in the pack directory: ours and gix's.
const TEMPORARY: [&str; 3] = [".tmp", "tmp_", ".gitmount-"];

/// Removes temporary packs, packs and indices without the other, keep files and lock files.
pub(super) fn leftovers(git_dir: &Path) -> Result<()> {
    let packs = git_dir.join("objects/pack");
    for path in entries(&packs)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let unfinished = TEMPORARY.iter().any(|prefix| name.starts_with(prefix));
        // A pack without an index was never part of the repository, and neither was an index without a pack.
        let alone = |own: &str, other: &str| name.ends_with(own) && !path.with_extension(other).exists();
        if unfinished || alone(".pack", "idx") || alone(".idx", "pack") || alone(".points", "pack") || name.ends_with(".keep") {
            remove_any(&path)?;
        }
    }
    for path in entries(git_dir)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.ends_with(".lock") && name != super::LOCK_FILE || name.starts_with(".tmp") {
            remove_any(&path)?;
        }
    }
    // Pins are written under a lock of their own, also while somebody else fetches.
    let pins = [super::refs::PINS, super::refs::NAMED].map(|dir| git_dir.join(dir));
    remove_locks(&git_dir.join("refs"), &pins)
}

/// Removes the lock files below `dir`, but for those below `except`.
pub(super) fn remove_locks(dir: &Path, except: &[PathBuf]) -> Result<()> {
    for path in entries(dir)? {
        if path.is_dir() {
            if !except.contains(&path) {
                remove_locks(&path, except)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "lock") {
            durable::remove(&path)?;
        }
    }
    Ok(())
}

fn remove_any(path: &Path) -> Result<()> {
    if path.is_dir() {
        return std::fs::remove_dir_all(path).map_err(|err| durable::disk(path, "removed", err));
    }
    durable::remove(path)
}

fn entries(dir: &Path) -> Result<Vec<PathBuf>> {
    let listing = match std::fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(err) => return Err(durable::disk(dir, "read", err)),
    };
    listing.map(|entry| entry.map(|entry| entry.path()).map_err(|err| durable::disk(dir, "read", err))).collect()
}
