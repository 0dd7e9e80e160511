//! The command `gitmount-csi`: arguments, logs, and the tasks that make up the node plugin and the controller.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use gitmount_csi::claims::Claims;
use gitmount_csi::controller::lease::Candidate;
use gitmount_csi::controller::secrets::Secrets;
use gitmount_csi::controller::volumes::Volumes;
use gitmount_csi::controller::webhook;
use gitmount_csi::daemon::Daemon;
use gitmount_csi::events::Recorder;
use gitmount_csi::health::Health;
use gitmount_csi::{demands, http, identity, metrics, node, registration, server, watch};
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
    /// Turn forges' webhooks into demands
    Controller(ControllerArgs),
}

#[derive(Debug, Args)]
struct ControllerArgs {
    /// Where webhooks are served, such as 0.0.0.0:8080
    #[arg(long, default_value = "0.0.0.0:8080")]
    webhooks: SocketAddr,
    #[command(flatten)]
    common: Common,
    /// The namespace of the lease
    #[arg(long, env = "POD_NAMESPACE", default_value = "gitmount-system")]
    namespace: String,
    /// What tells this replica from others
    #[arg(long, env = "POD_NAME", default_value = "gitmount-controller")]
    identity: String,
}

#[derive(Debug, Args)]
struct Common {
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
    /// Spread the pulls that demands lead to over this many seconds, each node at a random time
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS", value_parser = seconds)]
    demand_spread: f64,
    #[command(flatten)]
    common: Common,
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

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "give seconds between 0 and 3600, such as 2.5".into())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let command = Cli::parse().command;
    let (Command::Node(NodeArgs { common, .. }) | Command::Controller(ControllerArgs { common, .. })) = &command;
    let filter = EnvFilter::try_from_env("GITMOUNT_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match common.log_format {
        LogFormat::Text => logs.with_ansi(false).init(),
        LogFormat::Json => logs.json().init(),
    }
    let ended = match command {
        Command::Node(args) => serve_node(args).await,
        Command::Controller(args) => serve_controller(args).await,
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Ends when the process is asked to.
async fn asked_to_end() -> Result<()> {
    let (mut terminated, mut interrupted) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminated.recv() => {}
        _ = interrupted.recv() => {}
    }
    tracing::info!("stopping");
    Ok(())
}

async fn serve_controller(args: ControllerArgs) -> Result<()> {
    let end = asked_to_end();
    let client = client(args.common.kubeconfig.as_deref()).await?.context("the controller needs an API server: give --kubeconfig")?;
    let volumes = Arc::new(Volumes::new(client.clone()));
    let context = Arc::new(webhook::Context::new(Arc::clone(&volumes), Secrets::new(client.clone())));
    let webhooks = http::serve(args.webhooks, webhook::router(Arc::clone(&context)), webhook::LIMITS);
    let status = {
        let router = webhook::status(context);
        async move {
            match args.common.listen {
                Some(address) => http::serve(address, router, metrics::LIMITS).await.with_context(|| format!("--listen {address}")),
                None => std::future::pending().await,
            }
        }
    };
    let mut candidate = Candidate::new(client.clone(), &args.namespace, args.identity.clone());
    let start = async {
        volumes.listed().await;
        candidate.each_time(|| volumes.demand_all()).await;
    };
    tracing::info!(webhooks = %args.webhooks, "serving");
    tokio::select! {
        ended = webhooks => { ended.with_context(|| format!("--webhooks {}", args.webhooks))?; bail!("the server of the webhooks ended") }
        ended = status => ended,
        () = volumes.watch() => bail!("the watch of PersistentVolumes ended"),
        () = start => Ok(()),
        ended = end => {
            Candidate::new(client, &args.namespace, args.identity).release().await;
            ended
        }
    }
}

async fn serve_node(args: NodeArgs) -> Result<()> {
    let end = asked_to_end();
    let client = client(args.common.kubeconfig.as_deref()).await?;
    let daemon = Daemon::new(&args.daemon).context("--daemon is no path of a socket")?;
    let health = Arc::new(Health::new(daemon.clone()));
    let recorder = Recorder::start(client.clone(), &args.node_name);
    let identity = identity::Service::new(daemon.clone());
    let spread = Duration::from_secs_f64(args.demand_spread);
    let published = demands::start(client.clone(), daemon.clone(), Arc::clone(&health), spread);
    let claims = Claims::new(client);
    let node = node::Service::new(args.node_name, daemon.clone(), Arc::clone(&health), recorder.clone(), claims, published);
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
            match args.common.listen {
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
        ended = end => { remove(&args.endpoint, args.registration_dir.as_deref()); ended }
    }
}

/// Takes the sockets away, so that the kubelet asks nobody until the next one is there.
fn remove(endpoint: &Path, registration: Option<&Path>) {
    for socket in registration.map(registration::socket).iter().map(PathBuf::as_path).chain([endpoint]) {
        if let Err(error) = std::fs::remove_file(socket) {
            tracing::warn!(socket = %socket.display(), %error, "a socket stays");
        }
    }
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
