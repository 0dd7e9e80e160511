//! The control service on a unix socket. Only the user who serves the mount, and root, are answered.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::control_server::{Control, ControlServer};
use nix::unistd::Uid;
use tokio::sync::oneshot;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use super::Operations;

/// A control message names a path at most; nothing bigger is read into memory.
const MAX_MESSAGE: usize = 64 << 10;

/// A running server; it stops when this is dropped, after the requests it has begun.
#[derive(Debug)]
pub struct Server {
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    /// Serves `operations` on `listener`, on `runtime`.
    pub fn start(runtime: &tokio::runtime::Handle, listener: UnixListener, operations: Arc<dyn Operations>) -> std::io::Result<Self> {
        let _context = runtime.enter();
        listener.set_nonblocking(true)?;
        let listener = tokio::net::UnixListener::from_std(listener)?;
        let me = Uid::effective();
        // A stranger's connection is closed before a byte of it is read.
        let incoming = UnixListenerStream::new(listener).filter(move |stream| match stream {
            Ok(stream) => stream.peer_cred().is_ok_and(|peer| allowed(me, Uid::from_raw(peer.uid()))),
            Err(_) => true,
        });
        let service = ControlServer::new(Service { operations }).max_decoding_message_size(MAX_MESSAGE);
        let (stop, stopped) = oneshot::channel::<()>();
        let task = runtime.spawn(async move {
            let stopped = async {
                // An error means that the sender is gone, which is a stop as well.
                let _ = stopped.await;
            };
            if let Err(error) = tonic::transport::Server::builder()
                .concurrency_limit_per_connection(16)
                .add_service(service)
                .serve_with_incoming_shutdown(incoming, stopped)
                .await
            {
                tracing::warn!(%error, "the control socket failed");
            }
        });
        Ok(Server { stop: Some(stop), task })
    }

    /// Stops accepting and waits for the requests that were begun, for `limit` at most.
    pub async fn stop(mut self, limit: std::time::Duration) {
        drop(self.stop.take());
        // A client that keeps its connection open must not keep the process alive.
        if tokio::time::timeout(limit, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// Whether `peer` may ask a process of `me`.
fn allowed(me: Uid, peer: Uid) -> bool {
    peer == me || peer.is_root()
}

struct Service {
    operations: Arc<dyn Operations>,
}

impl Service {
    /// Runs a blocking operation about the mount at `target`, away from the threads that answer.
    async fn about<T: Send + 'static>(
        &self,
        target: Vec<u8>,
        what: impl FnOnce(&dyn Operations, &Path) -> Option<T> + Send + 'static,
    ) -> Result<T, Status> {
        let operations = Arc::clone(&self.operations);
        let target = PathBuf::from(std::ffi::OsStr::from_bytes(&target));
        let done = tokio::task::spawn_blocking(move || {
            let result = what(&*operations, &target);
            (target, result)
        });
        let (target, result) = done.await.map_err(|e| Status::internal(e.to_string()))?;
        result.ok_or_else(|| Status::not_found(format!("{} is not mounted by this process", target.display())))
    }
}

#[tonic::async_trait]
impl Control for Service {
    async fn status(&self, _: Request<proto::StatusRequest>) -> Result<Response<proto::StatusResponse>, Status> {
        Ok(Response::new(proto::StatusResponse { pid: std::process::id(), views: self.operations.views() }))
    }

    async fn pull(&self, request: Request<proto::PullRequest>) -> Result<Response<proto::PullResponse>, Status> {
        let outcome = match self.about(request.into_inner().target, |o, target| o.pull(target)).await? {
            Ok(pulled) => proto::pull_response::Outcome::Pulled(pulled),
            Err(failure) => proto::pull_response::Outcome::Failure(failure.into()),
        };
        Ok(Response::new(proto::PullResponse { outcome: Some(outcome) }))
    }

    async fn unmount(&self, request: Request<proto::UnmountRequest>) -> Result<Response<proto::UnmountResponse>, Status> {
        let proto::UnmountRequest { target, lazy } = request.into_inner();
        let result = self.about(target, move |o, target| o.unmount(target, lazy)).await?;
        Ok(Response::new(proto::UnmountResponse { failure: result.err().map(Into::into) }))
    }

    async fn statistics(&self, request: Request<proto::StatisticsRequest>) -> Result<Response<proto::StatisticsResponse>, Status> {
        self.about(request.into_inner().target, |o, target| o.statistics(target)).await.map(Response::new)
    }
}

#[cfg(test)]
mod tests;
