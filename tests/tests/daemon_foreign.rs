//! Mounts that are none of the daemon's, at its targets and over them: they stay, it is said what is there, and nothing of ours is lost by it.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::mount_table;
use gitmount_tests::daemon::{Client, Daemon, through, view};
use gitmount_tests::fixtures::{self, refs};
use gitmount_tests::import::Import;
use gitmount_tests::mount::{Account, is_mounted, mounts_below};
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use nix::mount::{MntFlags, MsFlags, mount, umount2};

fn server() -> Result<HttpServer> {
    let repo = fixtures::get("refs", refs::refs)?;
    HttpServer::plain(repo.path().parent().context("a fixture lies in a directory")?)
}

/// A file system of somebody else's, with a file of his.
fn tmpfs(target: &Path) -> Result<()> {
    mount(Some("somebody"), target, Some("tmpfs"), MsFlags::empty(), None::<&str>)?;
    Ok(fs::write(target.join("own"), "precious")?)
}

fn is_kept(target: &Path) -> bool {
    fs::read_to_string(target.join("own")).is_ok_and(|text| text == "precious")
}

fn shows(target: &Path) -> bool {
    fs::read_to_string(target.join("which")).is_ok_and(|text| text == "main\n")
}

/// A FUSE mount whose server says nothing while the descriptor is open, and is dead afterwards.
fn silent(target: &Path, kind: &str) -> Result<OwnedFd> {
    let device = File::options().read(true).write(true).open("/dev/fuse")?;
    let data = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
    mount(Some("silence"), target, Some(kind), MsFlags::empty(), Some(data.as_str()))?;
    Ok(device.into())
}

fn device(target: &Path) -> Result<u64> {
    Ok(mount_table::at(target)?.context("something is mounted")?.device)
}

/// Nobody but who may is given it, and it is left as it is.
fn refuses(daemon: &Daemon, target: &Path, url: &str, kind: &str) -> Result<()> {
    let before = device(target)?;
    let shown = target.to_str().context("the target's path is UTF-8")?;
    let mut client = daemon.client()?;
    let said = client.publish(target, view(url), None).err().context("it is refused")?.to_string();
    ensure!(said.contains("Usage") && said.contains(shown) && said.contains(kind) && said.contains("unmount that first"), "{said}");
    let mount = through(daemon, &["mount", url, shown])?;
    ensure!(mount.code() == 2 && mount.err().contains(kind) && mount.err().lines().count() == 1, "{}", mount.err());
    client.unpublish(target)?;
    ensure!(through(daemon, &["unmount", shown])?.code() == 3, "the daemon does not know it");
    ensure!(device(target)? == before, "{kind} was taken away");
    ensure!(client.status()?.views.is_empty() && mounts_below(&daemon.state())?.is_empty(), "a refusal leaves nothing");
    Ok(())
}

#[test]
fn a_publish_onto_somebody_elses_mount_is_refused_and_leaves_it() -> Result<()> {
    let (server, daemon, other) = (server()?, Daemon::start(&[])?, Daemon::start(&[])?);
    let (url, account) = (server.url("refs.git"), Account::new()?);
    let dir = |name: &str| -> Result<PathBuf> {
        fs::create_dir(daemon.target(name))?;
        Ok(daemon.target(name))
    };
    let target = dir("tmpfs")?;
    tmpfs(&target)?;
    refuses(&daemon, &target, &url, "tmpfs")?;
    ensure!(is_kept(&target));

    let plain = account.mount(&url, &["--allow-http"])?;
    refuses(&daemon, plain.path(), &url, "gitmount mount of http")?;
    ensure!(plain.text("which")? == "main\n");

    let target = other.target("theirs");
    other.client()?.publish(&target, view(&url), None)?;
    refuses(&daemon, &target, &url, "gitmount mount of http")?;
    ensure!(shows(&target));

    for kind in ["fuse.sshfs", "fuse.gitmount", "fuse"] {
        let target = dir(kind)?;
        let served = silent(&target, kind)?;
        refuses(&daemon, &target, &url, "silence")?;
        drop(served);
        if kind == "fuse.gitmount" {
            // Nobody has any use of a dead one.
            daemon.client()?.publish(&target, view(&url), None)?;
            ensure!(shows(&target));
            daemon.client()?.unpublish(&target)?;
        } else {
            refuses(&daemon, &target, &url, "silence")?;
            umount2(&target, MntFlags::MNT_DETACH)?;
        }
    }
    Ok(())
}

#[test]
fn unmount_without_a_daemon_takes_away_what_this_user_mounted_and_nothing_else() -> Result<()> {
    let (server, daemon, account) = (server()?, Daemon::start(&[])?, Account::new()?);
    let target = daemon.target("a");
    daemon.client()?.publish(&target, view(&server.url("refs.git")), None)?;
    for lazy in [&["unmount"][..], &["unmount", "--lazy"]] {
        let args = lazy.iter().map(|arg| arg.as_ref()).chain([target.as_os_str()]);
        account.refused(args, 1, &["--socket"])?;
    }
    ensure!(shows(&target), "a daemon serves it");
    let point = account.mount_point()?;
    for kind in ["fuse.sshfs", "fuse.gitmount"] {
        let served = silent(&point, kind)?;
        let unmount = ["unmount".as_ref(), point.as_os_str()];
        ensure!(account.run(unmount)?.code() != 0 && is_mounted(&point)?, "{kind} is served");
        drop(served);
        ensure!((account.run(unmount)?.code() == 0) == (kind == "fuse.gitmount"), "only gitmount's dead mounts are its own");
        if is_mounted(&point)? {
            umount2(&point, MntFlags::MNT_DETACH)?;
        }
    }
    Ok(())
}

#[test]
fn a_plain_mount_that_something_hides_says_so_and_does_not_go() -> Result<()> {
    let (repo, account) = (fixtures::get("refs", refs::refs)?, Account::new()?);
    let mounted = account.mount(&repo.arg(), &["--ref", "main"])?;
    tmpfs(mounted.path())?;
    let status = mounted.status()?;
    ensure!(status.state == "covered" && status.error.is_some_and(|error| error.contains("tmpfs") && error.contains("`umount ")));
    for lazy in [&["unmount"][..], &["unmount", "--lazy"]] {
        let args = lazy.iter().map(|arg| arg.as_ref()).chain([mounted.path().as_os_str()]);
        account.refused(args, 2, &["hidden by a mount of type tmpfs", "umount"])?;
    }
    ensure!(is_kept(mounted.path()));
    // Also when there is nobody left who could say it.
    for id in account.processes() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), nix::sys::signal::Signal::SIGKILL)?;
    }
    account.wait_until_idle()?;
    let refused = || account.refused(["unmount".as_ref(), mounted.path().as_os_str()], 2, &["hidden by a mount of type tmpfs"]).ok();
    // Its socket may be there for a moment yet.
    wait_for("the refusal", std::time::Duration::from_secs(10), refused)?;
    ensure!(is_kept(mounted.path()));
    umount2(mounted.path(), MntFlags::empty())?;
    mounted.unmount()
}

/// What a caller of each kind gets while a tmpfs hides what is shown at `target`.
fn hidden(daemon: &Daemon, target: &Path, url: &str, over: &Path) -> Result<()> {
    let shown = target.to_str().context("the target's path is UTF-8")?;
    let said = daemon.view(target)?;
    ensure!(said.state() == proto::State::Covered, "{said:?}");
    let over = format!("`umount {}`", over.display());
    ensure!(said.error.contains(shown) && said.error.contains("tmpfs") && said.error.contains(&over), "{}", said.error);
    let status = through(daemon, &["status"])?.success()?.out();
    ensure!(status.contains("covered") && status.contains(&over), "{status}");
    for args in [&["unmount", shown][..], &["unmount", "--lazy", shown], &["mount", url, shown]] {
        let finished = through(daemon, args)?;
        ensure!(finished.code() == 2 && finished.err().contains(&over), "{args:?}: {}", finished.err());
    }
    ensure!(daemon.client()?.unpublish(target).is_err());
    ensure!(daemon.view(target)?.mounts.len() == 1, "it is shown all the same");
    Ok(())
}

#[test]
fn what_somebody_mounts_over_a_target_is_told_and_left_alone() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let url = server.url("refs.git");
    fs::create_dir(daemon.target("deep"))?;
    for (name, over) in [("t", "t"), ("deep/t", "deep")] {
        let (target, over) = (daemon.target(name), daemon.target(over));
        let mut client = daemon.client()?;
        client.publish(&target, view(&url), None)?;
        let open = File::open(&target)?;
        tmpfs(&over)?;
        hidden(&daemon, &target, &url, &over)?;
        // The pod of a volume still has it: nothing must fail there.
        ensure!(client.publish(&target, view(&url), None)?.again);
        client.pull(&target)?;
        ensure!(is_kept(&over) && fs::read_dir(format!("/proc/self/fd/{}", open.as_raw_fd()))?.count() > 0);
        umount2(&over, MntFlags::empty())?;
        ensure!(daemon.view(&target)?.state() == proto::State::Ok && shows(&target));
        drop(open);
        through(&daemon, &["unmount", target.to_str().context("UTF-8")?])?.success()?;
        ensure!(!is_mounted(&target)? && daemon.client()?.status()?.views.is_empty());
    }
    Ok(())
}

#[test]
fn the_target_of_a_pod_is_free_after_its_unpublish_whatever_lies_over_it() -> Result<()> {
    let (server, daemon) = (server()?, Daemon::start(&[])?);
    let url = server.url("refs.git");
    let mut client = daemon.client()?;
    for (published, times) in [(true, 1), (true, 3), (false, 2)] {
        let target = daemon.target("t");
        if published {
            client.publish(&target, view(&url), None)?;
        } else {
            // As after a loss of the state.
            fs::create_dir(&target)?;
        }
        for _ in 0..times {
            tmpfs(&target)?;
        }
        let dead = silent(&target, "fuse.gitmount")?;
        drop(dead);
        client.remove(&target)?;
        ensure!(!target.exists() && !is_mounted(&target)?, "published: {published}, {times} times");
    }
    // Hidden from above it cannot be reached; the call ends all the same.
    fs::create_dir(daemon.target("deep"))?;
    let target = daemon.target("deep/t");
    client.publish(&target, view(&url), None)?;
    tmpfs(&daemon.target("deep"))?;
    client.remove(&target)?;
    ensure!(client.status()?.views.is_empty() && is_kept(&daemon.target("deep")));
    umount2(&daemon.target("deep"), MntFlags::empty())?;
    client.publish(&target, view(&url), None)?;
    ensure!(shows(&target) && daemon.view(&target)?.state() == proto::State::Ok);
    client.remove(&target)?;
    client.remove(&daemon.target("deep"))?;
    ensure!(!target.exists() && mounts_below(&daemon.state())?.is_empty());
    Ok(())
}

/// With the holder the tree goes on below; without it stays dead there, and is shown anew once that can be done.
#[test]
fn what_somebody_mounted_over_a_target_outlives_daemon_and_holder() -> Result<()> {
    let server = server()?;
    let url = server.url("refs.git");
    for holder_lives in [true, false] {
        let mut daemon = Daemon::held(&[])?;
        let (target, free) = (daemon.target("t"), daemon.target("free"));
        let mut client = daemon.client()?;
        client.publish(&target, view(&url), None)?;
        client.publish(&free, view(&url), None)?;
        tmpfs(&target)?;
        // The second time what is dead below is of an older daemon than the last one.
        for _ in 0..2 {
            daemon.kill()?;
            if !holder_lives {
                daemon.kill_holder()?;
                daemon.restart_holder()?;
            }
            daemon.restart()?;
            ensure!(is_kept(&target) && shows(&free), "holder lives: {holder_lives}");
            let said = daemon.view(&target)?;
            ensure!(said.state() == proto::State::Covered && said.error.contains("`umount "), "{said:?}");
            let covered = through(&daemon, &["unmount", target.to_str().context("UTF-8")?])?;
            ensure!(covered.code() == 2 && covered.err().contains("tmpfs"), "{}", covered.err());
        }
        umount2(&target, MntFlags::empty())?;
        let mut client = daemon.client()?;
        if holder_lives {
            ensure!(shows(&target));
        } else {
            let said = daemon.view(&target)?;
            ensure!(said.state() == proto::State::Unmounted && said.error.contains("mount it again"), "{said:?}");
        }
        client.publish(&target, view(&url), None)?;
        ensure!(shows(&target) && daemon.view(&target)?.state() == proto::State::Ok);
        client.unpublish(&target)?;
        client.unpublish(&free)?;
        ensure!(!is_mounted(&target)? && mounts_below(&daemon.state())?.is_empty());
    }
    Ok(())
}

#[test]
fn dead_mounts_of_a_daemon_that_lost_its_state_are_replaced() -> Result<()> {
    let (server, mut daemon) = (server()?, Daemon::start(&[])?);
    let (url, target) = (server.url("refs.git"), daemon.target("t"));
    daemon.publish("t", view(&url))?;
    daemon.publish("u", view(&url))?;
    daemon.kill()?;
    for point in mounts_below(&daemon.state())? {
        umount2(&point, MntFlags::MNT_DETACH)?;
    }
    fs::remove_dir_all(daemon.state())?;
    daemon.restart()?;
    let mut client: Client = daemon.client()?;
    ensure!(client.status()?.views.is_empty() && is_mounted(&target)?);
    client.publish(&target, view(&url), None)?;
    ensure!(shows(&target) && mount_table::read()?.iter().filter(|entry| entry.target == target).count() == 1);
    client.remove(&daemon.target("u"))?;
    ensure!(!daemon.target("u").exists());
    client.unpublish(&target)
}

/// The only empty directories of a tree are its submodules; nothing can be made in it.
#[test]
fn a_target_inside_a_tree_is_refused_before_anybody_asks_for_it() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = gitmount_tests::git::Repo::init_bare(dir.path().join("r.git"))?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "one")?.file(b"which", "main\n")?.gitlink(b"sub", &"1".repeat(40))?;
    import.finish()?;
    let (server, daemon, account) = (HttpServer::plain(dir.path())?, Daemon::start(&[])?, Account::new()?);
    let url = server.url("r.git");
    daemon.publish("outer", view(&url))?;
    let plain = account.mount(&url, &["--allow-http"])?;
    let link = daemon.target("link");
    std::os::unix::fs::symlink(daemon.target("outer"), &link)?;
    let mut client = daemon.client()?;
    for outer in [&daemon.target("outer"), &link, plain.path()] {
        for name in ["sub", "new"] {
            let target = outer.join(name);
            let said = client.publish(&target, view(&url), None).err().context("it is refused")?.to_string();
            ensure!(said.contains("Usage") && said.contains("is inside the gitmount mount of") && said.contains("outside"), "{said}");
            let cli = through(&daemon, &["mount", &url, target.to_str().context("UTF-8")?])?;
            ensure!(cli.code() == 2 && cli.err().contains("is inside"), "{}", cli.err());
            client.unpublish(&target)?;
        }
    }
    ensure!(client.status()?.views.len() == 1 && shows(&daemon.target("outer")));
    Ok(())
}
