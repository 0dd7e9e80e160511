//! The socket on which a mount, or a daemon with many, answers.
//!
//! - [`runtime`]: the directory of the sockets of single mounts, and who may claim a mount point's name in it.
//! - [`listen`]: the socket's connections: whose they are, how many, and which are of no use.
//! - [`server`]: the service; it calls what implements [`Operations`].
//! - [`client`]: the other side, for the command line.
//!
//! A mount point has at most one live socket in a runtime directory, and a socket whose process died is recognised and removed.

pub mod client;
pub mod listen;
pub mod runtime;
pub mod server;

use std::path::Path;

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::{Fault, StoreError};

/// What a process that serves mounts can be asked for. Methods may block; `None` means that the target is not served here.
pub trait Operations: Send + Sync + 'static {
    /// What is served, from memory.
    fn views(&self) -> Vec<proto::View>;
    /// Fetches now, and gives what is served afterwards.
    fn pull(&self, target: &Path) -> Option<Result<proto::Pulled, Failure>>;
    /// Notes a demand for the view at a target.
    fn demand(&self, _target: &Path) -> Option<Result<proto::Noted, Failure>> {
        Some(Err(one_mount()))
    }
    /// Fetches a repository now for all its views, or notes a demand for it.
    fn pull_url(&self, _url: &str, _wait: bool) -> Result<proto::Noted, Failure> {
        Err(one_mount())
    }
    /// Unmounts.
    fn unmount(&self, target: &Path, lazy: bool) -> Option<Result<(), Failure>>;
    /// Counters, from memory.
    fn statistics(&self, target: &Path) -> Option<proto::StatisticsResponse>;
    /// Shows a view at a target.
    fn publish(&self, _request: proto::PublishRequest) -> Result<proto::Published, Failure> {
        Err(one_mount())
    }
    /// Takes away what is shown at a target.
    fn unpublish(&self, _target: &Path, _remove: bool) -> Result<(), Failure> {
        Err(one_mount())
    }
    /// Gives a published target another credential.
    fn update_credential(&self, _target: &Path, _credential: Option<proto::Credential>) -> Option<Result<(), Failure>> {
        Some(Err(one_mount()))
    }
    /// What happens from now on; `None` where nothing is told.
    fn watch(&self) -> Option<tokio::sync::broadcast::Receiver<proto::Event>> {
        None
    }
    /// The last events of the view at a target, oldest first, from memory.
    fn log(&self, _target: &Path) -> Option<Vec<proto::Event>> {
        None
    }
}

fn one_mount() -> Failure {
    Failure::new(Fault::Usage, "this process serves one mount: ask the socket of `gitmount daemon`")
}

/// Why an operation failed: what of a [`StoreError`] travels to another process, or to several callers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Whose fault it is.
    pub fault: Fault,
    /// One sentence, without credentials.
    pub message: String,
}

impl Failure {
    /// A failure from its sentence.
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        Failure { fault, message: message.into() }
    }

    /// The error it was made from, but for what does not travel.
    pub fn into_error(self) -> StoreError {
        StoreError::new(self.fault, self.message)
    }
}

impl From<&StoreError> for Failure {
    fn from(error: &StoreError) -> Self {
        Failure::new(error.fault(), error.to_string())
    }
}

impl From<Failure> for proto::Failure {
    fn from(failure: Failure) -> Self {
        let fault = match failure.fault {
            Fault::Usage => proto::Fault::Usage,
            Fault::NotFound => proto::Fault::NotFound,
            Fault::Refused => proto::Fault::Refused,
            Fault::Unreachable => proto::Fault::Unreachable,
            Fault::Disk => proto::Fault::Disk,
            Fault::Corrupt => proto::Fault::Corrupt,
            Fault::Cancelled => proto::Fault::Cancelled,
            Fault::Internal => proto::Fault::Internal,
        };
        proto::Failure { fault: fault.into(), message: failure.message }
    }
}

impl From<proto::Failure> for Failure {
    fn from(failure: proto::Failure) -> Self {
        let fault = match failure.fault() {
            proto::Fault::Usage => Fault::Usage,
            proto::Fault::NotFound => Fault::NotFound,
            proto::Fault::Refused => Fault::Refused,
            proto::Fault::Unreachable => Fault::Unreachable,
            proto::Fault::Disk => Fault::Disk,
            proto::Fault::Corrupt => Fault::Corrupt,
            proto::Fault::Cancelled => Fault::Cancelled,
            proto::Fault::Internal | proto::Fault::Unspecified => Fault::Internal,
        };
        Failure { fault, message: failure.message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_the_way_over_the_socket() {
        for fault in [
            Fault::Usage,
            Fault::NotFound,
            Fault::Refused,
            Fault::Unreachable,
            Fault::Disk,
            Fault::Corrupt,
            Fault::Cancelled,
            Fault::Internal,
        ] {
            let failure = Failure::new(fault, "ref \"x\" does not exist");
            assert_eq!(Failure::from(proto::Failure::from(failure.clone())), failure);
        }
    }
}
