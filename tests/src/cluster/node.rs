//! A node: a kubelet and a containerd in a mount and a network namespace of their own, in which the usual directories (`/var/lib/kubelet`,
//! `/run/containerd`, …) are the node's. So two nodes on one machine differ as two machines do: the same DaemonSet, with the same host
//! paths and the same ports on the host's network, runs on both.
//!
//! The namespaces belong to a process that sleeps. Nothing of a node is mounted outside of them.

use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::sys::signal::Signal;

use super::cgroup::Cgroup;
use super::layout::Layout;
use super::process::{Daemon, until};
use crate::run::{self, Finished, command, run_with};

/// The node's directories: where they are on the machine, and where the node has them.
const DIRECTORIES: [(&str, &str); 7] = [
    ("kubelet", "/var/lib/kubelet"),
    ("logs", "/var/log/pods"),
    ("containerd", "/var/lib/containerd"),
    ("containerd-state", "/run/containerd"),
    ("cni", "/var/lib/cni"),
    ("gitmount", "/var/lib/gitmount"),
    ("gitmount-run", "/run/gitmount"),
];
/// Those of them that a boot finds empty.
const VOLATILE: [&str; 2] = ["containerd-state", "gitmount-run"];
const START: Duration = Duration::from_secs(60);

/// One of the cluster's nodes.
#[derive(Debug)]
pub struct Node {
    layout: Layout,
    number: usize,
}

impl Node {
    pub(super) fn new(layout: &Layout, number: usize) -> Self {
        Node { layout: layout.clone(), number }
    }

    /// Its name in Kubernetes.
    pub fn name(&self) -> String {
        format!("node{}", self.number)
    }

    /// Its address, and the one of pods on its network.
    pub fn address(&self) -> Ipv4Addr {
        self.layout.network().node(self.number)
    }

    fn dir(&self) -> PathBuf {
        self.layout.dir.join(self.name())
    }

    /// Its kubelet.
    pub fn kubelet(&self) -> Daemon {
        self.layout.daemon(&format!("kubelet{}", self.number))
    }

    /// Its containerd.
    pub fn containerd(&self) -> Daemon {
        self.layout.daemon(&format!("containerd{}", self.number))
    }

    pub(super) fn anchor(&self) -> Daemon {
        self.layout.daemon(&format!("namespaces{}", self.number))
    }

    /// A path of the node (`/var/lib/kubelet/pods`), with everything that is mounted there, as the machine sees it.
    pub fn path(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        let pid = self.anchor().pid().with_context(|| format!("{} does not run", self.name()))?;
        let inside = path.as_ref().strip_prefix("/").context("a path of a node is absolute")?;
        Ok(Path::new(&format!("/proc/{pid}/root")).join(inside))
    }

    /// The kubelet's root directory, with what is mounted below it.
    pub fn kubelet_root(&self) -> Result<PathBuf> {
        self.path("/var/lib/kubelet")
    }

    /// containerd's socket.
    pub fn containerd_socket(&self) -> PathBuf {
        self.dir().join("containerd-state/containerd.sock")
    }

    /// Runs a command on the node: in its namespaces, with the cluster's programs. A failing exit code is no error.
    pub fn run(&self, words: &[&str]) -> Result<Finished> {
        let mut node = command("nsenter");
        node.args(self.enter()?).args(words).env("PATH", self.layout.path());
        run_with(&mut node, &[], run::DEADLINE)
    }

    /// Runs containerd's client on the node, in the namespace of Kubernetes.
    pub fn ctr(&self, words: &[&str]) -> Result<Finished> {
        self.run(&[&["ctr", "-n", "k8s.io"], words].concat())
    }

    /// The mounts of the node, as `/proc/PID/mountinfo` lists them.
    pub fn mounts(&self) -> Result<String> {
        let pid = self.anchor().pid().with_context(|| format!("{} does not run", self.name()))?;
        Ok(fs::read_to_string(format!("/proc/{pid}/mountinfo"))?)
    }

    fn enter(&self) -> Result<[String; 4]> {
        let pid = self.anchor().pid().with_context(|| format!("{} does not run", self.name()))?;
        Ok(["--target".into(), pid.to_string(), "--mount".into(), "--net".into()])
    }

    fn cgroup(&self) -> Cgroup {
        Cgroup::new(&format!("{}/system", self.layout.node_cgroup(self.number).path().trim_start_matches('/')))
    }

    /// The id of the process of a running container (`containerd://…`, as the pod's status gives it).
    pub fn pid_of(&self, container: &str) -> Result<i32> {
        let id = container.trim_start_matches("containerd://");
        let list = self.ctr(&["tasks", "list"])?.success()?.out();
        let line = list.lines().find(|line| line.split_whitespace().next() == Some(id));
        let pid = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
        pid.with_context(|| format!("the container {id} does not run on {}:\n{list}", self.name()))
    }

    /// Imports a docker-style image.
    pub fn load_image(&self, tar: &Path) -> Result<()> {
        let tar = tar.to_str().context("the path of an image is UTF-8")?;
        self.ctr(&["images", "import", tar])?.success().with_context(|| format!("{} does not take an image", self.name()))?;
        Ok(())
    }

    /// Whether it has an image (`local/pause:1`).
    pub fn has_image(&self, name: &str) -> Result<bool> {
        let list = self.ctr(&["images", "list", "--quiet"])?.success()?.out();
        Ok(list.lines().any(|line| line.trim_start_matches("docker.io/") == name))
    }

    /// Ends the kubelet and starts it again; returns when it answers.
    pub fn restart_kubelet(&self) -> Result<()> {
        self.kubelet().end(Signal::SIGTERM)?;
        self.start_kubelet()
    }

    /// Ends the kubelet; pods go on.
    pub fn stop_kubelet(&self) -> Result<()> {
        self.kubelet().end(Signal::SIGTERM)
    }

    /// Ends containerd and starts it again; returns when it answers.
    pub fn restart_containerd(&self) -> Result<()> {
        self.containerd().end(Signal::SIGTERM)?;
        self.start_containerd()
    }

    /// Ends everything that runs on it at once, and with it every mount and what is below `/run`, and starts it again with what is on its
    /// disk; returns when its kubelet answers.
    pub fn reboot(&self) -> Result<()> {
        self.layout.node_cgroup(self.number).end()?;
        // The kernel takes it away with the namespace, but not at once.
        let link = self.layout.network().link(self.number);
        until("the end of the node's link", START, None, || {
            // What is not there is what is wanted.
            let _ = run::run(command("ip").args(["link", "delete", &link]));
            Ok((!Path::new("/sys/class/net").join(&link).exists()).then_some(()))
        })?;
        for name in VOLATILE {
            fs::remove_dir_all(self.dir().join(name))?;
        }
        fs::remove_file(self.ready())?;
        self.start()?;
        self.start_kubelet()
    }

    /// Exists when the namespaces are complete.
    fn ready(&self) -> PathBuf {
        self.dir().join("ready")
    }

    pub(super) fn start(&self) -> Result<()> {
        self.layout.node_cgroup(self.number).make()?;
        self.cgroup().make()?;
        self.make_namespaces()?;
        self.connect()?;
        self.configure()?;
        self.start_containerd()
    }

    fn make_namespaces(&self) -> Result<()> {
        let mut script = String::from("set -e\nip link set lo up\n");
        for (name, path) in DIRECTORIES {
            let dir = self.dir().join(name);
            fs::create_dir_all(&dir)?;
            fs::create_dir_all(path)?;
            script.push_str(&format!("mount --bind '{}' {path}\n", dir.display()));
        }
        let ready = self.ready();
        // Shared, as systemd has it on every machine: hostPath volumes need it to propagate what is mounted.
        script.push_str(&format!("mount --make-rshared /\ntouch '{}'\nexec sleep infinity\n", ready.display()));
        let words = ["unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", &script].map(OsStr::new);
        let anchor = self.anchor();
        anchor.start(&words, &self.layout.path(), &self.cgroup())?;
        let what = format!("making the namespaces of {}", self.name());
        until(&what, START, Some(&anchor), || Ok(ready.exists().then_some(())))
    }

    /// Links the node's network to the machine's.
    fn connect(&self) -> Result<()> {
        let net = self.layout.network();
        let pid = self.anchor().pid().context("the node's namespaces are there")?.to_string();
        let (link, address) = (net.link(self.number), format!("{}/24", self.address()));
        ip(&["link", "add", &link, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
        ip(&["link", "set", &link, "master", &net.bridge(), "up"])?;
        let host = net.host().to_string();
        let inside: [&[&str]; 3] =
            [&["address", "add", &address, "dev", "eth0"], &["link", "set", "eth0", "up"], &["route", "add", "default", "via", &host]];
        for words in inside {
            self.run(&[&["ip"], words].concat())?.success()?;
        }
        self.run(&["sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"])?.success()?;
        for other in (1..=self.layout.nodes).filter(|other| *other != self.number) {
            self.run(&["ip", "route", "add", &net.pods(other), "via", &net.node(other).to_string()])?.success()?;
        }
        ip(&["route", "replace", &net.pods(self.number), "via", &self.address().to_string()])
    }

    fn configure(&self) -> Result<()> {
        let dir = self.dir();
        fs::create_dir_all(dir.join("cni.d"))?;
        let subnet = self.layout.network().pods(self.number);
        let cni = serde_json::json!({
            "cniVersion": "1.0.0", "name": "pods",
            "plugins": [{"type": "ptp", "ipam": {
                "type": "host-local", "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
            }}],
        });
        fs::write(dir.join("cni.d/10-pods.conflist"), serde_json::to_vec_pretty(&cni)?)?;
        let containerd = format!(
            r#"version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "local/pause:1"
[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE runc could not lower it, and fails with "can't get final child's PID from pipe".
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
  bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
  conf_dir = "{}/cni.d"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "{}"
"#,
            dir.display(),
            self.layout.program("runc").display(),
        );
        fs::write(dir.join("containerd.toml"), containerd)?;
        let kubelet = serde_json::json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "address": self.address(), "healthzPort": 0, "readOnlyPort": 0,
            "authentication": {
                "anonymous": {"enabled": false}, "webhook": {"enabled": false},
                "x509": {"clientCAFile": self.layout.pki().join("ca.crt")},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs", "cgroupRoot": self.layout.node_cgroup(self.number).path(), "failCgroupV1": false,
            "failSwapOn": false, "enforceNodeAllocatable": [],
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
            "imageGCHighThresholdPercent": 100,
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            "maxPods": 250,
            // A minute by default, so that a repeated publish would be waited for that long.
            "syncFrequency": "10s",
            "eventRecordQPS": 0, "kubeAPIQPS": 200, "kubeAPIBurst": 400,
        });
        fs::write(dir.join("kubelet.json"), serde_json::to_vec_pretty(&kubelet)?)?;
        Ok(())
    }

    fn spawn(&self, daemon: &Daemon, program: &str, args: &[String]) -> Result<()> {
        let program = self.layout.program(program);
        let enter = self.enter()?;
        let mut words = vec![OsStr::new("nsenter")];
        words.extend(enter.iter().map(OsStr::new));
        words.push(program.as_os_str());
        words.extend(args.iter().map(OsStr::new));
        daemon.start(&words, &self.layout.path(), &self.cgroup())?;
        Ok(())
    }

    fn start_containerd(&self) -> Result<()> {
        let daemon = self.containerd();
        self.spawn(&daemon, "containerd", &["--config".into(), self.dir().join("containerd.toml").display().to_string()])?;
        let what = format!("an answer of the containerd of {}", self.name());
        until(&what, START, Some(&daemon), || self.ctr(&["version"])?.success().map(Some)).map(drop)
    }

    pub(super) fn start_kubelet(&self) -> Result<()> {
        let daemon = self.kubelet();
        let args = [
            format!("--config={}", self.dir().join("kubelet.json").display()),
            format!("--kubeconfig={}", self.layout.pki().join(format!("{}.conf", self.name())).display()),
            format!("--hostname-override={}", self.name()),
            format!("--node-ip={}", self.address()),
            "--root-dir=/var/lib/kubelet".into(),
            "--cert-dir=/var/lib/kubelet/pki".into(),
        ];
        let answers = || std::net::TcpStream::connect((self.address(), 10250)).is_ok();
        // The threads of one that was ended may outlive its id for a moment, and its socket with them.
        until("the end of an earlier kubelet", START, None, || Ok((!answers()).then_some(())))?;
        self.spawn(&daemon, "kubelet", &args)?;
        let what = format!("an answer of the kubelet of {}", self.name());
        until(&what, START, Some(&daemon), || Ok(answers().then_some(())))
    }
}

/// Runs `ip` on the machine.
pub(super) fn ip(words: &[&str]) -> Result<()> {
    let finished = run::run(command("ip").args(words))?;
    if !finished.status.success() {
        bail!(
            "`{}` failed ({}): the cluster needs CAP_NET_ADMIN and the kernel's bridge and veth",
            finished.command,
            finished.err().trim()
        );
    }
    Ok(())
}
