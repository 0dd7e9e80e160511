//! One credential for all targets of a volume: what a claim's Secrets promise.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::daemon::{Daemon, token, view};
use gitmount_tests::fixtures;
use gitmount_tests::git::Repo;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(30);

/// A repository behind a login.
fn private() -> Result<(TempDir, Repo, HttpServer)> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    server.require_login("user", "first");
    Ok((dir, repo, server))
}

fn request(target: &Path, view: proto::ViewSpec, credential: Option<proto::Credential>) -> proto::PublishRequest {
    proto::PublishRequest {
        target: target.as_os_str().as_bytes().to_vec(),
        view: Some(view),
        credential,
        volume: Some(proto::Volume { name: "franchises".into(), namespace: "sites".into(), ..Default::default() }),
        one_credential: true,
        ..Default::default()
    }
}

#[test]
fn another_secret_is_refused_while_the_held_one_works_and_taken_once_it_does_not() -> Result<()> {
    let (_dir, _repo, server) = private()?;
    let daemon = Daemon::start(&[])?;
    let mut client = daemon.client()?;
    let view = view(&server.url("r.git"));
    let with = |name: &str, password: &str| request(&daemon.target(name), view.clone(), Some(token("user", password)));
    client.publish_with(with("a", "first"))?;
    client.publish_with(with("b", "first"))?;
    ensure!(client.status()?.views.len() == 1, "one tree");
    let said = client.publish_with(with("c", "second")).err().context("it is refused")?.to_string();
    ensure!(said.contains("nodeStageSecretRef") && !said.contains("franchises"), "the driver says the name, once: {said}");
    server.require_login("user", "second");
    client.publish_with(with("c", "second"))?;
    // The others have adopted it: all of them fetch.
    for name in ["a", "b", "c"] {
        client.pull(&daemon.target(name))?;
    }
    // Neither works: what is held stays, and the reason is the host's.
    server.require_login("user", "third");
    let said = client.publish_with(with("d", "wrong")).err().context("it is refused")?.to_string();
    ensure!(said.starts_with("Refused") && !said.contains("nodeStage"), "{said}");
    ensure!(fs::read_to_string(daemon.target("a").join("a"))? == "one\n");
    Ok(())
}

#[test]
fn what_the_stage_brought_counts_before_the_first_target() -> Result<()> {
    let (_dir, _repo, server) = private()?;
    let daemon = Daemon::start(&[])?;
    let mut client = daemon.client()?;
    let view = view(&server.url("r.git"));
    let staged = |password: &str| proto::PublishRequest {
        staged: Some(token("user", password)),
        ..request(&daemon.target("a"), view.clone(), Some(token("user", "second")))
    };
    let said = client.publish_with(staged("first")).err().context("it is refused")?.to_string();
    ensure!(said.contains("nodeStageSecretRef"), "{said}");
    // A rotation between stage and publish.
    server.require_login("user", "second");
    client.publish_with(staged("first"))?;
    ensure!(fs::read_to_string(daemon.target("a").join("a"))? == "one\n");
    Ok(())
}

#[test]
fn who_does_not_know_the_secret_gets_what_the_volume_has() -> Result<()> {
    let (_dir, repo, server) = private()?;
    let mut daemon = Daemon::held(&[])?;
    let view = view(&server.url("r.git"));
    let keep = |target: &Path| proto::PublishRequest { keep_credential: true, ..request(target, view.clone(), None) };
    let (a, b, c) = (daemon.target("a"), daemon.target("b"), daemon.target("c"));
    let mut client = daemon.client()?;
    ensure!(client.publish_with(keep(&a)).is_err(), "there is nothing to share yet, and nobody may see it without a login");
    client.publish_with(request(&a, view.clone(), Some(token("user", "first"))))?;
    ensure!(client.publish_with(keep(&a))?.again);
    client.publish_with(keep(&b))?;
    client.pull(&b)?;
    // Twice, so that what was written down by the first successor counts.
    for _ in 0..2 {
        daemon.kill()?;
        daemon.restart()?;
        ensure!(daemon.view(&a)?.state() == proto::State::Waiting, "nobody has brought the login");
    }
    let mut client = daemon.client()?;
    client.publish_with(keep(&a))?;
    client.publish_with(keep(&c))?;
    ensure!(fs::read_to_string(c.join("a"))? == "one\n");
    ensure!(daemon.view(&c)?.state() == proto::State::Waiting && client.status()?.views.len() == 1);
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    client.publish_with(request(&b, view.clone(), Some(token("user", "first"))))?;
    let shown = || xattr::get(&c, "user.git.commit").ok()?.filter(|commit| commit == new.as_bytes()).map(drop);
    wait_for("the new commit at all targets", DEADLINE, shown)?;
    Ok(())
}

#[test]
fn for_whom_a_target_is_survives_a_restart() -> Result<()> {
    let (_dir, _repo, server) = private()?;
    let mut daemon = Daemon::held(&[])?;
    let volume = proto::Volume {
        name: "franchises".into(),
        namespace: "sites".into(),
        pod: "reader".into(),
        pod_uid: "1-2".into(),
        spec_name: "pv".into(),
        claim: "data".into(),
        claim_uid: "3-4".into(),
        staged_only: true,
        persistent: true,
    };
    let login = Some(token("user", "first"));
    let request = proto::PublishRequest { volume: Some(volume.clone()), ..request(&daemon.target("a"), view(&server.url("r.git")), login) };
    daemon.client()?.publish_with(request)?;
    daemon.kill()?;
    daemon.restart()?;
    ensure!(daemon.view(&daemon.target("a"))?.volumes == [volume]);
    Ok(())
}

/// A tree is shared by those who could each fetch it, so it moves with any of their credentials; a tree of one volume alone waits for its own.
#[test]
fn after_a_restart_a_shared_tree_moves_with_who_brings_the_credential_and_no_other_does() -> Result<()> {
    let (_dir, repo, server) = private()?;
    let mut daemon = Daemon::held(&[])?;
    let shared = view(&server.url("r.git"));
    let alone = proto::ViewSpec { depth: "7".into(), ..shared.clone() };
    let of = |name: &str, view: &proto::ViewSpec, credential| proto::PublishRequest {
        volume: Some(proto::Volume { name: name.into(), namespace: "sites".into(), ..Default::default() }),
        ..request(&daemon.target(name), view.clone(), credential)
    };
    let login = || Some(token("user", "first"));
    let (staged, other, own) = (daemon.target("staged"), daemon.target("other"), daemon.target("own"));
    let requests = [of("staged", &shared, login()), of("other", &shared, login()), of("own", &alone, login())];
    let again = of("other", &shared, login());
    let keeps = [of("staged", &shared, None), of("own", &alone, None)].map(|r| proto::PublishRequest { keep_credential: true, ..r });
    let mut client = daemon.client()?;
    for request in requests {
        client.publish_with(request)?;
    }
    ensure!(client.status()?.views.len() == 2);
    daemon.kill()?;
    daemon.restart()?;
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    let mut client = daemon.client()?;
    for keep in keeps {
        client.publish_with(keep)?;
    }
    ensure!(daemon.view(&staged)?.state() == proto::State::Waiting && daemon.view(&own)?.state() == proto::State::Waiting);
    client.publish_with(again)?;
    for target in [&staged, &other] {
        let shown = || xattr::get(target, "user.git.commit").ok()?.filter(|commit| commit == new.as_bytes()).map(drop);
        wait_for("the new commit", DEADLINE, shown)?;
    }
    ensure!(daemon.view(&own)?.state() == proto::State::Waiting, "another volume's credential is not for it");
    ensure!(fs::read_to_string(own.join("a"))? == "one\n");
    Ok(())
}

/// What is held is tried at the host before another Secret takes its place, and the host may be silent.
#[test]
fn a_publish_with_another_secret_at_a_silent_host_gives_up_when_its_target_or_the_daemon_goes() -> Result<()> {
    let (_dir, _repo, server) = private()?;
    let mut daemon = Daemon::start(&["--timeout", "10m"])?;
    let view = view(&server.url("r.git"));
    daemon.client()?.publish_with(request(&daemon.target("a"), view.clone(), Some(token("user", "first"))))?;
    server.misbehave(Fault::Silent);
    for name in ["b", "c"] {
        server.take_requests();
        let (mut client, target) = (daemon.client()?, daemon.target(name));
        let other = request(&target, view.clone(), Some(token("user", "second")));
        let waiting = std::thread::spawn(move || client.publish_with(other));
        wait_for("the host to be asked", DEADLINE, || (!server.requests().is_empty()).then_some(()))?;
        let begun = std::time::Instant::now();
        if name == "b" {
            daemon.client()?.unpublish(&target)?;
        } else {
            daemon.stop()?;
        }
        ensure!(begun.elapsed() < DEADLINE, "it took {:?}", begun.elapsed());
        let said = waiting.join().map_err(|_| anyhow::anyhow!("a publish panicked"))?.err().context("it gave up")?.to_string();
        ensure!(name == "c" || said.starts_with("Cancelled"), "{said}");
    }
    Ok(())
}
