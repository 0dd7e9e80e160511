//! Makes the driver known to the kubelet, which watches its directory `plugins_registry` for sockets and asks on each who is there.
//!
//! Promises: when the socket's file goes away (a kubelet whose directory was emptied), it is made again.

mod authority;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gitmount_proto::pluginregistration as registration;
use gitmount_proto::pluginregistration::registration_server::{Registration, RegistrationServer};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::server;
use authority::Mended;

/// How often to look whether the socket's file is there.
const LOOK: Duration = Duration::from_secs(5);

/// Versions of CSI that the driver speaks.
const VERSIONS: [&str; 1] = ["1.0.0"];

/// The service.
#[derive(Debug, Clone)]
pub struct Service {
    /// The driver's socket as the kubelet sees it.
    pub endpoint: String,
    /// Whether the kubelet has taken it in.
    pub registered: Arc<AtomicBool>,
}

#[tonic::async_trait]
impl Registration for Service {
    async fn get_info(&self, _: Request<registration::InfoRequest>) -> Result<Response<registration::PluginInfo>, Status> {
        Ok(Response::new(registration::PluginInfo {
            r#type: "CSIPlugin".into(),
            name: crate::DRIVER.into(),
            endpoint: self.endpoint.clone(),
            supported_versions: VERSIONS.map(str::to_owned).into(),
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<registration::RegistrationStatus>,
    ) -> Result<Response<registration::RegistrationStatusResponse>, Status> {
        let registration::RegistrationStatus { plugin_registered, error } = request.into_inner();
        self.registered.store(plugin_registered, Ordering::SeqCst);
        if plugin_registered {
            tracing::info!("the kubelet has registered the driver");
        } else {
            tracing::error!(error, endpoint = self.endpoint, "the kubelet cannot register the driver: check that it sees the endpoint");
        }
        Ok(Response::new(registration::RegistrationStatusResponse {}))
    }
}

/// The socket's path in the kubelet's directory.
pub fn socket(directory: &Path) -> PathBuf {
    directory.join(format!("{}-reg.sock", crate::DRIVER))
}

/// Serves for ever.
///
/// # Errors
/// When the socket cannot be made at first.
pub async fn serve(directory: &Path, service: Service) -> std::io::Result<()> {
    let path = socket(directory);
    let mut listener = server::listen(&path)?;
    loop {
        let served = tonic::transport::Server::builder()
            .add_service(RegistrationServer::new(service.clone()))
            .serve_with_incoming_shutdown(UnixListenerStream::new(listener).map(|stream| stream.map(Mended::new)), gone(&path));
        if let Err(error) = served.await {
            tracing::warn!(%error, "the registration socket is made again");
        }
        service.registered.store(false, Ordering::SeqCst);
        listener = loop {
            match server::listen(&path) {
                Ok(listener) => break listener,
                Err(error) => tracing::warn!(%error, "the driver cannot be registered yet"),
            }
            tokio::time::sleep(LOOK).await;
        };
    }
}

async fn gone(path: &Path) {
    while path.exists() {
        tokio::time::sleep(LOOK).await;
    }
    tracing::info!(socket = %path.display(), "the registration socket is gone, it is made again");
}
