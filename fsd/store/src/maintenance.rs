//! `maintain`, `gc` and `verify`: what nothing pins goes, the number of packs stays bounded, every object still hashes to its id.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::error::{Fault, Result, StoreError};
use crate::objects::reach::Limits;
use crate::packing::{self, Counts};
use crate::repository::Repository;

mod files;
pub(crate) mod heal;
mod merge;
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

/// Bytes that come on top of a repository's own before it is collected: collecting less is not worth its time.
const SLACK: u64 = 64 << 20;

/// Remembers how many bytes of packs the last [`gc`] left.
const LEFT: &str = "gitmount-collected";

/// Whether so many packs, or so many bytes since the last [`gc`], have come together that [`maintain`] has something to do.
pub fn is_due(repository: &Repository) -> Result<bool> {
    let objects = repository.objects();
    objects.relist()?;
    Ok(objects.packs().len() > MANY_PACKS || has_grown(repository)?)
}

/// Does what is due, for a process that fetches: mostly it merges small packs, and leaves the big ones alone; [`gc`] comes when the
/// repository has doubled since the last one. `None` when nothing is due. Waits while the repository is fetched.
///
/// # Errors
/// As [`gc`], also for `stop`.
pub fn maintain(repository: &Repository, stop: &AtomicBool) -> Result<Option<GcReport>> {
    if !is_due(repository)? {
        return Ok(None);
    }
    if has_grown(repository)? {
        return gc(repository, stop).map(Some);
    }
    let _lock = repository.lock(stop)?;
    let directory = repository.objects().directory().to_owned();
    let before = files::Files::list(&directory)?;
    suspecting(repository, merge::merge(repository, stop))?;
    let after = files::Files::list(&directory)?;
    Ok(Some(GcReport {
        bytes_before: before.bytes,
        bytes_after: after.bytes,
        packs_before: before.packs.len(),
        packs_after: after.packs.len(),
    }))
}

fn has_grown(repository: &Repository) -> Result<bool> {
    let (all, biggest) = merge::sizes(repository)?;
    let left = std::fs::read_to_string(repository.git_dir().join(LEFT)).ok().and_then(|text| text.trim().parse().ok());
    Ok(all > left.unwrap_or(biggest).saturating_mul(2).saturating_add(SLACK))
}

/// Packs what the pins and known refs reach into one pack and drops the rest. Interrupted at any point it loses nothing.
///
/// Waits while the repository is fetched. Pins of dead processes, and known refs that nobody asked for within 14 days, keep nothing.
///
/// # Errors
/// [`crate::Fault::Corrupt`] when something that is to be kept is missing or broken, and [`crate::Fault::Cancelled`] soon after `stop` is
/// set; nothing is removed then.
pub fn gc(repository: &Repository, stop: &AtomicBool) -> Result<GcReport> {
    let _lock = repository.lock(stop)?;
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
    // What is known to be lost is no reason to keep everything else; what is found to be lost now is looked at before anything goes.
    let lost = repository.is_incomplete()?;
    let mut problem = |err: StoreError| if lost && err.fault() == Fault::Corrupt { Ok(()) } else { Err(err) };
    let limits = Limits { boundary: &boundary, depth: 0, skip: &|_| false, stop, problem: &mut problem };
    let mut kept = suspecting(repository, objects.reach(&tips, limits))?.ids;
    if lost {
        kept.retain(|id| objects.contains_now(id));
    }
    // One that is missing is lost already, and no reason to keep everything else.
    kept.extend(repository.kept_objects()?.into_iter().filter(|id| objects.contains_now(id)));

    let packed: u64 = objects.packs().iter().map(|pack| u64::from(pack.index().num_objects())).sum();
    let tidy = before.packs.len() <= 1 && before.loose.is_empty() && packed == kept.len() as u64;
    let copy = || packing::copy(&objects, kept.iter().copied(), &repository.pack_dir(), &Counts::default(), stop);
    let new = if tidy { None } else { suspecting(repository, copy())? };
    if let Some(new) = &new {
        files::check_index(&new.path, &kept, objects.hash())?;
    }

    // From here on until the end nobody can pin what is about to go.
    let _pins = repository.lock_pins()?;
    let mut wanted = repository.tips()?.into_iter().chain(repository.kept_objects()?).filter(|id| objects.contains_now(id));
    if wanted.any(|id| !kept.contains(&id)) {
        // Somebody pinned another commit or object meanwhile: the next run sees it. All is kept, the new pack too.
        tracing::info!(repository = %repository.git_dir().display(), "a commit was pinned meanwhile, nothing is removed this time");
    } else {
        repository.shrink_boundary(|id| kept.contains(id))?;
        if !tidy {
            let going: Vec<_> = before.packs.iter().filter(|pack| new.as_ref().is_none_or(|new| new.path != **pack)).cloned().collect();
            repository.record_packs(&going)?;
            before.remove(new.as_ref().map(|new| new.path.as_path()))?;
        }
    }
    objects.relist()?;
    let after = files::Files::list(objects.directory())?;
    report.bytes_after = after.bytes;
    report.packs_after = after.packs.len();
    // Only what decides when the next run is due: it need not survive a crash.
    let (left, _) = merge::sizes(repository)?;
    let _ = std::fs::write(repository.git_dir().join(LEFT), left.to_string());
    Ok(report)
}

/// Leaves a mark when something was broken, so that the next fetch mends it.
fn suspecting<T>(repository: &Repository, result: Result<T>) -> Result<T> {
    if result.as_ref().is_err_and(|err| err.fault() == Fault::Corrupt) {
        repository.suspect()?;
    }
    result
}
