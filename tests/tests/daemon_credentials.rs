//! Credentials of a daemon's views: each target's own, adopted when it changes, in memory only.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::event::Kind;
use gitmount_tests::daemon::{Daemon, token, view};
use gitmount_tests::fixtures;
use gitmount_tests::git::Repo;
use gitmount_tests::mount::Account;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};
use tempfile::TempDir;

const RIGHT: &str = "s3cret-0f-th1s-test";
const DEADLINE: Duration = Duration::from_secs(30);

/// A repository behind a login.
fn private() -> Result<(TempDir, Repo, HttpServer)> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    server.require_login("user", RIGHT);
    Ok((dir, repo, server))
}

fn refusal(result: Result<proto::Published>) -> Result<String> {
    Ok(result.err().context("it is refused")?.to_string())
}

#[test]
fn the_right_login_sees_the_tree_and_a_wrong_one_or_none_does_not() -> Result<()> {
    let (_dir, _repo, server) = private()?;
    let daemon = Daemon::start(&[])?;
    let mut client = daemon.client()?;
    let url = server.url("r.git");
    for credential in [None, Some(token("user", "wrong")), Some(token("other", RIGHT))] {
        let said = refusal(client.publish(&daemon.target("a"), view(&url), credential))?;
        ensure!(said.starts_with("Refused") && !said.contains(RIGHT), "{said}");
    }
    client.publish(&daemon.target("a"), view(&url), Some(token("user", RIGHT)))?;
    ensure!(fs::read_to_string(daemon.target("a").join("a"))? == "one\n");
    // That it is in the store, and shown to somebody else, is no right to it.
    for credential in [None, Some(token("user", "wrong"))] {
        let stale = proto::ViewSpec { offline: "allowStale".into(), ..view(&url) };
        for view in [view(&url), stale] {
            let said = refusal(client.publish(&daemon.target("b"), view, credential.clone()))?;
            ensure!(said.starts_with("Refused"), "{said}");
        }
    }
    ensure!(!daemon.target("b").exists());
    Ok(())
}

#[test]
fn a_commit_that_is_there_is_shown_only_to_who_could_fetch_it() -> Result<()> {
    let (_dir, repo, server) = private()?;
    let daemon = Daemon::start(&[])?;
    let mut client = daemon.client()?;
    let url = server.url("r.git");
    let commit = proto::ViewSpec { r#ref: repo.id("main")?, ..view(&url) };
    client.publish(&daemon.target("a"), commit.clone(), Some(token("user", RIGHT)))?;
    let said = refusal(client.publish(&daemon.target("b"), commit.clone(), None))?;
    ensure!(said.starts_with("Refused"), "{said}");
    // Whoever has fetched from the repository is not asked again for a commit that is there.
    client.unpublish(&daemon.target("a"))?;
    server.misbehave(Fault::Silent);
    client.publish(&daemon.target("c"), commit, Some(token("user", RIGHT)))?;
    Ok(())
}

#[test]
fn stale_is_for_hosts_that_do_not_answer_and_for_who_has_fetched_before() -> Result<()> {
    let (_dir, _repo, server) = private()?;
    let daemon = Daemon::start(&["--timeout", "2s"])?;
    let mut client = daemon.client()?;
    let stale = proto::ViewSpec { offline: "allowStale".into(), ..view(&server.url("r.git")) };
    client.publish(&daemon.target("a"), stale.clone(), Some(token("user", RIGHT)))?;
    client.unpublish(&daemon.target("a"))?;
    server.misbehave(Fault::status(500));
    let said = refusal(client.publish(&daemon.target("b"), stale.clone(), Some(token("user", "wrong"))))?;
    ensure!(said.starts_with("Unreachable"), "{said}");
    let said = refusal(client.publish(&daemon.target("b"), view(&server.url("r.git")), Some(token("user", RIGHT))))?;
    ensure!(said.starts_with("Unreachable"), "{said}");
    let published = client.publish(&daemon.target("b"), stale, Some(token("user", RIGHT)))?;
    ensure!(!published.stale.is_empty(), "{published:?}");
    ensure!(daemon.view(&daemon.target("b"))?.state() == proto::State::Stale);
    server.behave();
    client.pull(&daemon.target("b"))?;
    ensure!(daemon.view(&daemon.target("b"))?.state() == proto::State::Ok);
    Ok(())
}

#[test]
fn a_rotated_login_is_adopted_at_once_and_a_repeated_publish_never_fails() -> Result<()> {
    let (_dir, repo, server) = private()?;
    let daemon = Daemon::start(&[])?;
    let mut client = daemon.client()?;
    let (target, url) = (daemon.target("a"), server.url("r.git"));
    client.publish(&target, view(&url), Some(token("user", RIGHT)))?;
    server.require_login("user", "the next one");
    let mut watch = daemon.client()?.watch()?;
    ensure!(client.pull(&target).is_err(), "the old login is refused now");
    let event = watch.next_of(Kind::FetchFailed)?;
    ensure!(event.volumes[0].name == "v" && event.volumes[0].namespace == "n" && event.targets.len() == 1, "{event:?}");
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    // Wrong ones are taken, too: the kubelet's repeated publish must not fail a running pod.
    ensure!(client.publish(&target, view(&url), Some(token("user", "wrong")))?.again);
    ensure!(client.publish(&target, view(&url), Some(token("user", "the next one")))?.again);
    watch.next_of(Kind::FetchRecovered)?;
    let shown = || xattr::get(&target, "user.git.commit").ok()?.filter(|commit| commit == new.as_bytes()).map(drop);
    wait_for("the new commit, without being asked", DEADLINE, shown)?;
    server.require_login("user", "the third one");
    client.update_credential(&target, token("user", "the third one"))?;
    client.pull(&target)?;
    // The host is down: still fine.
    server.misbehave(Fault::status(503));
    ensure!(client.publish(&target, view(&url), Some(token("user", "the fourth one")))?.again);
    ensure!(fs::read_to_string(target.join("a"))? == "two\n");
    Ok(())
}

#[test]
fn after_a_restart_a_private_view_waits_for_its_login() -> Result<()> {
    let (_dir, repo, server) = private()?;
    let mut daemon = Daemon::held(&[])?;
    let (target, url) = (daemon.target("a"), server.url("r.git"));
    daemon.client()?.publish(&target, view(&url), Some(token("user", RIGHT)))?;
    daemon.kill()?;
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    daemon.restart()?;
    ensure!(daemon.view(&target)?.state() == proto::State::Waiting);
    ensure!(fs::read_to_string(target.join("a"))? == "one\n", "it is served meanwhile");
    ensure!(daemon.client()?.publish(&target, view(&url), Some(token("user", RIGHT)))?.again);
    let shown = || xattr::get(&target, "user.git.commit").ok()?.filter(|commit| commit == new.as_bytes()).map(drop);
    wait_for("the commit that was missed", DEADLINE, shown)?;
    Ok(())
}

#[test]
fn the_secret_is_in_no_file_no_log_and_no_answer() -> Result<()> {
    let (_dir, _repo, server) = private()?;
    let mut account = Account::new()?;
    account.set_env("GITMOUNT_LOG", "trace");
    let daemon = Daemon::start_as(account, &["--log-format", "json"])?;
    let mut client = daemon.client()?;
    let target = daemon.target("a");
    client.publish(&target, view(&server.url("r.git")), Some(token("user", RIGHT)))?;
    client.pull(&target)?;
    server.require_login("user", "another");
    ensure!(client.pull(&target).is_err());
    // Hosts that repeat what they were told are not passed on word for word.
    server.misbehave(Fault::Echo(403));
    let said = client.pull(&target).err().context("it is refused")?.to_string();
    ensure!(said.contains("403") && said.contains("you said") && !said.contains(RIGHT), "{said}");
    let encoded = server.requests().into_iter().rev().find_map(|asked| asked.authorization).context("a login was sent")?;
    let encoded = encoded.strip_prefix("Basic ").context("it is basic authentication")?.to_owned();
    let answers = format!("{:?} {:?}", client.status()?, client.log(&target)?);
    for secret in [RIGHT, &encoded] {
        ensure!(!answers.contains(secret));
        for dir in [daemon.state(), daemon.account().store().to_owned(), daemon.account().home()] {
            let found = scratch::files_with(&dir, secret)?;
            ensure!(found.is_empty(), "the secret is in {found:?}");
        }
        for file in ["cmdline", "environ"] {
            ensure!(!String::from_utf8_lossy(&fs::read(format!("/proc/{}/{file}", daemon.pid()?))?).contains(secret));
        }
    }
    let log = daemon.log()?;
    ensure!(log.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).is_ok()), "every line of the log is an object");
    Ok(())
}

#[test]
fn nothing_begins_with_a_view_whose_host_is_down_that_would_not_begin_without_it() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&["--timeout", "5s"])?;
    let strict = view(&server.url("r.git"));
    let stale = proto::ViewSpec { offline: "allowStale".into(), ..strict.clone() };
    daemon.publish("strict", strict.clone())?;
    daemon.publish("stale", stale.clone())?;
    server.misbehave(Fault::status(500));
    for name in ["strict", "stale"] {
        ensure!(daemon.client()?.pull(&daemon.target(name)).is_err());
    }
    let refused = daemon.publish("strict-too", strict.clone()).err().context("its host is down")?.to_string();
    ensure!(refused.starts_with("Unreachable: ") && !daemon.target("strict-too").exists(), "{refused}");
    let published = daemon.publish("stale-too", stale)?;
    ensure!(published.stale.contains("500"), "{published:?}");
    // What is shown is not taken away, and a repeated publish finds it.
    ensure!(daemon.publish("strict", strict.clone())?.again);
    server.behave();
    let published = daemon.publish("strict-too", strict)?;
    ensure!(published.stale.is_empty() && daemon.client()?.status()?.views.len() == 2, "{published:?}");
    Ok(())
}

#[test]
fn many_credentials_at_once_are_all_noted() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    // It takes any login.
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&[])?;
    let url = server.url("r.git");
    let results: Vec<Result<_>> = std::thread::scope(|scope| {
        let publish = |n: usize| {
            let (daemon, url) = (&daemon, &url);
            move || daemon.client()?.publish(&daemon.target(&format!("t{n}")), view(url), Some(token("user", &format!("token {n}"))))
        };
        let running: Vec<_> = (0..32).map(|n| scope.spawn(publish(n))).collect();
        running.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a publish panicked"))?).collect()
    });
    results.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(())
}
