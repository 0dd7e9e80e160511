//! The command `gitmount-csi`: arguments, logs, and the tasks that make up the node plugin.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use gitmount_csi::claims::Claims;
use gitmount_csi::daemon::Daemon;
use gitmount_csi::events::Recorder;
use gitmount_csi::health::Health;
use gitmount_csi::{identity, metrics, node, registration, server, watch};
use gitmount_proto::csi::v1::identity_server::IdentityServer;
use gitmount_proto::csi::v1::node_server::NodeServer;
use tokio::signal::unix::{SignalKind, signal};
use tokio_stream::wrappers::UnixListenerStream;
use tracing_subscriber::EnvFilter;

/// The CSI driver git.liken.sh: git repositories as read-only volumes of pods.
#[derive(Debug, Parser)]
#[command(name = "gitmount-csi", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the volumes of one node to its kubelet
    Node(NodeArgs),
}

#[derive(Debug, Args)]
struct NodeArgs {
    /// The socket on which the kubelet asks, such as unix:///csi/csi.sock
    #[arg(long, value_parser = endpoint)]
    endpoint: PathBuf,
    /// The same socket as the kubelet sees it; the endpoint when left out
    #[arg(long)]
    kubelet_endpoint: Option<PathBuf>,
    /// The kubelet's directory plugins_registry; without it the driver is not registered
    #[arg(long)]
    registration_dir: Option<PathBuf>,
    /// The control socket of `gitmount daemon`
    #[arg(long, default_value = "/run/gitmount/fsd.sock")]
    daemon: PathBuf,
    /// The node's name in Kubernetes
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// Where /metrics, /healthz and /readyz are served, such as 127.0.0.1:9809; nowhere when left out
    #[arg(long)]
    listen: Option<SocketAddr>,
    /// The API server's address and credential; those of the pod's ServiceAccount when left out
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// How log lines look
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

fn endpoint(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() { Ok(path.to_owned()) } else { Err("give an absolute path such as unix:///csi/csi.sock".into()) }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let Command::Node(args) = Cli::parse().command;
    let filter = EnvFilter::try_from_env("GITMOUNT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match args.log_format {
        LogFormat::Text => logs.with_ansi(false).init(),
        LogFormat::Json => logs.json().init(),
    }
    serve(args).await
}

async fn serve(args: NodeArgs) -> Result<()> {
    let mut terminated = signal(SignalKind::terminate())?;
    let mut interrupted = signal(SignalKind::interrupt())?;
    let client = client(args.kubeconfig.as_deref()).await?;
    let daemon = Daemon::new(&args.daemon).context("--daemon is no path of a socket")?;
    let health = Arc::new(Health::new(daemon.clone()));
    let recorder = Recorder::start(client.clone(), &args.node_name);
    let identity = identity::Service::new(daemon.clone());
    let node = node::Service::new(args.node_name, daemon.clone(), Arc::clone(&health), recorder.clone(), Claims::new(client));
    let listener = server::listen(&args.endpoint)?;
    let csi = tonic::transport::Server::builder()
        .add_service(IdentityServer::new(identity))
        .add_service(NodeServer::new(node))
        .serve_with_incoming(UnixListenerStream::new(listener));
    tokio::spawn(watch::run(daemon, recorder));

    let registered = Arc::new(std::sync::atomic::AtomicBool::new(args.registration_dir.is_none()));
    let metrics = {
        let source = metrics::Source { health, registered: Arc::clone(&registered) };
        async move {
            match args.listen {
                Some(address) => metrics::serve(address, source).await.with_context(|| format!("--listen {address}")),
                None => std::future::pending().await,
            }
        }
    };
    let registration = {
        let endpoint = args.kubelet_endpoint.as_ref().unwrap_or(&args.endpoint).display().to_string();
        let directory = args.registration_dir.clone();
        async move {
            match directory {
                Some(directory) => registration::serve(&directory, registration::Service { endpoint, registered })
                    .await
                    .with_context(|| format!("--registration-dir {}", directory.display())),
                None => std::future::pending().await,
            }
        }
    };
    tracing::info!(endpoint = %args.endpoint.display(), "serving");
    tokio::select! {
        ended = csi => { ended.context("the CSI server failed")?; bail!("the CSI server ended") }
        ended = metrics => ended,
        ended = registration => ended,
        _ = terminated.recv() => stop(&args.endpoint, args.registration_dir.as_deref()),
        _ = interrupted.recv() => stop(&args.endpoint, args.registration_dir.as_deref()),
    }
}

/// Takes the sockets away, so that the kubelet asks nobody until the next one is there.
fn stop(endpoint: &Path, registration: Option<&Path>) -> Result<()> {
    tracing::info!("stopping");
    for socket in registration.map(registration::socket).iter().map(PathBuf::as_path).chain([endpoint]) {
        if let Err(error) = std::fs::remove_file(socket) {
            tracing::warn!(socket = %socket.display(), %error, "a socket stays");
        }
    }
    Ok(())
}

/// A client of the API server; `None`, said once, where there is none.
async fn client(kubeconfig: Option<&Path>) -> Result<Option<kube::Client>> {
    // Whichever library comes first must find the provider that all of them use.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let config = match kubeconfig {
        Some(path) => {
            let file = kube::config::Kubeconfig::read_from(path).with_context(|| format!("--kubeconfig {}", path.display()))?;
            kube::Config::from_custom_kubeconfig(file, &Default::default())
                .await
                .with_context(|| format!("--kubeconfig {}", path.display()))?
        }
        None => match kube::Config::incluster() {
            Ok(config) => config,
            Err(error) => {
                tracing::warn!(%error, "there is no API server: events are only logged (give --kubeconfig, or run in a pod)");
                return Ok(None);
            }
        },
    };
    Ok(Some(kube::Client::try_from(config)?))
}
