//! `gc` and `verify`: what nothing pins goes, the number of packs stays bounded, every object still hashes to its id.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::Result;
use crate::objects::reach::Limits;
use crate::packing::{self, Counts};
use crate::repository::Repository;
use crate::repository::shallow::Boundary;

mod files;
mod verify;

pub use verify::{VerifyReport, verify};

/// A fetched ref that nobody asked for this long is forgotten, and with it what only it kept.
const UNUSED: Duration = Duration::from_secs(14 * 24 * 60 * 60);

/// Packs from which on every look-up and every fetch pays for them.
const MANY_PACKS: usize = 32;

/// What `gc` did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Bytes on disk before.
    pub bytes_before: u64,
    /// Bytes on disk after.
    pub bytes_after: u64,
    /// Packs before and after.
    pub packs_before: usize,
    /// Packs after.
    pub packs_after: usize,
}

/// Whether so many packs have come together that [`gc`] is worth its time.
pub fn is_due(repository: &Repository) -> Result<bool> {
    let objects = repository.objects();
    objects.relist()?;
    Ok(objects.packs().len() > MANY_PACKS)
}

/// Packs what the pins and known refs reach into one pack and drops the rest. Interrupted at any point it loses nothing.
///
/// Waits while the repository is fetched. Pins of dead processes, and known refs that nobody asked for within 14 days, keep nothing.
///
/// # Errors
/// [`crate::Fault::Corrupt`] when something that is to be kept is missing or broken; nothing is removed then.
pub fn gc(repository: &Repository) -> Result<GcReport> {
    let never = AtomicBool::new(false);
    let _lock = repository.lock(&never)?;
    {
        let _pins = repository.lock_pins()?;
        repository.expire(UNUSED)?;
    }
    let objects = repository.objects();
    objects.relist()?;
    let before = files::Files::list(objects.directory())?;
    let mut report = GcReport {
        bytes_before: before.bytes,
        bytes_after: before.bytes,
        packs_before: before.packs.len(),
        packs_after: before.packs.len(),
    };
    let boundary = repository.boundary()?;
    let tips = repository.tips()?;
    let limits = Limits { boundary: &boundary, depth: 0, skip: &|_| false, problem: &mut Err };
    let mut kept = objects.reach(&tips, limits)?.ids;
    // One that is missing is lost already, and no reason to keep everything else.
    kept.extend(repository.kept_objects()?.into_iter().filter(|id| objects.contains_now(id)));

    let packed: u64 = objects.packs().iter().map(|pack| u64::from(pack.index().num_objects())).sum();
    let tidy = before.packs.len() <= 1 && before.loose.is_empty() && packed == kept.len() as u64;
    let new = if tidy { None } else { packing::copy(&objects, kept.iter().copied(), &repository.pack_dir(), &Counts::default(), &never)? };
    if let Some(new) = &new {
        files::check_index(&new.path, &kept, objects.hash())?;
    }

    // From here on until the end nobody can pin what is about to go.
    let _pins = repository.lock_pins()?;
    let wanted = repository.tips()?.into_iter().chain(repository.kept_objects()?.into_iter().filter(|id| objects.contains_now(id)));
    if wanted.into_iter().any(|id| !kept.contains(&id)) {
        // Somebody pinned another commit or object meanwhile: the next run sees it. All is kept, the new pack too.
        tracing::info!(repository = %repository.git_dir().display(), "a commit was pinned meanwhile, nothing is removed this time");
    } else {
        let cuts: Boundary = boundary.iter().copied().filter(|id| kept.contains(id)).collect();
        if cuts != boundary {
            repository.shrink_boundary(&cuts)?;
        }
        if !tidy {
            before.remove(new.as_ref().map(|new| new.path.as_path()))?;
        }
    }
    objects.relist()?;
    let after = files::Files::list(objects.directory())?;
    report.bytes_after = after.bytes;
    report.packs_after = after.packs.len();
    Ok(report)
}
