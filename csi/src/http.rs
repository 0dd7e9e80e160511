//! An HTTP server whose every cost is bounded: connections, the time until a request's head is there, and the life of a connection. A connection
//! takes one request: a proxy that kept it for the next one might send that just when the connection's life ends.

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
                .keep_alive(false)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            // What goes wrong is the client's business.
            let _ = tokio::time::timeout(limits.life, connection).await;
            drop(place);
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_connection_takes_one_request_and_says_so() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let router = Router::new().route("/", axum::routing::get(async || "well\n"));
        tokio::spawn(serve(free, router, Limits { connections: 4, life: Duration::from_secs(60) }));
        let mut stream = loop {
            match tokio::net::TcpStream::connect(free).await {
                Ok(stream) => break stream,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let answer = answer.to_lowercase();
        assert!(answer.starts_with("http/1.1 200 ") && answer.ends_with("well\n"), "{answer}");
        assert!(answer.contains("connection: close"), "a proxy must not send the next one here: {answer}");
    }
}
