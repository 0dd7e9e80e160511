//! Many volumes on one node: they start, they end, and nothing is left behind; and what a volume adds to the start of a pod.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::pods::{Pod, inline, list};
use gitmount_tests::cluster::{Cluster, Driver, NAMESPACE, Namespace, USUAL};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(150);
const PODS: usize = 20;
const VOLUMES: usize = 5;

/// What a daemon holds: threads, descriptors, and its node's mounts and directories.
#[derive(Debug, PartialEq, Eq)]
struct Held {
    mounts: usize,
    views: BTreeSet<String>,
    threads: usize,
    descriptors: usize,
}

fn held(cluster: &Cluster, driver: &Driver<'_>) -> Result<Held> {
    let node = &cluster.nodes()[0];
    let pid = cluster.pid_of(NAMESPACE, &driver.pod("node", "node1")?, "fsd")?;
    let names = |dir: &str| -> Result<BTreeSet<String>> {
        Ok(fs::read_dir(node.path(dir)?)?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
    };
    Ok(Held {
        mounts: node.mounts()?.lines().filter(|line| line.contains("fuse.gitmount")).count(),
        views: names("/var/lib/gitmount/views")?.union(&names("/var/lib/gitmount/mounts")?).cloned().collect(),
        threads: fs::read_dir(format!("/proc/{pid}/task"))?.count(),
        descriptors: fs::read_dir(format!("/proc/{pid}/fd"))?.count(),
    })
}

fn pod(namespace: &str, name: &str) -> Pod {
    Pod::new(namespace, name, "node1").with("hostNetwork", json!(true)).container("resources", json!({"requests": {"cpu": "0"}}))
}

#[test]
fn a_hundred_volumes_come_and_go() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "scale")?;
    let driver = cluster.deploy_driver(&namespace, &USUAL)?;
    let k = &cluster.kubectl;
    let ns = namespace.name();
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    let mut import = Import::into(&repo)?;
    for branch in ["main", "other"] {
        import.commit(&format!("refs/heads/{branch}"), branch)?;
        for path in ["greeting", "a/greeting", "b/greeting"] {
            import.file(path.as_bytes(), format!("{branch} {path}\n"))?;
        }
    }
    import.finish()?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let forms = [("main", ""), ("main", "a"), ("main", "b"), ("other", ""), ("other", "a")];
    let volume = |(reference, path): (&str, &str)| inline(&[("url", &url), ("ref", reference), ("path", path), ("pull", "1h")]);

    // Everything that stays once it was there (the store, threads of pools) is there before it is counted.
    k.apply_object(&pod(ns, "first").volume("data", volume(forms[0])).object())?;
    k.wait_pod_ready(ns, "first", DEADLINE)?;
    k.delete(&["pod", "first", "-n", ns])?;
    let before = held(cluster, &driver)?;

    let pods: Vec<Value> = (0..PODS)
        .map(|number| {
            let all = forms.iter().enumerate().take(VOLUMES);
            all.fold(pod(ns, &format!("p{number}")), |pod, (at, form)| pod.volume(&format!("v{at}"), volume(*form))).object()
        })
        .collect();
    let begin = Instant::now();
    k.apply_object(&list(&pods))?;
    for number in 0..PODS {
        k.wait_pod_ready(ns, &format!("p{number}"), DEADLINE)?;
    }
    eprintln!("{} volumes of {PODS} pods were there after {:.1} s", PODS * VOLUMES, begin.elapsed().as_secs_f64());
    for (at, (reference, path)) in forms.iter().enumerate() {
        let read = k.exec(ns, "p7", &["cat", &format!("/v{at}/greeting")])?.success()?.out();
        let path = if path.is_empty() { "greeting".to_owned() } else { format!("{path}/greeting") };
        ensure!(read.trim() == format!("{reference} {path}"), "{read}");
    }
    let many = held(cluster, &driver)?;
    ensure!(many.mounts >= before.mounts + PODS * VOLUMES && many.views.len() == before.views.len() + VOLUMES, "{many:?}");
    let begin = Instant::now();
    k.delete(&["pods", "--all", "-n", ns, "--grace-period=1"])?;
    eprintln!("they were gone after {:.1} s", begin.elapsed().as_secs_f64());
    let as_before = || {
        let now = held(cluster, &driver).ok()?;
        // A connection of the plugin, or a thread of a pool, more or less is none that a volume left.
        let same = now.mounts == before.mounts && now.views == before.views;
        (same && now.threads <= before.threads + 4 && now.descriptors <= before.descriptors + 8).then_some(())
    };
    let now = || held(cluster, &driver);
    wait_for("the daemon as it was", DEADLINE, as_before).with_context(|| format!("before {before:?}, now {:?}", now().ok()))?;
    let targets =
        cluster.nodes()[0].run(&["sh", "-c", "ls -d /var/lib/kubelet/pods/*/volumes/kubernetes.io~csi/v*/mount 2>/dev/null | wc -l"])?;
    ensure!(targets.success()?.out().trim() == "0", "targets are left");

    // The same pod with an emptyDir and with a volume whose objects are there.
    let mut took = vec![];
    for (name, source) in [("empty", json!({"emptyDir": {}})), ("git", volume(forms[0]))] {
        let mut all = vec![];
        for round in 0..5 {
            let name = format!("{name}{round}");
            let begin = Instant::now();
            k.apply_object(&pod(ns, &name).volume("data", source.clone()).object())?;
            k.out(&["wait", "-n", ns, "--for=condition=Ready", "--timeout=90s", &format!("pod/{name}")])?;
            all.push(begin.elapsed());
            k.delete(&["pod", &name, "-n", ns, "--grace-period=1"])?;
        }
        all.sort_unstable();
        took.push(all[2]);
    }
    eprintln!(
        "a pod is Ready after {} ms with an emptyDir and {} ms with a git volume (medians of 5)",
        took[0].as_millis(),
        took[1].as_millis()
    );
    Ok(())
}
