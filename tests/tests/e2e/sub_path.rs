//! What a pod mounts of a volume, or below it: a subPath follows pushes, and what is mounted inside a git volume stays there.

use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::cluster::pods::{Pod, inline, list};
use gitmount_tests::cluster::{Cluster, NAMESPACE, Namespace, USUAL};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const DEADLINE: Duration = Duration::from_secs(90);

fn commit(repo: &Repo, text: &str) -> Result<()> {
    let mut import = Import::into(repo)?;
    import.commit("refs/heads/main", text)?;
    import.file(b"greeting", text)?;
    import.file(b"docs/deep/greeting", text)?;
    // What a pod mounts something over.
    import.file(b"cache/readme", text)?;
    import.finish()
}

#[test]
fn a_sub_path_follows_pushes_and_a_nested_mount_stays() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "subpath")?;
    let driver = cluster.deploy_driver(&namespace, &USUAL)?;
    let k = &cluster.kubectl;
    let ns = namespace.name();
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    commit(&repo, "one")?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let volume = || inline(&[("url", &url), ("pull", "1s")]);
    let mounts = json!([{"name": "data", "mountPath": "/docs", "subPath": "docs/deep", "readOnly": true}]);
    // The container ends when it is told to, and is started again in the same pod.
    let sub = Pod::new(ns, "sub", "node1")
        .script("trap 'exit 0' TERM; while [ ! -e /tmp/end ]; do sleep 0.2; done")
        .volume("data", volume())
        .container("volumeMounts", mounts);
    let mounts = json!([{"name": "data", "mountPath": "/data", "readOnly": true}, {"name": "cache", "mountPath": "/data/cache"}]);
    let nested =
        Pod::new(ns, "nested", "node1").volume("data", volume()).volume("cache", json!({"emptyDir": {}})).container("volumeMounts", mounts);
    k.apply_object(&list(&[sub.object(), nested.object()]))?;
    for pod in ["sub", "nested"] {
        k.wait_pod_ready(ns, pod, DEADLINE)?;
    }
    let write = |text: &str| k.exec(ns, "nested", &["sh", "-c", &format!("echo {text} > /data/cache/own")])?.success();
    write("kept")?;
    let kept = |what: &str| -> Result<()> {
        ensure!(k.exec(ns, "nested", &["cat", "/data/cache/own"])?.success()?.out().trim() == "kept", "{what}");
        ensure!(k.exec(ns, "nested", &["ls", "/data/cache"])?.success()?.out().trim() == "own", "{what}");
        Ok(())
    };
    let both = |text: &str| -> Result<()> {
        k.wait_text(ns, "sub", "/docs/greeting", text, DEADLINE)?;
        k.wait_text(ns, "nested", "/data/greeting", text, DEADLINE)
    };
    both("one")?;
    commit(&repo, "two")?;
    both("two")?;
    kept("after a switch")?;

    let runs = || k.json(&["get", "pod", "sub", "-n", ns]).ok()?["status"]["containerStatuses"][0]["restartCount"].as_u64();
    k.exec(ns, "sub", &["touch", "/tmp/end"])?.success()?;
    wait_for("another run of the container", DEADLINE, || runs().filter(|runs| *runs > 0))?;
    k.wait_pod_ready(ns, "sub", DEADLINE)?;
    both("two")?;
    commit(&repo, "three")?;
    both("three")?;

    let pod = driver.pod("node", "node1")?;
    let old = cluster.pid_of(NAMESPACE, &pod, "fsd")?;
    kill(Pid::from_raw(old), Signal::SIGKILL)?;
    let restarted = || cluster.pid_of(NAMESPACE, &pod, "fsd").ok().filter(|pid| *pid != old);
    wait_for("another daemon", DEADLINE, restarted)?;
    commit(&repo, "four")?;
    both("four")?;
    kept("after a restart of the daemon and a switch")?;
    Ok(())
}
