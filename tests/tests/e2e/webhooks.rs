//! Demands: a push that a forge tells of, or an annotation written by hand, reaches the pods of every node, without polling and with one fetch
//! a node; what is not signed marks nothing.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gitmount_tests::cluster::pods::{Claim, Pod, claimed, list, secret};
use gitmount_tests::cluster::webhooks::{REQUESTED, post};
use gitmount_tests::cluster::{Cluster, Forge, Namespace};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::http_get;
use serde_json::json;

const DEADLINE: Duration = Duration::from_secs(90);
const KEY: &str = "the string that the forge was given";

fn commit(repo: &Repo, text: &str) -> Result<()> {
    let mut import = Import::into(repo)?;
    import.commit("refs/heads/main", text)?;
    import.file(b"greeting", text)?;
    import.finish()
}

/// The time that is demanded of a volume.
fn demanded(cluster: &Cluster, claim: &Claim, namespace: &Namespace) -> Result<Option<String>> {
    Ok(cluster.annotations(namespace.name())?.remove(&claim.volume()).and_then(|mut own| own.remove(REQUESTED)))
}

#[test]
fn a_push_to_the_forge_reaches_both_nodes() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "webhook")?;
    let driver = cluster.usual_driver(&namespace)?;
    let k = &cluster.kubectl;
    let forge = Forge::get(cluster)?;
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("source.git"))?;
    commit(&repo, "one")?;
    let owner = forge.create_user("owner")?;
    let repository = forge.create_repository(&owner, "pushed", true)?;
    forge.push(&repo, &repository)?;
    let token = forge.create_token(&owner, "t", false)?;
    let ca = forge.ca()?.0;
    let url = forge.https(&repository);
    let attributes = [("url", url.as_str()), ("ref", "main"), ("pull", "on-demand"), ("webhookSecret", "hook")];
    let claim = Claim::new(namespace.name(), "data", &attributes).staged_with("login").published_with("login");
    k.apply_object(&list(&[
        secret(namespace.name(), "login", &[("token", &token), ("ca.crt", &ca)]),
        secret(namespace.name(), "hook", &[("secret", KEY)]),
        claim.object(),
        Pod::new(namespace.name(), "a", "node1").volume("data", claimed("data")).object(),
        Pod::new(namespace.name(), "b", "node2").volume("data", claimed("data")).object(),
    ]))?;
    for pod in ["a", "b"] {
        k.wait_pod_ready(namespace.name(), pod, DEADLINE)?;
        k.wait_text(namespace.name(), pod, "/data/greeting", "one", DEADLINE)?;
    }
    let address = cluster.controller()?.address;
    forge.add_webhook(&repository, &format!("http://{address}/webhook/{}/hook", namespace.name()), KEY)?;
    for text in ["two", "three"] {
        commit(&repo, text)?;
        let pushed = Instant::now();
        forge.push(&repo, &repository)?;
        for pod in ["a", "b"] {
            k.wait_text(namespace.name(), pod, "/data/greeting", text, DEADLINE)?;
        }
        eprintln!("a push was read by pods of both nodes after {} ms (each look takes some 100)", pushed.elapsed().as_millis());
    }
    for node in ["node1", "node2"] {
        let metrics = driver.metrics(node, "csi")?;
        let series = format!("git_csi_demanded_pulls_total{{namespace=\"{}\",volume=\"{}\"}}", namespace.name(), claim.volume());
        ensure!(metrics.lines().any(|line| line.starts_with(&series) && !line.ends_with(" 0")), "{series} in {metrics}");
    }
    Ok(())
}

#[test]
fn what_is_not_signed_marks_nothing_and_tells_nothing() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "webhook")?;
    let _driver = cluster.usual_driver(&namespace)?;
    let other = namespace.another("webhook")?;
    let attributes = [("url", "https://code.example.com/data/f.git"), ("ref", "main"), ("pull", "on-demand"), ("webhookSecret", "hook")];
    let (claim, foreign) = (Claim::new(namespace.name(), "data", &attributes), Claim::new(other.name(), "data", &attributes));
    cluster.kubectl.apply_object(&list(&[
        secret(namespace.name(), "hook", &[("secret", KEY)]),
        secret(other.name(), "hook", &[("secret", "another string")]),
        claim.object(),
        foreign.object(),
    ]))?;
    cluster.wait_bound(namespace.name())?;
    cluster.wait_bound(other.name())?;
    let address = cluster.controller()?.address;
    let path = format!("/webhook/{}/hook", namespace.name());
    let body = json!({"object_kind": "push", "ref": "refs/heads/main", "project": {"git_ssh_url": "git@code.example.com:data/f.git"}});
    let body = body.to_string();
    let gitlab = |token: &'static str| [("X-Gitlab-Event", "Push Hook"), ("X-Gitlab-Token", token)];
    let before = (demanded(cluster, &claim, &namespace)?, demanded(cluster, &foreign, &other)?);

    let refused = post(&address, &path, &gitlab("wrong"), body.as_bytes())?;
    ensure!(refused.0 == 403, "{refused:?}");
    let unknown = post(&address, &format!("/webhook/{}/none", namespace.name()), &gitlab(KEY), body.as_bytes())?;
    ensure!(unknown == refused, "an unknown Secret is answered in the same way: {unknown:?}");
    ensure!(post(&address, "/webhook/No_Namespace/x", &gitlab(KEY), body.as_bytes())? == refused);
    ensure!(post(&address, &path, &[("X-GitHub-Event", "push"), ("X-Hub-Signature-256", "sha256=00")], body.as_bytes())? == refused);
    let huge = vec![b'x'; 26 << 20];
    ensure!(post(&address, &path, &gitlab(KEY), &huge)?.0 == 413);
    let deep = "[".repeat(1 << 20);
    ensure!(post(&address, &path, &gitlab(KEY), deep.as_bytes())?.0 == 400);
    ensure!((demanded(cluster, &claim, &namespace)?, demanded(cluster, &foreign, &other)?) == before, "nothing was marked");

    // The same request with the right secret: the watch of a replica may be a moment behind.
    let marked = || post(&address, &path, &gitlab(KEY), body.as_bytes()).ok().filter(|answer| answer == &(200, "marked 1".to_owned()));
    wait_for("a marked volume", DEADLINE, marked)?;
    ensure!(demanded(cluster, &claim, &namespace)? != before.0);
    ensure!(demanded(cluster, &foreign, &other)? == before.1, "another namespace's Secret marks nothing here");
    let tag = body.replace("refs/heads/main", "refs/heads/other");
    ensure!(post(&address, &path, &gitlab(KEY), tag.as_bytes())? == (200, "marked 0".to_owned()));
    let metrics = http_get(&address.replace(":8080", ":9810"), "/metrics")?;
    for series in ["git_csi_webhook_requests_total{result=\"refused\"}", "git_csi_webhook_marked_total"] {
        ensure!(metrics.lines().any(|line| line.starts_with(series) && !line.ends_with(" 0")), "{series} in {metrics}");
    }
    ensure!(post(&address, &path, &[("X-Gitlab-Event", "Note Hook"), ("X-Gitlab-Token", KEY)], b"{}")? == (200, "marked 0".to_owned()));
    Ok(())
}

#[test]
fn an_annotation_makes_the_node_pull_once() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "demand")?;
    let driver = cluster.usual_driver(&namespace)?;
    let k = &cluster.kubectl;
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    commit(&repo, "one")?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");
    let attributes = [("url", url.as_str()), ("ref", "main"), ("pull", "on-demand")];
    let (claim, never) =
        (Claim::new(namespace.name(), "data", &attributes), Claim::new(namespace.name(), "never", &[("url", &url), ("pull", "never")]));
    let pod = Pod::new(namespace.name(), "a", "node1").volume("data", claimed("data")).volume("never", claimed("never"));
    k.apply_object(&list(&[claim.object(), never.object(), pod.object()]))?;
    k.wait_pod_ready(namespace.name(), "a", DEADLINE)?;
    let demand = |volume: &str, value: &str| {
        k.out(&["annotate", "pv", volume, &format!("git.liken.sh/pull-requested-at={value}"), "--overwrite"]).map(drop)
    };
    commit(&repo, "two")?;
    demand(&never.volume(), "2099-01-01T00:00:00Z")?;
    demand(&claim.volume(), "soon")?;
    demand(&claim.volume(), "2001-01-01T00:00:00Z")?;
    let shown = |path: &str| k.exec(namespace.name(), "a", &["cat", path]).map(|cat| cat.out());
    ensure!(shown("/data/greeting")?.trim() == "one", "neither of these demands a pull");
    demand(&claim.volume(), "2099-01-01T00:00:00Z")?;
    k.wait_text(namespace.name(), "a", "/data/greeting", "two", DEADLINE)?;
    ensure!(shown("/never/greeting")?.trim() == "one", "a volume that never pulls ignores demands");
    ensure!(driver.views("node1", &url)?.len() == 2);
    Ok(())
}
