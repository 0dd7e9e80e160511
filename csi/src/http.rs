//! An HTTP server whose every cost is bounded: connections, the time until a request's head is there, and the life of a connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// How long the head of a request may take to come.
const HEAD: Duration = Duration::from_secs(5);

/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;

/// What one server allows.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at the same time; more wait to be accepted.
    pub connections: usize,
    /// How long a connection lives.
    pub life: Duration,
}

/// Serves until the runtime ends.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve(address: SocketAddr, router: Router, limits: Limits) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let places = Arc::new(Semaphore::new(limits.connections));
    loop {
        // A semaphore that nobody closes.
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return Ok(()) };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let service = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            // What goes wrong is the client's business.
            let _ = tokio::time::timeout(limits.life, connection).await;
            drop(place);
        });
    }
}
