//! Mounts of the daemon that somebody else unmounts: what is left goes on, status says what is gone, and a publish puts it right.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::mount_table;
use gitmount_tests::daemon::{Daemon, through, token, view};
use gitmount_tests::fixtures;
use gitmount_tests::mount::mounts_below;
use gitmount_tests::run::{DEADLINE, wait_for};
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use nix::mount::{MntFlags, umount2};
use tempfile::TempDir;

fn served() -> Result<(TempDir, HttpServer)> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n"), ("d/b", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    Ok((dir, server))
}

fn shows(target: &Path) -> bool {
    fs::read_to_string(target.join("a")).is_ok_and(|text| text == "one\n")
}

/// Where the daemon itself has its one view.
fn point(daemon: &Daemon) -> Result<PathBuf> {
    let mut points = mounts_below(&daemon.state())?;
    ensure!(points.len() == 1, "{points:?}");
    points.pop().context("one")
}

fn detach(mount: &Path) -> Result<()> {
    Ok(umount2(mount, MntFlags::MNT_DETACH)?)
}

/// What is gone is said in one sentence that names it and what helps, in all forms of the status.
fn is_told(daemon: &Daemon, at: &Path, gone: &Path) -> Result<()> {
    let said = daemon.view(at)?;
    ensure!(said.state() == proto::State::Unmounted && said.error.contains(gone.to_str().context("UTF-8")?), "{said:?}");
    ensure!(said.error.contains("mount it again") || said.error.contains("again to put it back"), "{said:?}");
    let table = through(daemon, &["status"])?.success()?.out();
    ensure!(table.contains("unmounted") && table.contains(&said.error), "{table}");
    let json = through(daemon, &["status", "--output", "json"])?.success()?;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout)?;
    ensure!(json[0]["state"] == "unmounted" && json[0]["error"] == said.error.as_str(), "{json}");
    Ok(())
}

/// Waits until the daemon has seen the end of its connection: before, it knows only of the target that is gone.
fn has_ended(daemon: &Daemon, target: &Path) -> Result<()> {
    let seen = || daemon.view(target).is_ok_and(|view| view.error.contains("ended from outside")).then_some(());
    wait_for("the daemon's notice of its mount's end", DEADLINE, seen)
}

#[test]
fn status_says_what_was_unmounted_and_a_publish_heals_it() -> Result<()> {
    let (_dir, server) = served()?;
    let daemon = Daemon::start(&[])?;
    let (a, b, url) = (daemon.target("a"), daemon.target("b"), server.url("r.git"));
    let mut client = daemon.client()?;
    client.publish(&a, view(&url), None)?;
    client.publish(&b, view(&url), None)?;
    let well = |daemon: &Daemon| -> Result<()> {
        for target in [&a, &b] {
            ensure!(daemon.view(target)?.state() == proto::State::Ok && daemon.view(target)?.error.is_empty() && shows(target));
        }
        ensure!(daemon.client()?.status()?.views.len() == 1, "still one view");
        Ok(())
    };
    well(&daemon)?;
    // A target alone.
    detach(&b)?;
    is_told(&daemon, &b, &b)?;
    ensure!(shows(&a));
    ensure!(!client.publish(&b, view(&url), None)?.again);
    well(&daemon)?;
    // The daemon's own alone: what is shown goes on, and the next publish puts it back, whichever it is.
    for name in ["a", "c"] {
        let own = point(&daemon)?;
        detach(&own)?;
        is_told(&daemon, &a, &own)?;
        ensure!(shows(&a) && shows(&b));
        client.publish(&daemon.target(name), view(&url), None)?;
        ensure!(point(&daemon)? == own && shows(&daemon.target(name)));
        well(&daemon)?;
    }
    client.unpublish(&daemon.target("c"))?;
    // Everything.
    for gone in [point(&daemon)?, a.clone(), b.clone()] {
        detach(&gone)?;
    }
    has_ended(&daemon, &a)?;
    is_told(&daemon, &a, &a)?;
    client.publish(&a, view(&url), None)?;
    client.publish(&b, view(&url), None)?;
    well(&daemon)?;
    // By force, which ends it for everybody.
    let _ = umount2(&b, MntFlags::MNT_FORCE);
    ensure!(fs::read_dir(a.join("d")).is_err(), "it is dead");
    has_ended(&daemon, &a)?;
    is_told(&daemon, &a, &a)?;
    client.publish(&a, view(&url), None)?;
    client.publish(&b, view(&url), None)?;
    well(&daemon)?;
    // What is gone can be ended, too.
    detach(&b)?;
    for target in [&b, &a] {
        through(&daemon, &["unmount", target.to_str().context("UTF-8")?])?.success()?;
    }
    ensure!(daemon.client()?.status()?.views.is_empty() && mounts_below(&daemon.state())?.is_empty());
    Ok(())
}

/// A volume whose login only its first target brought.
#[test]
fn who_does_not_know_the_secret_gets_what_was_unmounted_only_from_who_does() -> Result<()> {
    let (_dir, server) = served()?;
    server.require_login("user", "secret");
    let mut daemon = Daemon::held(&[])?;
    let request = |target: &Path, credential: Option<proto::Credential>| proto::PublishRequest {
        target: target.as_os_str().as_bytes().to_vec(),
        view: Some(view(&server.url("r.git"))),
        keep_credential: credential.is_none(),
        credential,
        volume: Some(proto::Volume { name: "v".into(), namespace: "n".into(), ..Default::default() }),
        one_credential: true,
        ..Default::default()
    };
    let login = || Some(token("user", "secret"));
    let (a, b, c, d) = (daemon.target("a"), daemon.target("b"), daemon.target("c"), daemon.target("d"));
    daemon.client()?.publish_with(request(&a, login()))?;
    // From a target that is still there.
    detach(&point(&daemon)?)?;
    daemon.client()?.publish_with(request(&b, None))?;
    ensure!(shows(&b) && daemon.client()?.status()?.views.len() == 1);
    // With the login that the daemon knows.
    for gone in [point(&daemon)?, a.clone(), b.clone()] {
        detach(&gone)?;
    }
    daemon.client()?.publish_with(request(&c, None))?;
    ensure!(shows(&c));
    for target in [&a, &b] {
        daemon.client()?.unpublish(target)?;
    }
    // After a restart it knows none.
    daemon.kill()?;
    daemon.restart()?;
    ensure!(daemon.view(&c)?.state() == proto::State::Waiting);
    detach(&point(&daemon)?)?;
    daemon.client()?.publish_with(request(&d, None))?;
    ensure!(shows(&d), "a target that is there suffices");
    for gone in [point(&daemon)?, c.clone(), d.clone()] {
        detach(&gone)?;
    }
    let said = daemon.client()?.publish_with(request(&daemon.target("e"), None)).err().context("nobody knows the login")?.to_string();
    ensure!(said.contains("Refused") && said.contains("publish it again with its credential"), "{said}");
    ensure!(!daemon.target("e").exists());
    daemon.client()?.publish_with(request(&c, login()))?;
    daemon.client()?.publish_with(request(&daemon.target("e"), None))?;
    ensure!(shows(&c) && shows(&daemon.target("e")));
    Ok(())
}

/// Whatever is unmounted at whatever moment, a publish that works shows the tree.
#[test]
fn a_publish_never_shows_the_empty_directory_of_what_is_unmounted_meanwhile() -> Result<()> {
    let (_dir, server) = served()?;
    let (daemon, url) = (Daemon::start(&[])?, server.url("r.git"));
    let (stop, state) = (AtomicBool::new(false), daemon.state());
    std::thread::scope(|scope| {
        let unmounting = scope.spawn(|| {
            let mut times = 0;
            while !stop.load(Ordering::SeqCst) {
                for point in mounts_below(&state).unwrap_or_default() {
                    times += usize::from(detach(&point).is_ok());
                }
            }
            times
        });
        let outcome = (|| -> Result<usize> {
            let mut worked = 0;
            for round in 0..60 {
                let target = daemon.target(&format!("t{round}"));
                match daemon.client()?.publish(&target, view(&url), None) {
                    Ok(_) => worked += 1,
                    Err(error) => {
                        let said = error.to_string();
                        ensure!(said.contains("was unmounted") || said.contains("cannot be mounted"), "{said}");
                        ensure!(!target.exists(), "a failure leaves a directory");
                        continue;
                    }
                }
                let there = mount_table::at(&target)?.context("it is mounted")?;
                ensure!(there.is_gitmount() && shows(&target), "round {round} shows {there:?}");
                if round % 3 == 0 {
                    daemon.client()?.unpublish(&target)?;
                }
            }
            Ok(worked)
        })();
        stop.store(true, Ordering::SeqCst);
        let times = unmounting.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
        let worked = outcome?;
        eprintln!("{times} unmounts, {worked} of 60 publishes worked");
        ensure!(times > 0, "nothing was unmounted");
        Ok(())
    })?;
    for round in 0..60 {
        daemon.client()?.unpublish(&daemon.target(&format!("t{round}")))?;
    }
    ensure!(daemon.client()?.status()?.views.is_empty() && mounts_below(&daemon.state())?.is_empty());
    Ok(())
}

#[test]
fn a_restart_keeps_the_targets_of_what_was_unmounted_in_the_state_directory() -> Result<()> {
    let (_dir, server) = served()?;
    let url = server.url("r.git");
    for held in [true, false] {
        for notify in ["none", "inotify"] {
            let mut daemon = if held { Daemon::held(&[])? } else { Daemon::start(&[])? };
            let spec = proto::ViewSpec { notify: notify.into(), ..view(&url) };
            let (a, b) = (daemon.target("a"), daemon.target("b"));
            daemon.publish("a", spec.clone())?;
            daemon.publish("b", spec.clone())?;
            // The kernel then knows that the end of a file needs nobody: of what is open a program that is started has copies, and ends them.
            ensure!(shows(&a));
            let open = fs::File::open(a.join("a"))?;
            let device = mount_table::at(&a)?.context("a is mounted")?.device;
            detach(&point(&daemon)?)?;
            daemon.kill()?;
            daemon.restart()?;
            ensure!(shows(&a) && shows(&b), "held: {held}, {notify}");
            if held {
                ensure!(std::io::read_to_string(&open)? == "one\n", "what was open goes on");
                ensure!(mount_table::at(&a)?.context("a is mounted")?.device == device, "the live mount was replaced");
            }
            drop(open);
            let mut client = daemon.client()?;
            ensure!(daemon.view(&a)?.state() == proto::State::Ok, "{:?}", daemon.view(&a)?);
            // Who may share what is shown is known once it was fetched.
            client.pull(&a)?;
            client.publish(&daemon.target("c"), spec, None)?;
            ensure!(client.status()?.views.len() == 1 && shows(&daemon.target("c")));
            for name in ["a", "b", "c"] {
                client.unpublish(&daemon.target(name))?;
            }
            ensure!(mounts_below(&daemon.state())?.is_empty());
        }
    }
    Ok(())
}
