//! The crate's error. Every variant is one sentence that names what was wrong and what would be right, and [`StoreError::fault`]
//! says whose fault it is, so that exit codes, events and retry rules are decided in one place.

use std::time::Duration;

/// Whose fault an error is, and so what a caller does about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The input is wrong; repeating it cannot help (exit code 2).
    Usage,
    /// The repository, ref or path does not exist at the host (exit code 3).
    NotFound,
    /// The host, or our check of it, refused: credential, host key, certificate (exit code 4).
    Refused,
    /// The host did not answer, or asked to come back later (exit code 5).
    Unreachable,
    /// The local disk is full or fails (exit code 1).
    Disk,
    /// What the host sent, or what is stored, is broken (exit code 1).
    Corrupt,
    /// Somebody asked to stop (exit code 1).
    Cancelled,
    /// Anything else; a bug until shown otherwise (exit code 1).
    Internal,
}

/// What went wrong in the store.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct StoreError {
    fault: Fault,
    message: String,
    retry_after: Option<Duration>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl StoreError {
    /// A new error: `message` is one sentence without trailing period and without credentials.
    pub fn new(fault: Fault, message: impl Into<String>) -> Self {
        StoreError { fault, message: message.into(), retry_after: None, source: None }
    }

    /// The same error with its cause.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The same error with the host's `Retry-After`.
    #[must_use]
    pub fn retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// The same error with none of `secrets` in its text; a cause that has one is left out.
    pub(crate) fn without(mut self, secrets: &[String]) -> Self {
        for secret in secrets {
            self.message = self.message.replace(secret, "(secret)");
        }
        let mut cause = self.source.as_deref().map(|source| source as &(dyn std::error::Error + 'static));
        while let Some(error) = cause {
            let text = error.to_string();
            if secrets.iter().any(|secret| text.contains(secret)) {
                self.source = None;
                break;
            }
            cause = error.source();
        }
        self
    }

    /// Whose fault it is.
    pub fn fault(&self) -> Fault {
        self.fault
    }

    /// How long the host asked to wait before the next request to it (HTTP 429 and 503).
    pub fn host_wait(&self) -> Option<Duration> {
        self.retry_after
    }
}

/// The crate's result.
pub type Result<T> = std::result::Result<T, StoreError>;
