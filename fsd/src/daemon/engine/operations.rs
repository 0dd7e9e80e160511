//! The answers to the control socket.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::url::RepoUrl;
use gitmount_store::{Fault, StoreError};
use nix::errno::Errno;
use nix::mount::{MntFlags, umount2};

use super::Engine;
use super::places::Trouble;
use crate::control::{Failure, Operations};
use crate::daemon::bind;
use crate::daemon::credential::Credential;
use crate::daemon::health::millis;
use crate::daemon::measure;
use crate::daemon::policy::Pull;
use crate::daemon::shown::{Shown, lock};
use crate::daemon::standing;

/// How long somebody who pulls by hand waits.
const PULL: Duration = Duration::from_secs(24 * 3600);

/// The path that travelled as bytes.
pub(super) fn path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

impl Engine {
    /// The view at a target. Looks at no file system.
    fn at(&self, target: &Path) -> Option<Arc<Shown>> {
        self.lock().targets.get(target).cloned()
    }

    fn of(&self, url: &str) -> Result<Vec<Arc<Shown>>, Failure> {
        let url = RepoUrl::parse(url, &self.policy).map_err(|e| Failure::from(&e))?.normalized();
        Ok(self.lock().views.iter().filter(|view| view.spec.url.normalized() == url).cloned().collect())
    }
}

impl Operations for Engine {
    fn views(&self) -> Vec<proto::View> {
        let views = self.lock().views.clone();
        let table = standing::table().unwrap_or_default();
        views.iter().map(|view| status(view, if table.is_empty() { None } else { self.trouble(view, &table) })).collect()
    }

    fn pull(&self, target: &Path) -> Option<Result<proto::Pulled, Failure>> {
        let view = self.at(target)?;
        let end = std::time::Instant::now() + PULL;
        Some(view.pull(&|| view.targets().is_empty() || std::time::Instant::now() > end))
    }

    fn demand(&self, target: &Path) -> Option<Result<proto::Noted, Failure>> {
        let view = self.at(target)?;
        Some(Ok(proto::Noted { views: u32::from(noted(&view)) }))
    }

    fn pull_url(&self, url: &str, wait: bool) -> Result<proto::Noted, Failure> {
        let (mut views, mut failed) = (0, None);
        for view in self.of(url)? {
            if wait {
                if view.spec.pull == Pull::Never {
                    continue;
                }
                // One that fails keeps the others from nothing.
                match view.pull(&|| view.targets().is_empty()) {
                    Ok(_) => views += 1,
                    Err(failure) => failed = failed.or(Some(failure)),
                }
            } else {
                views += u32::from(noted(&view));
            }
        }
        failed.map_or(Ok(proto::Noted { views }), Err)
    }

    fn unmount(&self, target: &Path, lazy: bool) -> Option<Result<(), Failure>> {
        let view = self.at(target)?;
        if let Err(error) = self.refuse_covered(&view, target) {
            return Some(Err(Failure::from(&error)));
        }
        let shown = target.display();
        // Only to learn whether it is busy: what comes next takes everything away in any case.
        if !lazy && umount2(target, MntFlags::UMOUNT_NOFOLLOW) == Err(Errno::EBUSY) {
            let hint = format!("close what is open there, or detach it with `gitmount unmount --lazy {shown}`");
            return Some(Err(Failure::new(Fault::Internal, format!("{shown} is busy: {hint}"))));
        }
        Some(self.unpublish(target, false).map_err(|e| Failure::from(&e)))
    }

    fn statistics(&self, target: &Path) -> Option<proto::StatisticsResponse> {
        let view = self.at(target)?;
        let health = lock(&view.health).clone();
        let requests = view.mount().map(|mount| mount.requests()).unwrap_or_default();
        // After a switch the next answer has the new numbers.
        measure::begin(&view, false);
        let measured = lock(&view.measured).measured;
        Some(proto::StatisticsResponse {
            requests: requests.into_iter().map(|(name, count)| proto::Requests { operation: name.to_owned(), count }).collect(),
            fetches: health.fetches,
            fetch_failures: health.failures,
            switches: health.switches,
            bytes: measured.map(|measured| measured.bytes),
            inodes: measured.map(|measured| measured.inodes),
        })
    }

    fn publish(&self, request: proto::PublishRequest) -> Result<proto::Published, Failure> {
        Engine::publish(self, request).map_err(|e| Failure::from(&e))
    }

    fn unpublish(&self, target: &Path, remove: bool) -> Result<(), Failure> {
        Engine::unpublish(self, target, remove).map_err(|e| Failure::from(&e))
    }

    fn update_credential(&self, target: &Path, credential: Option<proto::Credential>) -> Option<Result<(), Failure>> {
        let view = self.at(target)?;
        let taken: Result<(), StoreError> = (|| {
            let credential = Credential::parse(credential.as_ref(), self.context.state.salt())?;
            let target = bind::absolute(target)?;
            let _claim = self.claim(&target, false)?;
            self.entrust(&view, &target, &credential);
            Ok(())
        })();
        Some(taken.map_err(|e| Failure::from(&e)))
    }

    fn watch(&self) -> Option<tokio::sync::broadcast::Receiver<proto::Event>> {
        Some(self.context.events.watch())
    }

    fn log(&self, target: &Path) -> Option<Vec<proto::Event>> {
        Some(self.at(target)?.ring.all())
    }
}

/// Takes a demand for a view; `never` views ignore it.
fn noted(view: &Shown) -> bool {
    view.spec.pull != Pull::Never && view.demand()
}

fn status(view: &Shown, trouble: Option<Trouble>) -> proto::View {
    let health = lock(&view.health).clone();
    let targets = view.targets();
    let fetching = if view.is_waiting() { proto::State::Waiting } else { health.state.into() };
    // What is not seen is worse than what is not fetched.
    let (state, trouble) = match trouble {
        Some(Trouble::Unmounted(text)) => (proto::State::Unmounted, Some(text)),
        Some(Trouble::Covered(text)) => (proto::State::Covered, Some(text)),
        None => (fetching, None),
    };
    let errors: Vec<String> = trouble.into_iter().chain(health.error.or_else(|| view.state_error())).collect();
    proto::View {
        url: view.spec.url.to_string(),
        r#ref: view.spec.reference.to_string(),
        path: view.spec.path.as_bstr().to_vec(),
        commit: view.commit().map(|commit| commit.to_string()).unwrap_or_default(),
        state: state.into(),
        last_attempt_ms: health.last_attempt.map(millis),
        last_success_ms: health.last_success.map(millis),
        error: errors.join("; "),
        mounts: targets.iter().map(|target| target.path().as_os_str().as_bytes().to_vec()).collect(),
        store: view.context.store.root().as_os_str().as_bytes().to_vec(),
        requests: view.mount().map(|m| m.requests()).unwrap_or_default().into_iter().map(|(n, c)| (n.to_owned(), c)).collect(),
        volumes: targets.iter().map(|target| target.volume()).collect(),
        id: view.id.clone(),
        pull: view.spec.pull.to_string(),
        last_demand_ms: lock(&view.last_demand).map(millis),
        notices: lock(&view.notices).clone(),
        demanded_pulls: *lock(&view.demanded_pulls),
    }
}
