//! The commands by way of a daemon. The paths of mounts are never looked into, so nothing here waits for whoever serves them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::credential::Kind;
use gitmount_proto::socket::{self, ConnectError};
use gitmount_store::credential::{HostKeys, Login, LoginSource, SshAuth};
use gitmount_store::url::{RepoUrl, Scheme, UrlPolicy};
use gitmount_store::{Fault, StoreError};

use super::args::{MountArgs, NotifyArg, OfflineArg};
use super::exit::{CliError, Result};
use super::login::{GitLogin, Terminal};
use super::mount::warn;
use super::mounts::Entry;
use super::plan::{is_local, text};
use super::progress::Bar;
use super::{git_config, ssh};
use crate::control::client::Client;
use crate::daemon::bind;

fn connect(socket_path: &Path) -> Result<Client> {
    socket::trusted(socket_path).and_then(|()| Client::connect(socket_path)).map_err(|error| match error {
        ConnectError::Dead(_) | ConnectError::Missing(_) => {
            CliError::other(format!("{error}: start `gitmount daemon`, or correct --socket"))
        }
        ConnectError::Failed { .. } => CliError::other(format!("{error}: a daemon answers root alone")),
    })
}

/// The absolute name of a mount point.
pub fn target(dir: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    Ok(bind::absolute(&whole)?)
}

/// The views of the daemon.
pub fn views(socket: &Path) -> Result<Vec<proto::View>> {
    Ok(connect(socket)?.status()?.views)
}

/// What the daemon serves.
pub fn status(socket: &Path) -> Result<Vec<Entry>> {
    let status = connect(socket)?.status()?;
    Ok(status.views.into_iter().map(|view| Entry::Live { pid: status.pid, view: Box::new(view) }).collect())
}

/// Fetches now.
pub fn pull(socket: &Path, dir: &Path) -> Result<proto::Pulled> {
    Ok(connect(socket)?.pull(&target(dir)?)?)
}

/// The last events of a mount.
pub fn log(socket: &Path, dir: &Path) -> Result<Vec<proto::Event>> {
    Ok(connect(socket)?.log(&target(dir)?)?)
}

/// Unmounts.
pub fn unmount(socket: &Path, dir: &Path, lazy: bool) -> Result<()> {
    Ok(connect(socket)?.unmount(&target(dir)?, lazy)?)
}

/// Mounts, with what this user may present to the host.
pub fn mount(args: &MountArgs, socket: &Path) -> Result<()> {
    if is_local(&args.source) {
        return Err(CliError::usage(format!(
            "{:?} is a local path, which is served without a daemon: leave --socket (or GITMOUNT_SOCKET) out",
            args.source
        )));
    }
    for (given, option) in [(args.foreground, "--foreground"), (args.allow_other, "--allow-other")] {
        if given {
            return Err(CliError::usage(format!("{option} is for mounts without a daemon: leave it out, or --socket")));
        }
    }
    let source = text(&args.source, "URL")?;
    // Which URLs are allowed is the daemon's to say.
    let url = RepoUrl::parse(source, &UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] })?;
    let offline = match args.offline {
        OfflineArg::Refuse => "refuse",
        OfflineArg::AllowStale => "allowStale",
    };
    let view = proto::ViewSpec {
        url: source.to_owned(),
        r#ref: args.reference.clone(),
        path: args.path.as_encoded_bytes().to_vec(),
        pull: args.pull.clone(),
        depth: args.depth.clone(),
        offline: offline.into(),
        notify: match args.notify {
            NotifyArg::None => "none".into(),
            NotifyArg::Inotify => "inotify".into(),
        },
    };
    let target = target(&args.dir)?;
    let mut client = connect(socket)?;
    let bar = Arc::new(Bar::new());
    let mut publish = |credential: proto::Credential| {
        bar.spin(format!("asking the daemon for {url}"));
        let request = proto::PublishRequest {
            target: target.as_os_str().as_encoded_bytes().to_vec(),
            view: Some(view.clone()),
            credential: Some(credential),
            ..Default::default()
        };
        let published = client.publish(request);
        bar.finish();
        published
    };
    let published = match url.scheme() {
        Scheme::Https | Scheme::Http => {
            let ca_crt = certificates(&url)?;
            let anonymous = publish(proto::Credential { kind: None, ca_crt: ca_crt.clone() });
            match anonymous {
                Err(error) if error.fault() == Fault::Refused || error.fault() == Fault::NotFound => {
                    let login = GitLogin::new(Arc::clone(&bar), Arc::new(Terminal::default()));
                    with_login(&login, &url, error, &mut |login: &Login| {
                        let token = proto::Token { username: login.username.clone(), token: login.password.reveal().to_owned() };
                        publish(proto::Credential { kind: Some(Kind::Token(token)), ca_crt: ca_crt.clone() })
                    })
                }
                other => other,
            }
        }
        Scheme::Ssh => {
            let (auth, warnings) = ssh::auth(&url, &ssh::person());
            warnings.iter().for_each(|warning| warn(warning));
            publish(proto::Credential { kind: Some(Kind::Ssh(key(&auth)?)), ca_crt: String::new() })
        }
        Scheme::Git | Scheme::File => publish(proto::Credential::default()),
    }?;
    if !published.stale.is_empty() {
        warn(&format!("{}; the last known commit {} is served instead", published.stale, published.commit));
    }
    published.notices.iter().for_each(|notice| warn(notice));
    Ok(())
}

/// Publishes again with a login, when there is one, and tells the helpers how it went.
fn with_login(
    source: &GitLogin,
    url: &RepoUrl,
    refused: StoreError,
    publish: &mut dyn FnMut(&Login) -> gitmount_store::error::Result<proto::Published>,
) -> gitmount_store::error::Result<proto::Published> {
    let url = url.to_string();
    let Some(login) = source.login(&url)? else {
        let text = if refused.fault() == Fault::Refused { format!("{refused}; {}", source.remedy()) } else { refused.to_string() };
        return Err(StoreError::new(refused.fault(), text));
    };
    let published = publish(&login);
    match &published {
        Ok(_) => source.accepted(&url, &login),
        Err(error) if error.fault() == Fault::Refused => source.refused(&url, &login),
        Err(_) => {}
    }
    published
}

/// The certificates that git would trust.
fn certificates(url: &RepoUrl) -> Result<String> {
    let env = std::env::var_os("GIT_SSL_CAINFO").filter(|v| !v.is_empty()).map(PathBuf::from);
    let Some(file) = git_config::ca_file(&git_config::load()?, &url.to_string(), env) else { return Ok(String::new()) };
    std::fs::read_to_string(&file).map_err(|e| {
        CliError::usage(format!("the certificates of GIT_SSL_CAINFO or http.sslCAInfo, {}, cannot be read ({e})", file.display()))
    })
}

/// The first key of the user's that can be read, and the hosts that are known: a daemon has no agent.
fn key(auth: &SshAuth) -> Result<proto::Ssh> {
    let private_key = auth.key_files.iter().find_map(|file| std::fs::read_to_string(file).ok()).ok_or_else(|| {
        CliError::usage("there is no SSH key that can be read, and a daemon asks no agent: name one by IdentityFile in ssh_config")
    })?;
    let known_hosts = match &auth.host_keys {
        HostKeys::Files(files) => files.iter().filter_map(|file| std::fs::read_to_string(file).ok()).collect::<Vec<_>>().join("\n"),
        HostKeys::Text(text) => text.clone(),
        HostKeys::FirstUse => String::new(),
    };
    Ok(proto::Ssh { private_key, known_hosts })
}
