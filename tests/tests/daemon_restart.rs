//! A daemon that ends, in whatever way, and the next one: with a holder no reader notices, without one the mounts are made anew and it is said.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures;
use gitmount_tests::mount::{is_mounted, mounts_below};
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};
use tempfile::TempDir;

const DEADLINE: std::time::Duration = std::time::Duration::from_secs(30);

/// Reads all the time until told to stop; any error fails it.
fn reading<T>(paths: &[std::path::PathBuf], work: impl FnOnce() -> Result<T>) -> Result<T> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<u64> {
            let mut reads = 0;
            while !stop.load(Ordering::SeqCst) {
                for path in paths {
                    fs::read(path).with_context(|| format!("read {reads} of {}", path.display()))?;
                    fs::read_dir(path.parent().context("a file lies in a directory")?)?.count();
                    reads += 1;
                }
            }
            Ok(reads)
        });
        let result = work();
        stop.store(true, Ordering::SeqCst);
        let reads = reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))??;
        ensure!(reads > 0, "nothing was read meanwhile");
        result
    })
}

/// A daemon without a holder that shows a file `a` at the target `t`, and where it is fetched from.
fn published() -> Result<(TempDir, HttpServer, Daemon)> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&[])?;
    daemon.publish("t", view(&server.url("r.git")))?;
    Ok((dir, server, daemon))
}

#[test]
fn with_a_holder_no_read_fails_when_the_daemon_is_killed_or_stopped() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a/b", "one\n"), ("c", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let mut daemon = Daemon::held(&[])?;
    let target = daemon.target("t");
    daemon.publish("t", view(&server.url("r.git")))?;
    daemon.publish("u", view(&server.url("r.git")))?;
    reading(&[target.join("a/b"), target.join("c"), daemon.target("u").join("c")], || {
        for round in 0..6 {
            if round % 2 == 0 {
                daemon.kill()?;
            } else {
                let status = daemon.stop()?;
                ensure!(status.success(), "a graceful stop ends with {status}");
            }
            let new = fixtures::commit(&repo, "next", &[("c", &format!("{round}\n"))])?;
            daemon.restart()?;
            // What was missed is caught up with, without being asked.
            let commit = || xattr::get(daemon.target("t"), "user.git.commit").ok()?.filter(|now| now == new.as_bytes());
            wait_for("the commit that was missed", DEADLINE, || commit().map(drop))?;
            ensure!(fs::read_to_string(daemon.target("t").join("c"))? == format!("{round}\n"));
        }
        Ok(())
    })?;
    ensure!(daemon.client()?.status()?.views.len() == 1, "both targets are still one view");
    daemon.client()?.unpublish(&target)?;
    daemon.client()?.unpublish(&daemon.target("u"))?;
    ensure!(mounts_below(&daemon.state())?.is_empty());
    Ok(())
}

#[test]
fn without_a_holder_a_killed_daemons_mount_is_made_anew_and_it_is_said() -> Result<()> {
    let (_dir, server, mut daemon) = published()?;
    let target = daemon.target("t");
    daemon.kill()?;
    ensure!(fs::read(target.join("a")).is_err(), "nobody serves it");
    // The host is of no importance for that.
    server.misbehave(Fault::Silent);
    daemon.restart()?;
    ensure!(fs::read_to_string(target.join("a"))? == "one\n");
    ensure!(daemon.log()?.contains("was held by nobody: it is mounted anew"), "{}", daemon.log()?);
    let log = daemon.client()?.log(&target)?;
    ensure!(log.iter().any(|event| event.kind() == proto::event::Kind::Replaced), "{log:?}");
    Ok(())
}

#[test]
fn a_graceful_stop_without_a_holder_unmounts_everything() -> Result<()> {
    let (_dir, _server, mut daemon) = published()?;
    let target = daemon.target("t");
    let status = daemon.stop()?;
    ensure!(status.success() && !is_mounted(&target)? && mounts_below(&daemon.state())?.is_empty(), "{status}");
    ensure!(!daemon.socket().exists());
    Ok(())
}

#[test]
fn what_was_unmounted_while_no_daemon_ran_is_forgotten() -> Result<()> {
    let (_dir, server, mut daemon) = published()?;
    let target = daemon.target("t");
    daemon.kill()?;
    // As after another boot: nothing is mounted.
    for mount in mounts_below(&daemon.state())?.iter().chain([&target]) {
        nix::mount::umount2(mount, nix::mount::MntFlags::MNT_DETACH)?;
    }
    daemon.restart()?;
    ensure!(daemon.client()?.status()?.views.is_empty());
    ensure!(fs::read_dir(daemon.state().join("views"))?.next().is_none());
    daemon.publish("t", view(&server.url("r.git")))?;
    ensure!(fs::read_to_string(target.join("a"))? == "one\n");
    Ok(())
}

#[test]
fn one_daemon_uses_a_state_directory() -> Result<()> {
    let daemon = Daemon::start(&[])?;
    let (state, other) = (daemon.state(), daemon.account().home().join("other.sock"));
    let args = ["daemon".as_ref(), "--state".as_ref(), state.as_os_str(), "--socket".as_ref(), other.as_os_str()];
    daemon.account().refused(args, 2, &["another daemon", "state"])?;
    Ok(())
}
