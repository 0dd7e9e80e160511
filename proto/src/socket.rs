//! A gRPC channel to a server on a unix socket. Connecting never waits longer than it is told to.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use tonic::transport::{Channel, Endpoint};

/// Why there is no channel.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The file exists, but no process listens on it any more.
    #[error("no process listens on {}", .0.display())]
    Dead(PathBuf),
    /// There is no such socket.
    #[error("there is no socket {}", .0.display())]
    Missing(PathBuf),
    /// Anything else: no permission, a path that is too long, no answer in time.
    #[error("cannot connect to {}: {why}", .path.display())]
    Failed {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        why: String,
    },
}

/// A connection to who listens on `path`, at once: the kernel knows whether anybody does.
fn open(path: &Path) -> Result<UnixStream, ConnectError> {
    UnixStream::connect(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::ConnectionRefused => ConnectError::Dead(path.to_owned()),
        std::io::ErrorKind::NotFound => ConnectError::Missing(path.to_owned()),
        _ => ConnectError::Failed { path: path.to_owned(), why: error.to_string() },
    })
}

/// Whether a process listens on `path`. Answers at once.
///
/// # Errors
/// [`ConnectError::Dead`] and [`ConnectError::Missing`] say that none does.
pub fn probe(path: &Path) -> Result<(), ConnectError> {
    open(path).map(drop)
}

/// Checks that it is root or this user who listens on `path`, before credentials go that way.
///
/// # Errors
/// As [`probe`], and [`ConnectError::Failed`] when it is somebody else.
pub fn trusted(path: &Path) -> Result<(), ConnectError> {
    let failed = |why: String| ConnectError::Failed { path: path.to_owned(), why };
    let peer = getsockopt(&open(path)?, PeerCredentials).map_err(|e| failed(e.desc().to_owned()))?.uid();
    if peer == 0 || peer == geteuid().as_raw() { Ok(()) } else { Err(failed(format!("it is user {peer} who listens there"))) }
}

/// Connects to the server on `path`, in `limit` at most; no request over the channel has a limit of its own.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(path: &Path, limit: Duration) -> Result<Channel, ConnectError> {
    probe(path)?;
    let failed = |why: String| ConnectError::Failed { path: path.to_owned(), why };
    let text = path.to_str().ok_or_else(|| failed("the path is not UTF-8".into()))?;
    let endpoint = Endpoint::from_shared(format!("unix://{text}")).map_err(|e| failed(e.to_string()))?;
    match tokio::time::timeout(limit, endpoint.connect()).await {
        Err(_) => Err(failed(format!("no answer within {limit:?}"))),
        Ok(result) => result.map_err(|e| failed(e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("gitmount-proto-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir.join("s")
    }

    #[test]
    fn tells_dead_missing_and_live_sockets_apart() {
        let path = scratch("kinds");
        assert!(matches!(probe(&path), Err(ConnectError::Missing(_))));
        let listener = UnixListener::bind(&path).unwrap();
        assert!(probe(&path).is_ok());
        drop(listener);
        assert!(matches!(probe(&path), Err(ConnectError::Dead(_))));
        std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
