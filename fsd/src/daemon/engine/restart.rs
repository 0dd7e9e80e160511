//! Taking up what an earlier daemon showed, before the first call is answered.
//!
//! What is written down is compared with the kernel's table of mounts, which is the truth: a view whose mount is there and held is resumed,
//! one whose mount is there and held by nobody is mounted anew, and one whose mount is gone (another boot, an unmount) is forgotten.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gitmount_proto::mount_table::{self, Entry};
use gitmount_store::error::Result;
use gitmount_store::ids::CommitId;
use gitmount_store::{Fault, StoreError};

use super::Engine;
use crate::daemon::bind;
use crate::daemon::credential::Credential;
use crate::daemon::events::Kind;
use crate::daemon::policy::Pull;
use crate::daemon::record::{Record, Target};
use crate::daemon::shown::{Shown, pinned_by};
use crate::daemon::spec::Spec;
use crate::daemon::standing::{self, Standing, look};
use crate::fuse::{Mount, MountOptions};
use crate::handover::{self, Held};
use crate::view::View;

impl Engine {
    /// Takes up every view, and clears away what belongs to none.
    pub(super) fn take_up(&self) -> Result<()> {
        let table = standing::table()?;
        let mut held: HashMap<String, Held> = HashMap::new();
        if let Some(keeper) = &self.context.keeper {
            match keeper.collect() {
                Ok(all) => held.extend(all.into_iter().map(|one| (one.id.clone(), one))),
                // It may keep mounts that are in use. The next attempt finds it well, or gone.
                Err(handover::Error::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let text = format!("the holder does not answer ({error}), so its mounts cannot be taken over: let it go on, or end it");
                    return Err(StoreError::new(Fault::Internal, text));
                }
                Err(error) => tracing::error!(%error, "what the holder has cannot be collected: all mounts are made anew"),
            }
        }
        for record in self.context.state.records()? {
            let held = held.remove(&record.id);
            if let Err(error) = self.take_up_view(&record, &table, held) {
                tracing::error!(view = %record.id, %error, "a view cannot be taken up, its targets are unmounted");
                self.forget(&record);
            }
        }
        if let Some(keeper) = &self.context.keeper {
            // What is not this daemon's any more ends; another daemon may use the same holder.
            let own = self.context.state.path();
            for id in held.keys() {
                let point = Path::new("mounts").join(id);
                let is_anothers = |entry: &Entry| entry.is_gitmount() && entry.target.ends_with(&point) && !entry.target.starts_with(own);
                if table.iter().any(is_anothers) { keeper.leave(id) } else { keeper.withdraw(id) }
            }
        }
        self.clear_leftovers()
    }

    fn take_up_view(&self, record: &Record, table: &[Entry], held: Option<Held>) -> Result<()> {
        let point = self.context.state.mount_point(&record.id);
        let is_there = |path: &Path, device| look(table, path, device) == Standing::Shown || is_covered(table, path, device);
        // A target that was being bound: whoever asked for it asks again.
        for target in record.targets.iter().filter(|target| !target.bound) {
            detach_device(&target.path(), record.device)?;
        }
        let bound = |target: &&Target| target.bound && is_there(&target.path(), target.device(record));
        let targets: Vec<Target> = record.targets.iter().filter(bound).cloned().collect();
        if targets.is_empty() {
            tracing::info!(view = %record.id, "a view is shown nowhere any more, it is forgotten");
            self.forget(record);
            return Ok(());
        }
        let spec = Spec::parse(&record.view.to_proto(), &self.policy)?;
        let repository = self.context.store.repository(&spec.url)?;
        let view = Shown::new(record.id.clone(), spec, repository, Arc::clone(&self.context));
        let resumed = held.is_some_and(|held| {
            if look(table, &point, record.device) != Standing::Shown {
                self.put_point_back(record, &point, table);
            }
            self.resume(&view, record.device, held)
        });
        if !resumed {
            for target in &targets {
                detach_device(&target.path(), target.device(record))?;
            }
            self.replace(&view, record, &point)?;
        }
        for mut target in targets {
            let (path, before) = (target.path(), target.device(record));
            let device = view.mount().and_then(|mount| mount.device());
            if before != device || !resumed {
                self.show_anew(&view, &mut target, before)?;
            }
            view.attach(target);
            self.lock().targets.insert(path.clone(), Arc::clone(&view));
            if !record.private {
                view.entrust(&path, &Credential::anonymous());
            }
        }
        view.write_or_later();
        if !resumed {
            view.tell(Kind::Replaced, format!("the mount at {} was held by nobody: it is mounted anew", point.display()));
        }
        self.lock().views.push(Arc::clone(&view));
        if view.spec.pull != Pull::Never && !view.is_waiting() {
            view.catch_up();
        }
        Ok(())
    }

    /// Binds a target of a view that was mounted anew. Somebody else's mount that hides it stays, and the dead one below it.
    fn show_anew(&self, view: &Shown, target: &mut Target, before: Option<u64>) -> Result<()> {
        let path = target.path();
        detach_device(&path, before)?;
        let table = standing::table()?;
        match mount_table::top(&table, &path) {
            None if !is_covered(&table, &path, before) => {
                target.stuck = None;
                self.bind(view, &path)
            }
            _ => {
                target.stuck = before;
                tracing::warn!(target_dir = %path.display(), "somebody else's mount hides a target, which cannot be shown anew: see the status");
                Ok(())
            }
        }
    }

    /// Mounts a view's tree again where it was unmounted, from a target that shows it: that needs nobody to serve it.
    fn put_point_back(&self, record: &Record, point: &Path, table: &[Entry]) {
        let Some(device) = record.device else { return };
        let mut targets = record.targets.iter().map(Target::path);
        let Some(source) = targets.find(|target| look(table, target, Some(device)) == Standing::Shown) else { return };
        let put_back =
            detach_all(point).and_then(|()| self.context.state.create(&record.id)).and_then(|()| bind::bind(&source, device, point));
        match put_back {
            Ok(()) => tracing::warn!(view = %record.id, point = %point.display(), "what somebody unmounted is mounted again"),
            Err(error) => tracing::warn!(view = %record.id, %error, "what somebody unmounted cannot be mounted again"),
        }
    }

    /// Goes on serving a mount that was held; `false` when that cannot be done.
    fn resume(&self, view: &Arc<Shown>, device: Option<u64>, held: Held) -> bool {
        let options = MountOptions { device, ..self.mount_options(view) };
        let resumed = View::resume(view.repository.objects(), self.view_options(view))
            .map_err(|error| error.to_string())
            .and_then(|shown| Mount::resume(shown, &options, held.device, &held.init).map_err(|error| error.to_string()));
        match resumed {
            Ok(mount) => {
                self.tell_through_the_holder(view, &mount);
                view.mounted(mount);
                tracing::info!(view = %view.id, "a mount is served again");
                true
            }
            Err(error) => {
                tracing::error!(view = %view.id, error, "a mount that was held cannot be resumed");
                false
            }
        }
    }

    /// Mounts anew what nobody serves any more.
    fn replace(&self, view: &Arc<Shown>, record: &Record, point: &Path) -> Result<()> {
        detach_all(point)?;
        // The nodes of the mount that is gone are of no use to the new one.
        let _ = std::fs::remove_file(self.context.state.journal(&record.id));
        let commit = CommitId::parse(&record.commit)?;
        view.pin(commit)?;
        self.context.state.create(&record.id)?;
        self.mount(view, commit)
    }

    /// Unmounts what is left of a view, and forgets it.
    fn forget(&self, record: &Record) {
        let point = self.context.state.mount_point(&record.id);
        for target in &record.targets {
            let path = target.path();
            let gone = detach_device(&path, target.device(record)).inspect_err(|error| tracing::warn!(%error, "a target stays mounted"));
            if gone.is_ok_and(|gone| gone) && target.made {
                // It is empty unless somebody put something there, which then stays.
                let _ = std::fs::remove_dir(&path);
            }
        }
        if let Err(error) = detach_all(&point) {
            tracing::warn!(%error, "a mount stays");
        }
        if let Some(keeper) = &self.context.keeper {
            keeper.withdraw(&record.id);
        }
        self.context.state.remove(&record.id);
    }

    /// Unmounts and unpins what belongs to no view.
    fn clear_leftovers(&self) -> Result<()> {
        let views = self.lock().views.clone();
        let known = |id: &str| views.iter().any(|view| view.id == id);
        for (id, point) in self.context.state.mount_points()? {
            if !known(&id) {
                detach_all(&point)?;
                let _ = std::fs::remove_dir(&point);
            }
        }
        for (url, directory) in self.context.store.list()? {
            // Only repositories in which something is pinned are opened.
            let parsed = gitmount_store::url::RepoUrl::parse(&url, &super::any_url());
            let Ok(repository) = parsed.and_then(|url| self.context.store.repository(&url)) else {
                tracing::warn!(url, directory = %PathBuf::from(&directory).display(), "a repository of the store cannot be opened");
                continue;
            };
            for (name, _) in repository.named_pins()? {
                let id = pinned_by(&name);
                if !known(id) {
                    repository.unpin_named(&name)?;
                    repository.keep_objects(id, &[])?;
                }
            }
        }
        Ok(())
    }
}

fn is_covered(table: &[Entry], path: &Path, device: Option<u64>) -> bool {
    matches!(look(table, path, device), Standing::Covered(_))
}

/// Takes away the mounts of a view that one sees at `path`; gives whether there were any. A device number may have become another file system's
/// since, but then not one of gitmount's at this path.
fn detach_device(path: &Path, device: Option<u64>) -> Result<bool> {
    let gone = std::cell::Cell::new(false);
    bind::detach_while(path, |entry| {
        let its = device == Some(entry.device) && entry.is_gitmount();
        gone.set(gone.get() || its);
        its
    })?;
    Ok(gone.get())
}

/// Clears a mount point in the state directory, which is the daemon's own.
fn detach_all(point: &Path) -> Result<()> {
    bind::detach_while(point, |_| true)
}
