//! The cluster itself: two nodes that are two machines to what runs on them, and that outlive what tests do to them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::pods::Pod;
use gitmount_tests::cluster::{Cluster, Namespace, image};
use gitmount_tests::run::wait_for;
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(60);

#[test]
fn pods_run_on_both_nodes_and_reach_each_other_and_the_machine() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "nodes")?;
    let k = &cluster.kubectl;
    ensure!(cluster.nodes().len() == 2);
    for node in cluster.nodes() {
        let pod = Pod::new(namespace.name(), &node.name(), &node.name()).script("echo started; httpd -f -p 8080 -h /etc");
        k.apply_object(&pod.object())?;
    }
    let first = k.wait_pod_ready(namespace.name(), "node1", DEADLINE)?;
    k.wait_pod_ready(namespace.name(), "node2", DEADLINE)?;
    let address = first["status"]["podIP"].as_str().context("a running pod has an address")?;
    let got = k.exec(namespace.name(), "node2", &["wget", "-qO-", &format!("http://{address}:8080/passwd")])?.success()?;
    ensure!(got.out().starts_with("root:"), "{}", got.out());
    ensure!(k.logs(namespace.name(), "node1", "c", false)? == "started\n");

    let listener = std::net::TcpListener::bind((cluster.host(), 0))?;
    let port = listener.local_addr()?.port().to_string();
    let greeting = std::thread::spawn(move || -> Result<()> { Ok(std::io::Write::write_all(&mut listener.accept()?.0, b"hello\n")?) });
    let said = k.exec(namespace.name(), "node1", &["nc", "-w", "10", &cluster.host().to_string(), &port])?;
    ensure!(said.out() == "hello\n", "{said:?}");
    greeting.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    Ok(())
}

#[test]
fn a_pod_may_have_users_of_its_own() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "users")?;
    let pod = Pod::new(namespace.name(), "p", "node1").with("hostUsers", false.into());
    cluster.kubectl.apply_object(&pod.object())?;
    cluster.kubectl.wait_pod_ready(namespace.name(), "p", DEADLINE)?;
    let map = cluster.kubectl.exec(namespace.name(), "p", &["cat", "/proc/self/uid_map"])?.success()?.out();
    let words: Vec<&str> = map.split_whitespace().collect();
    ensure!(words[0] == "0" && words[1] != "0", "{map}");
    Ok(())
}

#[test]
fn pods_outlive_their_kubelet_and_containerd() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "restarts")?;
    let k = &cluster.kubectl;
    k.apply_object(&Pod::new(namespace.name(), "p", "node2").object())?;
    let before = k.wait_pod_ready(namespace.name(), "p", DEADLINE)?;
    let node = cluster.node_of(namespace.name(), "p")?;
    let (pid, kubelet, containerd) = (cluster.pid_of(namespace.name(), "p", "c")?, node.kubelet().pid(), node.containerd().pid());
    node.restart_kubelet()?;
    node.restart_containerd()?;
    ensure!(node.kubelet().pid() != kubelet && node.containerd().pid() != containerd);
    ensure!(cluster.pid_of(namespace.name(), "p", "c")? == pid);
    let said = wait_for("a command in the pod", DEADLINE, || k.exec(namespace.name(), "p", &["echo", "still here"]).ok()?.success().ok())?;
    ensure!(said.out() == "still here\n");
    let after = k.wait_pod_ready(namespace.name(), "p", DEADLINE)?;
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    ensure!(id(&before) == id(&after), "the container was started again");
    // New pods start as well.
    k.apply_object(&Pod::new(namespace.name(), "q", "node2").object())?;
    k.wait_pod_ready(namespace.name(), "q", DEADLINE)?;
    Ok(())
}

#[test]
fn a_killed_container_starts_again() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "killed")?;
    let k = &cluster.kubectl;
    k.apply_object(&Pod::new(namespace.name(), "p", "node1").object())?;
    k.wait_pod_ready(namespace.name(), "p", DEADLINE)?;
    let pid = cluster.pid_of(namespace.name(), "p", "c")?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)?;
    wait_for("a restart", DEADLINE, || {
        let pod = k.json(&["get", "pod", "p", "-n", namespace.name()]).ok()?;
        let status = &pod["status"]["containerStatuses"][0];
        (status["restartCount"] == 1 && status["ready"] == true).then_some(())
    })
}

#[test]
fn an_event_of_a_pod_is_seen() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "events")?;
    let pod = Pod::new(namespace.name(), "p", "node1").container("image", "local/missing:1".into());
    cluster.kubectl.apply_object(&pod.object())?;
    let event = cluster.kubectl.wait_event((namespace.name(), "Pod", "p"), DEADLINE, |event| event.reason == "ErrImageNeverPull")?;
    ensure!(event.kind == "Warning" && event.message.contains("local/missing:1") && event.component == "kubelet", "{event:?}");
    Ok(())
}

/// A FUSE file system of `gitmount mount` in one pod, in another pod of the node, and nowhere else.
#[test]
fn what_a_pod_mounts_is_seen_by_the_others_of_its_node() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "mounts")?;
    let k = &cluster.kubectl;
    let image = image::gitmount()?;
    cluster.load_image(&image)?;
    let dir = tempfile::tempdir()?;
    let repo = gitmount_tests::git::Repo::init_bare(dir.path().join("r.git"))?;
    let mut import = gitmount_tests::import::Import::into(&repo)?;
    import.commit("refs/heads/main", "One")?;
    import.file(b"greeting", "hello\n")?;
    import.finish()?;
    let server = gitmount_tests::servers::http::HttpServer::plain_at(cluster.host(), dir.path())?;

    let at = format!("/var/lib/gitmount/e2e-{}", namespace.name());
    let mounter = json!({
        "containers": [{
            "name": "c", "image": image.name(), "imagePullPolicy": "Never", "securityContext": {"privileged": true},
            "command": ["/usr/bin/gitmount", "mount", "--foreground", "--allow-http", "--allow-other", "--store", "/tmp/store", "--pull", "never",
                server.url("r.git"), "/shared/tree"],
            "volumeMounts": [{"name": "shared", "mountPath": "/shared", "mountPropagation": "Bidirectional"}],
        }],
        "volumes": [{"name": "shared", "hostPath": {"path": at, "type": "DirectoryOrCreate"}}],
    });
    for node in cluster.nodes() {
        std::fs::create_dir_all(node.path(&at)?.join("tree"))?;
    }
    let with = |pod: Pod, field: &str| pod.with(field, mounter[field].clone());
    k.apply_object(&with(with(Pod::new(namespace.name(), "mounter", "node1"), "containers"), "volumes").object())?;
    let tree = cluster.nodes()[0].path(&at)?.join("tree");
    let mounted = wait_for("the mount", DEADLINE, || std::fs::read_to_string(tree.join("greeting")).ok());
    let mounted = mounted.with_context(|| k.logs(namespace.name(), "mounter", "c", false).unwrap_or_else(|error| format!("{error:#}")))?;
    ensure!(mounted == "hello\n");
    for node in cluster.nodes() {
        let mounts = json!([{"name": "shared", "mountPath": "/shared", "mountPropagation": "HostToContainer"}]);
        let reader = with(Pod::new(namespace.name(), &node.name(), &node.name()), "volumes").container("volumeMounts", mounts);
        k.apply_object(&reader.object())?;
        k.wait_pod_ready(namespace.name(), &node.name(), DEADLINE)?;
    }
    let read = |pod: &str| k.exec(namespace.name(), pod, &["cat", "/shared/tree/greeting"]);
    ensure!(read("node1")?.success()?.out() == "hello\n");
    ensure!(read("node2")?.code() == 1, "the mount is seen on the other node, too");
    ensure!(!std::fs::read_to_string("/proc/self/mountinfo")?.contains(&at), "the mount is seen outside of the node");
    ensure!(cluster.nodes()[0].mounts()?.contains(&at));
    Ok(())
}
