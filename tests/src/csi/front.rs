//! What stands between csi-sanity and a plugin. The suite has volumes made by a controller, of which the driver has none, and publishes them for
//! writing, which the driver refuses. So a controller gives it volumes that are repositories, and a node service passes on all that it asks for,
//! but each publish for reading, as a kubelet asks for it.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use gitmount_proto::csi::v1 as csi;
use gitmount_proto::csi::v1::controller_server::{Controller, ControllerServer};
use gitmount_proto::csi::v1::controller_service_capability as capability;
use gitmount_proto::csi::v1::identity_client::IdentityClient;
use gitmount_proto::csi::v1::identity_server::{Identity, IdentityServer};
use gitmount_proto::csi::v1::node_client::NodeClient;
use gitmount_proto::csi::v1::node_server::{Node, NodeServer};
use gitmount_proto::csi::v1::plugin_capability::{self, Service};
use gitmount_proto::csi::v1::volume_capability::access_mode::Mode;
use gitmount_proto::socket;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status};

use super::Plugin;
use crate::scratch;

const DEADLINE: Duration = Duration::from_secs(30);

/// A running front; it ends when it is dropped.
#[derive(Debug)]
pub struct Front {
    dir: TempDir,
    _runtime: tokio::runtime::Runtime,
}

impl Front {
    /// Starts one whose volumes have these attributes.
    pub fn start(plugin: &Plugin, attributes: &[(&str, &str)]) -> Result<Self> {
        let (dir, runtime) = (scratch::dir()?, tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?);
        let plugin = runtime.block_on(socket::connect(&plugin.socket(), DEADLINE))?;
        let front = Services { plugin, attributes: super::pairs(attributes) };
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(dir.path().join(SOCKET))?
        };
        let server = Server::builder()
            .add_service(IdentityServer::new(front.clone()))
            .add_service(NodeServer::new(front.clone()))
            .add_service(ControllerServer::new(front))
            .serve_with_incoming(UnixListenerStream::new(listener));
        runtime.spawn(server);
        Ok(Front { dir, _runtime: runtime })
    }

    /// Its socket, for all services.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join(SOCKET)
    }
}

const SOCKET: &str = "front.sock";

#[derive(Debug, Clone)]
struct Services {
    plugin: Channel,
    attributes: std::collections::HashMap<String, String>,
}

type Answer<T> = Result<Response<T>, Status>;

impl Services {
    fn identity(&self) -> IdentityClient<Channel> {
        IdentityClient::new(self.plugin.clone())
    }

    fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.plugin.clone())
    }
}

#[tonic::async_trait]
impl Identity for Services {
    async fn get_plugin_info(&self, request: Request<csi::GetPluginInfoRequest>) -> Answer<csi::GetPluginInfoResponse> {
        self.identity().get_plugin_info(request).await
    }

    /// The plugin's, and the controller.
    async fn get_plugin_capabilities(
        &self,
        request: Request<csi::GetPluginCapabilitiesRequest>,
    ) -> Answer<csi::GetPluginCapabilitiesResponse> {
        let mut answer = self.identity().get_plugin_capabilities(request).await?;
        let controller = Service { r#type: plugin_capability::service::Type::ControllerService.into() };
        answer.get_mut().capabilities.push(csi::PluginCapability { r#type: Some(plugin_capability::Type::Service(controller)) });
        Ok(answer)
    }

    async fn probe(&self, request: Request<csi::ProbeRequest>) -> Answer<csi::ProbeResponse> {
        self.identity().probe(request).await
    }
}

#[tonic::async_trait]
impl Node for Services {
    async fn node_stage_volume(&self, request: Request<csi::NodeStageVolumeRequest>) -> Answer<csi::NodeStageVolumeResponse> {
        self.node().node_stage_volume(request).await
    }

    async fn node_unstage_volume(&self, request: Request<csi::NodeUnstageVolumeRequest>) -> Answer<csi::NodeUnstageVolumeResponse> {
        self.node().node_unstage_volume(request).await
    }

    /// For reading.
    async fn node_publish_volume(&self, mut request: Request<csi::NodePublishVolumeRequest>) -> Answer<csi::NodePublishVolumeResponse> {
        let publish = request.get_mut();
        publish.readonly = true;
        if let Some(mode) = publish.volume_capability.as_mut().and_then(|capability| capability.access_mode.as_mut()) {
            mode.set_mode(Mode::MultiNodeReaderOnly);
        }
        self.node().node_publish_volume(request).await
    }

    async fn node_unpublish_volume(&self, request: Request<csi::NodeUnpublishVolumeRequest>) -> Answer<csi::NodeUnpublishVolumeResponse> {
        self.node().node_unpublish_volume(request).await
    }

    async fn node_get_volume_stats(&self, request: Request<csi::NodeGetVolumeStatsRequest>) -> Answer<csi::NodeGetVolumeStatsResponse> {
        self.node().node_get_volume_stats(request).await
    }

    async fn node_get_capabilities(&self, request: Request<csi::NodeGetCapabilitiesRequest>) -> Answer<csi::NodeGetCapabilitiesResponse> {
        self.node().node_get_capabilities(request).await
    }

    async fn node_get_info(&self, request: Request<csi::NodeGetInfoRequest>) -> Answer<csi::NodeGetInfoResponse> {
        self.node().node_get_info(request).await
    }
}

#[tonic::async_trait]
impl Controller for Services {
    async fn create_volume(&self, request: Request<csi::CreateVolumeRequest>) -> Answer<csi::CreateVolumeResponse> {
        let volume = csi::Volume { volume_id: request.into_inner().name, volume_context: self.attributes.clone() };
        Ok(Response::new(csi::CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(&self, _: Request<csi::DeleteVolumeRequest>) -> Answer<csi::DeleteVolumeResponse> {
        Ok(Response::new(csi::DeleteVolumeResponse {}))
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<csi::ControllerGetCapabilitiesRequest>,
    ) -> Answer<csi::ControllerGetCapabilitiesResponse> {
        let rpc = capability::Rpc { r#type: capability::rpc::Type::CreateDeleteVolume.into() };
        let capability = csi::ControllerServiceCapability { r#type: Some(capability::Type::Rpc(rpc)) };
        Ok(Response::new(csi::ControllerGetCapabilitiesResponse { capabilities: vec![capability] }))
    }
}
