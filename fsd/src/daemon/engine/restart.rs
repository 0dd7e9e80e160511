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
use crate::fuse::Mount;
use crate::handover::Held;
use crate::view::View;

impl Engine {
    /// Takes up every view, and clears away what belongs to none.
    pub(super) fn take_up(&self) -> Result<()> {
        let table =
            mount_table::read().map_err(|e| StoreError::new(Fault::Internal, format!("/proc/self/mountinfo cannot be read ({e})")))?;
        let mut held: HashMap<String, Held> = HashMap::new();
        if let Some(keeper) = &self.context.keeper {
            match keeper.collect() {
                Ok(all) => held.extend(all.into_iter().map(|one| (one.id.clone(), one))),
                Err(error) => tracing::error!(%error, "what the holder has cannot be collected: all mounts are made anew"),
            }
        }
        for record in self.context.state.records()? {
            let held = held.remove(&record.id);
            if let Err(error) = self.take_up_view(&record, &table, held) {
                tracing::error!(view = %record.id, %error, "a view cannot be taken up, its targets are unmounted");
                self.forget(&record, &table);
            }
        }
        if let Some(keeper) = &self.context.keeper {
            held.keys().for_each(|id| keeper.withdraw(id));
        }
        self.clear_leftovers()
    }

    fn take_up_view(&self, record: &Record, table: &[Entry], held: Option<Held>) -> Result<()> {
        let point = self.context.state.mount_point(&record.id);
        let is_there = |path: &Path| table.iter().any(|entry| entry.target == path && Some(entry.device) == record.device);
        // A target that was being bound: whoever asked for it asks again.
        for target in record.targets.iter().filter(|target| !target.bound && is_there(&target.path())) {
            bind::detach(&target.path())?;
        }
        let targets: Vec<Target> = record.targets.iter().filter(|target| target.bound && is_there(&target.path())).cloned().collect();
        if targets.is_empty() || !is_there(&point) {
            tracing::info!(view = %record.id, "a view is shown nowhere any more, it is forgotten");
            self.forget(record, table);
            return Ok(());
        }
        let spec = Spec::parse(&record.view.to_proto(), &self.policy)?;
        let repository = self.context.store.repository(&spec.url)?;
        let view = Shown::new(record.id.clone(), spec, repository, Arc::clone(&self.context));
        let resumed = held.is_some_and(|held| self.resume(&view, held));
        if !resumed {
            for target in &targets {
                bind::detach(&target.path())?;
            }
            self.replace(&view, record, &point)?;
        }
        for target in targets {
            let path = target.path();
            if !resumed {
                bind::bind(&point, &path)?;
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

    /// Goes on serving a mount that was held; `false` when that cannot be done.
    fn resume(&self, view: &Arc<Shown>, held: Held) -> bool {
        let resumed = View::resume(view.repository.objects(), self.view_options(view))
            .map_err(|error| error.to_string())
            .and_then(|shown| Mount::resume(shown, &self.mount_options(view), held.device, &held.init).map_err(|error| error.to_string()));
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
        while mount_table::at(point).is_ok_and(|entry| entry.is_some()) {
            bind::detach(point)?;
        }
        // The nodes of the mount that is gone are of no use to the new one.
        let _ = std::fs::remove_file(self.context.state.journal(&record.id));
        let commit = CommitId::parse(&record.commit)?;
        view.pin(commit)?;
        self.context.state.create(&record.id)?;
        self.mount(view, commit)
    }

    /// Unmounts what is left of a view, and forgets it.
    fn forget(&self, record: &Record, table: &[Entry]) {
        let point = self.context.state.mount_point(&record.id);
        for target in &record.targets {
            let path = target.path();
            let ours = |entry: &Entry| entry.target == path && Some(entry.device) == record.device;
            if table.iter().any(ours) && bind::detach(&path).is_ok() && target.made {
                // It is empty unless somebody put something there, which then stays.
                let _ = std::fs::remove_dir(&path);
            }
        }
        if let Err(error) = bind::detach(&point) {
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
                bind::detach(&point)?;
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
