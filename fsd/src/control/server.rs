//! The control service on a unix socket. Only the user who serves the mount, and root, are answered.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::control_server::{Control, ControlServer};
use nix::unistd::Uid;
use tokio::sync::oneshot;
use tokio_stream::wrappers::BroadcastStream;
use tokio_stream::wrappers::errors::BroadcastStreamRecvError;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status};

use super::{Failure, Operations, listen};

/// A control message names paths, and brings a key with the hosts it is for, or the certificates to trust: those of a whole system are
/// 220 KiB. Nothing bigger is read into memory.
const MAX_MESSAGE: usize = 4 << 20;

/// A peer that answers no ping for that long is gone.
const KEEP_ALIVE: std::time::Duration = std::time::Duration::from_secs(20);

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
        let me = Uid::effective();
        let incoming = listen::accept(listener, move |peer| allowed(me, peer))?;
        let service = ControlServer::new(Service { operations }).max_decoding_message_size(MAX_MESSAGE);
        let (stop, stopped) = oneshot::channel::<()>();
        let task = runtime.spawn(async move {
            let stopped = async {
                // An error means that the sender is gone, which is a stop as well.
                let _ = stopped.await;
            };
            if let Err(error) = tonic::transport::Server::builder()
                .concurrency_limit_per_connection(16)
                .http2_keepalive_interval(Some(KEEP_ALIVE))
                .http2_keepalive_timeout(Some(KEEP_ALIVE))
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
    /// Runs a blocking operation away from the threads that answer.
    async fn run<T: Send + 'static>(&self, what: impl FnOnce(&dyn Operations) -> T + Send + 'static) -> Result<T, Status> {
        let operations = Arc::clone(&self.operations);
        tokio::task::spawn_blocking(move || what(&*operations)).await.map_err(|e| Status::internal(e.to_string()))
    }

    /// Runs a blocking operation about the mount at `target`, away from the threads that answer.
    async fn about<T: Send + 'static>(
        &self,
        target: Vec<u8>,
        what: impl FnOnce(&dyn Operations, &Path) -> Option<T> + Send + 'static,
    ) -> Result<T, Status> {
        let target = PathBuf::from(std::ffi::OsStr::from_bytes(&target));
        let (target, result) = self
            .run(move |operations| {
                let result = what(operations, &target);
                (target, result)
            })
            .await?;
        result.ok_or_else(|| Status::not_found(format!("{} is not mounted by this process", target.display())))
    }
}

fn path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// The answer from memory about the mount at `target`.
fn found<T>(target: &[u8], answer: Option<T>) -> Result<Response<T>, Status> {
    answer.map(Response::new).ok_or_else(|| Status::not_found(format!("{} is not mounted by this process", path(target).display())))
}

#[tonic::async_trait]
impl Control for Service {
    async fn status(&self, _: Request<proto::StatusRequest>) -> Result<Response<proto::StatusResponse>, Status> {
        Ok(Response::new(proto::StatusResponse { pid: std::process::id(), views: self.operations.views() }))
    }

    async fn pull(&self, request: Request<proto::PullRequest>) -> Result<Response<proto::PullResponse>, Status> {
        use proto::pull_response::Outcome;
        let proto::PullRequest { target, url, no_wait } = request.into_inner();
        let outcome = if !url.is_empty() {
            self.run(move |o| o.pull_url(&url, !no_wait)).await?.map(Outcome::Noted)
        } else if no_wait {
            self.about(target, |o, target| o.demand(target)).await?.map(Outcome::Noted)
        } else {
            self.about(target, |o, target| o.pull(target)).await?.map(Outcome::Pulled)
        };
        let outcome = outcome.unwrap_or_else(|failure| Outcome::Failure(failure.into()));
        Ok(Response::new(proto::PullResponse { outcome: Some(outcome) }))
    }

    async fn unmount(&self, request: Request<proto::UnmountRequest>) -> Result<Response<proto::UnmountResponse>, Status> {
        let proto::UnmountRequest { target, lazy } = request.into_inner();
        let result = self.about(target, move |o, target| o.unmount(target, lazy)).await?;
        Ok(Response::new(proto::UnmountResponse { failure: result.err().map(Into::into) }))
    }

    async fn statistics(&self, request: Request<proto::StatisticsRequest>) -> Result<Response<proto::StatisticsResponse>, Status> {
        let target = request.into_inner().target;
        found(&target, self.operations.statistics(path(&target)))
    }

    async fn publish(&self, request: Request<proto::PublishRequest>) -> Result<Response<proto::PublishResponse>, Status> {
        use proto::publish_response::Outcome;
        let request = request.into_inner();
        let outcome = match self.run(move |o| o.publish(request)).await? {
            Ok(published) => Outcome::Published(published),
            Err(failure) => Outcome::Failure(failure.into()),
        };
        Ok(Response::new(proto::PublishResponse { outcome: Some(outcome) }))
    }

    async fn unpublish(&self, request: Request<proto::UnpublishRequest>) -> Result<Response<proto::UnpublishResponse>, Status> {
        let proto::UnpublishRequest { target, remove_target } = request.into_inner();
        let result = self.run(move |o| o.unpublish(path(&target), remove_target)).await?;
        Ok(Response::new(proto::UnpublishResponse { failure: result.err().map(Into::into) }))
    }

    async fn update_credential(
        &self,
        request: Request<proto::UpdateCredentialRequest>,
    ) -> Result<Response<proto::UpdateCredentialResponse>, Status> {
        let proto::UpdateCredentialRequest { target, credential } = request.into_inner();
        let result: Result<(), Failure> = self.about(target, move |o, target| o.update_credential(target, credential)).await?;
        Ok(Response::new(proto::UpdateCredentialResponse { failure: result.err().map(Into::into) }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<proto::Event, Status>> + Send>>;

    async fn watch(&self, _: Request<proto::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let none = || Status::unimplemented("this process serves one mount and tells no events: ask the socket of `gitmount daemon`");
        let events = BroadcastStream::new(self.operations.watch().ok_or_else(none)?).map(|event| {
            event.map_err(|BroadcastStreamRecvError::Lagged(missed)| {
                Status::data_loss(format!("{missed} events came faster than they were read: watch again, and ask for the status"))
            })
        });
        let first = proto::Event { kind: proto::event::Kind::Watching.into(), ..Default::default() };
        Ok(Response::new(Box::pin(tokio_stream::once(Ok(first)).chain(events))))
    }

    async fn log(&self, request: Request<proto::LogRequest>) -> Result<Response<proto::LogResponse>, Status> {
        let target = request.into_inner().target;
        found(&target, self.operations.log(path(&target)).map(|events| proto::LogResponse { events }))
    }
}

#[cfg(test)]
mod tests;
