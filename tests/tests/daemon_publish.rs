//! A daemon shows views at targets: any number of targets, one fetch, one mount; every call may be repeated.

use std::fs;

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::daemon::{Daemon, resources, through, view};
use gitmount_tests::fixtures::{self, refs};
use gitmount_tests::mount::{is_mounted, mounts_below};
use gitmount_tests::run::wait_for;
use gitmount_tests::servers::http::HttpServer;

fn server() -> Result<HttpServer> {
    let repo = fixtures::get("refs", refs::refs)?;
    HttpServer::plain(repo.path().parent().context("a fixture lies in a directory")?)
}

#[test]
fn a_view_is_shown_at_a_target_that_is_made_and_goes_with_it() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let target = daemon.target("a");
    let published = daemon.publish("a", view(&server.url("refs.git")))?;
    ensure!(!published.again && published.stale.is_empty(), "{published:?}");
    ensure!(fs::read_to_string(target.join("which"))? == "main\n");
    let commit = xattr::get(&target, "user.git.commit")?.context("the root says its commit")?;
    ensure!(commit == published.commit.as_bytes());
    let options = fs::read_to_string("/proc/self/mounts")?;
    let line = options.lines().find(|line| line.contains(target.to_str().unwrap_or_default())).context("it is in the table")?;
    ensure!(["ro", "nosuid", "nodev"].iter().all(|option| line.contains(option)), "{line}");
    daemon.client()?.unpublish(&target)?;
    ensure!(!target.exists(), "the daemon made the directory and removes it");
    Ok(())
}

#[test]
fn a_directory_that_was_there_stays() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let target = daemon.target("a");
    fs::create_dir(&target)?;
    daemon.publish("a", view(&server.url("refs.git")))?;
    daemon.client()?.unpublish(&target)?;
    ensure!(target.is_dir() && !is_mounted(&target)?);
    Ok(())
}

#[test]
fn ten_targets_of_equal_views_are_one_mount_and_one_fetch() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let url = server.url("refs.git");
    let results: Vec<Result<_>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..10)
            .map(|n| {
                scope.spawn({
                    let (daemon, url) = (&daemon, &url);
                    move || daemon.publish(&format!("t{n}"), view(url))
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().map_err(|_| anyhow::anyhow!("a publish panicked"))?).collect()
    });
    results.into_iter().collect::<Result<Vec<_>>>()?;
    let fetches = server.requests().iter().filter(|asked| asked.fetch).count();
    ensure!(fetches == 1, "ten targets fetched {fetches} times");
    let status = daemon.client()?.status()?;
    ensure!(status.views.len() == 1 && status.views[0].mounts.len() == 10, "{status:?}");
    let devices: std::collections::BTreeSet<u64> =
        (0..10).map(|n| Ok(std::os::unix::fs::MetadataExt::dev(&fs::metadata(daemon.target(&format!("t{n}")))?))).collect::<Result<_>>()?;
    ensure!(devices.len() == 1, "ten targets are {} file systems", devices.len());
    for n in 0..9 {
        daemon.client()?.unpublish(&daemon.target(&format!("t{n}")))?;
    }
    ensure!(fs::read_to_string(daemon.target("t9").join("which"))? == "main\n");
    Ok(())
}

#[test]
fn unpublish_leaves_no_mount_no_thread_and_no_descriptor() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let url = server.url("refs.git");
    // The first round opens what stays for the daemon's life.
    daemon.publish("warm", view(&url))?;
    daemon.client()?.unpublish(&daemon.target("warm"))?;
    let quiet = || {
        wait_for("the end of the helper threads", std::time::Duration::from_secs(20), || {
            let (threads, descriptors) = resources(daemon.pid().ok()?).ok()?;
            threads.iter().all(|name| !name.starts_with("fuse") && name != "fetch" && name != "ending").then_some(descriptors)
        })
    };
    let before = quiet()?;
    for round in 0..5 {
        let name = format!("t{round}");
        daemon.publish(&name, view(&url))?;
        fs::read(daemon.target(&name).join("which"))?;
        daemon.client()?.unpublish(&daemon.target(&name))?;
    }
    wait_for("the daemon's descriptors to be as before", std::time::Duration::from_secs(20), || (quiet().ok()? <= before).then_some(()))?;
    ensure!(mounts_below(&daemon.state())?.is_empty(), "a mount is left");
    ensure!(fs::read_dir(daemon.state().join("views"))?.next().is_none(), "a record is left");
    Ok(())
}

#[test]
fn the_same_again_is_fine_and_another_view_is_refused() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let url = server.url("refs.git");
    let first = daemon.publish("a", view(&url))?;
    let again = daemon.publish("a", view(&url))?;
    ensure!(again.again && again.commit == first.commit);
    let other = daemon.publish("a", proto::ViewSpec { r#ref: "orphan".into(), ..view(&url) });
    let said = other.err().context("another view at the same target is refused")?.to_string();
    ensure!(said.contains("Usage") && said.contains("unpublish it first"), "{said}");
    ensure!(fs::read_to_string(daemon.target("a").join("which"))? == "main\n");
    Ok(())
}

#[test]
fn what_is_not_there_is_unpublished_too() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let mut client = daemon.client()?;
    client.unpublish(&daemon.target("never"))?;
    client.unpublish(&daemon.target("no/parent"))?;
    let target = daemon.target("a");
    daemon.publish("a", view(&server.url("refs.git")))?;
    let open = fs::File::open(target.join("which"))?;
    client.unpublish(&target)?;
    client.unpublish(&target)?;
    // Who has it open reads on.
    let mut text = String::new();
    std::io::Read::read_to_string(&mut { open }, &mut text)?;
    ensure!(text == "main\n");
    Ok(())
}

#[test]
fn a_mount_that_somebody_took_away_is_replaced() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let (target, url) = (daemon.target("a"), server.url("refs.git"));
    daemon.publish("a", view(&url))?;
    nix::mount::umount2(&target, nix::mount::MntFlags::MNT_DETACH)?;
    let published = daemon.publish("a", view(&url))?;
    ensure!(!published.again && fs::read_to_string(target.join("which"))? == "main\n");
    Ok(())
}

#[test]
fn what_somebody_unmounted_is_never_shown_as_an_empty_directory() -> Result<()> {
    let server = server()?;
    let shows = |daemon: &Daemon, name| fs::read_to_string(daemon.target(name).join("which")).is_ok_and(|text| text == "main\n");
    for targets in [false, true] {
        let daemon = Daemon::start(&[])?;
        let published = |name| -> Result<bool> {
            daemon.publish(name, view(&server.url("refs.git")))?;
            Ok(shows(&daemon, name))
        };
        ensure!(published("a")? && published("b")?);
        let mut gone = mounts_below(&daemon.state())?;
        ensure!(gone.len() == 1, "both targets are one view: {gone:?}");
        if targets {
            gone.extend([daemon.target("a"), daemon.target("b")]);
        }
        for mount in &gone {
            nix::mount::umount2(mount, nix::mount::MntFlags::MNT_DETACH)?;
        }
        for name in ["c", "a", "b"] {
            ensure!(published(name)?, "{name} is empty after {gone:?} were unmounted");
        }
        for name in ["a", "b", "c"] {
            daemon.client()?.unpublish(&daemon.target(name))?;
        }
        ensure!(daemon.client()?.status()?.views.is_empty() && mounts_below(&daemon.state())?.is_empty());
    }
    Ok(())
}

#[test]
fn a_wrong_value_is_refused_by_its_name() -> Result<()> {
    let daemon = Daemon::start(&[])?;
    for (bad, word) in [
        (view("ftp://example.com/a.git"), "url"),
        (proto::ViewSpec { depth: "x".into(), ..view("https://example.com/a.git") }, "depth"),
        (proto::ViewSpec { pull: "often".into(), ..view("https://example.com/a.git") }, "pull"),
    ] {
        let said = daemon.publish("a", bad).err().context("it is refused")?.to_string();
        ensure!(said.contains("Usage") && said.contains(word), "{said}");
    }
    ensure!(!daemon.target("a").exists(), "a refused publish leaves no directory");
    Ok(())
}

#[test]
fn the_command_line_goes_through_the_daemon() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let dir = daemon.target("cli");
    fs::create_dir(&dir)?;
    let dir = dir.to_str().context("the target's path is UTF-8")?;
    through(&daemon, &["mount", "--ref", "main", &server.url("refs.git"), dir])?.success()?;
    ensure!(fs::read_to_string(daemon.target("cli").join("which"))? == "main\n");
    let status = through(&daemon, &["status"])?.success()?.out();
    ensure!(status.contains(dir) && status.contains("ok"), "{status}");
    let pulled = through(&daemon, &["pull", dir])?.success()?.out();
    ensure!(pulled.contains("nothing new"), "{pulled}");
    let log = through(&daemon, &["log", dir])?.success()?.out();
    ensure!(log.contains("published"), "{log}");
    let verified = through(&daemon, &["verify", dir])?.success()?.out();
    ensure!(verified.contains("all are well"), "{verified}");
    daemon.account().refused(["verify", dir], 1, &["--socket"])?;
    through(&daemon, &["unmount", dir])?.success()?;
    ensure!(!is_mounted(&daemon.target("cli"))?);
    let refused = through(&daemon, &["mount", ".", dir])?;
    ensure!(refused.code() == 2 && refused.err().contains("local path"), "{}", refused.err());
    Ok(())
}

#[test]
fn the_certificates_of_a_whole_system_fit_into_a_message() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let ca_crt = "# a line of a bundle, which is as long as all the others are\n".repeat(16 << 10);
    ensure!(ca_crt.len() > 900 << 10);
    let credential = proto::Credential { kind: None, ca_crt };
    // It is read whole, and then found to be no certificate.
    let refused = daemon.client()?.publish(&daemon.target("a"), view(&server.url("refs.git")), Some(credential));
    let said = refused.err().context("comments are no certificate")?.to_string();
    ensure!(said.contains("Usage") && said.contains("ca.crt is no PEM certificate"), "{said}");
    Ok(())
}

#[test]
fn a_repository_is_dropped_when_nothing_shows_it() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let url = server.url("refs.git");
    daemon.publish("a", view(&url))?;
    daemon.account().refused(["gc", "--drop", &url], 2, &["in use", "unmount"])?;
    daemon.client()?.unpublish(&daemon.target("a"))?;
    let drop = || daemon.account().run(["gc", "--drop", &url]).ok().filter(|finished| finished.code() == 0);
    wait_for("the daemon to let go of the repository", std::time::Duration::from_secs(20), drop)?;
    daemon.account().refused(["gc", "--drop", &url], 3, &["not in the store"])?;
    daemon.publish("a", view(&url))?;
    ensure!(fs::read_to_string(daemon.target("a").join("which"))? == "main\n");
    Ok(())
}

#[test]
fn a_view_that_raises_inotify_events_is_read_only_at_its_targets() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let target = daemon.target("a");
    daemon.publish("a", proto::ViewSpec { notify: "inotify".into(), ..view(&server.url("refs.git")) })?;
    for attempt in [fs::write(target.join("which"), "x"), fs::write(target.join("new"), "x"), fs::create_dir(target.join("d"))] {
        ensure!(attempt.is_err_and(|error| error.kind() == std::io::ErrorKind::ReadOnlyFilesystem));
    }
    ensure!(fs::read_to_string(target.join("which"))? == "main\n");
    daemon.client()?.unpublish(&target)?;
    ensure!(mounts_below(&daemon.state())?.is_empty());
    Ok(())
}
