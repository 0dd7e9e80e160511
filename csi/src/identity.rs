//! The identity service: the driver's name and version, and whether it is ready.

use gitmount_proto::csi::v1 as csi;
use gitmount_proto::csi::v1::identity_server::Identity;
use tonic::{Request, Response, Status};

use crate::daemon::Daemon;

/// The service.
#[derive(Debug)]
pub struct Service {
    daemon: Daemon,
}

impl Service {
    /// A service that is ready while the daemon answers.
    pub fn new(daemon: Daemon) -> Self {
        Service { daemon }
    }
}

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(&self, _: Request<csi::GetPluginInfoRequest>) -> Result<Response<csi::GetPluginInfoResponse>, Status> {
        Ok(Response::new(csi::GetPluginInfoResponse {
            name: crate::DRIVER.into(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        }))
    }

    /// None: there is no controller service, and every node is like every other.
    async fn get_plugin_capabilities(
        &self,
        _: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Result<Response<csi::GetPluginCapabilitiesResponse>, Status> {
        Ok(Response::new(csi::GetPluginCapabilitiesResponse::default()))
    }

    async fn probe(&self, _: Request<csi::ProbeRequest>) -> Result<Response<csi::ProbeResponse>, Status> {
        Ok(Response::new(csi::ProbeResponse { ready: Some(self.daemon.status().await.is_ok()) }))
    }
}
