//! The wire below a fetch: HTTP over reqwest, SSH over russh, plain TCP for `git://`, and a local upload-pack-free path for `file://`.
//!
//! Every transport can be cancelled within 100 ms, ends by its idle limit, and leaves its first failure, typed, in
//! [`Connection::failure`], since gix's own error loses it.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gix::protocol::transport::client::blocking_io::Transport;

use crate::credential::Auth;
use crate::error::{Result, StoreError};
use crate::url::RepoUrl;

/// Limits and ways of the network, the same for every transport.
#[derive(Debug, Clone)]
pub struct NetOptions {
    /// No byte for this long ends the fetch.
    pub idle: Duration,
    /// Connecting (TCP, TLS, SSH handshake and login) takes at most this long.
    pub connect: Duration,
    /// Use `https_proxy`, `no_proxy` … from the environment (the CLI does, the daemon does not).
    pub proxy_from_env: bool,
    /// Directory for `known_hosts` of [`crate::credential::HostKeys::FirstUse`].
    pub state: std::path::PathBuf,
}

/// An open transport, ready for gix's handshake.
pub(crate) struct Connection {
    /// What gix speaks through.
    pub(crate) transport: Box<dyn Transport + Send>,
    /// The first failure below gix: take it in preference to gix's error.
    pub(crate) failure: Arc<Mutex<Option<StoreError>>>,
}

/// Connects to the host of `url` for `git-upload-pack`.
pub(crate) fn connect(url: &RepoUrl, auth: &Auth, net: &NetOptions, stop: &Arc<AtomicBool>) -> Result<Connection> {
    let _ = (url, auth, net, stop);
    todo!()
}

/// Asks for the refs below `prefixes` in exactly one HTTP request, without a handshake: possible for `http(s)` once a handshake of this
/// process has shown that the host speaks protocol V2. `Ok(None)` when it is not possible; the caller then connects as usual.
///
/// Gives (full name, object id, peeled id for annotated tags, symref target) as V2 `ls-refs` sends them.
#[allow(clippy::type_complexity)]
pub(crate) fn ls_refs_once(
    url: &RepoUrl,
    auth: &Auth,
    net: &NetOptions,
    stop: &Arc<AtomicBool>,
    prefixes: &[String],
) -> Result<Option<Vec<RemoteRef>>> {
    let _ = (url, auth, net, stop, prefixes);
    Ok(None)
}

/// One ref as the host lists it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RemoteRef {
    pub(crate) name: String,
    pub(crate) id: gix::ObjectId,
    pub(crate) peeled: Option<gix::ObjectId>,
    pub(crate) symref: Option<String>,
}
