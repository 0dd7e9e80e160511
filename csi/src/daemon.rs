//! The client of the daemon's control socket. One connection is shared by all calls and made again when it breaks.
//!
//! Promises: every call ends by its time limit, whatever the daemon does (it may be stopped, or restarting).

use std::path::{Path, PathBuf};
use std::time::Duration;

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::Fault;
use gitmount_proto::fsd::v1::control_client::ControlClient;
use tonic::transport::{Channel, Endpoint};

/// Calls that the daemon answers from memory.
const QUICK: Duration = Duration::from_millis(600);

/// A publish, which may have to fetch a whole repository: a bit less than the two minutes that the kubelet waits.
const PUBLISH: Duration = Duration::from_secs(110);

/// An unpublish, which waits for nothing but what another call does at the target.
const UNPUBLISH: Duration = Duration::from_secs(60);

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(2);

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DaemonError {
    /// It did what it could and says why that failed.
    #[error("{message}")]
    Failed {
        /// Whose fault it is.
        fault: Fault,
        /// One sentence.
        message: String,
    },
    /// It does not answer: it restarts, is stopped, or is not there.
    #[error("the gitmount daemon of this node does not answer ({0}): look at the container \"fsd\" of the node's pod")]
    Away(String),
    /// It works on it and is not done yet.
    #[error("the first fetch is not done after {} s; it goes on, and the next try shares it", PUBLISH.as_secs())]
    Busy,
}

impl DaemonError {
    fn away(status: &tonic::Status) -> Self {
        // The chain of a transport error ends with what the system said.
        let mut error: &dyn std::error::Error = status;
        while let Some(source) = error.source() {
            error = source;
        }
        match error.downcast_ref::<tonic::Status>() {
            Some(status) => DaemonError::Away(format!("{:?}: {}", status.code(), status.message())),
            None => DaemonError::Away(error.to_string()),
        }
    }
}

impl From<proto::Failure> for DaemonError {
    fn from(failure: proto::Failure) -> Self {
        DaemonError::Failed { fault: failure.fault(), message: failure.message }
    }
}

/// The daemon.
#[derive(Debug, Clone)]
pub struct Daemon {
    socket: PathBuf,
    client: ControlClient<Channel>,
}

impl Daemon {
    /// A client of the daemon on `socket`; connects with the first call.
    ///
    /// # Errors
    /// When the path cannot be that of a socket.
    pub fn new(socket: &Path) -> Result<Self, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?.connect_timeout(CONNECT);
        Ok(Daemon { socket: socket.to_owned(), client: ControlClient::new(endpoint.connect_lazy()) })
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What is served.
    ///
    /// # Errors
    /// `Away`.
    pub async fn status(&self) -> Result<Vec<proto::View>, DaemonError> {
        let mut client = self.client.clone();
        Ok(limited(QUICK, client.status(proto::StatusRequest {})).await?.views)
    }

    /// How much is in a target's tree.
    ///
    /// # Errors
    /// `Away`, also for a target that the daemon does not know.
    pub async fn statistics(&self, target: &str) -> Result<proto::StatisticsResponse, DaemonError> {
        let mut client = self.client.clone();
        limited(QUICK, client.statistics(proto::StatisticsRequest { target: target.into() })).await
    }

    /// Shows a view at a target.
    ///
    /// # Errors
    /// Any.
    pub async fn publish(&self, request: proto::PublishRequest) -> Result<proto::Published, DaemonError> {
        use proto::publish_response::Outcome;
        let mut client = self.client.clone();
        let answer = tokio::time::timeout(PUBLISH, client.publish(request)).await.map_err(|_| DaemonError::Busy)?;
        match answer.map_err(|status| DaemonError::away(&status))?.into_inner().outcome {
            Some(Outcome::Published(published)) => Ok(published),
            Some(Outcome::Failure(failure)) => Err(failure.into()),
            None => Err(DaemonError::Away("its answer is empty".into())),
        }
    }

    /// Takes away what is shown at a target, and the directory.
    ///
    /// # Errors
    /// Any but `Busy`.
    pub async fn unpublish(&self, target: &str) -> Result<(), DaemonError> {
        let mut client = self.client.clone();
        let request = proto::UnpublishRequest { target: target.into(), remove_target: true };
        limited(UNPUBLISH, client.unpublish(request)).await?.failure.map_or(Ok(()), |failure| Err(failure.into()))
    }

    /// Notes a demand for all volumes of a repository; gives for how many views.
    ///
    /// # Errors
    /// Any but `Busy`.
    pub async fn demand(&self, url: &str) -> Result<u32, DaemonError> {
        self.pulled(url, true, QUICK).await
    }

    /// Fetches a repository now, and waits.
    ///
    /// # Errors
    /// Any but `Busy`.
    pub async fn pull(&self, url: &str) -> Result<u32, DaemonError> {
        self.pulled(url, false, UNPUBLISH).await
    }

    async fn pulled(&self, url: &str, no_wait: bool, limit: Duration) -> Result<u32, DaemonError> {
        use proto::pull_response::Outcome;
        let mut client = self.client.clone();
        let request = proto::PullRequest { url: url.to_owned(), no_wait, ..Default::default() };
        match limited(limit, client.pull(request)).await?.outcome {
            Some(Outcome::Noted(noted)) => Ok(noted.views),
            Some(Outcome::Failure(failure)) => Err(failure.into()),
            Some(Outcome::Pulled(_)) | None => Err(DaemonError::Away("its answer is of another kind".into())),
        }
    }

    /// What happens from now on.
    ///
    /// # Errors
    /// `Away`.
    pub async fn watch(&self) -> Result<tonic::Streaming<proto::Event>, DaemonError> {
        let mut client = self.client.clone();
        limited(CONNECT, client.watch(proto::WatchRequest {})).await
    }
}

async fn limited<T>(limit: Duration, call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>) -> Result<T, DaemonError> {
    match tokio::time::timeout(limit, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner).map_err(|status| DaemonError::away(&status)),
        Err(_) => Err(DaemonError::Away(format!("no answer within {} ms", limit.as_millis()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(name: &str) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        (dir, path)
    }

    #[tokio::test]
    async fn a_daemon_that_is_not_there_is_named_as_such() {
        let (_dir, path) = socket("none.sock");
        let error = Daemon::new(&path).unwrap().status().await.unwrap_err().to_string();
        assert!(error.contains("No such file") && error.contains("fsd"), "{error}");
    }

    /// What listens and never answers, as a stopped process does.
    #[tokio::test]
    async fn a_daemon_that_is_silent_costs_no_more_than_the_limit() {
        let (_dir, path) = socket("silent.sock");
        let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let daemon = Daemon::new(&path).unwrap();
        let many = (0..300).map(|_| daemon.status());
        let begin = std::time::Instant::now();
        for answer in futures_in_turn(many).await {
            assert!(matches!(answer, Err(DaemonError::Away(_))));
        }
        assert!(begin.elapsed() < Duration::from_secs(30), "they did not wait one after the other");
    }

    async fn futures_in_turn<T: Send + 'static>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
        // All at once, on one task.
        let mut all: Vec<_> = all.map(Box::pin).collect();
        let mut done: Vec<Option<T>> = all.iter().map(|_| None).collect();
        std::future::poll_fn(|context| {
            let mut pending = false;
            for (future, slot) in all.iter_mut().zip(&mut done).filter(|(_, slot)| slot.is_none()) {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *slot = Some(value),
                    std::task::Poll::Pending => pending = true,
                }
            }
            if pending { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
        })
        .await;
        done.into_iter().flatten().collect()
    }
}
