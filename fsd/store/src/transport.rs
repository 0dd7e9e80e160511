//! The wire below a fetch: HTTP over reqwest, SSH over russh, and plain TCP for `git://`. (`file://` has no wire: the fetch reads the other
//! repository itself.)
//!
//! Every transport can be cancelled within 100 ms, ends by its idle limit, and leaves its first failure, typed, in
//! [`Connection::failure`], since gix's own error loses it: [`classify`] puts the two together.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gix::protocol::transport::client::blocking_io::Transport;

use crate::credential::Auth;
use crate::error::{Fault, Result, StoreError};
use crate::url::{RepoUrl, Scheme};

mod advertisement;
mod failure;
mod git;
mod http;
mod pkt;
mod ssh;
mod wire;

pub(crate) use failure::classify;
pub(crate) use wire::Talk;

/// What is told to hosts about the program.
const AGENT: &str = concat!("gitmount/", env!("CARGO_PKG_VERSION"));

/// Limits and ways of the network, the same for every transport.
#[derive(Debug, Clone)]
pub(crate) struct NetOptions {
    /// No byte for this long ends the fetch.
    pub(crate) idle: Duration,
    /// Connecting (TCP, TLS, SSH handshake and login) takes at most this long.
    pub(crate) connect: Duration,
    /// Use `https_proxy`, `no_proxy` … from the environment (the CLI does, the daemon does not).
    pub(crate) proxy_from_env: bool,
    /// Directory for `known_hosts` of [`crate::credential::HostKeys::FirstUse`].
    pub(crate) state: std::path::PathBuf,
}

/// An open transport, ready for gix's handshake.
pub(crate) struct Connection {
    /// What gix speaks through.
    pub(crate) transport: Box<dyn Transport + Send>,
    /// The first failure below gix: take it in preference to gix's error.
    pub(crate) failure: Arc<Mutex<Option<StoreError>>>,
    /// Is told when objects come.
    pub(crate) talk: Arc<Talk>,
}

/// Connects to the host of `url` for `git-upload-pack`. All logging in is done here, also for HTTP: gix is never to be given credentials.
///
/// # Errors
/// What the host, the network or `auth` make impossible; [`Fault::Usage`] for `file`, which has no transport.
pub(crate) fn connect(url: &RepoUrl, auth: &Auth, net: &NetOptions, stop: &Arc<AtomicBool>) -> Result<Connection> {
    let wire = wire::Wire::new(url, net, stop);
    match url.scheme() {
        Scheme::Https | Scheme::Http => http::connect(url, auth, net, wire),
        Scheme::Ssh => ssh::connect(url, &auth.ssh, net, wire),
        Scheme::Git => git::connect(url, wire),
        Scheme::File => {
            Err(StoreError::new(Fault::Usage, format!("url {:?} is local and is not read through a transport", url.to_string())))
        }
    }
}

/// Asks for the refs below `prefixes` in exactly one HTTP request, without a handshake: possible for `http(s)` once a handshake of this
/// process has shown that the host speaks protocol V2. `Ok(None)` when it is not possible; the caller then connects as usual.
///
/// Gives every ref as V2 `ls-refs` sends it, with what its tag peels to and where a symbolic ref points. A prefix matches as the host
/// matches it: `refs/heads/main` also gives `refs/heads/main2`.
///
/// # Errors
/// Only such as a connection would meet as well: the host does not answer or asks to wait, refuses the login, or the call was cancelled.
pub(crate) fn ls_refs_once(
    url: &RepoUrl,
    auth: &Auth,
    net: &NetOptions,
    stop: &Arc<AtomicBool>,
    prefixes: &[String],
) -> Result<Option<Vec<RemoteRef>>> {
    match url.scheme() {
        Scheme::Https | Scheme::Http => http::ls_refs_once(url, auth, net, wire::Wire::new(url, net, stop), prefixes),
        _ => Ok(None),
    }
}

/// One ref as the host lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteRef {
    pub(crate) name: String,
    pub(crate) id: gix::ObjectId,
    pub(crate) peeled: Option<gix::ObjectId>,
    pub(crate) symref: Option<String>,
}

#[cfg(test)]
mod tests;
