//! Pods that read without pause see no error and no wrong byte, whatever ends below them; and a push that comes after it arrives.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::readers::{self, Reader, Tree, uptime};
use gitmount_tests::cluster::{Cluster, Driver, NAMESPACE, Namespace, image, pods, starve};
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(90);
const VALUES: [&str; 2] = ["hosts.allowHttp=true", "demandMinInterval=1s"];

/// Readers on both nodes, and what happens to them.
struct Bench {
    tree: Tree,
    readers: Vec<Reader>,
}

impl Bench {
    /// Something happens; the readers go on, and see what is pushed after it.
    fn outlive(&mut self, what: &str, event: impl FnOnce(&mut Tree) -> Result<()>) -> Result<()> {
        let begin = uptime()?;
        event(&mut self.tree).with_context(|| what.to_owned())?;
        let version = self.tree.push()?;
        let mut stalls = Vec::new();
        for reader in &self.readers {
            reader.wait(version, DEADLINE).with_context(|| format!("after this: {what}"))?;
            stalls.push(format!("{} {:.2} s", reader.name(), reader.longest(begin)?.as_secs_f64()));
        }
        println!("{what}: the longest round of each reader: {}; all in {} s", stalls.join(", "), (uptime()? - begin) / 100);
        Ok(())
    }
}

/// A container of the driver.
struct Container<'a> {
    cluster: &'a Cluster,
    pod: String,
    name: &'static str,
}

impl Container<'_> {
    fn of<'a>(cluster: &'a Cluster, driver: &Driver<'_>, node: &str, name: &'static str) -> Result<Container<'a>> {
        let part = if name == "hold" { "hold" } else { "node" };
        Ok(Container { cluster, pod: driver.pod(part, node)?, name })
    }

    fn pid(&self) -> Result<i32> {
        self.cluster.pid_of(NAMESPACE, &self.pod, self.name)
    }

    fn status(&self) -> Result<Value> {
        let pod = self.cluster.kubectl.json(&["get", "pod", &self.pod, "-n", NAMESPACE])?;
        let all = pod["status"]["containerStatuses"].as_array();
        let own = all.into_iter().flatten().find(|status| status["name"] == self.name);
        own.cloned().with_context(|| format!("{} has no container {}", self.pod, self.name))
    }

    /// Ends it by `end` and waits until it is Ready again; gives its state then.
    fn lose(&self, end: impl FnOnce(i32) -> Result<()>) -> Result<Value> {
        let before = self.status()?["restartCount"].as_u64().context("a container has a count")?;
        end(self.pid()?)?;
        wait_for(&format!("another run of {} in {}", self.name, self.pod), DEADLINE, || {
            let status = self.status().ok()?;
            (status["restartCount"].as_u64()? > before && status["ready"] == true).then_some(status)
        })
    }

    fn kill(&self) -> Result<()> {
        self.lose(|pid| {
            kill(Pid::from_raw(pid), Signal::SIGKILL)?;
            // What is in no cache must be asked of the one who is not there.
            scratch::drop_caches(true)
        })?;
        Ok(())
    }
}

#[test]
fn readers_see_no_error_whatever_ends() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "survival")?;
    let mut driver = cluster.deploy_driver(&namespace, &VALUES)?;
    let dir = scratch::dir()?;
    let tree = Tree::new(&dir.path().join("r.git"))?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    cluster
        .kubectl
        .apply_object(&pods::Claim::new(namespace.name(), "data", &[("url", &url), ("ref", "main"), ("pull", "1s")]).object())?;
    let mut names = Vec::new();
    for node in cluster.nodes() {
        for (name, volume) in [("inline", pods::inline(&[("url", &url), ("pull", "1s")])), ("claim", pods::claimed("data"))] {
            let name = format!("{name}-{}", node.name());
            cluster.kubectl.apply_object(&readers::pod(namespace.name(), &name, &node.name(), &volume))?;
            names.push(name);
        }
    }
    let mut before = Vec::new();
    let mut readers = Vec::new();
    for pod in &names {
        before.push(cluster.kubectl.wait_pod_ready(namespace.name(), pod, DEADLINE)?);
        readers.push(Reader::of(cluster, namespace.name(), pod)?);
    }
    let mut bench = Bench { tree, readers };
    bench.outlive("nothing", |_| Ok(()))?;
    let container = |driver: &Driver<'_>, node, name| Container::of(cluster, driver, node, name);

    let [fsd, csi, hold] = ["fsd", "csi", "hold"].map(|name| container(&driver, "node1", name));
    let (fsd, csi, hold) = (fsd?, csi?, hold?);
    let starved = container(&driver, "node2", "fsd")?;
    bench.outlive("kill -9 of fsd on node1", |_| fsd.kill())?;
    bench.outlive("kill -9 of csi on node1", |_| csi.kill())?;
    bench.outlive("kill -9 of hold on node1", |_| hold.kill())?;
    // What it holds now was given to it after it had started.
    bench.outlive("kill -9 of fsd on node1 after hold", |_| fsd.kill())?;
    bench.outlive("the kernel kills fsd on node2 for its memory", |tree| {
        let status = starved.lose(|pid| {
            starve(pid)?;
            tree.push_with(&[("noise", &noise())])?;
            Ok(())
        })?;
        let reason = &status["lastState"]["terminated"]["reason"];
        ensure!(reason == "OOMKilled", "it ended otherwise: {status}");
        Ok(())
    })?;

    bench.outlive("the node pod of node2 is deleted", |_| {
        let old = driver.pod("node", "node2")?;
        cluster.kubectl.delete(&["pod", &old, "-n", NAMESPACE])?;
        cluster.wait_daemonset(NAMESPACE, "gitmount-node", DEADLINE)
    })?;

    let holders = |driver: &Driver<'_>| -> Result<Vec<Value>> {
        let of = |node| Ok(container(driver, node, "hold")?.status()?["containerID"].clone());
        ["node1", "node2"].into_iter().map(of).collect()
    };
    let old = (driver.pod("node", "node1")?, holders(&driver)?);
    bench.outlive("rolling update to another image", |_| driver.update(&image::gitmount_labelled("next")?, &VALUES))?;
    ensure!(driver.pod("node", "node1")? != old.0, "the update replaced nothing");
    ensure!(holders(&driver)? == old.1, "the update replaced a holder");

    for node in cluster.nodes() {
        bench.outlive(&format!("restart of the kubelet of {}", node.name()), |_| node.restart_kubelet())?;
        bench.outlive(&format!("restart of containerd of {}", node.name()), |_| node.restart_containerd())?;
    }
    for (pod, before) in names.iter().zip(&before) {
        let after = cluster.kubectl.wait_pod_ready(namespace.name(), pod, DEADLINE)?;
        let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
        ensure!(id(before) == id(&after), "the reader {pod} was started again");
    }
    Ok(())
}

/// What does not compress and takes its size in memory to be fetched.
fn noise() -> Vec<u8> {
    let mut state = 1_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state.to_be_bytes()
    };
    std::iter::repeat_with(next).take(4 << 20).flatten().collect()
}
