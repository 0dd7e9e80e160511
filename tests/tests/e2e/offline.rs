//! A host that is down: at the start the pod is refused, or gets the node's copy where that is allowed and the credential could have fetched
//! it; later the mount goes on serving, and what is wrong is told until the host is back.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::pods::{Pod, inline, inline_with, list, secret};
use gitmount_tests::cluster::{Cluster, Namespace};
use gitmount_tests::fixtures;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;

const DEADLINE: Duration = Duration::from_secs(90);

#[test]
fn a_host_may_be_down_at_the_start_and_later() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "offline")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let first = repo.id("main")?;
    let mut server = HttpServer::plain_at(cluster.host(), dir.path())?;
    server.require_login("user", "s3cret");
    let url = server.url("r.git");
    k.apply_object(&list(&[
        secret(ns, "ours", &[("username", "user"), ("password", "s3cret")]),
        secret(ns, "theirs", &[("username", "other"), ("password", "n0t-it")]),
    ]))?;
    let attributes = [("url", url.as_str()), ("ref", "main"), ("pull", "1s")];
    let stale = [&attributes[..], &[("offline", "allowStale")]].concat();
    let pod = |name: &str, volume| Pod::new(ns, name, "node1").volume(name, volume).object();

    k.apply_object(&pod("early", inline_with(&attributes, "ours")))?;
    k.wait_pod_ready(ns, "early", DEADLINE)?;
    ensure!(driver.abnormal("node1", ns, "early")? == Some(0));

    let down = |server: HttpServer| {
        let port = server.port();
        drop(server);
        port
    };
    let port = down(server);
    // Later: it goes on serving.
    let failed = k.wait_event((ns, "Pod", "early"), DEADLINE, |event| event.reason == "GitFetchFailed")?;
    ensure!(
        failed.kind == "Warning" && failed.message.starts_with(&format!("{url} at main: the fetch failed, the last commit stays: ")),
        "{failed:?}"
    );
    ensure!(failed.message.contains(&cluster.host().to_string()), "{failed:?}");
    wait_for("the gauge", DEADLINE, || (driver.abnormal("node1", ns, "early").ok()? == Some(1)).then_some(()))?;
    k.wait_text(ns, "early", "/early/a", "one", Duration::from_secs(5))?;

    // At the start.
    k.apply_object(&list(&[
        pod("refused", inline_with(&attributes, "ours")),
        pod("stale", inline_with(&stale, "ours")),
        pod("theirs", inline_with(&stale, "theirs")),
        pod("nobodys", inline(&stale)),
        Pod::new(ns, "elsewhere", "node2").volume("elsewhere", inline_with(&stale, "ours")).object(),
    ]))?;
    k.wait_pod_ready(ns, "stale", DEADLINE)?;
    k.wait_text(ns, "stale", "/stale/a", "one", Duration::from_secs(5))?;
    let told = k.wait_event((ns, "Pod", "stale"), DEADLINE, |event| event.reason == "GitVolumeStale")?;
    let words = format!("volume \"stale\": the node's copy of commit {first} is shown: ");
    ensure!(told.kind == "Warning" && told.message.starts_with(&words), "{told:?}");
    wait_for("the gauge", DEADLINE, || (driver.abnormal("node1", ns, "stale").ok()? == Some(1)).then_some(()))?;
    for name in ["refused", "theirs", "nobodys", "elsewhere"] {
        let told = k.wait_event((ns, "Pod", name), DEADLINE, |event| event.reason == "GitVolumeRefused" && event.count >= 2)?;
        ensure!(told.message.contains(&format!("volume {name:?}: ")) && told.message.contains(&cluster.host().to_string()), "{told:?}");
        ensure!(!told.message.contains("s3cret") && !told.message.contains("n0t-it"), "{told:?}");
        let phase = k.out(&["get", "pod", name, "-n", ns, "-o", "jsonpath={.status.phase}"])?;
        ensure!(phase == "Pending", "the pod {name} is {phase}");
    }

    fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    server = HttpServer::plain_on(cluster.host(), port, dir.path()).context("the same port again")?;
    server.require_login("user", "s3cret");
    for name in ["early", "stale"] {
        k.wait_event((ns, "Pod", name), DEADLINE, |event| event.reason == "GitFetchRecovered" && event.kind == "Normal")?;
        k.wait_text(ns, name, &format!("/{name}/a"), "two", DEADLINE)?;
        wait_for("the gauge", DEADLINE, || (driver.abnormal("node1", ns, name).ok()? == Some(0)).then_some(()))?;
    }
    for name in ["refused", "elsewhere"] {
        k.wait_pod_ready(ns, name, DEADLINE)?;
    }
    for name in ["theirs", "nobodys"] {
        let host = |message: &str| message.contains("refuses") || message.contains("login") || message.contains("token");
        k.wait_event((ns, "Pod", name), DEADLINE, |event| event.reason == "GitVolumeRefused" && host(&event.message))?;
    }
    Ok(())
}
