//! The control plane: etcd, API server, controller manager, scheduler, on the machine itself, listening on the cluster's own addresses.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::Result;
use nix::sys::signal::Signal;

use super::kubectl::Kubectl;
use super::layout::Layout;
use super::node::ip;
use super::pki;
use super::process::{Daemon, until};

const START: Duration = Duration::from_secs(90);
/// Its processes, in the order of their start.
pub(super) const PROCESSES: [&str; 4] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Starts it, and returns when the API server is ready.
pub(super) fn start(layout: &Layout) -> Result<()> {
    let net = layout.network();
    let (host, api) = (net.host().to_string(), net.api().to_string());
    bridge(layout)?;
    layout.control_cgroup().make()?;

    let server = format!("https://{api}:443");
    let names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", &api, &host];
    let mut users: Vec<_> = [
        ("admin", "admin", "system:masters"),
        ("kube-controller-manager", "system:kube-controller-manager", ""),
        ("kube-scheduler", "system:kube-scheduler", ""),
    ]
    .map(|(file, user, groups)| (file.to_owned(), user.to_owned(), groups.to_owned()))
    .into();
    users.extend((1..=layout.nodes).map(|node| {
        let name = format!("node{node}");
        (name.clone(), format!("system:node:{name}"), "system:nodes".to_owned())
    }));
    pki::write(&layout.pki(), &names, &server, &users)?;
    let file = |name: &str| layout.pki().join(name).display().to_string();

    let (clients, peers) = (format!("http://{host}:2379"), format!("http://{host}:2380"));
    let etcd = run(
        layout,
        "etcd",
        &[
            format!("--data-dir={}", layout.dir.join("etcd").display()),
            // What a machine that dies loses is a test cluster.
            "--unsafe-no-fsync".into(),
            format!("--listen-client-urls={clients}"),
            format!("--advertise-client-urls={clients}"),
            format!("--listen-peer-urls={peers}"),
            format!("--initial-advertise-peer-urls={peers}"),
            format!("--initial-cluster=default={peers}"),
        ],
    )?;
    listens(&etcd, &host, 2379)?;
    api_server(layout)?;
    run(
        layout,
        "kube-controller-manager",
        &[
            format!("--kubeconfig={}", file("kube-controller-manager.conf")),
            format!("--service-account-private-key-file={}", file("accounts.key")),
            format!("--root-ca-file={}", file("ca.crt")),
            "--use-service-account-credentials".into(),
            // The usual 20 requests a second bind five volumes in one.
            "--kube-api-qps=400".into(),
            "--kube-api-burst=400".into(),
            "--leader-elect=false".into(),
            "--secure-port=0".into(),
        ],
    )?;
    let scheduler = [format!("--kubeconfig={}", file("kube-scheduler.conf")), "--leader-elect=false".into(), "--secure-port=0".into()];
    run(layout, "kube-scheduler", &scheduler)?;
    Ok(())
}

/// Starts the API server, and returns when it is ready.
fn api_server(layout: &Layout) -> Result<()> {
    let net = layout.network();
    let api = net.api().to_string();
    let clients = format!("http://{}:2379", net.host());
    let file = |name: &str| layout.pki().join(name).display().to_string();
    let server = run(
        layout,
        "kube-apiserver",
        &[
            format!("--etcd-servers={clients}"),
            format!("--bind-address={api}"),
            format!("--advertise-address={api}"),
            "--secure-port=443".into(),
            format!("--tls-cert-file={}", file("apiserver.crt")),
            format!("--tls-private-key-file={}", file("apiserver.key")),
            format!("--cert-dir={}", file("")),
            format!("--token-auth-file={}", file("tokens.csv")),
            "--authorization-mode=Node,RBAC".into(),
            "--enable-admission-plugins=NodeRestriction".into(),
            format!("--service-account-key-file={}", file("accounts.pub")),
            format!("--service-account-signing-key-file={}", file("accounts.key")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            // Nobody forwards service addresses: the first of them, the API server's, is an address of the machine.
            format!("--service-cluster-ip-range={}", net.services()),
            "--endpoint-reconciler-type=none".into(),
            "--allow-privileged=true".into(),
            format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
            format!("--kubelet-client-key={}", file("kubelet-client.key")),
            "--kubelet-preferred-address-types=InternalIP".into(),
        ],
    )?;
    let kubectl = Kubectl::new(layout);
    until("the API server's readiness", START, Some(&server), || kubectl.run(&["get", "--raw", "/readyz"])?.success().map(Some))?;
    Ok(())
}

/// Ends the API server as a crash does, and starts it again.
pub(super) fn restart_api_server(layout: &Layout) -> Result<()> {
    layout.daemon("kube-apiserver").end(Signal::SIGKILL)?;
    api_server(layout)
}

/// The network between the machine and the nodes.
fn bridge(layout: &Layout) -> Result<()> {
    let net = layout.network();
    let bridge = net.bridge();
    ip(&["link", "add", &bridge, "type", "bridge"])?;
    ip(&["address", "add", &format!("{}/24", net.host()), "dev", &bridge])?;
    ip(&["address", "add", &format!("{}/32", net.api()), "dev", &bridge])?;
    ip(&["link", "set", &bridge, "up"])
}

fn run(layout: &Layout, name: &str, args: &[String]) -> Result<Daemon> {
    let daemon = layout.daemon(name);
    let mut words: Vec<OsString> = vec![layout.program(name).into()];
    words.extend(args.iter().map(OsString::from));
    let words: Vec<_> = words.iter().map(OsString::as_os_str).collect();
    daemon.start(&words, &layout.path(), &layout.control_cgroup())?;
    Ok(daemon)
}

fn listens(daemon: &Daemon, host: &str, port: u16) -> Result<()> {
    until(&format!("listening on port {port}"), START, Some(daemon), || Ok(std::net::TcpStream::connect((host, port)).ok().map(drop)))
}
