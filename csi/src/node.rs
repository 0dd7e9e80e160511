//! The node service.
//!
//! - [`publish`]: what a publish presents to the daemon, and what it tells.
//! - [`stages`]: the credentials that stages brought.
//! - [`live`]: whether a target shows something, told by the kernel and not by the daemon.
//! - [`stats`]: statistics that answer in time whatever the daemon does.
//!
//! Promises: each call may be repeated, and any order of calls is answered; no lock is held across a call; a publish onto a live target
//! succeeds, also when the host is down, the daemon away, or what is asked for cannot be had any more.

pub mod live;
pub mod publish;
pub mod stages;
pub mod stats;

use std::sync::Arc;

use gitmount_proto::csi::v1 as csi;
use gitmount_proto::csi::v1::node_server::Node;
use gitmount_proto::csi::v1::node_service_capability::rpc::Type;
use gitmount_proto::fsd::v1::Fault;
use tonic::{Request, Response, Status};

use crate::claims::Claims;
use crate::daemon::{Daemon, DaemonError};
use crate::demands::Published;
use crate::events::Recorder;
use crate::health::Health;
use stages::Stages;
use stats::Statistics;

/// The service.
#[derive(Debug)]
pub struct Service {
    node: String,
    daemon: Daemon,
    health: Arc<Health>,
    recorder: Recorder,
    claims: Claims,
    published: Published,
    stages: Stages,
    statistics: Statistics,
}

impl Service {
    /// The service of the node called `node`.
    pub fn new(node: String, daemon: Daemon, health: Arc<Health>, recorder: Recorder, claims: Claims, published: Published) -> Self {
        Service { node, daemon, health, recorder, claims, published, stages: Stages::default(), statistics: Statistics::default() }
    }
}

/// An argument that the specification requires.
fn required<'a>(value: &'a str, name: &str) -> Result<&'a str, Status> {
    match value {
        "" => Err(Status::invalid_argument(format!("{name} is missing"))),
        value => Ok(value),
    }
}

fn absolute<'a>(value: &'a str, name: &str) -> Result<&'a str, Status> {
    let value = required(value, name)?;
    if value.starts_with('/') { Ok(value) } else { Err(Status::invalid_argument(format!("{name} {value:?} is no absolute path"))) }
}

fn status(error: &DaemonError) -> Status {
    let message = error.to_string();
    match error {
        DaemonError::Failed { fault, .. } => match fault {
            Fault::Usage => Status::invalid_argument(message),
            Fault::NotFound => Status::not_found(message),
            Fault::Refused => Status::permission_denied(message),
            Fault::Unreachable => Status::unavailable(message),
            Fault::Disk => Status::resource_exhausted(message),
            Fault::Cancelled => Status::aborted(message),
            Fault::Corrupt | Fault::Internal | Fault::Unspecified => Status::internal(message),
        },
        DaemonError::Away(_) => Status::unavailable(message),
        DaemonError::Busy => Status::aborted(message),
    }
}

#[tonic::async_trait]
impl Node for Service {
    /// Keeps what the stage's Secret brought. Everything else is done by the publish, which knows the pod, so that what is wrong is told there.
    async fn node_stage_volume(
        &self,
        request: Request<csi::NodeStageVolumeRequest>,
    ) -> Result<Response<csi::NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = required(&request.volume_id, "volume_id")?;
        absolute(&request.staging_target_path, "staging_target_path")?;
        if request.volume_capability.is_none() {
            return Err(Status::invalid_argument("volume_capability is missing"));
        }
        self.stages.stage(volume, request.secrets);
        Ok(Response::new(csi::NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<csi::NodeUnstageVolumeRequest>,
    ) -> Result<Response<csi::NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let volume = required(&request.volume_id, "volume_id")?;
        absolute(&request.staging_target_path, "staging_target_path")?;
        self.stages.unstage(volume);
        Ok(Response::new(csi::NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<csi::NodePublishVolumeRequest>,
    ) -> Result<Response<csi::NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        required(&request.volume_id, "volume_id")?;
        absolute(&request.target_path, "target_path")?;
        if request.volume_capability.is_none() {
            return Err(Status::invalid_argument("volume_capability is missing"));
        }
        self.publish(request).await?;
        Ok(Response::new(csi::NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<csi::NodeUnpublishVolumeRequest>,
    ) -> Result<Response<csi::NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        required(&request.volume_id, "volume_id")?;
        let target = absolute(&request.target_path, "target_path")?;
        if let Err(error) = self.daemon.unpublish(target).await {
            // Where nothing is mounted, nothing is left to be done: a daemon that comes back finds that out itself.
            if !matches!(error, DaemonError::Away(_)) || live::is_mounted(target)? || !remove(target) {
                return Err(status(&error));
            }
        }
        self.statistics.forget(target);
        tracing::info!(target_path = target, volume = request.volume_id, "unpublished");
        Ok(Response::new(csi::NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<csi::NodeGetVolumeStatsRequest>,
    ) -> Result<Response<csi::NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        required(&request.volume_id, "volume_id")?;
        let path = required(&request.volume_path, "volume_path")?;
        if !path.starts_with('/') || !live::is_live(path)? {
            return Err(Status::not_found(format!("volume {:?} is not at {path}", request.volume_id)));
        }
        Ok(Response::new(self.statistics.of(path, &self.daemon, &self.health).await))
    }

    async fn node_get_capabilities(
        &self,
        _: Request<csi::NodeGetCapabilitiesRequest>,
    ) -> Result<Response<csi::NodeGetCapabilitiesResponse>, Status> {
        let capability = |kind: Type| csi::NodeServiceCapability {
            r#type: Some(csi::node_service_capability::Type::Rpc(csi::node_service_capability::Rpc { r#type: kind.into() })),
        };
        let capabilities = [Type::StageUnstageVolume, Type::GetVolumeStats, Type::VolumeCondition].map(capability).into();
        Ok(Response::new(csi::NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<csi::NodeGetInfoRequest>) -> Result<Response<csi::NodeGetInfoResponse>, Status> {
        Ok(Response::new(csi::NodeGetInfoResponse { node_id: self.node.clone(), max_volumes_per_node: 0 }))
    }
}

/// Removes a target's directory; `false` when it cannot be.
fn remove(target: &str) -> bool {
    match std::fs::remove_dir(target) {
        Ok(()) => true,
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}
