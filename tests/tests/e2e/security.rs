//! Who may read a volume, and that nobody writes to it: the ways in which pods are restricted, and root, who is not.

use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::cluster::pods::{Pod, inline, list};
use gitmount_tests::cluster::{Cluster, Namespace};
use gitmount_tests::git::Repo;
use gitmount_tests::import::{Import, Mode};
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use serde_json::json;

const DEADLINE: Duration = Duration::from_secs(90);

fn repository(dir: &std::path::Path) -> Result<Repo> {
    let repo = Repo::init_bare(dir.join("r.git"))?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "One")?;
    import.file(b"greeting", "hello\n")?;
    import.file(b"d/file", "below\n")?;
    import.entry(Mode::Executable, b"run.sh", b"#!/bin/sh\necho it runs\n")?;
    import.finish()?;
    Ok(repo)
}

/// What is read in each pod.
const READS: &str = "cat /data/greeting /data/d/file && ls /data/d && /data/run.sh";
const READ: &str = "hello\nbelow\nfile\nit runs\n";

#[test]
fn restricted_pods_and_those_in_user_namespaces_read() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::restricted(cluster, "restricted")?;
    let _driver = cluster.usual_driver(&namespace)?;
    let k = &cluster.kubectl;
    let ns = namespace.name();
    let dir = scratch::dir()?;
    repository(dir.path())?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let account = json!({"runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "fsGroup": 65532, "seccompProfile": {"type": "RuntimeDefault"}});
    let container = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true});
    let pod = |name: &str| {
        Pod::new(ns, name, "node1")
            .volume("data", inline(&[("url", &url)]))
            .with("securityContext", account.clone())
            .container("securityContext", container.clone())
    };
    k.apply_object(&list(&[pod("plain").object(), pod("user-namespace").with("hostUsers", json!(false)).object()]))?;
    for name in ["plain", "user-namespace"] {
        k.wait_pod_ready(ns, name, DEADLINE)?;
        ensure!(k.exec(ns, name, &["sh", "-c", READS])?.success()?.out() == READ, "{name}");
        ensure!(k.exec(ns, name, &["id", "-u"])?.success()?.out().trim() == "65532");
        ensure!(k.exec(ns, name, &["sh", "-c", "echo x > /data/greeting"])?.code() != 0);
    }
    let map = k.exec(ns, "user-namespace", &["cat", "/proc/self/uid_map"])?.success()?.out();
    ensure!(map.split_whitespace().nth(1) != Some("0"), "it is in no user namespace: {map}");
    Ok(())
}

/// Ways to write, each of which says why it fails.
const WRITES: &str = r#"
cd /data
try() { out=$(sh -c "$1" 2>&1) && echo "wrote: $1"; case $out in *Read-only*) ;; *) echo "other: $1: $out";; esac; }
"#;

#[test]
fn root_in_a_pod_writes_nothing_also_without_a_read_only_mount() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "root")?;
    let _driver = cluster.usual_driver(&namespace)?;
    let k = &cluster.kubectl;
    let ns = namespace.name();
    let dir = scratch::dir()?;
    repository(dir.path())?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    // Neither mount asks for read-only; with all capabilities the bind mount itself can be made writable.
    let pod = |name: &str| Pod::new(ns, name, "node1").volume("data", inline(&[("url", &url)]));
    let privileged = pod("privileged").container("securityContext", json!({"privileged": true}));
    k.apply_object(&list(&[pod("root").object(), privileged.object()]))?;
    let writes = [
        "echo x > new",
        "echo x > greeting",
        "echo x >> greeting",
        "rm greeting",
        "rm -r d",
        "mkdir new",
        "mv greeting other",
        "mv d e",
        "chmod 777 greeting",
        "chown 1 greeting",
        "touch greeting",
        "touch -t 202001010000 greeting",
        "truncate -s 0 greeting",
        "ln -s x new",
        "ln greeting new",
        "mkfifo new",
        "cp /bin/sh new",
        "rmdir d",
    ];
    let quoted: Vec<String> = writes.iter().map(|write| format!("try '{write}'")).collect();
    let script = WRITES.to_owned() + &quoted.join("\n");
    for name in ["root", "privileged"] {
        k.wait_pod_ready(ns, name, DEADLINE)?;
        let said = k.exec(ns, name, &["sh", "-c", &script])?.success()?.out();
        ensure!(said.is_empty(), "in the pod {name}: {said}");
    }
    // The bind is made writable: the file system is not.
    let remounted = k.exec(ns, "privileged", &["sh", "-c", "mount -o remount,rw,bind /data"])?;
    let said = k.exec(ns, "privileged", &["sh", "-c", &script])?.success()?.out();
    ensure!(said.is_empty(), "after a remount ({remounted:?}): {said}");
    ensure!(k.exec(ns, "root", &["sh", "-c", READS])?.success()?.out() == READ);
    Ok(())
}
