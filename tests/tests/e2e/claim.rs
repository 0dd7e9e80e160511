//! Volumes by claim: one tree on a node for all pods of a volume, gone with the last; and pods or volumes that want to write are refused.

use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::cluster::pods::{Claim, Pod, claimed, list};
use gitmount_tests::cluster::{Cluster, Namespace};
use gitmount_tests::fixtures;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;

/// Longer than the two minutes that a kubelet waits at most before it tries a volume again: it counts the failures of a volume, so that a pod that
/// is corrected waits for those of the one before it.
const DEADLINE: Duration = Duration::from_secs(240);

#[test]
fn pods_on_both_nodes_share_a_tree_that_goes_with_the_last() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "claim")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let claim = Claim::new(ns, "data", &[("url", &url), ("ref", "main"), ("pull", "1s")]);
    let mut names = Vec::new();
    let mut objects = vec![claim.object()];
    for number in 0..4 {
        for node in ["node1", "node2"] {
            names.push((format!("{node}-{number}"), node));
            objects.push(Pod::new(ns, &format!("{node}-{number}"), node).volume("data", claimed("data")).object());
        }
    }
    // One that sees the tree twice.
    let twice = Pod::new(ns, "twice", "node1").volume("first", claimed("data")).volume("second", claimed("data"));
    objects.push(twice.object());
    k.apply_object(&list(&objects))?;
    names.push(("twice".into(), "node1"));
    for (name, _) in &names {
        k.wait_pod_ready(ns, name, DEADLINE)?;
    }
    for (node, targets) in [("node1", 5), ("node2", 4)] {
        let views = driver.views(node, &url)?;
        let shown = views.first().and_then(|view| view["mounts"].as_array()).map_or(0, Vec::len);
        ensure!(views.len() == 1 && shown == targets, "{node} is to show one tree at {targets} places: {views:#?}");
        ensure!(driver.abnormal(node, ns, &claim.volume())? == Some(0), "{}", driver.metrics(node, "csi")?);
    }
    fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    for (name, _) in &names {
        let file = if name == "twice" { "/second/a" } else { "/data/a" };
        k.wait_text(ns, name, file, "two", DEADLINE)?;
    }
    let (last, others): (Vec<_>, Vec<_>) = names.iter().partition(|(name, _)| name.ends_with("-0"));
    let gone = |pods: &[&(String, &str)]| {
        let words: Vec<&str> = ["pods", "-n", ns].into_iter().chain(pods.iter().map(|(name, _)| name.as_str())).collect();
        k.delete(&words)
    };
    gone(&others)?;
    for (name, node) in &last {
        k.wait_text(ns, name, "/data/a", "two", Duration::from_secs(5))?;
        ensure!(driver.views(node, &url)?.len() == 1);
    }
    gone(&last)?;
    for node in cluster.nodes() {
        wait_for("the end of the view", DEADLINE, || driver.views(&node.name(), &url).ok()?.is_empty().then_some(()))?;
        ensure!(!node.mounts()?.contains(&claim.volume()), "targets of {} are still mounted on {}", claim.volume(), node.name());
    }
    Ok(())
}

#[test]
fn what_wants_to_write_is_refused_until_it_is_corrected() -> Result<()> {
    const WORDS: &str =
        "volume \"VOLUME\": the volume is read-only: set `readOnly: true` below `persistentVolumeClaim` in the pod's volume";
    const MODES: &str =
        "volume \"VOLUME\": the volume is read-only: set `accessModes: [ReadOnlyMany]` on the PersistentVolume and on the claim";
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "writers")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let attributes = [("url", url.as_str())];
    let claim = Claim::new(ns, "data", &attributes);
    let mut writable = claimed("data");
    writable["persistentVolumeClaim"]["readOnly"] = false.into();
    let modes = [("rwo", "ReadWriteOnce"), ("rwx", "ReadWriteMany"), ("rwop", "ReadWriteOncePod")];
    let mut objects = vec![claim.object(), Pod::new(ns, "writer", "node1").volume("data", writable).object()];
    for (name, mode) in modes {
        objects.push(Claim::new(ns, name, &attributes).modes(&[mode]).object());
        objects.push(Pod::new(ns, name, "node2").volume("data", claimed(name)).object());
    }
    k.apply_object(&list(&objects))?;

    let refused = |kind: &'static str, name: &'static str, message: String| {
        k.wait_event((ns, kind, name), DEADLINE, move |event| {
            event.reason == "GitVolumeRefused" && event.message == message && event.count >= 2
        })
    };
    for kind in ["Pod", "PersistentVolumeClaim"] {
        let name = if kind == "Pod" { "writer" } else { "data" };
        let event = refused(kind, name, WORDS.replace("VOLUME", &claim.volume()))?;
        ensure!(event.kind == "Warning" && event.component == "git.liken.sh", "{event:?}");
        let events = k.events(ns, kind, name)?;
        let own: Vec<_> = events.iter().filter(|event| event.reason == "GitVolumeRefused").collect();
        ensure!(own.len() == 1, "retries are one event: {own:#?}");
        for (name, _) in modes {
            refused(kind, name, MODES.replace("VOLUME", &format!("{ns}-{name}")))?;
        }
    }
    // The kubelet's own event says it, too, beside others such as that the claim was not bound yet.
    k.wait_event((ns, "Pod", "writer"), DEADLINE, |event| event.reason == "FailedMount" && event.message.contains("readOnly: true"))?;

    k.delete(&["pod", "writer", "-n", ns])?;
    k.apply_object(&Pod::new(ns, "writer", "node1").volume("data", claimed("data")).object())?;
    k.wait_pod_ready(ns, "writer", DEADLINE)?;
    ensure!(k.exec(ns, "writer", &["cat", "/data/a"])?.success()?.out() == "one\n");
    ensure!(driver.views("node1", &url)?.len() == 1 && driver.views("node2", &url)?.is_empty());
    Ok(())
}
