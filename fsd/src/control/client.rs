//! The command line's side of the control socket: blocking calls.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::control_client::ControlClient;
use gitmount_proto::socket::{self, ConnectError};
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};
use tonic::transport::Channel;
use tonic::{Code, Status};

use super::Failure;

/// How long a process may take to accept a connection and to answer from memory.
const ANSWER_LIMIT: Duration = Duration::from_secs(5);

/// A connection to one process.
#[derive(Debug)]
pub struct Client {
    runtime: tokio::runtime::Runtime,
    inner: ControlClient<Channel>,
}

impl Client {
    /// Connects to the process that listens on `socket`.
    ///
    /// # Errors
    /// [`ConnectError::Dead`] and [`ConnectError::Missing`] when none does.
    pub fn connect(socket: &Path) -> std::result::Result<Self, ConnectError> {
        let failed = |e: std::io::Error| ConnectError::Failed { path: socket.to_owned(), why: e.to_string() };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let channel = runtime.block_on(socket::connect(socket, ANSWER_LIMIT))?;
        Ok(Client { runtime, inner: ControlClient::new(channel) })
    }

    /// What the process serves.
    pub fn status(&mut self) -> Result<proto::StatusResponse> {
        let call = tokio_timeout(self.inner.status(proto::StatusRequest {}));
        self.runtime.block_on(call).map_err(refusal)
    }

    /// Counters of the mount at `target`.
    pub fn statistics(&mut self, target: &Path) -> Result<proto::StatisticsResponse> {
        let call = tokio_timeout(self.inner.statistics(proto::StatisticsRequest { target: bytes(target) }));
        self.runtime.block_on(call).map_err(refusal)
    }

    /// Fetches now; waits as long as the fetch takes.
    pub fn pull(&mut self, target: &Path) -> Result<proto::Pulled> {
        let call = self.inner.pull(proto::PullRequest { target: bytes(target), ..Default::default() });
        match self.runtime.block_on(call).map_err(refusal)?.into_inner().outcome {
            Some(proto::pull_response::Outcome::Pulled(pulled)) => Ok(pulled),
            Some(proto::pull_response::Outcome::Failure(failure)) => Err(Failure::from(failure).into_error()),
            Some(proto::pull_response::Outcome::Noted(_)) | None => Err(empty()),
        }
    }

    /// Shows a view at a target; waits as long as the fetch takes.
    pub fn publish(&mut self, request: proto::PublishRequest) -> Result<proto::Published> {
        let call = self.inner.publish(request);
        match self.runtime.block_on(call).map_err(refusal)?.into_inner().outcome {
            Some(proto::publish_response::Outcome::Published(published)) => Ok(published),
            Some(proto::publish_response::Outcome::Failure(failure)) => Err(Failure::from(failure).into_error()),
            None => Err(empty()),
        }
    }

    /// The last events of the view at a target, oldest first.
    pub fn log(&mut self, target: &Path) -> Result<Vec<proto::Event>> {
        let call = tokio_timeout(self.inner.log(proto::LogRequest { target: bytes(target) }));
        Ok(self.runtime.block_on(call).map_err(refusal)?.events)
    }

    /// Unmounts `target`.
    pub fn unmount(&mut self, target: &Path, lazy: bool) -> Result<()> {
        let call = self.inner.unmount(proto::UnmountRequest { target: bytes(target), lazy });
        match self.runtime.block_on(call).map_err(refusal)?.into_inner().failure {
            None => Ok(()),
            Some(failure) => Err(Failure::from(failure).into_error()),
        }
    }
}

fn empty() -> StoreError {
    StoreError::new(Fault::Internal, "the process sent an empty answer: is it another version of gitmount?")
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

async fn tokio_timeout<T>(call: impl Future<Output = std::result::Result<tonic::Response<T>, Status>>) -> std::result::Result<T, Status> {
    match tokio::time::timeout(ANSWER_LIMIT, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded(format!("no answer within {ANSWER_LIMIT:?}"))),
    }
}

/// The operation was not tried: why.
fn refusal(status: Status) -> StoreError {
    let fault = if status.code() == Code::NotFound { Fault::NotFound } else { Fault::Internal };
    StoreError::new(fault, format!("the mount's process did not do it: {}", status.message()))
}
