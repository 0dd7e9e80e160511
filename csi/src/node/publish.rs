//! A publish: what is presented to the daemon, and what is told on the pod and its claim.

use gitmount_proto::csi::v1 as csi;
use gitmount_proto::fsd::v1 as fsd;
use tonic::Status;

use super::{Service, live, status};
use crate::claims::Claim;
use crate::daemon::DaemonError;
use crate::events::{Object, Reason};
use crate::volume::{self, Form, Pod, Refusal, Volume, credential, target};

/// Why a publish fails.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Daemon(#[from] DaemonError),
}

/// What is presented to the host.
struct Presented {
    credential: Option<fsd::Credential>,
    staged: Option<fsd::Credential>,
    /// The stage's credential is all there is.
    staged_only: bool,
    /// Who staged it was another process: the daemon may have the credential.
    keep: bool,
}

impl Service {
    /// Publishes.
    ///
    /// # Errors
    /// When nothing is shown at the target and nothing can be.
    pub(super) async fn publish(&self, request: csi::NodePublishVolumeRequest) -> Result<(), Status> {
        let pod = volume::pod(&request.volume_context);
        let form = volume::form(&request.volume_context);
        let spec_name = target::spec_name(&request.target_path).unwrap_or(&request.volume_id).to_owned();
        // Not asked for again with each repeated publish: nothing of it changes while the target is shown.
        let live = live::is_live(&request.target_path)?;
        let claim = if live || form == Form::Inline { None } else { self.claims.of(&spec_name).await };
        let failure = match self.try_publish(&request, &pod, claim.as_ref(), &spec_name).await {
            Ok(()) => return Ok(()),
            Err(failure) => failure,
        };
        if live {
            // The kubelet would take the directory away from the running pod.
            tracing::warn!(volume = request.volume_id, target_path = request.target_path, error = %failure, "a live target stays as it is");
            return Ok(());
        }
        let objects = Object::pod(&pod).into_iter().chain(claim.as_ref().and_then(Object::claim));
        self.recorder.tell(objects, Reason::Refused, &format!("volume {spec_name:?}: {failure}"));
        Err(match failure {
            Failure::Refused(refusal) => Status::invalid_argument(refusal.0),
            Failure::Daemon(error) => status(&error),
        })
    }

    async fn try_publish(
        &self,
        request: &csi::NodePublishVolumeRequest,
        pod: &Pod,
        claim: Option<&Claim>,
        spec_name: &str,
    ) -> Result<(), Failure> {
        let Volume { form, view } = Volume::parse(request)?;
        let presented = self.presented(request, form, &view.url)?;
        let claim = claim.cloned().unwrap_or_default();
        let staged_only = presented.staged_only || (presented.keep && self.is_staged_only(&request.volume_id).await);
        let volume = fsd::Volume {
            name: request.volume_id.clone(),
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            pod_uid: pod.uid.clone(),
            spec_name: spec_name.to_owned(),
            claim: claim.name,
            claim_uid: claim.uid,
            staged_only,
            persistent: form == Form::Claim,
        };
        let published = self
            .daemon
            .publish(fsd::PublishRequest {
                target: request.target_path.clone().into_bytes(),
                view: Some(view),
                credential: presented.credential,
                volume: Some(volume.clone()),
                one_credential: form == Form::Claim,
                staged: presented.staged,
                keep_credential: presented.keep,
            })
            .await?;
        self.tell(request, &volume, &published).await;
        Ok(())
    }

    fn presented(&self, request: &csi::NodePublishVolumeRequest, form: Form, url: &str) -> Result<Presented, Refusal> {
        let own = credential::parse(&request.secrets, url)?;
        let stage = if form == Form::Claim { self.stages.of(&request.volume_id) } else { None };
        let known = form == Form::Inline || stage.is_some();
        let staged = match (&stage, &own) {
            // Only the publish's is of use, whatever the stage's is.
            (Some(stage), Some(_)) => credential::parse(&stage.0, url).unwrap_or_default(),
            (Some(stage), None) => credential::parse(&stage.0, url)?,
            (None, _) => None,
        };
        let staged_only = own.is_none() && staged.is_some();
        let keep = own.is_none() && !known;
        Ok(Presented { credential: own.or_else(|| staged.clone()), staged, staged_only, keep })
    }

    /// Whether a volume is one whose publishes bring no Secret, as an earlier process of this driver saw.
    async fn is_staged_only(&self, handle: &str) -> bool {
        let seen = self.health.look().await;
        seen.views.iter().flat_map(|view| &view.volumes).any(|volume| volume.name == handle && volume.staged_only)
    }

    async fn tell(&self, request: &csi::NodePublishVolumeRequest, volume: &fsd::Volume, published: &fsd::Published) {
        let mut volume = volume.clone();
        let staged_only = volume.staged_only && self.stages.tells(&volume.name, &volume.pod_uid);
        if staged_only && volume.claim.is_empty() {
            let claim = self.claims.of(&volume.spec_name).await.unwrap_or_default();
            (volume.claim, volume.claim_uid) = (claim.name, claim.uid);
        }
        let about = format!("volume {:?}", volume.spec_name);
        if staged_only {
            self.recorder.tell(
                Object::of(&volume),
                Reason::NoPublishSecret,
                &format!(
                    "{about}: the PersistentVolume names its Secret in nodeStageSecretRef alone, so nothing is fetched after the driver restarts: \
                     name it in nodePublishSecretRef, too"
                ),
            );
        }
        if published.again {
            return;
        }
        if volume.persistent {
            self.published.tell(&volume.spec_name);
        }
        tracing::info!(volume = request.volume_id, target_path = request.target_path, commit = published.commit, "published");
        if !published.stale.is_empty() {
            let message = format!("{about}: the node's copy of commit {} is shown: {}", published.commit, published.stale);
            self.recorder.tell(Object::of(&volume), Reason::Stale, &message);
        }
        for notice in &published.notices {
            self.recorder.tell(Object::of(&volume), Reason::Notice, &format!("{about}: {notice}"));
        }
    }
}
