//! Publish and unpublish.
//!
//! The order of a publish: fetch, pin, view, mount, record of the target, bind mount, record that it is bound, answer. A crash after any of
//! these leaves what the next start, a repeated publish or an unpublish puts right.

use std::path::Path;
use std::sync::Arc;

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};

use super::volume::Presented;
use super::{Claim, Engine, places};
use crate::daemon::bind;
use crate::daemon::credential::Credential;
use crate::daemon::events::Kind;
use crate::daemon::health::State;
use crate::daemon::policy::Offline;
use crate::daemon::record::Target;
use crate::daemon::shown::{Shown, lock};
use crate::daemon::spec::Spec;
use crate::daemon::standing::{self, Standing};

impl Engine {
    /// Shows a view at a target.
    pub(super) fn publish(&self, request: proto::PublishRequest) -> Result<proto::Published> {
        let spec = Spec::parse(request.view.as_ref().unwrap_or(&proto::ViewSpec::default()), &self.policy)?;
        let asked = super::operations::path(&request.target);
        if !self.lock().targets.contains_key(asked) && !asked.components().any(|part| part == std::path::Component::ParentDir) {
            // Before the path is looked up, which may be a question to this very process.
            standing::outside(&standing::table()?, asked)?;
        }
        let target = bind::absolute(asked)?;
        let volume = request.volume.clone().unwrap_or_default();
        let claim = self.claim(&target, false)?;
        if let Some(view) = self.shown_at(&target, &volume)? {
            if view.spec != spec {
                return Err(StoreError::new(
                    Fault::Usage,
                    format!("target {} shows {} already: unpublish it first, or give another target", target.display(), view.spec),
                ));
            }
            if !request.keep_credential {
                let credential = Credential::parse(request.credential.as_ref(), self.context.state.salt())?;
                self.entrust(&view, &target, &credential);
            }
            return Ok(self.published(&view, true));
        }
        let presented = self.presented(&claim, &request, &spec)?;
        let made = bind::prepare(&target)?;
        let handle = volume.name.clone();
        let shown = self.show_at(&claim, Target::new(&target, made, volume), &spec, &presented);
        if shown.is_err() && made {
            // It was made above and nothing is mounted on it.
            let _ = std::fs::remove_dir(&target);
        }
        let view = shown?;
        if let Presented::Rotated(credential) = &presented {
            self.rotate(&handle, credential);
        }
        view.tell(Kind::Published, format!("{} is shown at {}", view.spec, target.display()));
        if lock(&view.health).state == State::Stale {
            let error = lock(&view.health).error.clone().unwrap_or_default();
            view.tell(Kind::Stale, format!("the last known commit is shown: {error}"));
        }
        Ok(self.published(&view, false))
    }

    /// The view that is shown at `target` and works. What is left there of one that does not is cleared away.
    fn shown_at(&self, target: &Path, volume: &proto::Volume) -> Result<Option<Arc<Shown>>> {
        let view = self.lock().targets.get(target).cloned();
        let table = standing::table()?;
        if let Some(view) = &view {
            match standing::look(&table, target, places::device(view)) {
                Standing::Shown => {
                    // What new targets need; this one does not.
                    self.is_ready(view, &table);
                    return Ok(Some(Arc::clone(view)));
                }
                Standing::Covered(by) => {
                    // A volume's pod has it, whatever lies over it here, and would lose it with an error.
                    let same = |own: &Target| own.path() == target && own.is_of(&volume.name);
                    if view.targets().iter().any(same) {
                        return Ok(Some(Arc::clone(view)));
                    }
                    return Err(StoreError::new(Fault::Usage, standing::covered(target, &by)));
                }
                Standing::Other(_) | Standing::Nothing => {}
            }
        }
        self.refuse_taken(&table, target)?;
        standing::outside(&table, target)?;
        if let Some(view) = view {
            tracing::warn!(target_dir = %target.display(), "what was shown is gone, it is shown anew");
            self.take_away(&view, target, false);
        }
        self.clear(target)?;
        Ok(None)
    }

    /// Shows a view, one that is there already or a new one, at a target where nothing is shown.
    fn show_at(&self, claim: &Claim<'_>, target: Target, spec: &Spec, presented: &Presented) -> Result<Arc<Shown>> {
        let path = target.path();
        loop {
            let (view, credential) = match presented {
                Presented::Credential(own) | Presented::Rotated(own) => (self.find_or_make(claim, spec, own)?, Some(own)),
                Presented::Shared(view, theirs) if self.is_ready(view, &standing::table()?) => (Arc::clone(view), theirs.as_ref()),
                Presented::Shared(_, Some(theirs)) => (self.find_or_make(claim, spec, theirs)?, Some(theirs)),
                Presented::Shared(_, None) => {
                    return Err(StoreError::new(
                        Fault::Refused,
                        "what the volume shows was unmounted, and its credential is not known: publish it again with its credential",
                    ));
                }
            };
            if !view.attach(target.clone()) {
                if matches!(presented, Presented::Shared(..)) {
                    return Err(StoreError::new(Fault::Cancelled, "the volume's last target went at this moment: ask again"));
                }
                // Its last target went at this moment.
                continue;
            }
            self.lock().targets.insert(path.clone(), Arc::clone(&view));
            if let Some(credential) = credential {
                view.entrust(&path, credential);
            }
            let bound = (|| {
                claim.check()?;
                view.write()?;
                self.bind(&view, &path)?;
                view.bound(&path);
                view.write()
            })();
            if let Err(error) = bound {
                self.take_away(&view, &path, false);
                return Err(error);
            }
            return Ok(view);
        }
    }

    fn published(&self, view: &Shown, again: bool) -> proto::Published {
        let health = lock(&view.health).clone();
        // One that was shown before its host went away is stale to what begins with it now.
        let stale = health.state == State::Stale || (health.state == State::Failing && view.spec.offline == Offline::AllowStale);
        proto::Published {
            commit: view.commit().map(|commit| commit.to_string()).unwrap_or_default(),
            stale: if stale { health.error.unwrap_or_default() } else { String::new() },
            notices: lock(&view.notices).clone(),
            again,
        }
    }

    /// A target's credential; when it is another one, it is tried at once.
    pub(super) fn entrust(&self, view: &Arc<Shown>, target: &Path, credential: &Credential) {
        if view.entrust(target, credential) {
            view.tell(Kind::Credential, "the view has another credential".to_owned());
            view.catch_up();
            view.write_or_later();
        }
    }

    /// Takes away what is shown at a target. With `remove` the target is its caller's, and free afterwards in any case; without, a mount
    /// that somebody else laid over it is refused.
    pub(super) fn unpublish(&self, target: &Path, remove: bool) -> Result<()> {
        let Ok(target) = bind::absolute(target) else {
            // Without a parent there is no target.
            return Ok(());
        };
        let _claim = self.claim(&target, true)?;
        let view = self.lock().targets.get(&target).cloned();
        if remove {
            self.free(&target)?;
        } else if let Some(view) = &view {
            self.refuse_covered(view, &target)?;
        }
        if let Some(view) = view {
            let told = view.event(Kind::Unpublished, format!("{} is no longer shown at {}", view.spec, target.display()));
            self.take_away(&view, &target, remove);
            view.ring.push(told.clone());
            self.context.events.tell(told);
        }
        self.clear(&target)?;
        if remove {
            remove_target(&target)?;
        }
        Ok(())
    }

    /// Refuses to take away what lies below somebody else's mount.
    pub(super) fn refuse_covered(&self, view: &Shown, target: &Path) -> Result<()> {
        let table = standing::table()?;
        match standing::look(&table, target, places::device(view)) {
            Standing::Covered(by) => Err(StoreError::new(Fault::Usage, standing::covered(target, &by))),
            Standing::Other(_) => self.refuse_taken(&table, target),
            Standing::Shown | Standing::Nothing => Ok(()),
        }
    }

    /// Takes a target from a view, and ends the view with its last one.
    pub(super) fn take_away(&self, view: &Arc<Shown>, target: &Path, keep_directory: bool) {
        self.lock().targets.remove(target);
        if let Err(error) = self.unbind(view, target) {
            tracing::warn!(%error, "a target stays mounted");
        }
        let Some((record, ending)) = view.release(target) else { return };
        if record.made && !keep_directory {
            // It is empty unless somebody put something there, which then stays.
            let _ = std::fs::remove_dir(target);
        }
        if ending {
            self.lock().views.retain(|other| !Arc::ptr_eq(other, view));
            self.end(view);
        } else {
            view.write_or_later();
        }
    }
}

/// Removes the directory of a target.
fn remove_target(target: &Path) -> Result<()> {
    match std::fs::remove_dir(target) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(StoreError::new(
            Fault::Internal,
            format!("target {} is unmounted, but the directory cannot be removed ({error}): remove what is in it", target.display()),
        )),
    }
}
