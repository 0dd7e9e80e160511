//! How a daemon ends, and what it tells its supervisor.

use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures;
use gitmount_tests::mount::Account;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::{Fault, HttpServer};
use nix::sys::signal::Signal;

const DEADLINE: Duration = Duration::from_secs(30);

/// Reads the next word that a supervisor is told.
fn told(supervisor: &UnixDatagram) -> Result<String> {
    let mut buffer = [0; 256];
    let length = supervisor.recv(&mut buffer).context("the supervisor is told nothing")?;
    Ok(String::from_utf8(buffer[..length].to_vec())?)
}

#[test]
fn the_supervisor_is_told_when_it_is_ready_and_when_it_stops() -> Result<()> {
    let mut account = Account::new()?;
    let socket = account.home().join("notify");
    let supervisor = UnixDatagram::bind(&socket)?;
    supervisor.set_read_timeout(Some(DEADLINE))?;
    account.set_env("NOTIFY_SOCKET", &socket);
    let mut daemon = Daemon::start_as(account, &[])?;
    ensure!(told(&supervisor)? == "READY=1");
    daemon.client()?.status().context("who is ready answers")?;
    ensure!(daemon.stop()?.success());
    ensure!(told(&supervisor)? == "STOPPING=1");
    supervisor.set_nonblocking(true)?;
    ensure!(told(&supervisor).is_err(), "nothing else is told");
    Ok(())
}

#[test]
fn a_second_signal_ends_a_graceful_stop_at_once() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let mut daemon = Daemon::start(&[])?;
    daemon.publish("t", view(&server.url("r.git")))?;
    // A file that is open keeps the mount, and so the first stop waits a while for it. Should it not, this tests less and fails no one.
    let open = File::open(daemon.target("t").join("a"))?;
    server.misbehave(Fault::Silent);
    std::thread::scope(|scope| {
        let target = daemon.target("t");
        let mut client = daemon.client()?;
        scope.spawn(move || client.pull(&target));
        let asked = || server.requests().iter().any(|asked| asked.status == 0).then_some(());
        wait_for("a fetch that hangs", DEADLINE, asked)?;
        daemon.signal(Signal::SIGTERM)?;
        wait_for("the stop", DEADLINE, || daemon.log().ok()?.contains("the daemon is being stopped").then_some(()))?;
        let began = Instant::now();
        daemon.signal(Signal::SIGTERM)?;
        let status = daemon.ended()?;
        eprintln!("ended with {status} after {:?}", began.elapsed());
        ensure!(status.success() || status.code() == Some(130), "{status}");
        server.behave();
        Ok(())
    })?;
    drop(open);
    // Whatever was left there: the next one cleans up and works.
    daemon.restart()?;
    daemon.publish("t", view(&server.url("r.git")))?;
    ensure!(fs::read_to_string(daemon.target("t").join("a"))? == "one\n");
    Ok(())
}

#[test]
fn a_graceful_stop_interrupts_what_waits_for_a_host() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = GitDaemon::serve(dir.path())?;
    let silent_dir = scratch::dir()?;
    fixtures::small(&silent_dir.path().join("s.git"), &[("a", "one\n")])?;
    let silent = HttpServer::plain(silent_dir.path())?;
    let mut daemon = Daemon::start(&[])?;
    daemon.publish("t", view(&server.url("r.git")))?;
    silent.misbehave(Fault::Silent);
    std::thread::scope(|scope| {
        let (mut client, target, url) = (daemon.client()?, daemon.target("u"), silent.url("s.git"));
        let publishing = scope.spawn(move || client.publish(&target, view(&url), None));
        let asked = || silent.requests().iter().any(|asked| asked.status == 0).then_some(());
        wait_for("a fetch that hangs", DEADLINE, asked)?;
        ensure!(daemon.stop()?.success());
        let said = publishing.join().map_err(|_| anyhow::anyhow!("the publish panicked"))?;
        let said = said.err().context("it was not published")?.to_string();
        ensure!(said.contains("stopped") || said.contains("Cancelled"), "{said}");
        silent.behave();
        Ok(())
    })?;
    ensure!(!daemon.target("u").exists() && !daemon.target("t").exists(), "nothing stays");
    Ok(())
}
