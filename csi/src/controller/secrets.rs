//! The one Secret that a request names. Its value is remembered for a moment only, so that many requests are one question and a changed
//! Secret counts at once.

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use lru::LruCache;
use tokio::sync::Semaphore;

/// The key of the Secret that holds the string that the forge was given.
const KEY: &str = "secret";

/// How long an answer counts.
const FRESH: Duration = Duration::from_secs(2);

/// How long the API server may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Questions at the same time: more wait, no longer than an answer may take.
const QUESTIONS: usize = 16;

/// Answers that are remembered.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(256).expect("it is not zero");

/// Values above this are none.
const LONGEST: usize = 64 << 10;

/// A value; it does not print.
#[derive(Clone, PartialEq, Eq)]
pub struct Value(pub Vec<u8>);

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Value")
    }
}

/// What was answered lately, by namespace and name.
type Known = LruCache<(String, String), (Instant, Option<Value>)>;

/// The API server's Secrets.
pub struct Secrets {
    client: Client,
    known: Mutex<Known>,
    questions: Semaphore,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Asks with `client`.
    pub fn new(client: Client) -> Self {
        Secrets { client, known: Mutex::new(LruCache::new(REMEMBERED)), questions: Semaphore::new(QUESTIONS) }
    }

    /// A Secret's value; `None` when there is no such Secret, or it has no such key, or one that is empty.
    ///
    /// # Errors
    /// When the API server does not tell.
    pub async fn value(&self, namespace: &str, name: &str) -> kube::Result<Option<Value>> {
        let key = (namespace.to_owned(), name.to_owned());
        if let Some((at, value)) = self.known().get(&key)
            && at.elapsed() < FRESH
        {
            return Ok(value.clone());
        }
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let away = || kube::Error::Service("the API server does not answer".into());
        let asked = async {
            let _question = self.questions.acquire().await.map_err(|_| away())?;
            secrets.get_opt(name).await
        };
        let found = match tokio::time::timeout(LIMIT, asked).await.map_err(|_| away())? {
            // Roles for single Secrets: what is not allowed is not there.
            Err(kube::Error::Api(status)) if status.code == 403 => {
                tracing::warn!(namespace, secret = name, "the controller may not read this Secret: give its ServiceAccount a role for it");
                None
            }
            found => found?,
        };
        let value = found.and_then(|secret| secret.data?.remove(KEY)).map(|bytes| {
            // A line end at the end comes from `echo` and editors, and no forge's form takes one.
            let end = bytes.0.iter().rposition(|byte| !b"\r\n".contains(byte)).map_or(0, |at| at + 1);
            bytes.0[..end].to_vec()
        });
        let value = value.filter(|value| !value.is_empty() && value.len() <= LONGEST).map(Value);
        self.known().put(key, (Instant::now(), value.clone()));
        Ok(value)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use axum::http::StatusCode;

    use super::*;

    #[tokio::test]
    async fn many_requests_put_few_questions_at_the_same_time() {
        // Another test may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (now, most, all) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (asked, at_once, total) = (now.clone(), most.clone(), all.clone());
        let answer = move || {
            let (asked, at_once, total) = (asked.clone(), at_once.clone(), total.clone());
            async move {
                total.fetch_add(1, Ordering::SeqCst);
                at_once.fetch_max(asked.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
                asked.fetch_sub(1, Ordering::SeqCst);
                (
                    StatusCode::NOT_FOUND,
                    r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"","code":404}"#,
                )
            }
        };
        let address = std::net::TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let limits = crate::http::Limits { connections: 500, life: Duration::from_secs(60) };
        tokio::spawn(crate::http::serve(address, axum::Router::new().fallback(answer), limits));
        while tokio::net::TcpStream::connect(address).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let config = kube::Config::new(format!("http://{address}").parse().expect("a URL"));
        let secrets = Arc::new(Secrets::new(Client::try_from(config).expect("a client")));
        let asking: Vec<_> = (0..200)
            .map(|n| {
                let secrets = secrets.clone();
                tokio::spawn(async move { secrets.value("sites", &format!("secret-{n}")).await })
            })
            .collect();
        for question in asking {
            assert_eq!(question.await.expect("no panic").expect("is answered"), None);
        }
        assert_eq!(all.load(Ordering::SeqCst), 200);
        assert!((1..=QUESTIONS).contains(&most.load(Ordering::SeqCst)), "{} at the same time", most.load(Ordering::SeqCst));
    }
}
