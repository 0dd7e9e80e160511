//! What is wrong with a volume is said on its pod, with the attribute's name and a right value; and nothing that comes to the plugin's socket
//! disturbs it.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::cluster::pods::{Claim, Pod, claimed, inline, inline_with, list, secret};
use gitmount_tests::cluster::{Cluster, Event, Namespace};
use gitmount_tests::fixtures;
use gitmount_tests::git::Repo;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::ssh::{KeyKind, new_key};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(120);

/// A pod, attributes beside the URL, which may be among them, and what is said of them.
type Mistake = (&'static str, &'static [(&'static str, &'static str)], &'static [&'static str]);

const ATTRIBUTES: [Mistake; 20] = [
    ("no-url", &[("url", "")], &["attribute \"url\" is empty: give something like \"https://git.example.com/team/repo.git\""]),
    ("scheme", &[("url", "ftp://example.com/a.git")], &["url", "ftp", "https://"]),
    ("file", &[("url", "file:///etc")], &["url", "file", "not allowed"]),
    ("no-url-at-all", &[("url", "nonsense")], &["url", "nonsense", "https://"]),
    ("password", &[("url", "https://user:s3cret@example.com/a.git")], &["url", "password"]),
    ("ref", &[("ref", "a..b")], &["ref \"a..b\""]),
    ("path", &[("path", "../etc")], &["path", ".."]),
    ("pull", &[("pull", "5")], &["pull interval \"5\" is no duration: give a duration such as \"30s\", \"5m\" or \"1h30m\""]),
    ("pull-zero", &[("pull", "0s")], &["pull interval \"0s\" is not between one second and one year"]),
    ("depth", &[("depth", "-1")], &["depth \"-1\" is no number of commits: give 1 or more, or 0 for the whole history"]),
    ("offline", &[("offline", "yes")], &["offline \"yes\" is unknown: give \"refuse\" or \"allowStale\""]),
    ("notify", &[("notify", "true")], &["notify \"true\" is unknown: give \"none\" or \"inotify\""]),
    (
        "unknown",
        &[("branch", "main")],
        &["attribute \"branch\" is unknown: there are url, ref, path, pull, depth, offline, webhookSecret, notify"],
    ),
    ("misspelt", &[("Ref", "main")], &["attribute \"Ref\" is unknown: give \"ref\""]),
    ("on-demand", &[("pull", "on-demand")], &["attribute \"pull\" is \"on-demand\", but nothing can demand an inline volume"]),
    ("webhook", &[("webhookSecret", "hook")], &["attribute \"webhookSecret\" is for claims, a webhook cannot reach an inline volume"]),
    ("no-ref", &[("ref", "gone")], &["has neither a branch nor a tag \"gone\": give one that exists"]),
    ("no-path", &[("path", "docs")], &["path \"docs\""]),
    ("a-file", &[("path", "a")], &["path \"a\"", "director"]),
    ("lines", &[("ref", "a\nb")], &["attribute \"ref\" is too long or has control characters: give one line"]),
];

#[test]
fn each_mistake_is_said_on_the_pod() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "refusals")?;
    let _driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    Repo::init_bare(dir.path().join("empty.git"))?;
    new_key(&dir.path().join("key"), KeyKind::Ed25519, "a passphrase")?;
    let locked = std::fs::read_to_string(dir.path().join("key"))?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let url = server.url("r.git");

    let mut objects: Vec<Value> = vec![];
    let mut expected: Vec<(String, Vec<String>)> = vec![];
    let mut refused = |name: &str, volume: Value, words: &[&str]| {
        let node = if expected.len().is_multiple_of(2) { "node1" } else { "node2" };
        objects.push(Pod::new(ns, name, node).volume("data", volume).object());
        expected.push((name.to_owned(), words.iter().map(|word| (*word).to_owned()).collect()));
    };
    for (name, attributes, words) in ATTRIBUTES {
        let url = attributes.iter().all(|(name, _)| *name != "url").then_some(("url", url.as_str()));
        let all: Vec<_> = url.into_iter().chain(attributes.iter().copied()).collect();
        refused(name, inline(&all), words);
    }
    let writable = |mut volume: Value| {
        volume["csi"]["readOnly"] = false.into();
        volume
    };
    let own = [("url", url.as_str())];
    refused("writable", writable(inline(&own)), &["the volume is read-only: set `readOnly: true` below `csi` in the pod's volume"]);
    refused("no-attribute", inline(&[]), &["attribute \"url\" is missing"]);
    refused("empty", inline(&[("url", &server.url("empty.git"))]), &["empty.git is empty", "push a commit to it first"]);
    refused("no-repository", inline(&[("url", &server.url("none.git"))]), &["none.git"]);
    refused("no-host", inline(&[("url", "http://127.0.0.1:1/a.git")]), &["127.0.0.1"]);
    refused(
        "no-key",
        inline_with(&own, "useless"),
        &["the Secret has no key of use (it has \"pasword\"): give \"ssh-privatekey\" for SSH"],
    );
    let ssh = [("url", "ssh://git@127.0.0.1:1/a.git")];
    refused("passphrase", inline_with(&ssh, "locked"), &["passphrase", "give a \"ssh-privatekey\" without one"]);
    refused("token-for-ssh", inline_with(&ssh, "token"), &["the Secret has a token, but the URL is fetched by SSH"]);
    refused("key-for-http", inline_with(&own, "locked"), &["the Secret has an SSH key, but the URL is fetched by HTTPS"]);
    refused("webhook-name", claimed("hook"), &["attribute \"webhookSecret\" \"No Name\" is no name of a Secret: give one such as"]);
    for (name, values) in
        [("useless", [("pasword", "s3cret")]), ("locked", [("ssh-privatekey", locked.as_str())]), ("token", [("token", "s3cret")])]
    {
        objects.insert(0, secret(ns, name, &values));
    }
    objects.insert(0, Claim::new(ns, "hook", &[("url", &url), ("webhookSecret", "No Name")]).object());
    // Two that are right among them.
    objects.push(Pod::new(ns, "right", "node1").volume("data", inline(&own)).object());
    objects.push(Claim::new(ns, "demanded", &[("url", &url), ("pull", "on-demand"), ("webhookSecret", "hook")]).object());
    objects.push(Pod::new(ns, "by-claim", "node2").volume("data", claimed("demanded")).object());
    k.apply_object(&list(&objects))?;

    let mut wrong = vec![];
    for (name, words) in &expected {
        let event = k.wait_event((ns, "Pod", name), DEADLINE, |event| event.reason == "GitVolumeRefused");
        match event {
            Err(error) => wrong.push(format!("{name}: {error:#}")),
            Ok(Event { kind, message, .. }) => {
                println!("{name}: {message}");
                if kind != "Warning"
                    || !words.iter().all(|word| message.contains(word))
                    || message.contains("s3cret")
                    || message.contains("ssh-add")
                {
                    wrong.push(format!("{name}: {message}, not {words:?}"));
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    for name in ["right", "by-claim"] {
        k.wait_pod_ready(ns, name, DEADLINE)?;
    }
    Ok(())
}

#[test]
fn garbage_on_the_socket_disturbs_nobody() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "garbage")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    let restarts = || {
        let path = "jsonpath={.status.containerStatuses[*].restartCount}";
        k.out(&["get", "pod", &driver.pod("node", "node1")?, "-n", "gitmount-system", "-o", path])
    };
    let before = restarts()?;
    let node = &cluster.nodes()[0];
    let mut open = vec![];
    for socket in ["plugins/git.liken.sh/csi.sock", "plugins_registry/git.liken.sh-reg.sock"] {
        let socket = node.kubelet_root()?.join(Path::new(socket));
        for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 70_000], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x05", b""] {
            for _ in 0..20 {
                let mut stream = UnixStream::connect(&socket)?;
                // It may be closed before all is written.
                let _ = stream.write_all(garbage);
                open.push(stream);
            }
        }
    }
    k.apply_object(&Pod::new(ns, "p", "node1").volume("data", inline(&[("url", &server.url("r.git"))])).object())?;
    k.wait_pod_ready(ns, "p", DEADLINE)?;
    ensure!(k.exec(ns, "p", &["cat", "/data/a"])?.success()?.out() == "one\n");
    ensure!(restarts()? == before, "a container of the driver was started again");
    Ok(())
}
