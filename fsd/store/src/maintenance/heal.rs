//! What is broken is removed, and what can still be read of it is kept, so that a fetch sees what is missing and gets it again.

use std::sync::atomic::AtomicBool;

use super::files::{self, Files};
use super::verify::Check;
use crate::error::{Fault, Result};
use crate::ids::ObjectId;
use crate::objects::pack::Pack;
use crate::objects::reach::Limits;
use crate::packing::{self, Counts};
use crate::repository::{Condition, Repository, durable};

/// What [`examine`] did and found.
pub(crate) struct Examined {
    /// [`Condition::Incomplete`] when something that is to be kept is not whole, else [`Condition::Sound`].
    pub(crate) condition: Condition,
    /// Whether anything was broken, and is removed now.
    pub(crate) removed: bool,
}

/// Looks at everything in a repository whose lock is held, and removes what is broken.
pub(crate) fn examine(repository: &Repository, stop: &AtomicBool) -> Result<Examined> {
    let objects = repository.objects();
    objects.relist()?;
    let mut check = Check::new(&objects, repository.git_dir(), stop);
    let files = Files::list(objects.directory())?;
    let (mut sound, mut broken, mut readable) = (Vec::new(), Vec::new(), Vec::new());
    for path in &files.packs {
        match Pack::open(&path.with_extension("idx"), objects.hash()) {
            Ok(pack) => {
                let state = check.pack(&pack)?;
                if state.sound {
                    sound.push(pack);
                } else {
                    broken.push(path.clone());
                    readable.extend(state.readable);
                }
            }
            Err(_) => broken.push(path.clone()),
        }
    }
    readable.retain(|id: &ObjectId| !sound.iter().any(|pack| pack.index().lookup(id).is_some()));
    readable.sort_unstable();
    readable.dedup();
    let directory = repository.pack_dir();
    let mut saved = None;
    if !readable.is_empty() {
        match packing::copy(&objects, readable, &directory, &Counts::default(), stop) {
            Ok(new) => saved = new,
            // What cannot be copied either is fetched again like the rest.
            Err(err) if err.fault() == Fault::Corrupt => tracing::warn!("nothing can be saved of broken packs: {err}"),
            Err(err) => return Err(err),
        }
    }
    for pack in &broken {
        tracing::warn!(pack = %pack.display(), "removing a broken pack; what is missing then is fetched again");
    }
    repository.record_packs(&broken)?;
    files::remove_packs(&directory, &broken, saved.as_ref().map(|new| new.path.as_path()))?;
    let mut removed = !broken.is_empty();
    for (path, id) in &files.loose {
        check.go_on()?;
        if !check.loose(path, *id) {
            durable::remove(path)?;
            removed = true;
        }
    }
    objects.relist()?;
    let condition = judge(repository, stop)?;
    repository.examined(removed || condition != Condition::Sound);
    Ok(Examined { condition, removed })
}

/// Looks at everything if somebody said that something is broken.
pub(crate) fn examine_suspect(repository: &Repository, stop: &AtomicBool) -> Result<Condition> {
    match repository.condition()? {
        Condition::Suspect => {}
        known => return Ok(known),
    }
    let _lock = repository.lock(stop)?;
    // Somebody else may have looked while this waited, or what seemed to be lost was being replaced.
    match repository.condition()? {
        Condition::Suspect => Ok(examine(repository, stop)?.condition),
        known => Ok(known),
    }
}

/// Looks whether all that is to be kept is whole, and remembers it. The repository's lock is held.
pub(crate) fn judge(repository: &Repository, stop: &AtomicBool) -> Result<Condition> {
    let tips = repository.tips()?;
    let whole = whole_tips(repository, &tips, stop)?;
    let condition = if whole.len() == tips.len() { Condition::Sound } else { Condition::Incomplete };
    if condition == Condition::Incomplete {
        // The host is not to believe that the history is here down to a cut below what is not whole.
        repository.tidy_boundary_to(&whole)?;
    }
    repository.set_condition(condition)?;
    Ok(condition)
}

/// Those of the commits `tips` that are there with all that is below them.
pub(crate) fn whole_tips(repository: &Repository, tips: &[ObjectId], stop: &AtomicBool) -> Result<Vec<ObjectId>> {
    let objects = repository.objects();
    let boundary = repository.boundary()?;
    let mut whole = Vec::with_capacity(tips.len());
    for tip in tips {
        let mut missing = false;
        let mut note = |_| {
            missing = true;
            Ok(())
        };
        let limits = Limits { boundary: &boundary, depth: 0, skip: &|_| false, stop, problem: &mut note };
        let ids = objects.reach(&[*tip], limits)?.ids;
        if !missing && ids.iter().all(|id| objects.contains_now(id)) {
            whole.push(*tip);
        }
    }
    Ok(whole)
}
