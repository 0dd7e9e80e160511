//! A daemon that is stopped, and a node without its mounts: what does not need the daemon goes on, and what needs it comes back.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_proto::csi::v1 as csi;
use gitmount_proto::csi::v1::node_client::NodeClient;
use gitmount_tests::cluster::pods::{Pod, inline};
use gitmount_tests::cluster::{Cluster, NAMESPACE, Namespace, Node, USUAL, condition};
use gitmount_tests::fixtures;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const DEADLINE: Duration = Duration::from_secs(90);

/// Lets a process go on, also when the test fails meanwhile.
struct Stopped(Pid);

impl Stopped {
    fn stop(pid: i32) -> Result<Self> {
        kill(Pid::from_raw(pid), Signal::SIGSTOP)?;
        Ok(Stopped(Pid::from_raw(pid)))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// What the plugin of a node says of a volume, and how long that takes.
fn stats(node: &Node, volume: &str, path: &str) -> Result<(csi::NodeGetVolumeStatsResponse, Duration)> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let socket = node.path("/var/lib/kubelet/plugins/git.liken.sh/csi.sock")?;
    let channel = runtime.block_on(gitmount_proto::socket::connect(&socket, DEADLINE))?;
    let (volume_id, volume_path) = (volume.to_owned(), path.to_owned());
    let request = csi::NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
    let begin = Instant::now();
    let answer = runtime.block_on(NodeClient::new(channel).node_get_volume_stats(request))?.into_inner();
    Ok((answer, begin.elapsed()))
}

#[test]
fn a_stopped_daemon_holds_up_nothing_but_what_needs_it() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "stopped")?;
    let driver = cluster.deploy_driver(&namespace, &USUAL)?;
    let k = &cluster.kubectl;
    let ns = namespace.name();
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("greeting", "one\n")])?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let node = &cluster.nodes()[0];
    k.apply_object(&Pod::new(ns, "reader", "node1").volume("data", inline(&[("url", &url), ("pull", "1s")])).object())?;
    let pod = k.wait_pod_ready(ns, "reader", DEADLINE)?;
    let uid = pod["metadata"]["uid"].as_str().context("a pod has a uid")?;
    let path = format!("/var/lib/kubelet/pods/{uid}/volumes/kubernetes.io~csi/data/mount");
    let counted = || stats(node, "data", &path).ok().filter(|(answer, _)| answer.usage[0].total > 0);
    let (before, _) = wait_for("numbers of the volume", DEADLINE, counted)?;

    let stopped = Stopped::stop(cluster.pid_of(NAMESPACE, &driver.pod("node", "node1")?, "fsd")?)?;
    // What the daemon said within the last second still counts for the first answer.
    for last in [false, true] {
        let (answer, took) = stats(node, "data", &path)?;
        ensure!(took < Duration::from_secs(1) && answer.usage == before.usage, "after {took:?}: {answer:?}");
        ensure!(!last || answer.volume_condition.as_ref().is_some_and(|condition| condition.abnormal), "{answer:?}");
        std::thread::sleep(Duration::from_millis(1100));
    }
    k.apply_object(&Pod::new(ns, "other", "node1").object())?;
    k.wait_pod_ready(ns, "other", DEADLINE)?;
    node.restart_kubelet()?;
    let ready = || condition(&k.json(&["get", "node", "node1"]).ok()?, "Ready").filter(|state| *state == "True").map(drop);
    wait_for("a node that is Ready", DEADLINE, ready)?;
    k.apply_object(&Pod::new(ns, "after", "node1").object())?;
    k.wait_pod_ready(ns, "after", DEADLINE)?;
    // It needs the daemon, and starts when that goes on.
    k.apply_object(&Pod::new(ns, "late", "node1").volume("data", inline(&[("url", &url)])).object())?;
    let (_, took) = stats(node, "data", &path)?;
    ensure!(took < Duration::from_secs(1), "after {took:?}");
    drop(stopped);

    k.wait_pod_ready(ns, "late", DEADLINE)?;
    fixtures::commit(&repo, "second", &[("greeting", "two\n")])?;
    for name in ["reader", "late"] {
        k.wait_pod_ready(ns, name, DEADLINE)?;
    }
    k.wait_text(ns, "reader", "/data/greeting", "two", DEADLINE)
}
