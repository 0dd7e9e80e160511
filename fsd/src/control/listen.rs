//! The connections of a control socket.
//!
//! Promises: a stranger's connection is closed before a byte of it is read; one that says nothing costs a descriptor for ten seconds and
//! no thread; no number of silent connections keeps another from being answered, since only what has spoken counts against the limit.

use std::io;
use std::os::unix::net::UnixListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use nix::unistd::Uid;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, UdsConnectInfo};

/// How long a connection may be silent at its start.
const FIRST_BYTE: Duration = Duration::from_secs(10);

/// Connections that are answered at the same time; watchers keep theirs.
const SPEAKING: usize = 256;

/// Connections that have said nothing yet, at the same time.
const SILENT: usize = 1024;

/// One connection of an allowed peer that has begun to speak.
#[derive(Debug)]
pub struct Peer {
    stream: UnixStream,
    _permit: OwnedSemaphorePermit,
}

/// Accepts connections of `allowed` users until the receiver is dropped. Call it within a tokio runtime.
pub fn accept(listener: UnixListener, allowed: impl Fn(Uid) -> bool + Send + 'static) -> io::Result<ReceiverStream<io::Result<Peer>>> {
    listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(listener)?;
    let (peers, received) = mpsc::channel(1);
    let (speaking, silent) = (Arc::new(Semaphore::new(SPEAKING)), Arc::new(Semaphore::new(SILENT)));
    tokio::spawn(async move {
        loop {
            let stream = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => stream,
                    // No descriptor is left: one may be in a moment.
                    Err(error) => {
                        tracing::warn!(%error, "a connection to the control socket cannot be accepted");
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    }
                },
                () = peers.closed() => return,
            };
            if !stream.peer_cred().is_ok_and(|peer| allowed(Uid::from_raw(peer.uid()))) {
                continue;
            }
            let Ok(waiting) = Arc::clone(&silent).try_acquire_owned() else { continue };
            let (speaking, peers) = (Arc::clone(&speaking), peers.clone());
            tokio::spawn(async move {
                if !matches!(tokio::time::timeout(FIRST_BYTE, stream.readable()).await, Ok(Ok(()))) {
                    return;
                }
                drop(waiting);
                let Ok(permit) = speaking.acquire_owned().await else { return };
                // Nobody takes connections any more: this one is closed.
                let _ = peers.send(Ok(Peer { stream, _permit: permit })).await;
            });
        }
    });
    Ok(ReceiverStream::new(received))
}

impl Connected for Peer {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Peer {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Peer {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
