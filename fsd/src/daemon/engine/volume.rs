//! One credential for all targets of a volume.
//!
//! Promises: a new target does not bring in another credential than the one that the volume holds, unless the host has ceased to take that
//! one and takes the new one; a caller that does not know the credential gets what the volume's other targets have, and nothing else.

use std::path::PathBuf;
use std::sync::Arc;

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::error::Result;
use gitmount_store::fetch::NoProgress;
use gitmount_store::refspec::RefSpec;
use gitmount_store::{Fault, StoreError};

use super::{Claim, Engine};
use crate::daemon::credential::Credential;
use crate::daemon::shown::Shown;
use crate::daemon::spec::Spec;
use crate::daemon::standing;

/// What a new target presents.
pub(super) enum Presented {
    /// This, which is what the volume holds, or the first of its targets.
    Credential(Credential),
    /// This in place of what the volume holds, once it has proved itself.
    Rotated(Credential),
    /// What the view of another target of the volume is shown for; the daemon itself may have to wait for it.
    Shared(Arc<Shown>, Option<Credential>),
}

impl Engine {
    /// What a new target of a volume presents.
    pub(super) fn presented(&self, claim: &Claim<'_>, request: &proto::PublishRequest, spec: &Spec) -> Result<Presented> {
        let salt = self.context.state.salt();
        let handle = request.volume.as_ref().map(|volume| volume.name.as_str()).unwrap_or_default();
        let others = self.of_volume(handle);
        if request.keep_credential {
            let same = others.into_iter().filter(|(view, _)| view.spec == *spec);
            let same = same.map(|(view, path)| (view.credential_of(&path), view));
            // What was unmounted helps only who brings its credential.
            let table = standing::table()?;
            let best = same.max_by_key(|(credential, view)| (self.is_ready(view, &table), credential.is_some()));
            return Ok(match best {
                Some((credential, view)) => Presented::Shared(view, credential),
                None => Presented::Credential(Credential::anonymous()),
            });
        }
        let brought = Credential::parse(request.credential.as_ref(), salt)?;
        if !request.one_credential {
            return Ok(Presented::Credential(brought));
        }
        let mut held: Vec<Credential> = others.iter().filter_map(|(view, path)| view.credential_of(path)).collect();
        if held.is_empty() && request.staged.is_some() {
            held.push(Credential::parse(request.staged.as_ref(), salt)?);
        }
        if held.is_empty() || held.iter().any(|held| held.fingerprint() == brought.fingerprint()) {
            return Ok(Presented::Credential(brought));
        }
        for held in &held {
            match self.works(claim, spec, held) {
                Err(error) if matches!(error.fault(), Fault::Refused | Fault::NotFound) => {}
                Err(error) if error.fault() == Fault::Cancelled => return Err(error),
                _ => {
                    return Err(StoreError::new(
                        Fault::Refused,
                        // Which volume it is, the driver says.
                        "the volume holds another credential, which its host has not refused: \
                         name one Secret in both nodeStageSecretRef and nodePublishSecretRef",
                    ));
                }
            }
        }
        Ok(Presented::Rotated(brought))
    }

    /// The targets of a volume.
    fn of_volume(&self, handle: &str) -> Vec<(Arc<Shown>, PathBuf)> {
        let views = self.lock().views.clone();
        let targets = |view: Arc<Shown>| {
            let of = view.targets().into_iter().filter(|target| target.is_of(handle)).map(|target| target.path());
            of.map(move |path| (Arc::clone(&view), path)).collect::<Vec<_>>()
        };
        views.into_iter().flat_map(targets).collect()
    }

    /// All targets of a volume adopt the credential that has taken the place of the one they held.
    pub(super) fn rotate(&self, handle: &str, credential: &Credential) {
        for (view, target) in self.of_volume(handle) {
            self.entrust(&view, &target, credential);
        }
    }

    /// Whether the host takes a credential now; it is interrupted when the target is to go, or the daemon.
    fn works(&self, claim: &Claim<'_>, spec: &Spec, credential: &Credential) -> Result<()> {
        // For a commit that is there the host would not be asked.
        let asked = if matches!(spec.reference, RefSpec::Commit(_)) { RefSpec::Head } else { spec.reference.clone() };
        let repository = self.context.store.repository(&spec.url)?;
        let mut fetched = repository.fetch_many(&[asked], spec.depth, credential.auth(), &NoProgress, &claim.given_up)?;
        fetched.pop().map_or(Ok(()), |one| one.map(drop))
    }
}
