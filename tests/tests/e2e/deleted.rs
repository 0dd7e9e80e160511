//! Pods that are deleted before they were ever ready: their host is silent, and neither they nor the node wait for it.

use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::cluster::pods::{Claim, Pod, claimed, inline, list};
use gitmount_tests::cluster::{Cluster, Namespace};
use gitmount_tests::fixtures;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};

const DEADLINE: Duration = Duration::from_secs(120);

#[test]
fn a_pod_that_waits_for_a_silent_host_can_be_deleted_and_leaves_nothing() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "deleted")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let silent = HttpServer::plain_at(cluster.host(), dir.path())?;
    silent.misbehave(Fault::Silent);
    let url = silent.url("r.git");
    let claim = Claim::new(ns, "waits", &[("url", url.as_str()), ("ref", "main")]);
    k.apply_object(&list(&[
        claim.object(),
        Pod::new(ns, "by-claim", "node1").volume("data", claimed("waits")).object(),
        Pod::new(ns, "inline", "node1").volume("data", inline(&[("url", &url), ("ref", "main")])).object(),
    ]))?;
    // They share it.
    wait_for("a fetch", DEADLINE, || (!silent.requests().is_empty()).then_some(()))?;

    // The node works for others meanwhile.
    let speaks = HttpServer::plain_at(cluster.host(), dir.path())?;
    k.apply_object(&Pod::new(ns, "other", "node1").volume("data", inline(&[("url", &speaks.url("r.git")), ("ref", "main")])).object())?;
    k.wait_pod_ready(ns, "other", DEADLINE)?;

    k.delete(&["pod", "by-claim", "inline", "-n", ns, "--grace-period=1"])?;
    let gone = || {
        let views = driver.views("node1", &url).ok()?;
        let left = cluster.nodes()[0].mounts().ok()?.lines().filter(|line| line.contains("fuse.gitmount") && line.contains(&url)).count();
        (views.is_empty() && left == 0).then_some(())
    };
    wait_for("the end of what waited", DEADLINE, gone)?;

    // The same pods start when the host speaks, and stop.
    silent.behave();
    k.apply_object(&list(&[
        Pod::new(ns, "by-claim", "node1").volume("data", claimed("waits")).object(),
        Pod::new(ns, "inline", "node1").volume("data", inline(&[("url", &url), ("ref", "main")])).object(),
    ]))?;
    for pod in ["by-claim", "inline"] {
        k.wait_pod_ready(ns, pod, DEADLINE)?;
        k.wait_text(ns, pod, "/data/a", "one", DEADLINE)?;
    }
    k.delete(&["pod", "by-claim", "inline", "-n", ns, "--grace-period=1"])?;
    wait_for("the end of both", DEADLINE, gone)?;
    ensure!(driver.views("node1", &speaks.url("r.git"))?.len() == 1, "the other pod has its volume");
    Ok(())
}
