//! Making a view, and ending it.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use gitmount_store::error::Result;
use gitmount_store::ids::CommitId;
use gitmount_store::{Fault, StoreError};
use nix::unistd::{Gid, Uid};

use super::{Claim, Engine};
use crate::control::Failure;
use crate::daemon::credential::{Credential, Fingerprint};
use crate::daemon::health::State;
use crate::daemon::measure;
use crate::daemon::policy::Offline;
use crate::daemon::shown::{Shown, lock};
use crate::daemon::spec::{self, Spec};
use crate::daemon::{standing, state};
use crate::fuse::{Mount, MountOptions, Notify};
use crate::handover::Deposit;
use crate::view::{View, ViewOptions};

/// How long the threads of an unmounted view may take to end before the call that ended it returns all the same.
const END: Duration = Duration::from_millis(500);

impl Engine {
    /// A view that this credential may see: one that is shown, else a new one. Of calls that want the same one makes it, the others wait.
    pub(super) fn find_or_make(&self, claim: &Claim<'_>, spec: &Spec, credential: &Credential) -> Result<Arc<Shown>> {
        let key = (format!("{:?}", spec.to_proto()) + &spec.url.normalized(), credential.fingerprint().clone());
        // What somebody unmounted and what cannot be put back is of no use to anybody.
        let mut useless: Vec<String> = Vec::new();
        let mut inner = self.lock();
        loop {
            let fits = |view: &&Arc<Shown>| view.spec == *spec && view.admits(credential) && !useless.contains(&view.id);
            let shared = inner.views.iter().find(fits).cloned();
            if let Some(view) = shared {
                drop(inner);
                if self.is_ready(&view, &standing::table()?) {
                    self.is_fit_to_begin_with(claim, &view)?;
                    return Ok(view);
                }
                useless.push(view.id.clone());
                inner = self.lock();
                continue;
            }
            claim.check()?;
            if !inner.making.contains(&key) {
                break;
            }
            let wait = Duration::from_millis(50);
            inner = self.changed.wait_timeout(inner, wait).unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        inner.making.insert(key.clone());
        drop(inner);
        let _making = Making { engine: self, key };
        let view = self.make(claim, spec, credential)?;
        self.lock().views.push(Arc::clone(&view));
        Ok(view)
    }

    /// A view whose host does not answer serves on, but nothing begins with it that would not begin without it.
    fn is_fit_to_begin_with(&self, claim: &Claim<'_>, view: &Arc<Shown>) -> Result<()> {
        if lock(&view.health).state == State::Ok {
            return Ok(());
        }
        match view.pull(&|| claim.is_given_up()).map_err(Failure::into_error) {
            Err(error) if view.spec.offline == Offline::Refuse || error.fault() != Fault::Unreachable => Err(error),
            _ => Ok(()),
        }
    }

    fn make(&self, claim: &Claim<'_>, spec: &Spec, credential: &Credential) -> Result<Arc<Shown>> {
        let repository = self.context.store.repository(&spec.url)?;
        let id = new_id(spec)?;
        let view = Shown::new(id.clone(), spec.clone(), repository, Arc::clone(&self.context));
        view.follow(credential);
        let made = self.first_commit(claim, &view, credential).and_then(|commit| {
            claim.check()?;
            view.pin(commit)?;
            self.context.state.create(&id)?;
            self.mount(&view, commit)
        });
        if let Err(error) = made {
            view.give_up();
            self.end(&view);
            return Err(error);
        }
        measure::begin(&view, true);
        Ok(view)
    }

    /// The commit to begin with: what the host has, or the last known one when it does not answer and that is allowed.
    fn first_commit(&self, claim: &Claim<'_>, view: &Arc<Shown>, credential: &Credential) -> Result<CommitId> {
        let error = match view.pull(&|| claim.is_given_up()) {
            Ok(_) => {
                let none = || StoreError::new(Fault::Internal, "a fetch worked and gave no commit");
                return view.fetched_commit().ok_or_else(none);
            }
            Err(failure) => failure.into_error(),
        };
        // A host that answers and refuses is no reason to show what it showed once; nor is what somebody else could fetch.
        let stale = error.fault() == Fault::Unreachable
            && view.spec.offline == Offline::AllowStale
            && view.repository.has_fetched_with(credential.auth())?;
        match if stale { view.repository.known(&view.spec.reference)? } else { None } {
            Some(commit) => {
                view.is_stale(&error);
                view.admit(credential);
                Ok(commit)
            }
            None => Err(error),
        }
    }

    /// Mounts a view that is shown nowhere yet.
    pub(super) fn mount(&self, view: &Arc<Shown>, commit: CommitId) -> Result<()> {
        let shown = View::new(view.repository.objects(), commit, self.view_options(view))?;
        let options = self.mount_options(view);
        let deposit = |device: BorrowedFd<'_>, init: &[u8]| match &self.context.keeper {
            Some(keeper) => keeper.deposit(&Deposit { id: view.id.clone(), init: init.to_vec(), device }),
            None => Ok(()),
        };
        let mount = Mount::begin(shown, &options, &deposit).map_err(|e| {
            let target = options.target.display();
            StoreError::new(Fault::Internal, format!("{target} cannot be mounted ({e}): make sure that /dev/fuse exists"))
        })?;
        self.tell_through_the_holder(view, &mount);
        view.mounted(mount);
        Ok(())
    }

    /// Lets the holder tell the kernel of changes, so that this process can always end.
    pub(super) fn tell_through_the_holder(&self, view: &Shown, mount: &Mount) {
        if let Some(keeper) = &self.context.keeper {
            mount.notify_through(keeper.messenger(&view.id));
            mount.store_through(keeper.courier(&view.id));
        }
    }

    pub(super) fn mount_options(&self, view: &Shown) -> MountOptions {
        let target = self.context.state.mount_point(&view.id);
        let notify = match view.spec.notify {
            spec::Notify::None => Notify::None,
            spec::Notify::Inotify => Notify::Inotify,
        };
        let without = self.context.without.clone();
        MountOptions { allow_other: true, notify, without, ..MountOptions::new(target, view.spec.url.to_string()) }
    }

    pub(super) fn view_options(&self, view: &Shown) -> ViewOptions {
        ViewOptions {
            path: view.spec.path.clone(),
            keep_snapshots: self.context.keep_snapshots,
            caches: Arc::clone(&self.context.caches),
            journal: Some(self.context.state.journal(&view.id)),
            uid: Uid::effective().as_raw(),
            gid: Gid::effective().as_raw(),
            ..ViewOptions::new(view.spec.reference.to_string(), self.context.store.spool_dir())
        }
    }

    /// Ends a view that has no target (any more). Who still has something of it open keeps that, and the pins with it.
    pub(super) fn end(&self, view: &Arc<Shown>) {
        view.leave();
        if let Some(keeper) = &self.context.keeper {
            keeper.withdraw(&view.id);
        }
        let Some(mount) = view.mount().cloned() else {
            view.unpin();
            self.context.state.remove(&view.id);
            return;
        };
        if let Err(error) = mount.unmount(true) {
            tracing::warn!(view = %view.id, %error, "a view cannot be unmounted");
        }
        if let Err(error) = self.unbind(view, &self.context.state.mount_point(&view.id)) {
            tracing::warn!(view = %view.id, %error, "a view stays mounted");
        }
        self.context.state.remove(&view.id);
        let end = Instant::now() + END;
        while !mount.is_finished() {
            if Instant::now() > end {
                let mut inner = self.lock();
                inner.ending.retain(|view| view.strong_count() > 0);
                inner.ending.push(Arc::downgrade(view));
                drop(inner);
                let view = Arc::clone(view);
                tracing::info!(view = %view.id, "something of a view that is gone is still open");
                let waiting = std::thread::Builder::new().name("ending".into()).spawn(move || {
                    mount.wait();
                    view.unpin();
                });
                if let Err(error) = waiting {
                    tracing::error!(%error, "no thread can be started to wait for the end of a view");
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        view.unpin();
    }
}

/// A name for a view that no other ever has.
fn new_id(spec: &Spec) -> Result<String> {
    // The repository's name makes it findable for people, the random part makes it the only one.
    let name = spec.url.path().trim_end_matches('/').rsplit('/').next().unwrap_or_default().trim_end_matches(".git");
    let plain: String = name.chars().filter(|c| c.is_ascii_alphanumeric() || "-_".contains(*c)).take(32).collect();
    Ok(format!("{}-{}", if plain.is_empty() { "view" } else { &plain }, state::hex(&state::random::<6>()?)))
}

/// That a view is being made.
struct Making<'a> {
    engine: &'a Engine,
    key: (String, Fingerprint),
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        self.engine.lock().making.remove(&self.key);
        self.engine.changed.notify_all();
    }
}
