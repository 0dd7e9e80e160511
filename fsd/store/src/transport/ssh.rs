//! SSH over russh: `git-upload-pack` in a session channel, without any program of the user's.
//!
//! Order of decisions: keys that need a passphrase are refused before the network is touched, the host's key before anything is offered to
//! it, and the agent's keys are offered before those that were given.

use std::io::{BufReader, BufWriter};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::git::{ConnectMode, blocking_io};
use russh::client::{self, Handle};
use russh::keys::PublicKeyOrCertificate;
use russh::{Channel, SshId};
use tokio::net::TcpStream;

use super::advertisement::Advertisement;
use super::failure::{lock, printable};
use super::wire::Wire;
use super::{AGENT, Connection, NetOptions, Result, StoreError};
use crate::credential::SshAuth;
use crate::error::Fault;
use crate::url::{RepoUrl, Scheme};

mod auth;
mod hosts;
mod stream;

use hosts::HostCheck;

/// Connects, checks the host, logs in and starts `git-upload-pack`.
pub(super) fn connect(url: &RepoUrl, ssh: &SshAuth, net: &NetOptions, mut wire: Wire) -> Result<Connection> {
    let (host, port) = ssh.connect_to.clone().unwrap_or_else(|| (url.host().to_owned(), url.port().unwrap_or(Scheme::Ssh.default_port())));
    wire.host = if port == Scheme::Ssh.default_port() { host.clone() } else { format!("{host}:{port}") };
    let user = url.user().map(str::to_owned).or_else(|| ssh.user.clone()).unwrap_or_else(local_user);
    let offer = auth::Offer::load(ssh)?;
    let check = Arc::new(HostCheck::load(&ssh.host_keys, &net.state, &host, port)?);
    let command = format!("git-upload-pack {}", quote(url.path()));

    let open = open(&wire, (host, port), check, &user, offer, command);
    let (handle, channel) = wire.wait(wire.connect, "finish the SSH handshake", open)??;

    let (failure, talk) = (wire.failure.clone(), wire.talk.clone());
    let (reader, writer) = stream::split(handle, channel, wire);
    let read = BufReader::with_capacity(64 * 1024, Advertisement::new(reader));
    // gix parses this URL, and would stumble over a quote or space in the real path; the path went into the command.
    let stand_in = format!("ssh://{}/", url.authority());
    // gix writes in parts of a few bytes, and flushes when a request is complete.
    let writer = BufWriter::with_capacity(64 * 1024, writer);
    let transport =
        blocking_io::Connection::new(read, writer, Protocol::V2, url.path(), None::<(String, Option<u16>)>, ConnectMode::Process, false)
            .custom_url(Some(stand_in.into()));
    Ok(Connection { transport: Box::new(transport), failure, talk })
}

async fn open(
    wire: &Wire,
    address: (String, u16),
    check: Arc<HostCheck>,
    user: &str,
    offer: auth::Offer,
    command: String,
) -> Result<(Handle<Client>, Channel<client::Msg>)> {
    let mut config = client::Config {
        client_id: SshId::Standard(format!("SSH-2.0-{}", AGENT.replace('/', "_")).into()),
        nodelay: true,
        keepalive_interval: Some(Duration::from_secs(15)),
        ..client::Config::default()
    };
    config.preferred.key = check.preferred().into();
    let stream = TcpStream::connect((address.0.as_str(), address.1)).await.map_err(|e| wire.unreachable(e))?;
    let refusal = Arc::new(Mutex::new(None));
    let client = Client { check, refusal: refusal.clone() };
    let connected = client::connect_stream(Arc::new(config), stream, client).await;
    let mut handle = connected.map_err(|e| lock(&refusal).take().unwrap_or_else(|| protocol_error(wire, e)))?;
    offer.log_in(wire, &mut handle, user).await?;
    let started = async {
        let channel = handle.channel_open_session().await?;
        // A host that does not take the variable answers with protocol V0, which works as well.
        channel.set_env(false, "GIT_PROTOCOL", "version=2").await?;
        channel.exec(true, command).await?;
        Ok(channel)
    };
    let channel = started.await.map_err(|e| protocol_error(wire, e))?;
    Ok((handle, channel))
}

/// What russh asks in the course of a connection.
struct Client {
    check: Arc<HostCheck>,
    refusal: Arc<Mutex<Option<StoreError>>>,
}

impl client::Handler for Client {
    type Error = russh::Error;

    async fn check_server_key(&mut self, shown: &PublicKeyOrCertificate) -> std::result::Result<bool, russh::Error> {
        let (check, key) = (self.check.clone(), shown.public_key());
        // A first key is written to disk under a lock, which may block.
        let judged = tokio::task::spawn_blocking(move || check.judge(&key)).await;
        let judged = judged.unwrap_or_else(|e| Err(StoreError::new(Fault::Internal, format!("the host key was not checked: {e}"))));
        if let Err(refusal) = judged {
            *lock(&self.refusal) = Some(refusal);
            return Ok(false);
        }
        Ok(true)
    }
}

fn protocol_error(wire: &Wire, error: russh::Error) -> StoreError {
    let (fault, what) = match &error {
        russh::Error::NoCommonAlgo { kind, theirs, .. } => {
            let theirs = printable(&theirs.join(", "), 200);
            (Fault::Unreachable, format!("host {} offers only {kind:?} algorithms that are not known here: {theirs}", wire.host))
        }
        russh::Error::Disconnect | russh::Error::HUP | russh::Error::SendError | russh::Error::RecvError => {
            (Fault::Unreachable, format!("host {} ended the SSH connection before it was ready", wire.host))
        }
        russh::Error::Version => (Fault::Unreachable, format!("host {} does not speak SSH: check the port", wire.host)),
        other => (Fault::Unreachable, format!("the SSH connection to host {} failed: {}", wire.host, printable(&other.to_string(), 200))),
    };
    StoreError::new(fault, what).caused_by(error)
}

/// Quotes for the remote shell as git does, which also protects `!` from a C shell.
fn quote(path: &str) -> String {
    format!("'{}'", path.replace('\'', r"'\''").replace('!', r"'\!'"))
}

/// The user that OpenSSH takes where none is named.
fn local_user() -> String {
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten();
    user.map_or_else(|| "git".into(), |user| user.name)
}

/// A file named in a message, `~` for the home directory.
fn named(path: &std::path::Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.as_os_str().len() > 1);
    match home.and_then(|home| path.strip_prefix(home).ok().map(std::path::Path::to_path_buf)) {
        Some(rest) => format!("~/{}", rest.display()),
        None => path.display().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_one_word_to_any_shell() {
        for (path, quoted) in [
            ("/a/b.git", "'/a/b.git'"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
            ("a!b", r"'a'\!'b'"),
            ("~alice/$(x);`y`\\", "'~alice/$(x);`y`\\'"),
        ] {
            assert_eq!(quote(path), quoted);
            let echoed = std::process::Command::new("sh").arg("-c").arg(format!("printf %s {quoted}")).output().unwrap();
            assert_eq!(String::from_utf8(echoed.stdout).unwrap(), path);
        }
    }
}
