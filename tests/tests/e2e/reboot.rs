//! A node that reboots: what it wrote down is there, nothing is mounted, nobody runs. Its pods show their volumes again by themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::pods::{Claim, Pod, claimed, inline, inline_with, list, secret};
use gitmount_tests::cluster::{Cluster, Namespace, Node, condition};
use gitmount_tests::fixtures;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(120);

/// Where pods of a node have trees, and how many are mounted there, one above the other.
fn shown(node: &Node) -> Result<BTreeMap<String, usize>> {
    let table = node.mounts()?;
    let mut places = BTreeMap::new();
    // Before the dash: ids, root, place, …; behind it the kind.
    for line in table.lines().filter(|line| line.contains(" - fuse")) {
        let place = line.split(' ').nth(4).context("a mount has a place")?;
        if place.starts_with("/var/lib/kubelet/pods/") {
            *places.entry(place.to_owned()).or_default() += 1;
        }
    }
    ensure!(!places.is_empty(), "no pod has a tree on {}:\n{table}", node.name());
    Ok(places)
}

#[test]
fn pods_of_a_node_that_reboots_show_their_volumes_again() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "reboot")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n"), ("dir/b", "same\n")])?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let guarded = HttpServer::plain_at(cluster.host(), dir.path())?;
    guarded.require_login("git", "s3cret");
    let (url, private) = (server.url("r.git"), guarded.url("r.git"));
    let attributes = |url| [("url", url), ("ref", "main"), ("pull", "1s")];
    let login = Claim::new(ns, "private", &attributes(private.as_str())).staged_with("login").published_with("login");
    let volumes = [
        ("inline", inline(&attributes(url.as_str()))),
        ("inline-private", inline_with(&attributes(private.as_str()), "login")),
        ("claim", claimed("open")),
        ("claim-private", claimed("private")),
    ];
    let mut objects = vec![
        secret(ns, "login", &[("username", "git"), ("password", "s3cret")]),
        Claim::new(ns, "open", &attributes(url.as_str())).object(),
        login.object(),
    ];
    objects.extend(volumes.iter().map(|(name, volume)| Pod::new(ns, name, "node1").volume("data", volume.clone()).object()));
    k.apply_object(&list(&objects))?;
    let names = volumes.map(|(name, _)| name);
    let id = |pod: &Value| pod["status"]["containerStatuses"][0]["containerID"].clone();
    let mut before = vec![];
    for name in names {
        before.push(id(&k.wait_pod_ready(ns, name, DEADLINE)?));
    }
    let node = cluster.node_of(ns, names[0])?;
    let places = shown(node)?;

    node.reboot()?;
    for (name, before) in names.iter().zip(&before) {
        wait_for(&format!("another run of {name}"), DEADLINE, || {
            let pod = k.json(&["get", "pod", name, "-n", ns]).ok()?;
            (condition(&pod, "Ready") == Some("True") && id(&pod) != *before).then_some(())
        })
        .with_context(|| format!("{:#?}", k.pod_events(ns, name)))?;
        for (file, text) in [("/data/a", "one\n"), ("/data/dir/b", "same\n")] {
            let read = k.exec(ns, name, &["cat", file])?.success()?.out();
            ensure!(read == text, "{file} of {name} is {read:?}");
        }
    }
    fixtures::commit(&repo, "second", &[("a", "two\n"), ("dir/b", "same\n")])?;
    for name in names {
        k.wait_text(ns, name, "/data/a", "two", DEADLINE)?;
    }
    let after = shown(node)?;
    ensure!(after == places, "trees are at {after:#?}, before at {places:#?}");
    for name in names {
        k.delete(&["pod", name, "-n", ns])?;
    }
    wait_for("the end of the views", DEADLINE, || {
        let none = |url: &str| driver.views("node1", url).ok().map(|views| views.is_empty());
        (none(&url)? && none(&private)?).then_some(())
    })?;
    let left = node.mounts()?;
    ensure!(places.keys().all(|place| !left.contains(place.as_str())), "{left}");
    Ok(())
}
