//! A small HTTP server for `/metrics`, `/healthz` and `/readyz`. It has no secrets and changes nothing, so it asks nobody who they are;
//! connections are few and their time is bounded.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::daemon::engine::Engine;

/// Connections at the same time.
const CONNECTIONS: usize = 32;

/// How long a connection lives.
const LIFE: Duration = Duration::from_secs(60);

/// How long its request may take to come.
const REQUEST: Duration = Duration::from_secs(5);

/// What Prometheus expects of its text format.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Serves on `address` until the runtime ends; gives the address that it listens on.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve(address: SocketAddr, engine: Arc<Engine>) -> std::io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    tokio::spawn(async move {
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let Ok((stream, _)) = listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let engine = Arc::clone(&engine);
            tokio::spawn(async move {
                let answer = service_fn(move |request| {
                    let engine = Arc::clone(&engine);
                    async move { Ok::<_, Infallible>(answer(&request, &engine)) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(REQUEST)
                    .serve_connection(TokioIo::new(stream), answer);
                // What goes wrong is the client's business.
                let _ = tokio::time::timeout(LIFE, connection).await;
                drop(place);
            });
        }
    });
    Ok(bound)
}

fn answer(request: &Request<Incoming>, engine: &Engine) -> Response<Full<Bytes>> {
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => match engine.metrics() {
            Ok(text) => (StatusCode::OK, FORMAT, text),
            Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, "text/plain", error.to_string()),
        },
        (&Method::GET | &Method::HEAD, "/healthz") => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
        (&Method::GET | &Method::HEAD, "/readyz") => match engine.is_stopping() {
            false => (StatusCode::OK, "text/plain", "ok\n".to_owned()),
            true => (StatusCode::SERVICE_UNAVAILABLE, "text/plain", "stopping\n".to_owned()),
        },
        _ => (StatusCode::NOT_FOUND, "text/plain", "there are /metrics, /healthz and /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    if let Ok(kind) = kind.parse() {
        response.headers_mut().insert(CONTENT_TYPE, kind);
    }
    response
}
