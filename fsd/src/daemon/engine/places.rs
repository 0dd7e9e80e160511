//! What stands where views are mounted and shown, and what of it may be taken away.
//!
//! Promises: only mounts of this daemon's views are taken away, and dead ones of gitmount, which are of use to nobody; anybody else's stays,
//! and is told of. The state directory is the daemon's own.

use std::path::Path;
use std::sync::Arc;

use gitmount_proto::mount_table::{self, Entry};
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};

use super::Engine;
use crate::daemon::bind;
use crate::daemon::shown::{Shown, lock};
use crate::daemon::standing::{self, Standing, covered, is_dead, look, taken};

/// The device of a view's mount while that is served.
pub(super) fn device(view: &Shown) -> Option<u64> {
    view.mount().filter(|mount| !mount.is_finished()).and_then(|mount| mount.device())
}

impl Engine {
    /// Whether what one sees at `target` may go: it is this daemon's, or a dead mount of gitmount's.
    fn may_go(&self, target: &Path, entry: &Entry) -> bool {
        if !entry.is_gitmount() {
            return false;
        }
        let served = |view: &Arc<Shown>| device(view) == Some(entry.device);
        let inner = self.lock();
        if inner.views.iter().any(served) || inner.ending.iter().filter_map(std::sync::Weak::upgrade).any(|view| served(&view)) {
            return true;
        }
        drop(inner);
        is_dead(target, entry.device)
    }

    /// Refuses a target on which somebody else's mount stands.
    pub(super) fn refuse_taken(&self, table: &[Entry], target: &Path) -> Result<()> {
        match mount_table::top(table, target) {
            Some(entry) if !self.may_go(target, entry) => Err(taken(target, entry)),
            _ => Ok(()),
        }
    }

    /// Takes away what an earlier daemon, or a publish that was cut off, left at a target.
    pub(super) fn clear(&self, target: &Path) -> Result<()> {
        bind::detach_while(target, |entry| self.may_go(target, entry))
    }

    /// Takes away whatever is mounted at a target: it is its caller's, who wants it gone.
    pub(super) fn free(&self, target: &Path) -> Result<()> {
        bind::detach_while(target, |entry| {
            if !entry.is_gitmount() {
                let kind = String::from_utf8_lossy(&entry.kind);
                tracing::warn!(target_dir = %target.display(), %kind, "a mount that somebody else laid over a target goes with it");
            }
            true
        })
    }

    /// Takes a view's bind mount away; what lies over it stays, and it below that.
    pub(super) fn unbind(&self, view: &Shown, target: &Path) -> Result<()> {
        let Some(mount) = view.mount() else { return Ok(()) };
        let is_its = |entry: &Entry| entry.is_gitmount() && Some(entry.device) == mount.device();
        bind::detach_while(target, |entry| is_its(entry) && (!mount.is_finished() || is_dead(target, entry.device)))
    }

    /// Whether a view can be bound to targets, by a table of a moment ago: what went since is seen once it was bound. What somebody unmounted
    /// is put back from a target that still shows it.
    pub(super) fn is_ready(&self, view: &Shown, table: &[Entry]) -> bool {
        let Some(device) = device(view) else { return false };
        let point = self.context.state.mount_point(&view.id);
        let stands = |table: &[Entry]| look(table, &point, Some(device)) == Standing::Shown;
        if stands(table) {
            return true;
        }
        // Two that put it back at once would mount it twice.
        let _one = lock(&self.mending);
        let Ok(table) = standing::table() else { return false };
        stands(&table) || self.put_back(view, device, &table)
    }

    fn put_back(&self, view: &Shown, device: u64, table: &[Entry]) -> bool {
        let point = self.context.state.mount_point(&view.id);
        let targets = view.targets().into_iter().map(|target| target.path());
        let Some(source) = targets.into_iter().find(|target| look(table, target, Some(device)) == Standing::Shown) else { return false };
        if look(table, &point, Some(device)) != Standing::Nothing {
            return false;
        }
        match self.context.state.create(&view.id).and_then(|()| bind::bind(&source, device, &point)) {
            Ok(()) => {
                tracing::warn!(view = %view.id, point = %point.display(), "what somebody unmounted is mounted again");
                true
            }
            Err(error) => {
                tracing::warn!(view = %view.id, %error, "what somebody unmounted cannot be mounted again");
                false
            }
        }
    }

    /// Shows a view at a target on which nothing stands.
    pub(super) fn bind(&self, view: &Shown, target: &Path) -> Result<()> {
        let point = self.context.state.mount_point(&view.id);
        let gone = || StoreError::new(Fault::Cancelled, format!("{} was unmounted at this moment: ask again", point.display()));
        bind::bind(&point, device(view).ok_or_else(gone)?, target)
    }

    /// What somebody did to a view's mounts without asking, and what helps; the first of several.
    pub(super) fn trouble(&self, view: &Shown, table: &[Entry]) -> Option<Trouble> {
        let mount = view.mount()?;
        let device = mount.device()?;
        // What a call works on is about to change.
        let busy = |target: &Path| self.lock().busy.contains_key(target);
        let targets = view.targets().into_iter().filter(|target| target.bound).map(|target| target.path());
        let targets: Vec<_> = targets.filter(|target| !busy(target)).collect();
        let end = |target: &Path| format!("or end it with `gitmount unmount {}`", target.display());
        if let (true, Some(target)) = (mount.is_finished(), targets.first()) {
            let text = format!("{} was ended from outside, so nobody serves it: mount it again, {}", target.display(), end(target));
            return Some(Trouble::Unmounted(text));
        }
        let point = self.context.state.mount_point(&view.id);
        let at = |target: &Path| look(table, target, Some(device));
        for target in &targets {
            match at(target) {
                Standing::Shown => {}
                Standing::Nothing => {
                    let text = format!("{} was unmounted without the daemon: mount it again, {}", target.display(), end(target));
                    return Some(Trouble::Unmounted(text));
                }
                Standing::Other(entry) if entry.is_gitmount() => {
                    let text = format!("{} shows another mount, such as a dead one: mount it again, {}", target.display(), end(target));
                    return Some(Trouble::Unmounted(text));
                }
                Standing::Covered(by) => return Some(Trouble::Covered(covered(target, &by))),
                Standing::Other(by) => return Some(Trouble::Covered(format!("{}, and mount it again", covered(target, &by)))),
            }
        }
        let first = targets.first()?;
        (at(&point) != Standing::Shown).then(|| {
            let (point, first) = (point.display(), first.display());
            Trouble::Unmounted(format!(
                "{point} was unmounted without the daemon: what is shown goes on, mount {first} again to put it back"
            ))
        })
    }
}

/// What is wrong with a view's mounts.
#[derive(Debug)]
pub(super) enum Trouble {
    /// One of them is gone.
    Unmounted(String),
    /// Something else lies over one.
    Covered(String),
}
