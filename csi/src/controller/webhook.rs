//! `POST /webhook/<namespace>/<secret>`.
//!
//! Promises: the body is hashed as it comes, and no more of it is kept than [`LARGEST`], nor more of all bodies together than [`BUDGET`]
//! and [`FREE`] of each connection; who holds the budget keeps no small request waiting; an answer to who does not know the Secret's value is
//! the same whether there is such a Secret or not.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::StreamExt as _;

use super::forge::{self, Claimed, Signer};
use super::metrics::{Metrics, Result as Outcome};
use super::payload::{self, Message, Push};
use super::secrets::Secrets;
use super::volumes::Volumes;
use crate::http::Limits;

/// Bytes of a body: the largest that GitHub sends.
pub const LARGEST: usize = 25 << 20;

/// Bytes of all bodies that are held at the same time.
pub const BUDGET: usize = 64 << 20;

/// Bytes of each body that need no place in the budget, so that large bodies that come slowly keep no usual request out: 16 MiB at most, with
/// as many connections as [`LIMITS`] allows.
pub const FREE: usize = 64 << 10;

/// What the server of the webhooks allows.
pub const LIMITS: Limits = Limits { connections: 256, life: Duration::from_secs(60) };

/// How long a body may take to come.
const BODY: Duration = Duration::from_secs(10);

/// How long a push waits for the volumes to be known, after a start.
const LISTED: Duration = Duration::from_secs(5);

/// Volumes that are marked at the same time.
const WRITERS: usize = 32;

/// What requests are answered with.
#[derive(Debug)]
pub struct Context {
    /// The volumes.
    pub volumes: Arc<Volumes>,
    /// The Secrets.
    pub secrets: Secrets,
    /// The counters.
    pub metrics: Metrics,
    /// Bytes that may still be held.
    pub budget: Arc<Semaphore>,
    /// Writes that may still begin.
    pub writers: Arc<Semaphore>,
}

impl Context {
    /// A context with everything still free.
    pub fn new(volumes: Arc<Volumes>, secrets: Secrets) -> Self {
        let (budget, writers) = (Arc::new(Semaphore::new(BUDGET)), Arc::new(Semaphore::new(WRITERS)));
        Context { volumes, secrets, metrics: Metrics::default(), budget, writers }
    }
}

/// The routes of the webhooks.
pub fn router(context: Arc<Context>) -> Router {
    Router::new().route("/webhook/{namespace}/{secret}", post(webhook)).with_state(context)
}

/// The routes of `/metrics`, `/healthz` and `/readyz`.
pub fn status(context: Arc<Context>) -> Router {
    let metrics = async |State(context): State<Arc<Context>>| match context.metrics.render() {
        Ok(text) => text.into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    };
    let ready = async |State(context): State<Arc<Context>>| match context.volumes.is_listed() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the PersistentVolumes are not known yet\n"),
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(context)
}

/// Why a request is not answered with `marked N`.
#[derive(Debug)]
struct Refused(Outcome, StatusCode, String);

impl Refused {
    fn new(outcome: Outcome, status: StatusCode, message: impl Into<String>) -> Self {
        Refused(outcome, status, message.into())
    }
}

/// What came of a request that was verified.
enum Done {
    Marked(usize),
    Ignored,
}

async fn webhook(
    State(context): State<Arc<Context>>,
    Path((namespace, secret)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let claimed = forge::claimed(&headers);
    let mut refs = String::new();
    let done = handle(&context, &namespace, &secret, &claimed, body, &mut refs).await;
    let (outcome, status, marked, text) = match done {
        Ok(Done::Marked(marked)) => (Outcome::marked, StatusCode::OK, marked, format!("marked {marked}")),
        Ok(Done::Ignored) => (Outcome::ignored, StatusCode::OK, 0, "marked 0".to_owned()),
        Err(Refused(outcome, status, message)) => (outcome, status, 0, message),
    };
    context.metrics.request(outcome, marked);
    // What is not verified is shown in a form that cannot break a line.
    tracing::info!(
        secret = ?format!("{:.253}/{:.253}", namespace, secret),
        forge = %claimed.forge,
        event = ?format!("{:.64}", claimed.event),
        refs = ?refs,
        marked,
        status = status.as_u16(),
        "a webhook: {text}"
    );
    (status, format!("{text}\n")).into_response()
}

async fn handle(
    context: &Context,
    namespace: &str,
    secret: &str,
    claimed: &Claimed,
    body: Body,
    refs: &mut String,
) -> Result<Done, Refused> {
    let value = if is_name(namespace) && is_name(secret) { context.secrets.value(namespace, secret).await } else { Ok(None) };
    let value = value.map_err(|error| {
        tracing::warn!(%error, "a Secret cannot be read");
        Refused::new(Outcome::failed, StatusCode::SERVICE_UNAVAILABLE, "the API server does not answer: send it again")
    })?;
    // Without a value the same is done with another one, so that the time tells nothing.
    let (key, known) = value.map_or((b"there is none".to_vec(), false), |value| (value.0, true));
    let (signer, bytes, _held) = read(body.into_data_stream(), Signer::new(&key), &context.budget).await?;
    if !(signer.verifies(claimed, &key) & known) {
        return Err(Refused::new(
            Outcome::refused,
            StatusCode::FORBIDDEN,
            "the request is not signed with the key \"secret\" of this Secret: give the forge the same string",
        ));
    }
    let message = payload::parse(claimed.forge, &claimed.event, &bytes)
        .map_err(|error| Refused::new(Outcome::malformed, StatusCode::BAD_REQUEST, error.to_string()))?;
    drop(bytes);
    let Message::Push(push) = message else { return Ok(Done::Ignored) };
    let names: Vec<&str> = push.refs.iter().take(10).map(|(name, _)| name.as_str()).collect();
    *refs = names.join(" ");
    mark(context, namespace, secret, &push).await.map(Done::Marked)
}

/// Takes a body in, and hashes it on the way.
async fn read(
    mut body: BodyDataStream,
    mut signer: Signer,
    budget: &Arc<Semaphore>,
) -> Result<(Signer, Vec<u8>, Vec<OwnedSemaphorePermit>), Refused> {
    let limited = |status, message: &str| Refused::new(Outcome::limited, status, message);
    let (mut bytes, mut held) = (vec![], vec![]);
    let all = async {
        while let Some(piece) = body.next().await {
            let piece = piece.map_err(|_| limited(StatusCode::BAD_REQUEST, "the body broke off"))?;
            if bytes.len() + piece.len() > LARGEST {
                return Err(limited(StatusCode::PAYLOAD_TOO_LARGE, "the body is larger than 25 MiB"));
            }
            let counted = (bytes.len() + piece.len()).saturating_sub(FREE.max(bytes.len()));
            let size = u32::try_from(counted).unwrap_or(u32::MAX);
            // A semaphore that nobody closes; whoever waits too long for a place ends with the time.
            if let Ok(place) = Arc::clone(budget).acquire_many_owned(size).await {
                held.push(place);
            }
            signer.update(&piece);
            bytes.extend_from_slice(&piece);
        }
        Ok(())
    };
    tokio::time::timeout(BODY, all).await.map_err(|_| limited(StatusCode::REQUEST_TIMEOUT, "the body came too slowly"))??;
    Ok((signer, bytes, held))
}

/// Marks the volumes that a push concerns; gives how many.
async fn mark(context: &Context, namespace: &str, secret: &str, push: &Push) -> Result<usize, Refused> {
    if tokio::time::timeout(LISTED, context.volumes.listed()).await.is_err() {
        let message = "the PersistentVolumes are not known yet: send it again";
        return Err(Refused::new(Outcome::failed, StatusCode::SERVICE_UNAVAILABLE, message));
    }
    let mut writes = tokio::task::JoinSet::new();
    for (name, commit) in context.volumes.concerned(namespace, secret, push) {
        let (volumes, writers) = (Arc::clone(&context.volumes), Arc::clone(&context.writers));
        writes.spawn(async move {
            let _turn = writers.acquire().await;
            let marked = volumes.demand(&name, commit).await;
            marked.inspect_err(|error| tracing::warn!(volume = name, %error, "a volume cannot be marked"))
        });
    }
    let (mut marked, mut failed) = (0, 0);
    while let Some(written) = writes.join_next().await {
        match written {
            Ok(Ok(there)) => marked += usize::from(there),
            Ok(Err(_)) | Err(_) => failed += 1,
        }
    }
    if failed > 0 {
        let message = format!("marked {marked}, and {failed} could not be: send it again");
        return Err(Refused::new(Outcome::failed, StatusCode::SERVICE_UNAVAILABLE, message));
    }
    Ok(marked)
}

fn is_name(name: &str) -> bool {
    let plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    // No part is empty: `..` would be another path at the API server.
    name.len() <= 253
        && name.split('.').map(str::as_bytes).all(|part| {
            part.first().is_some_and(plain) && part.last().is_some_and(plain) && part.iter().all(|byte| plain(byte) || *byte == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read_all(size: usize, budget: usize) -> Result<usize, (StatusCode, usize)> {
        let pieces = (0..size.div_ceil(1 << 16)).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 1 << 16]));
        let body = Body::from_stream(tokio_stream::iter(pieces)).into_data_stream();
        let budget = Arc::new(Semaphore::new(budget));
        let outcome = read(body, Signer::new(b"key"), &budget).await;
        match outcome {
            Ok((_, bytes, held)) => {
                drop(held);
                Ok(bytes.len())
            }
            Err(Refused(_, status, _)) => Err((status, budget.available_permits())),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_bounded_in_size_and_all_of_them_in_sum() {
        assert_eq!(read_all(1 << 20, BUDGET).await, Ok(1 << 20));
        assert_eq!(read_all(LARGEST + 1, BUDGET).await, Err((StatusCode::PAYLOAD_TOO_LARGE, BUDGET)), "and the places are free again");
        assert_eq!(read_all(1 << 20, 1 << 19).await, Err((StatusCode::REQUEST_TIMEOUT, 1 << 19)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_small_body_needs_no_place_among_large_ones_that_dribble() {
        let slow = |_| {
            let first = tokio_stream::iter([Ok::<_, std::io::Error>(vec![b'x'; FREE + BUDGET / 4])]);
            Body::from_stream(first.chain(tokio_stream::pending())).into_data_stream()
        };
        let budget = Arc::new(Semaphore::new(BUDGET));
        let dribbling: Vec<_> = (0..4)
            .map(|n| {
                let (body, budget) = (slow(n), Arc::clone(&budget));
                tokio::spawn(async move { read(body, Signer::new(b"key"), &budget).await.is_ok() })
            })
            .collect();
        while budget.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let body = |pieces: &[usize]| {
            let pieces: Vec<_> = pieces.iter().map(|size| Ok::<_, std::io::Error>(vec![b'x'; *size])).collect();
            Body::from_stream(tokio_stream::iter(pieces)).into_data_stream()
        };
        let start = tokio::time::Instant::now();
        for pieces in [&[1][..], &[FREE], &[FREE - 1, 1], &[1; 100]] {
            let (_, bytes, held) = read(body(pieces), Signer::new(b"key"), &budget).await.unwrap();
            let places: usize = held.iter().map(OwnedSemaphorePermit::num_permits).sum();
            assert_eq!((bytes.len(), places), (pieces.iter().sum(), 0));
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "nobody waited");
        let larger = read(body(&[FREE, 1]), Signer::new(b"key"), &budget).await;
        assert!(matches!(larger, Err(Refused(Outcome::limited, StatusCode::REQUEST_TIMEOUT, _))), "what is larger waits for its place");
        for one in dribbling {
            assert!(!one.await.unwrap(), "and those that dribble are given up");
        }
        assert_eq!(budget.available_permits(), BUDGET);
        let (_, bytes, held) = read(body(&[FREE - 1, 3]), Signer::new(b"key"), &budget).await.unwrap();
        assert_eq!((bytes.len(), BUDGET - budget.available_permits()), (FREE + 2, 2), "only what is beyond it counts");
        drop(held);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_ends_is_given_up() {
        let body = Body::from_stream(tokio_stream::pending::<Result<Vec<u8>, std::io::Error>>()).into_data_stream();
        let outcome = read(body, Signer::new(b"key"), &Arc::new(Semaphore::new(BUDGET))).await;
        assert!(matches!(outcome, Err(Refused(Outcome::limited, StatusCode::REQUEST_TIMEOUT, _))));
    }

    #[tokio::test(start_paused = true)]
    async fn a_push_that_comes_before_the_volumes_are_known_is_not_answered_as_done() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        let client = kube::Client::try_from(config).unwrap();
        let context = Context::new(Arc::new(Volumes::new(client.clone())), Secrets::new(client));
        let answer = mark(&context, "sites", "hook", &Push::default()).await;
        assert!(matches!(answer, Err(Refused(Outcome::failed, StatusCode::SERVICE_UNAVAILABLE, _))), "{answer:?}");
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        assert!(is_name("sites") && is_name("a.b-c"));
        for path in [".", "..", "...", ".a", "a.", "a..b", "-a", "a-", "a.-b", "%2e%2e"] {
            assert!(!is_name(path), "{path}");
        }
        assert!(!is_name("") && !is_name("A") && !is_name("a/b") && !is_name("..\n") && !is_name(&"a".repeat(254)));
    }
}
