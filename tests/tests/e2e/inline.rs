//! Inline volumes: their content is the commit's, byte by byte; a push reaches every pod on every node; pods share what was fetched.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::pods::{Pod, inline, list};
use gitmount_tests::cluster::{Cluster, Namespace};
use gitmount_tests::compare;
use gitmount_tests::git::Repo;
use gitmount_tests::import::{Import, Mode};
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(90);

/// Pods of one node.
const PODS: usize = 10;

/// A commit with everything that a tar archive of the pod's busybox can carry.
fn commit(repo: &Repo, text: &str) -> Result<()> {
    let mut import = Import::into(repo)?;
    import.commit("refs/heads/main", text)?;
    import.file(b"greeting", text)?;
    import.file(b"empty", "")?;
    import.file(b"names/with space", "x\n")?;
    import.file(b"names/\xff\xfe not UTF-8", "y\n")?;
    import.file(b"deep/er/and/deeper/file", format!("below {text}"))?;
    import.file(b"binary", (0..=255).cycle().take(300_000).collect::<Vec<u8>>())?;
    import.entry(Mode::Executable, b"run.sh", b"#!/bin/sh\necho it runs\n")?;
    import.entry(Mode::Symlink, b"link", b"deep/er")?;
    import.finish()
}

/// What a tar of `dir` in the pod holds is what `git archive` makes of `revision`.
fn is_archived(cluster: &Cluster, namespace: &Namespace, pod: &str, dir: &str, repo: &Repo, revision: &str) -> Result<()> {
    let packed = cluster.kubectl.exec(namespace.name(), pod, &["tar", "-c", "-C", dir, "."])?.success()?.stdout;
    let mut found = compare::archive::read(&mut packed.as_slice())?;
    // `git archive` names no root.
    ensure!(found.remove(&b"."[..]) == Some(compare::Entry::Directory));
    let found = found.into_iter().map(|(path, entry)| (path.strip_prefix(b"./").unwrap_or(&path).to_vec(), entry)).collect();
    compare::same(&found, &compare::archive::tree(repo, revision)?, "git archive")
}

#[test]
fn pods_show_the_commit_and_follow_pushes_and_ten_pods_cost_one_fetch() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "inline")?;
    let driver = cluster.usual_driver(&namespace)?;
    let k = &cluster.kubectl;
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    commit(&repo, "one\n")?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let packs = || server.requests().iter().filter(|asked| asked.fetch && asked.status == 200).count();

    let volume = || inline(&[("url", &url), ("ref", "main"), ("pull", "1s")]);
    let mut names: Vec<String> = (0..PODS).map(|number| format!("p{number}")).collect();
    let pods: Vec<Value> = names.iter().map(|name| Pod::new(namespace.name(), name, "node1").volume("data", volume()).object()).collect();
    k.apply_object(&list(&pods))?;
    for name in &names {
        k.wait_pod_ready(namespace.name(), name, DEADLINE)?;
    }
    ensure!(packs() == 1, "{PODS} pods on one node asked for {} packs: {:#?}", packs(), server.requests());
    let views = driver.views("node1", &url)?;
    ensure!(views.len() == 1 && views[0]["mounts"].as_array().is_some_and(|mounts| mounts.len() == PODS), "{views:#?}");
    k.apply_object(&Pod::new(namespace.name(), "other", "node2").volume("data", volume()).object())?;
    k.wait_pod_ready(namespace.name(), "other", DEADLINE)?;
    names.push("other".into());
    ensure!(packs() == 2, "a pod on the other node asked for {} packs", packs() - 1);
    for name in ["p0", "other"] {
        is_archived(cluster, &namespace, name, "/data", &repo, "main")?;
    }

    commit(&repo, "two\n")?;
    for name in &names {
        k.wait_text(namespace.name(), name, "/data/greeting", "two", DEADLINE)?;
    }
    ensure!(packs() == 4, "a push cost {} packs on two nodes", packs() - 2);
    for name in ["p0", "other"] {
        is_archived(cluster, &namespace, name, "/data", &repo, "main")?;
    }

    for node in ["node1", "node2"] {
        ensure!(driver.abnormal(node, namespace.name(), "data")? == Some(0), "{}", driver.metrics(node, "csi")?);
    }
    k.delete(&["pods", "--all", "-n", namespace.name()])?;
    for node in ["node1", "node2"] {
        wait_for("the end of the series", DEADLINE, || (driver.abnormal(node, namespace.name(), "data").ok()?.is_none()).then_some(()))?;
        ensure!(driver.views(node, &url)?.is_empty());
    }
    Ok(())
}

#[test]
fn a_pod_has_several_volumes_of_one_repository() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "several")?;
    let driver = cluster.usual_driver(&namespace)?;
    let k = &cluster.kubectl;
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    commit(&repo, "one\n")?;
    repo.point("refs/tags/v1", "main")?;
    let first = repo.id("main")?;
    commit(&repo, "two\n")?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let pod = Pod::new(namespace.name(), "p", "node1")
        .volume("head", inline(&[("url", &url), ("pull", "1s")]))
        .volume("tag", inline(&[("url", &url), ("ref", "v1"), ("pull", "1s")]))
        .volume("id", inline(&[("url", &url), ("ref", &first), ("pull", "never")]))
        .volume("below", inline(&[("url", &url), ("ref", "main"), ("path", "deep/er"), ("pull", "1s")]));
    k.apply_object(&pod.object())?;
    k.wait_pod_ready(namespace.name(), "p", DEADLINE)?;
    for (file, text) in
        [("/head/greeting", "two"), ("/tag/greeting", "one"), ("/id/greeting", "one"), ("/below/and/deeper/file", "below two")]
    {
        k.wait_text(namespace.name(), "p", file, text, Duration::from_secs(1))?;
    }
    is_archived(cluster, &namespace, "p", "/below", &repo, "main:deep/er")?;
    ensure!(k.exec(namespace.name(), "p", &["/head/run.sh"])?.success()?.out() == "it runs\n");
    let views = driver.views("node1", &url)?;
    let stores: std::collections::BTreeSet<_> = views.iter().filter_map(|view| view["store"].as_str()).collect();
    ensure!(views.len() == 4 && stores.len() == 1, "{views:#?}");

    commit(&repo, "three\n")?;
    repo.point("refs/tags/v1", "main")?;
    for (file, text) in [("/head/greeting", "three"), ("/tag/greeting", "three"), ("/below/and/deeper/file", "below three")] {
        k.wait_text(namespace.name(), "p", file, text, DEADLINE)?;
    }
    k.wait_text(namespace.name(), "p", "/id/greeting", "one", Duration::from_secs(1))?;
    let listed = k.pod_events(namespace.name(), "p")?;
    let own: Vec<_> = listed.iter().filter(|event| event.reason.starts_with("Git")).collect();
    ensure!(own.is_empty(), "nothing was wrong, but this was told: {own:#?}");
    let metrics = driver.metrics("node1", "fsd").context("the daemon's metrics")?;
    ensure!(metrics.contains("gitmount_"), "{metrics}");
    Ok(())
}
