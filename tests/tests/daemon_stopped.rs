//! A daemon or a holder that is stopped (SIGSTOP, a debugger, a frozen cgroup) and goes on later: who needs it waits, nobody gets an error.

use std::fs;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures;
use gitmount_tests::git::Repo;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(60);

fn served() -> Result<(TempDir, Repo, HttpServer)> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("known", "one\n"), ("new", "one\n"), ("d/new", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    Ok((dir, repo, server))
}

/// Lets a process go on, also when the test fails meanwhile.
struct Stopped(Pid);

impl Stopped {
    fn stop(pid: i32) -> Result<Self> {
        let pid = Pid::from_raw(pid);
        kill(pid, Signal::SIGSTOP)?;
        let stopped = || fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.contains(") T ").then_some(());
        wait_for("the stop", DEADLINE, stopped)?;
        Ok(Stopped(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill(self.0, Signal::SIGCONT);
    }
}

/// Reads files that the kernel does not know yet while the daemon is stopped, and has `then` end that.
fn waits(daemon: &mut Daemon, files: &[PathBuf], then: impl FnOnce(&mut Daemon, Stopped) -> Result<()>) -> Result<()> {
    let known = daemon.target("t").join("known");
    ensure!(fs::read_to_string(&known)? == "one\n");
    let stopped = Stopped::stop(daemon.pid()?)?;
    ensure!(fs::read_to_string(&known)? == "one\n", "what is cached needs nobody");
    let (tell, told) = channel();
    for file in files {
        let (tell, file) = (tell.clone(), file.clone());
        std::thread::spawn(move || tell.send(fs::read_to_string(&file)));
    }
    ensure!(told.recv_timeout(Duration::from_millis(500)).is_err(), "nobody could have answered");
    then(daemon, stopped)?;
    for _ in files {
        let text = told.recv_timeout(DEADLINE).context("a reader waits for ever")??;
        ensure!(text == "one\n", "{text}");
    }
    Ok(())
}

#[test]
fn readers_of_a_stopped_daemon_wait_until_it_goes_on_or_another_one_takes_its_place() -> Result<()> {
    let (_dir, _repo, server) = served()?;
    let mut daemon = Daemon::held(&[])?;
    let target = daemon.target("t");
    daemon.publish("t", view(&server.url("r.git")))?;
    waits(&mut daemon, &[target.join("new")], |_, stopped| {
        drop(stopped);
        Ok(())
    })?;
    waits(&mut daemon, &[target.join("d/new")], |daemon, _stopped| {
        daemon.kill()?;
        daemon.restart()
    })?;
    daemon.client()?.unpublish(&target)
}

#[test]
fn a_holder_that_is_stopped_holds_nobody_up_for_ever() -> Result<()> {
    let (_dir, repo, server) = served()?;
    let mut daemon = Daemon::held(&[])?;
    let (t, u, url) = (daemon.target("t"), daemon.target("u"), server.url("r.git"));
    daemon.publish("t", view(&url))?;
    ensure!(fs::read_to_string(t.join("new"))? == "one\n");
    let stopped = Stopped::stop(daemon.holder_pid()?)?;
    let begun = Instant::now();
    let mut client = daemon.client()?;
    // Another view: it is deposited with nobody.
    let other = gitmount_proto::fsd::v1::ViewSpec { path: b"d".to_vec(), ..view(&url) };
    client.publish(&u, other, None)?;
    ensure!(fs::read_to_string(u.join("new"))? == "one\n" && client.status()?.views.len() == 2);
    client.unpublish(&u)?;
    ensure!(fs::read_to_string(t.join("known"))? == "one\n");
    let new = fixtures::commit(&repo, "second", &[("known", "two\n")])?;
    let pulled = client.pull(&t)?;
    ensure!(pulled.new == new && fs::read_to_string(t.join("known"))? == "two\n");
    ensure!(begun.elapsed() < DEADLINE, "it took {:?}", begun.elapsed());
    drop(stopped);
    // It is back: what is shown is kept again.
    wait_for("the holder to have the one mount", DEADLINE, || (daemon.holds().ok()? == 1).then_some(()))?;
    daemon.kill()?;
    daemon.restart()?;
    ensure!(fs::read_to_string(t.join("d/new"))? == "one\n" && fs::read_to_string(t.join("known"))? == "two\n");
    daemon.client()?.unpublish(&t)
}

/// It may keep what is in use: it is not mounted anew under its readers.
#[test]
fn a_daemon_does_not_start_beside_a_holder_that_is_stopped() -> Result<()> {
    let (_dir, _repo, server) = served()?;
    let mut daemon = Daemon::held(&[])?;
    let target = daemon.target("t");
    daemon.publish("t", view(&server.url("r.git")))?;
    ensure!(fs::read_to_string(target.join("known"))? == "one\n");
    let open = fs::File::open(target.join("new"))?;
    let stopped = Stopped::stop(daemon.holder_pid()?)?;
    daemon.kill()?;
    let said = daemon.restart().err().context("it does not start")?.to_string();
    ensure!(said.contains("the holder does not answer") && said.contains("let it go on, or end it"), "{said}");
    drop(stopped);
    daemon.restart()?;
    ensure!(std::io::read_to_string(&open)? == "one\n" && fs::read_to_string(target.join("d/new"))? == "one\n");
    drop(open);
    daemon.client()?.unpublish(&target)
}

#[test]
fn two_daemons_may_share_a_holder() -> Result<()> {
    let (_dir, _repo, server) = served()?;
    let mut first = Daemon::held(&[])?;
    first.publish("t", view(&server.url("r.git")))?;
    let hold = first.account().home().join("hold.sock");
    let mut second = Daemon::start(&["--hold", hold.to_str().context("UTF-8")?])?;
    second.publish("t", view(&server.url("r.git")))?;
    for _ in 0..2 {
        for daemon in [&mut first, &mut second] {
            ensure!(fs::read_to_string(daemon.target("t").join("known"))? == "one\n");
            let open = fs::File::open(daemon.target("t").join("new"))?;
            daemon.kill()?;
            daemon.restart()?;
            ensure!(std::io::read_to_string(&open)? == "one\n" && fs::read_to_string(daemon.target("t").join("d/new"))? == "one\n");
            ensure!(!daemon.log()?.contains("mounted anew"), "{}", daemon.log()?);
        }
    }
    for daemon in [&first, &second] {
        daemon.client()?.unpublish(&daemon.target("t"))?;
    }
    wait_for("the holder to have nothing", DEADLINE, || (first.holds().ok()? == 0).then_some(()))
}
