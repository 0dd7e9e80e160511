//! A real Kubernetes with two nodes on this machine: API server, etcd, controller manager, scheduler, two kubelets, two containerds.
//! Nothing of it is simulated.
//!
//! [`Cluster::get`] attaches to the one that runs, or brings one up: the programs are built once ([`build`]), and it stands some ten seconds
//! later. It is kept for the next test binary, until `gitmount-cluster down`. A live one of other programs, or one that is half
//! dead, is taken down and made anew.

pub mod build;
mod cgroup;
mod control;
mod driver;
mod forge;
mod go;
pub mod image;
mod kubectl;
mod layout;
mod leaks;
mod namespace;
mod node;
mod pki;
pub mod pods;
mod process;
pub mod readers;
pub mod webhooks;

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::mount::MntFlags;

pub use cgroup::starve;
pub use driver::{Driver, NAMESPACE, USUAL, helm};
pub use forge::{Forge, User};
pub use kubectl::{Event, Kubectl, condition};
pub use namespace::{Alone, Namespace};
pub use node::Node;
pub use process::Daemon;

use crate::{run, scratch};
use layout::{Layout, Network};

/// How many nodes it has unless it was made otherwise.
pub const NODES: usize = 2;
const READY: Duration = Duration::from_secs(120);

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    layout: Layout,
    nodes: Vec<Node>,
    /// What tests ask the API server with.
    pub kubectl: Kubectl,
}

impl Cluster {
    /// The cluster that runs, or a new one.
    ///
    /// # Errors
    /// When it cannot be brought up, saying what failed; asked again, the same is said at once.
    pub fn get() -> Result<&'static Cluster> {
        static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
        let cluster = CLUSTER.get_or_init(|| Cluster::up(NODES).map_err(|error| format!("{error:#}")));
        cluster.as_ref().map_err(|error| anyhow::anyhow!("there is no Kubernetes cluster: {error}"))
    }

    /// The same, with a number of nodes.
    pub fn up(nodes: usize) -> Result<Cluster> {
        require()?;
        let layout = Layout::new(nodes)?;
        let _lock = lock()?;
        let cluster = Cluster::of(&layout);
        match cluster.is_live() {
            Ok(()) => return Ok(cluster),
            Err(reason) if layout.dir.exists() => eprintln!("the cluster in {} is made anew: {reason:#}", layout.dir.display()),
            Err(_) => {}
        }
        let started = Instant::now();
        take_down(&layout.dir, layout.network())?;
        cluster.start().with_context(|| format!("the cluster in {} did not come up", layout.dir.display()))?;
        eprintln!("the cluster in {} came up in {:.1} s", layout.dir.display(), started.elapsed().as_secs_f64());
        Ok(cluster)
    }

    /// Ends the cluster, whatever state it is in.
    pub fn down() -> Result<()> {
        scratch::require_root()?;
        let _lock = lock()?;
        let (dir, slot) = layout::place()?;
        take_down(&dir, Network::of_slot(slot))
    }

    /// The cluster that runs, and what is wrong when it does not.
    pub fn attach(nodes: usize) -> Result<Cluster> {
        let cluster = Cluster::of(&Layout::new(nodes)?);
        cluster.is_live()?;
        Ok(cluster)
    }

    fn of(layout: &Layout) -> Self {
        let nodes = (1..=layout.nodes).map(|number| Node::new(layout, number)).collect();
        Cluster { layout: layout.clone(), nodes, kubectl: Kubectl::new(layout) }
    }

    /// Its directory, with `processes/*.log`.
    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    /// Its nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The address of this machine that nodes and pods reach; a server that they are to reach listens there.
    pub fn host(&self) -> Ipv4Addr {
        self.layout.network().host()
    }

    /// The node that a pod runs on.
    pub fn node_of(&self, namespace: &str, pod: &str) -> Result<&Node> {
        let name = self.kubectl.out(&["get", "pod", pod, "-n", namespace, "-o", "jsonpath={.spec.nodeName}"])?;
        self.nodes.iter().find(|node| node.name() == name).with_context(|| format!("the pod {namespace}/{pod} is on no node"))
    }

    /// The process of a pod's container.
    pub fn pid_of(&self, namespace: &str, pod: &str, container: &str) -> Result<i32> {
        let path = format!("jsonpath={{.status.containerStatuses[?(@.name==\"{container}\")].containerID}}");
        let id = self.kubectl.out(&["get", "pod", pod, "-n", namespace, "-o", &path])?;
        ensure!(!id.is_empty(), "the pod {namespace}/{pod} has no running container {container}");
        self.node_of(namespace, pod)?.pid_of(&id)
    }

    /// Ends the API server without a word and starts it again; returns when it is ready.
    pub fn restart_api_server(&self) -> Result<()> {
        control::restart_api_server(&self.layout)
    }

    /// Imports a docker-style image on every node that lacks it; its tag must name its content.
    pub fn load_image(&self, image: &image::Image) -> Result<()> {
        for node in &self.nodes {
            if !node.has_image(image.name())? {
                node.load_image(image.tar())?;
            }
        }
        Ok(())
    }

    /// A program of the cluster (`csi-sanity`).
    pub fn program(&self, name: &str) -> std::path::PathBuf {
        self.layout.program(name)
    }

    fn identity_file(&self) -> std::path::PathBuf {
        self.layout.dir.join("complete")
    }

    fn is_live(&self) -> Result<()> {
        let said = fs::read_to_string(self.identity_file()).context("it was never complete")?;
        ensure!(said == self.layout.identity()?, "it was made of other programs, with another number of nodes, or before a reboot");
        let control = control::PROCESSES.map(|name| self.layout.daemon(name));
        let of_nodes = self.nodes.iter().flat_map(|node| [node.anchor(), node.containerd(), node.kubelet()]);
        for daemon in control.into_iter().chain(of_nodes) {
            if daemon.pid().is_none() {
                bail!("{} does not run", daemon.name());
            }
        }
        process::until("readiness of the API server and every node", Duration::from_secs(20), None, || {
            Ok(self.nodes_are_ready()?.then_some(()))
        })
    }

    fn nodes_are_ready(&self) -> Result<bool> {
        let list = self.kubectl.json(&["get", "nodes", "--request-timeout=5s"])?;
        let ready = list["items"].as_array().into_iter().flatten().filter(|node| condition(node, "Ready") == Some("True"));
        Ok(ready.count() == self.nodes.len())
    }

    fn start(&self) -> Result<()> {
        fs::create_dir_all(&self.layout.dir)?;
        fs::write(self.layout.dir.join(MARK), "")?;
        control::start(&self.layout)?;
        for node in &self.nodes {
            node.start()?;
        }
        self.load_image(&image::pause()?)?;
        self.load_image(&image::test()?)?;
        for node in &self.nodes {
            node.start_kubelet()?;
        }
        let kubelet = self.nodes[0].kubelet();
        process::until("readiness of every node", READY, Some(&kubelet), || Ok(self.nodes_are_ready()?.then_some(())))?;
        fs::write(self.identity_file(), self.layout.identity()?)?;
        Ok(())
    }
}

/// Marks a directory as one that may be removed.
const MARK: &str = "gitmount-cluster";

/// One at a time brings it up or takes it down.
fn lock() -> Result<scratch::Lock> {
    let (_, slot) = layout::place()?;
    scratch::exclusive(&format!("cluster{slot}"))
}

fn require() -> Result<()> {
    scratch::require_root().context("a Kubernetes cluster needs root")?;
    scratch::require_fuse()?;
    for (program, package) in [
        ("ip", "iproute2"),
        ("nsenter", "util-linux"),
        ("unshare", "util-linux"),
        ("setsid", "util-linux"),
        ("mount", "mount"),
        ("cc", "gcc"),
        ("pkg-config", "pkg-config"),
    ] {
        run::require(program, package)?;
    }
    ensure!(Path::new("/usr/lib/cni/ptp").exists() || Path::new("/opt/cni/bin/ptp").exists(), "install containernetworking-plugins");
    Ok(())
}

/// Ends every process of the cluster by its cgroup, unmounts, and removes its interfaces and its directory.
fn take_down(dir: &Path, network: Network) -> Result<()> {
    let slot = network.slot();
    for node in 1..=NODES {
        layout::node_cgroup(slot, node).end()?;
    }
    layout::control_cgroup(slot).end()?;
    for link in (1..=NODES).map(|node| network.link(node)).chain([network.bridge()]) {
        // What is not there is what is wanted.
        let _ = run::run(run::command("ip").args(["link", "delete", &link]));
    }
    if !dir.exists() {
        return Ok(());
    }
    ensure!(
        dir.join(MARK).exists() || fs::read_dir(dir)?.next().is_none(),
        "{} has no file {MARK}, so it is no cluster's, and is left alone",
        dir.display()
    );
    for target in crate::mount::mounts_below(dir)?.iter().rev() {
        nix::mount::umount2(target, MntFlags::MNT_DETACH).with_context(|| format!("{} could not be unmounted", target.display()))?;
    }
    fs::remove_dir_all(dir).with_context(|| format!("{} could not be removed", dir.display()))
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
