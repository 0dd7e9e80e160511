//! `gitmount daemon`: serves until it is told to stop.
//!
//! The first SIGTERM or SIGINT ends it in order: fetches are interrupted, callers answered, mounts handed over or unmounted. A second one
//! ends it at once.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gitmount_proto::socket::{self, ConnectError};
use gitmount_store::store::StoreOptions;
use gitmount_store::url::UrlPolicy;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Uid;
use tokio::signal::unix::{SignalKind, signal};

use super::args::DaemonArgs;
use super::exit::{CliError, Result};
use super::{logging, plan, systemd};
use crate::control::Operations;
use crate::control::server::Server;
use crate::daemon::engine::{Engine, Options};
use crate::daemon::metrics::http;
use crate::daemon::policy;

/// How long the answers that are on their way may take at the end.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Calls that may wait for a host at the same time.
const WAITING_CALLS: usize = 512;

/// The exit code when a second signal ends it.
const INTERRUPTED: i32 = 130;

/// Runs the command.
pub fn run(args: &DaemonArgs) -> Result<()> {
    let options = options(args)?;
    let metrics = args.metrics.as_deref().map(address).transpose()?;
    if !Uid::effective().is_root() {
        return Err(CliError::usage("a daemon mounts for others and must be run by root: use `gitmount mount` without a daemon"));
    }
    logging::start(args.log_format);
    raise_limits();
    let no_thread = |e: std::io::Error| CliError::other(format!("no thread can be started ({e}): raise the limit of processes"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(WAITING_CALLS)
        .enable_all()
        .build()
        .map_err(no_thread)?;
    let engine = Engine::new(options)?;
    // Nobody else has the state directory; a socket of somebody who has another one is left alone.
    let (listener, bound) = bind(&args.socket)?;
    let server = Server::start(runtime.handle(), listener, Arc::clone(&engine) as Arc<dyn Operations>).map_err(no_thread)?;
    let signals = || -> std::io::Result<_> { Ok((signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?)) };
    let (mut terminate, mut interrupt) = {
        let _context = runtime.enter();
        signals().map_err(|e| CliError::other(format!("signals cannot be handled ({e})")))?
    };
    if let Some(address) = metrics {
        let bound = runtime.block_on(http::serve(address, Arc::clone(&engine)));
        let bound = bound.map_err(|e| CliError::other(format!("{address} cannot be listened on ({e}): give another --metrics")))?;
        tracing::info!(address = %bound, "metrics are served");
    }
    tracing::info!(socket = %args.socket.display(), state = %args.state.display(), "the daemon is ready");
    systemd::tell("READY=1");
    runtime.block_on(async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
    });
    systemd::tell("STOPPING=1");
    tracing::info!("the daemon is being stopped");
    runtime.spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        std::process::exit(INTERRUPTED);
    });
    engine.stop();
    runtime.block_on(server.stop(LAST_ANSWERS));
    drop(bound);
    runtime.shutdown_background();
    Ok(())
}

fn address(text: &str) -> Result<SocketAddr> {
    text.parse().map_err(|_| CliError::usage(format!("--metrics {text:?} is no address: give one such as \"127.0.0.1:9400\"")))
}

fn options(args: &DaemonArgs) -> Result<Options> {
    let duration = |name: &str, text: &str| {
        policy::duration(text).ok_or_else(|| {
            CliError::usage(format!("{name} {text:?} is no duration between a second and a year: give one such as \"10s\" or \"2m\""))
        })
    };
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|e| CliError::usage(format!("{} is no directory name ({e}): give a path", path.display())))
    };
    let state = absolute(&args.state)?;
    let mut store = StoreOptions::new(match &args.store {
        Some(store) => absolute(store)?,
        None => state.join("store"),
    });
    store.idle = duration("--timeout", &args.timeout)?;
    store.connect = store.connect.min(store.idle);
    store.proxy_from_env = true;
    Ok(Options {
        state,
        store,
        policy: UrlPolicy {
            allow_http: args.allow_http,
            allow_file: args.allow_file,
            hosts: args.allow_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
        },
        demand_min_interval: duration("--demand-min-interval", &args.demand_min_interval)?,
        keep_snapshots: args.keep_snapshots,
        hold: args.hold.clone(),
        without: plan::without_kernel(&args.without_kernel)?,
        store_limit: match &args.store_limit {
            Some(text) => Some(policy::size(text).ok_or_else(|| {
                CliError::usage(format!("--store-limit {text:?} is no size: give a number with K, M, G or T, such as \"20G\""))
            })?),
            None => None,
        },
    })
}

/// A socket's file, removed when this is dropped.
struct Bound(PathBuf);

impl Drop for Bound {
    fn drop(&mut self) {
        // The next daemon replaces what stays.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Listens on `path`, for root alone. What a dead daemon left there is replaced.
fn bind(path: &Path) -> Result<(UnixListener, Bound)> {
    let shown = path.display();
    let failed =
        |what: &str, e: std::io::Error| CliError::other(format!("the socket {shown} cannot be {what} ({e}): give another --socket"));
    match socket::probe(path) {
        Ok(()) => return Err(CliError::usage(format!("a process listens on {shown} already: stop it first, or give another --socket"))),
        Err(ConnectError::Dead(_)) => {
            let is_socket = std::fs::symlink_metadata(path).is_ok_and(|m| std::os::unix::fs::FileTypeExt::is_socket(&m.file_type()));
            if !is_socket {
                return Err(CliError::usage(format!("{shown} is a file and no socket: give another --socket")));
            }
            std::fs::remove_file(path).map_err(|e| failed("replaced", e))?;
        }
        Err(ConnectError::Missing(_)) => {}
        Err(error) => return Err(CliError::other(error.to_string())),
    }
    let listener = UnixListener::bind(path).map_err(|e| failed("made", e))?;
    let bound = Bound(path.to_owned());
    // Until then whoever connects is closed for its user id alone.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).map_err(|e| failed("closed to others", e))?;
    Ok((listener, bound))
}

/// Every view and every connection costs descriptors: as many as are allowed.
fn raise_limits() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}
