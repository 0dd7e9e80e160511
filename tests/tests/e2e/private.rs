//! Private repositories of a real forge and of OpenSSH's sshd: right, wrong, revoked, rotated and missing credentials, what is said of each
//! on the pods and claims, and that no credential is seen anywhere.

use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::cluster::pods::{Claim, Pod, claimed, inline, inline_with, list, secret};
use gitmount_tests::cluster::{Cluster, Event, Forge, NAMESPACE, Namespace};
use gitmount_tests::fixtures;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::ssh::{KeyKind, Known, Sshd, new_key, public};
use serde_json::Value;

const DEADLINE: Duration = Duration::from_secs(120);

/// A new key; the file, and the private half.
fn key(dir: &Path, name: &str) -> Result<(std::path::PathBuf, String)> {
    let file = dir.join(name);
    new_key(&file, KeyKind::Ed25519, "")?;
    let text = fs::read_to_string(&file)?;
    Ok((file, text))
}

/// A line in the middle of a private key, by which it is found.
fn line(key: &str) -> &str {
    key.lines().nth(3).unwrap_or(key)
}

/// Waits for an event of a pod whose message has these words.
fn told(cluster: &Cluster, (namespace, kind, name): (&str, &str, &str), reason: &str, words: &[&str]) -> Result<Event> {
    let event = cluster.kubectl.wait_event((namespace, kind, name), DEADLINE, |event| {
        event.reason == reason && words.iter().all(|word| event.message.contains(word))
    })?;
    println!("{name}: {reason}: {}", event.message);
    Ok(event)
}

#[test]
fn a_forge_by_token_that_is_revoked_and_rotated() -> Result<()> {
    let cluster = Cluster::get()?;
    let forge = Forge::get(cluster)?;
    let namespace = Namespace::new(cluster, "token")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    let source = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let owner = forge.create_user("owner")?;
    let repository = forge.create_repository(&owner, "private", true)?;
    forge.push(&source, &repository)?;
    let token = forge.create_token(&owner, "first", false)?;
    let (url, ca) = (forge.https(&repository), forge.ca()?.0);
    let attributes = [("url", url.as_str()), ("ref", "main"), ("pull", "1s")];
    let wrong = "0123456789abcdef0123456789abcdef01234567";
    let claim = Claim::new(ns, "data", &attributes).staged_with("right").published_with("right");
    let pod = |name: &str, volume: Value| Pod::new(ns, name, "node1").volume("data", volume).object();
    k.apply_object(&list(&[
        secret(ns, "right", &[("token", &token), ("ca.crt", &ca)]),
        secret(ns, "flux", &[("username", &owner.name), ("password", &token), ("ca.crt", &ca)]),
        secret(ns, "wrong", &[("token", wrong), ("ca.crt", &ca)]),
        secret(ns, "no-ca", &[("token", &token)]),
        secret(ns, "only-ca", &[("ca.crt", &ca)]),
        claim.object(),
        pod("right", inline_with(&attributes, "right")),
        pod("flux", inline_with(&attributes, "flux")),
        pod("claimed", claimed("data")),
        pod("wrong", inline_with(&attributes, "wrong")),
        pod("no-ca", inline_with(&attributes, "no-ca")),
        pod("only-ca", inline_with(&attributes, "only-ca")),
        pod("none", inline(&attributes)),
        pod("missing", inline_with(&attributes, "nowhere")),
    ]))?;
    let served = ["right", "flux", "claimed"];
    for name in served {
        k.wait_pod_ready(ns, name, DEADLINE)?;
        k.wait_text(ns, name, "/data/a", "one", Duration::from_secs(5))?;
    }
    told(cluster, (ns, "Pod", "wrong"), "GitVolumeRefused", &["refuse"])?;
    told(cluster, (ns, "Pod", "no-ca"), "GitVolumeRefused", &["certificate"])?;
    told(cluster, (ns, "Pod", "only-ca"), "GitVolumeRefused", &["give a token"])?;
    told(cluster, (ns, "Pod", "none"), "GitVolumeRefused", &["certificate"])?;
    // The kubelet does not come to ask the driver.
    told(cluster, (ns, "Pod", "missing"), "FailedMount", &["nowhere"])?;

    forge.revoke_token(&owner, "first")?;
    for name in served {
        let event = told(cluster, (ns, "Pod", name), "GitFetchFailed", &[&url, "the fetch failed, the last commit stays: "])?;
        ensure!(event.kind == "Warning");
    }
    told(cluster, (ns, "PersistentVolumeClaim", "data"), "GitFetchFailed", &[&url])?;
    for volume in ["data", &claim.volume()] {
        wait_for("the gauge", DEADLINE, || (driver.abnormal("node1", ns, volume).ok()? == Some(1)).then_some(()))?;
    }
    fixtures::commit(&source, "second", &[("a", "two\n")])?;
    forge.push(&source, &repository)?;
    let second = forge.create_token(&owner, "second", false)?;
    k.apply_object(&list(&[
        secret(ns, "right", &[("token", &second), ("ca.crt", &ca)]),
        secret(ns, "flux", &[("username", &owner.name), ("password", &second), ("ca.crt", &ca)]),
        // What was refused at first starts, too.
        secret(ns, "wrong", &[("token", &second), ("ca.crt", &ca)]),
    ]))?;
    for name in served {
        k.wait_text(ns, name, "/data/a", "two", DEADLINE)?;
        let event = told(cluster, (ns, "Pod", name), "GitFetchRecovered", &[&url])?;
        ensure!(event.kind == "Normal");
        let pod = k.json(&["get", "pod", name, "-n", ns])?;
        ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0);
    }
    told(cluster, (ns, "PersistentVolumeClaim", "data"), "GitFetchRecovered", &[&url])?;
    wait_for("the gauge", DEADLINE, || (driver.abnormal("node1", ns, "data").ok()? == Some(0)).then_some(()))?;
    k.wait_pod_ready(ns, "wrong", DEADLINE)?;
    let leaks = driver.leaks(cluster, &[&token, &second, wrong])?;
    ensure!(leaks.is_empty(), "{leaks:#?}");
    Ok(())
}

#[test]
fn a_forge_by_deploy_key_and_sshd_by_known_hosts() -> Result<()> {
    let cluster = Cluster::get()?;
    let forge = Forge::get(cluster)?;
    let namespace = Namespace::new(cluster, "key")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    let source = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let owner = forge.create_user("owner")?;
    let repository = forge.create_repository(&owner, "private", true)?;
    forge.push(&source, &repository)?;
    let [(first, first_key), (second, second_key), (_, wrong_key)] =
        [key(dir.path(), "first")?, key(dir.path(), "second")?, key(dir.path(), "wrong")?];
    let id = forge.add_deploy_key(&repository, &fs::read_to_string(public(&first))?)?;
    let known = forge.known_hosts()?;
    let url = forge.ssh(&repository);
    let attributes = [("url", url.as_str()), ("ref", "main"), ("pull", "1s")];

    let sshd = Sshd::at(cluster.host())?;
    sshd.authorize(&first)?;
    let plain = sshd.url(source.path())?;
    let by_sshd = [("url", plain.as_str()), ("ref", "main"), ("pull", "1s")];
    let host = sshd.known_host(KeyKind::Ed25519, Known::Plain)?;
    // The right name with the key of another host.
    let other = Sshd::at(cluster.host())?.known_host(KeyKind::Ed25519, Known::Plain)?;
    let impostor = format!("{} {}", host.split(' ').next().unwrap_or_default(), other.split_once(' ').map_or("", |(_, key)| key));

    let pod = |name: &str, volume: Value| Pod::new(ns, name, "node2").volume("data", volume).object();
    k.apply_object(&list(&[
        secret(ns, "right", &[("ssh-privatekey", &first_key), ("known_hosts", &known)]),
        secret(ns, "flux", &[("identity", &first_key), ("known_hosts", &known)]),
        secret(ns, "first-use", &[("ssh-privatekey", &first_key)]),
        secret(ns, "wrong", &[("ssh-privatekey", &wrong_key), ("known_hosts", &known)]),
        secret(ns, "sshd", &[("ssh-privatekey", &first_key), ("known_hosts", &host)]),
        secret(ns, "impostor", &[("ssh-privatekey", &first_key), ("known_hosts", &impostor)]),
        secret(ns, "stranger", &[("ssh-privatekey", &wrong_key), ("known_hosts", &host)]),
        pod("right", inline_with(&attributes, "right")),
        pod("flux", inline_with(&attributes, "flux")),
        pod("first-use", inline_with(&attributes, "first-use")),
        pod("wrong", inline_with(&attributes, "wrong")),
        pod("none", inline(&attributes)),
        pod("sshd", inline_with(&by_sshd, "sshd")),
        pod("impostor", inline_with(&by_sshd, "impostor")),
        pod("stranger", inline_with(&by_sshd, "stranger")),
    ]))?;
    for name in ["right", "flux", "first-use", "sshd"] {
        k.wait_pod_ready(ns, name, DEADLINE)?;
        k.wait_text(ns, name, "/data/a", "one", Duration::from_secs(5))?;
    }
    told(cluster, (ns, "Pod", "wrong"), "GitVolumeRefused", &[&cluster.host().to_string()])?;
    told(cluster, (ns, "Pod", "stranger"), "GitVolumeRefused", &["key"])?;
    told(cluster, (ns, "Pod", "impostor"), "GitVolumeRefused", &["known_hosts"])?;
    told(cluster, (ns, "Pod", "none"), "GitVolumeRefused", &["no key was there to offer"])?;

    forge.remove_deploy_key(&repository, id)?;
    for name in ["right", "flux", "first-use"] {
        told(cluster, (ns, "Pod", name), "GitFetchFailed", &[&url])?;
    }
    k.wait_text(ns, "right", "/data/a", "one", Duration::from_secs(5))?;
    forge.add_deploy_key(&repository, &fs::read_to_string(public(&second))?)?;
    fixtures::commit(&source, "second", &[("a", "two\n")])?;
    forge.push(&source, &repository)?;
    k.apply_object(&list(&[
        secret(ns, "right", &[("ssh-privatekey", &second_key), ("known_hosts", &known)]),
        secret(ns, "flux", &[("identity", &second_key), ("known_hosts", &known)]),
        secret(ns, "first-use", &[("ssh-privatekey", &second_key)]),
    ]))?;
    for name in ["right", "flux", "first-use", "sshd"] {
        k.wait_text(ns, name, "/data/a", "two", DEADLINE)?;
    }
    told(cluster, (ns, "Pod", "right"), "GitFetchRecovered", &[&url])?;
    let leaks = driver.leaks(cluster, &[line(&first_key), line(&second_key), line(&wrong_key)])?;
    ensure!(leaks.is_empty(), "{leaks:#?}");
    Ok(())
}

/// The rules of the two Secrets of a claim, and what a restarted node pod has again.
#[test]
fn a_claims_two_secrets_and_a_restart_of_the_driver() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::alone(cluster, "secrets")?;
    let driver = cluster.usual_driver(&namespace)?;
    let (k, ns) = (&cluster.kubectl, namespace.name());
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain_at(cluster.host(), dir.path())?;
    server.require_login("user", "s3cret-one");
    let url = server.url("r.git");
    let attributes = [("url", url.as_str()), ("ref", "main"), ("pull", "1s")];
    let claim = |name: &str| Claim::new(ns, name, &attributes);
    // With an interval of its own it shares nothing with the others, whose credential would do for it, too.
    let staged = Claim::new(ns, "stage", &[("url", &url), ("ref", "main"), ("pull", "2s")]).staged_with("ours");
    let pod = |name: &str| Pod::new(ns, name, "node1").volume("data", claimed(name)).object();
    k.apply_object(&list(&[
        secret(ns, "ours", &[("username", "user"), ("password", "s3cret-one")]),
        secret(ns, "theirs", &[("username", "user"), ("password", "s3cret-two")]),
        claim("both").staged_with("ours").published_with("ours").object(),
        claim("differ").staged_with("ours").published_with("theirs").object(),
        staged.object(),
        claim("publish").published_with("ours").object(),
        claim("none").object(),
        pod("both"),
        pod("differ"),
        pod("stage"),
        pod("publish"),
        pod("none"),
        Pod::new(ns, "inline", "node1").volume("data", inline_with(&attributes, "ours")).object(),
    ]))?;
    let served = ["both", "stage", "publish", "inline"];
    for name in served {
        k.wait_pod_ready(ns, name, DEADLINE)?;
    }
    for kind in ["Pod", "PersistentVolumeClaim"] {
        let words =
            "holds another credential, which its host has not refused: name one Secret in both nodeStageSecretRef and nodePublishSecretRef";
        let event = told(cluster, (ns, kind, "differ"), "GitVolumeRefused", &[words])?;
        ensure!(event.message.matches(&claim("differ").volume()).count() == 1, "it names the volume once: {event:?}");
        told(cluster, (ns, kind, "none"), "GitVolumeRefused", &["give a token"])?;
        let event = told(cluster, (ns, kind, "stage"), "GitVolumeNoPublishSecret", &["nodeStageSecretRef alone", "nodePublishSecretRef"])?;
        ensure!(event.count == 1 && event.kind == "Warning", "{event:?}");
        for name in ["both", "publish"] {
            let events = k.events(ns, kind, name)?;
            ensure!(events.iter().all(|event| !event.reason.starts_with("Git")), "{events:#?}");
        }
    }

    k.delete(&["pod", &driver.pod("node", "node1")?, "-n", NAMESPACE])?;
    cluster.wait_daemonset(NAMESPACE, "gitmount-node", DEADLINE)?;
    fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    for name in ["both", "publish", "inline"] {
        k.wait_text(ns, name, "/data/a", "two", DEADLINE)?;
    }
    for kind in ["Pod", "PersistentVolumeClaim"] {
        let again = |event: &Event| event.reason == "GitVolumeNoPublishSecret";
        wait_for("the event, once for each restart", DEADLINE, || {
            let count: u64 = k.events(ns, kind, "stage").ok()?.iter().filter(|event| again(event)).map(|event| event.count).sum();
            (count == 2).then_some(())
        })?;
    }
    // Nobody brought its credential: it serves what it has.
    k.wait_text(ns, "stage", "/data/a", "one", Duration::from_secs(5))?;

    // A rotation of both at once, while the host takes only the new one.
    server.require_login("user", "s3cret-new");
    k.apply_object(&secret(ns, "ours", &[("username", "user"), ("password", "s3cret-new")]))?;
    fixtures::commit(&repo, "third", &[("a", "three\n")])?;
    for name in ["both", "publish", "inline"] {
        k.wait_text(ns, name, "/data/a", "three", DEADLINE)?;
    }
    let leaks = driver.leaks(cluster, &["s3cret-one", "s3cret-two", "s3cret-new"])?;
    ensure!(leaks.is_empty(), "{leaks:#?}");
    Ok(())
}
