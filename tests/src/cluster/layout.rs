//! Where a cluster keeps its files, which addresses it has, and what it is made of.
//!
//! Addresses are of the range 198.18.0.0/15, which is set aside for tests of networks. A cluster has four networks of it, chosen by its
//! directory, so that clusters of different directories can run side by side: one for the machine and the nodes, one for the pods of each
//! node, one for services.

use std::ffi::OsString;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::build::Component;
use super::cgroup::Cgroup;
use super::process::Daemon;

/// Where a cluster is, unless `GITMOUNT_CLUSTER_DIR` says otherwise: outside of the checkout, so that checkouts share it.
const DIR: &str = "/var/tmp/gitmount-cluster";

/// A cluster that runs or could run.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    pub(super) dir: PathBuf,
    pub(super) nodes: usize,
    slot: u8,
    programs: Vec<PathBuf>,
}

impl Layout {
    /// The one of this account, with its programs built.
    pub(super) fn new(nodes: usize) -> Result<Self> {
        ensure!((1..=2).contains(&nodes), "a cluster has one or two nodes");
        let (dir, slot) = place()?;
        let parts = [Component::Kubernetes, Component::Containerd, Component::Etcd, Component::Runc];
        let programs = parts.into_iter().map(Component::programs).collect::<Result<_>>()?;
        Ok(Layout { dir, nodes, slot, programs })
    }

    /// What identifies the cluster: a live one that says something else was made of other programs, or before the machine was started.
    pub(super) fn identity(&self) -> Result<String> {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        let programs: Vec<_> = self.programs.iter().map(|dir| dir.file_name().unwrap_or_default().to_string_lossy()).collect();
        Ok(format!("{FORM} boot {} nodes {} {}", boot.trim(), self.nodes, programs.join(" ")))
    }

    /// `PATH` of the cluster's processes.
    pub(super) fn path(&self) -> OsString {
        let system = ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
        std::env::join_paths(self.programs.iter().cloned().chain(system)).unwrap_or_default()
    }

    /// One of the built programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        let found = self.programs.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
        found.unwrap_or_else(|| PathBuf::from(name))
    }

    pub(super) fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    pub(super) fn daemon(&self, name: &str) -> Daemon {
        Daemon::new(&self.dir.join("processes"), name)
    }

    pub(super) fn network(&self) -> Network {
        Network { slot: self.slot }
    }

    pub(super) fn control_cgroup(&self) -> Cgroup {
        control_cgroup(self.slot)
    }

    pub(super) fn node_cgroup(&self, node: usize) -> Cgroup {
        node_cgroup(self.slot, node)
    }
}

/// What the control plane's processes are in.
pub(super) fn control_cgroup(slot: u8) -> Cgroup {
    Cgroup::new(&format!("gitmount{slot}-control"))
}

/// What a node's processes and pods are in.
pub(super) fn node_cgroup(slot: u8, node: usize) -> Cgroup {
    Cgroup::new(&format!("gitmount{slot}-node{node}"))
}

/// Changes when a cluster is set up in another way, so that one of an older checkout is not taken for it.
const FORM: &str = "gitmount-cluster/1";

/// The directory and the number of its networks.
pub(super) fn place() -> Result<(PathBuf, u8)> {
    let Some(dir) = std::env::var_os("GITMOUNT_CLUSTER_DIR").filter(|dir| !dir.is_empty()) else {
        return Ok((PathBuf::from(DIR), 0));
    };
    let dir = PathBuf::from(dir);
    ensure!(dir.is_absolute() && dir != Path::new("/"), "GITMOUNT_CLUSTER_DIR must be an absolute path of a directory of its own");
    if dir == Path::new(DIR) {
        return Ok((dir, 0));
    }
    let sum = dir.as_os_str().as_encoded_bytes().iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    Ok((dir, u8::try_from(sum % 63)? + 1))
}

/// The addresses and interfaces.
#[derive(Debug, Clone, Copy)]
pub(super) struct Network {
    slot: u8,
}

impl Network {
    pub(super) fn of_slot(slot: u8) -> Self {
        Network { slot }
    }

    pub(super) fn slot(self) -> u8 {
        self.slot
    }

    fn address(self, net: u8, host: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, 18, self.slot * 4 + net, host)
    }

    /// The machine as nodes and pods see it.
    pub(super) fn host(self) -> Ipv4Addr {
        self.address(0, 1)
    }

    /// A node; they are counted from 1.
    pub(super) fn node(self, node: usize) -> Ipv4Addr {
        self.address(0, 10 + u8::try_from(node).unwrap_or(0))
    }

    /// The pods of a node.
    pub(super) fn pods(self, node: usize) -> String {
        format!("{}/24", self.address(u8::try_from(node).unwrap_or(0), 0))
    }

    /// The services' addresses; the first is the API server's.
    pub(super) fn services(self) -> String {
        format!("{}/24", self.address(3, 0))
    }

    /// The API server as everything in the cluster and the tests see it: its service's address, which it listens on itself.
    pub(super) fn api(self) -> Ipv4Addr {
        self.address(3, 1)
    }

    pub(super) fn bridge(self) -> String {
        format!("gitmount{}", self.slot)
    }

    /// The machine's end of a node's link.
    pub(super) fn link(self, node: usize) -> String {
        format!("gitmount{}n{node}", self.slot)
    }
}
