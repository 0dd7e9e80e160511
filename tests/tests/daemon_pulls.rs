//! When a daemon fetches: one fetch for all views of a repository, demands, a host that wants to be left alone.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};

const DEADLINE: Duration = Duration::from_secs(30);

fn shows(daemon: &Daemon, name: &str, commit: &str) -> Option<()> {
    xattr::get(daemon.target(name), "user.git.commit").ok()?.filter(|now| now == commit.as_bytes()).map(drop)
}

#[test]
fn a_hundred_views_of_a_repository_move_with_one_fetch() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n"), ("d/b", "one\n")])?;
    for n in 0..100 {
        repo.run(["branch", &format!("b{n}"), "main"])?;
    }
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&["--demand-min-interval", "1s"])?;
    let url = server.url("r.git");
    let mut client = daemon.client()?;
    for n in 0..100 {
        client.publish(&daemon.target(&format!("t{n}")), proto::ViewSpec { r#ref: format!("b{n}"), ..view(&url) }, None)?;
    }
    ensure!(client.status()?.views.len() == 100);
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    for n in 0..100 {
        repo.point(&format!("refs/heads/b{n}"), &new)?;
    }
    server.take_requests();
    // The demand of one moves all: it is the repository that is fetched.
    ensure!(client.demand(&daemon.target("t7"))? == 1);
    for n in 0..100 {
        wait_for(&format!("view {n} to move"), DEADLINE, || shows(&daemon, &format!("t{n}"), &new))?;
    }
    let fetches = server.take_requests().iter().filter(|asked| asked.fetch).count();
    ensure!(fetches == 1, "a hundred views cost {fetches} fetches");
    Ok(())
}

#[test]
fn twenty_demands_cost_one_fetch_and_the_news_is_shown() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&["--demand-min-interval", "2s"])?;
    let mut client = daemon.client()?;
    let target = daemon.target("a");
    client.publish(&target, view(&server.url("r.git")), None)?;
    server.take_requests();
    let begun = Instant::now();
    for _ in 0..20 {
        ensure!(client.demand(&target)? == 1);
    }
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    if begun.elapsed() > Duration::from_secs(2) {
        eprintln!("this machine is too busy to make twenty demands within two seconds; only the news is checked");
    }
    wait_for("the switch", DEADLINE, || shows(&daemon, "a", &new))?;
    let fetches = server.take_requests().iter().filter(|asked| asked.fetch).count();
    ensure!(fetches == 1, "{fetches} fetches");
    Ok(())
}

#[test]
fn a_view_that_never_pulls_ignores_demands_but_not_people() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&["--demand-min-interval", "1s"])?;
    let mut client = daemon.client()?;
    let never = proto::ViewSpec { pull: "never".into(), ..view(&server.url("r.git")) };
    client.publish(&daemon.target("never"), never, None)?;
    client.publish(&daemon.target("other"), view(&server.url("r.git")), None)?;
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    ensure!(client.demand(&daemon.target("never"))? == 0);
    let url = proto::PullRequest { url: server.url("r.git"), ..Default::default() };
    match client.pull_with(url)? {
        proto::pull_response::Outcome::Noted(noted) => ensure!(noted.views == 1, "{noted:?}"),
        other => anyhow::bail!("{other:?}"),
    }
    ensure!(shows(&daemon, "other", &new).is_some() && shows(&daemon, "never", &new).is_none());
    ensure!(client.pull(&daemon.target("never"))?.new == new);
    Ok(())
}

#[test]
fn retry_after_holds_back_every_repository_of_the_host() -> Result<()> {
    let dir = scratch::dir()?;
    for name in ["one.git", "two.git"] {
        fixtures::small(&dir.path().join(name), &[("a", "one\n")])?;
    }
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&["--demand-min-interval", "1s"])?;
    let mut client = daemon.client()?;
    client.publish(&daemon.target("one"), view(&server.url("one.git")), None)?;
    client.publish(&daemon.target("two"), view(&server.url("two.git")), None)?;
    server.misbehave(Fault::retry_after(429, 3600));
    ensure!(client.pull(&daemon.target("one")).is_err());
    server.behave();
    server.take_requests();
    let said = client.pull(&daemon.target("two")).err().context("the host is left alone")?.to_string();
    ensure!(said.contains("Unreachable") && said.contains("left alone"), "{said}");
    ensure!(server.take_requests().is_empty(), "nothing was asked");
    Ok(())
}

#[test]
fn a_ref_that_disappears_keeps_its_commit_and_comes_back() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    repo.run(["branch", "b", "main"])?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&[])?;
    let mut client = daemon.client()?;
    let target = daemon.target("b");
    client.publish(&target, proto::ViewSpec { r#ref: "b".into(), ..view(&server.url("r.git")) }, None)?;
    client.publish(&daemon.target("m"), proto::ViewSpec { r#ref: "main".into(), ..view(&server.url("r.git")) }, None)?;
    repo.run(["branch", "-D", "b"])?;
    ensure!(client.pull(&target).is_err());
    ensure!(daemon.view(&target)?.state() == proto::State::Gone && daemon.view(&daemon.target("m"))?.state() == proto::State::Ok);
    ensure!(std::fs::read_to_string(target.join("a"))? == "one\n");
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    let url = proto::PullRequest { url: server.url("r.git"), ..Default::default() };
    ensure!(client.pull_with(url).is_err(), "one of them has no ref");
    ensure!(shows(&daemon, "m", &new).is_some(), "and the other one moves all the same");
    repo.run(["branch", "b", "main"])?;
    ensure!(client.pull(&target)?.new == new && daemon.view(&target)?.state() == proto::State::Ok);
    Ok(())
}

/// Who asks while a fetch runs that the host then answers with a time to wait could be answered by none before that time is over.
#[test]
fn who_waits_when_a_host_asks_to_be_left_alone_is_told_so() -> Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let url = format!("http://{}/r.git", listener.local_addr()?);
    let daemon = Daemon::start(&[])?;
    let (tell, told) = channel();
    std::thread::scope(|scope| -> Result<()> {
        let publish = |name: &'static str, reference: &'static str| {
            let (daemon, tell, view) = (&daemon, tell.clone(), proto::ViewSpec { r#ref: reference.into(), ..view(&url) });
            scope.spawn(move || tell.send(daemon.publish(name, view).map(drop)));
        };
        publish("a", "main");
        let (mut asked, _) = listener.accept()?;
        publish("b", "other");
        // Only where it waits already is this more than the ordinary refusal.
        std::thread::sleep(Duration::from_millis(500));
        asked.write_all(b"HTTP/1.1 503 Later\r\nRetry-After: 3000\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        let outcome = (|| {
            for _ in 0..2 {
                let said = told.recv_timeout(DEADLINE).context("it waits for the host")?.err().context("it is refused")?.to_string();
                ensure!(said.starts_with("Unreachable"), "{said}");
            }
            Ok(())
        })();
        for name in ["a", "b"] {
            daemon.client()?.unpublish(&daemon.target(name))?;
        }
        outcome
    })
}
