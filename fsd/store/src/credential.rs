//! Secrets and how they are offered to a host. They live in memory only and print as `(secret)`.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use base64::Engine;

use crate::error::Result;

/// A secret text that never prints.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Takes a secret.
    pub fn new(text: impl Into<String>) -> Self {
        Secret(text.into())
    }

    /// The text itself, to be sent to the host and nowhere else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// A user name and password (or token) for HTTP basic authentication.
#[derive(Debug, Clone)]
pub struct Login {
    /// User name.
    pub username: String,
    /// Password or token.
    pub password: Secret,
}

/// Asked for a login when an HTTP host wants one, and told how it went (git credential helpers in the CLI).
pub trait LoginSource: Send + Sync {
    /// A login for `url` (redacted form), or `None` when there is none. Called at most once a connection.
    fn login(&self, url: &str) -> Result<Option<Login>>;
    /// The host took the login.
    fn accepted(&self, _url: &str, _login: &Login) {}
    /// The host refused the login.
    fn refused(&self, _url: &str, _login: &Login) {}
    /// What helps when there is none, for the error.
    fn remedy(&self) -> &'static str {
        "give one that may read the repository"
    }
}

/// Where to log in over HTTP from.
#[derive(Clone, Default)]
pub enum HttpAuth {
    /// Anonymous.
    #[default]
    None,
    /// This login.
    Login(Login),
    /// Ask when the host wants one.
    Ask(Arc<dyn LoginSource>),
}

/// Which host keys are accepted.
#[derive(Debug, Clone)]
pub enum HostKeys {
    /// The files of OpenSSH (`known_hosts`), an unknown or changed key is refused.
    Files(Vec<PathBuf>),
    /// The text of a `known_hosts` file; an unknown or changed key is refused.
    Text(String),
    /// The first key seen in this store is accepted and recorded in `<store>/known_hosts`, a change is refused.
    FirstUse,
}

/// How to log in over SSH.
#[derive(Debug, Clone)]
pub struct SshAuth {
    /// User when the URL names none.
    pub user: Option<String>,
    /// Private keys as texts (OpenSSH, PEM, PKCS#8), tried in order.
    pub keys: Vec<Secret>,
    /// Private key files, tried in order after `keys`; unreadable ones are skipped when `keys_optional`.
    pub key_files: Vec<PathBuf>,
    /// Whether missing or unreadable key files are no error.
    pub keys_optional: bool,
    /// Socket of an ssh-agent (`SSH_AUTH_SOCK`), tried first.
    pub agent: Option<PathBuf>,
    /// Which host keys are accepted.
    pub host_keys: HostKeys,
    /// Connect here instead of the URL's host and port (`HostName`, `Port` of ssh_config).
    pub connect_to: Option<(String, u16)>,
}

impl Default for SshAuth {
    fn default() -> Self {
        SshAuth {
            user: None,
            keys: vec![],
            key_files: vec![],
            keys_optional: true,
            agent: None,
            host_keys: HostKeys::FirstUse,
            connect_to: None,
        }
    }
}

/// Everything a fetch may present to a host.
#[derive(Clone, Default)]
pub struct Auth {
    /// HTTP.
    pub http: HttpAuth,
    /// SSH.
    pub ssh: SshAuth,
    /// PEM certificates to trust beside (or, when `only_ca`, instead of) the system's roots.
    pub ca: Option<String>,
    /// Trust nothing but `ca`.
    pub only_ca: bool,
}

/// Shorter texts are not looked for in what hosts say: they are in every sentence.
const SHORTEST: usize = 4;

impl Auth {
    /// The secrets as a host is told them.
    pub(crate) fn told(&self) -> Vec<String> {
        let HttpAuth::Login(Login { username, password }) = &self.http else { return vec![] };
        let encoded = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{}", password.reveal()));
        // The long one first: with the short one in it, it would not be found any more.
        [encoded, password.reveal().to_owned()].into_iter().filter(|secret| secret.len() >= SHORTEST).collect()
    }
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Auth(secret)")
    }
}
