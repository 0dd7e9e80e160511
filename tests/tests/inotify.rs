//! `--notify inotify`: watchers see a changed file being closed after writing, and nobody can write.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::mount::{Account, is_mounted};
use gitmount_tests::run::{command, run, wait_for};
use gitmount_tests::scratch;
use gitmount_tests::upstream::{MAIN, Upstream, put};
use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

const SOON: Duration = Duration::from_secs(20);

fn watch(dirs: &[std::path::PathBuf]) -> Result<Inotify> {
    let watcher = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    for dir in dirs {
        watcher.add_watch(dir, AddWatchFlags::IN_CLOSE_WRITE | AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB)?;
    }
    Ok(watcher)
}

/// The names of the events so far.
fn names(watcher: &Inotify) -> Result<BTreeSet<String>> {
    match watcher.read_events() {
        Ok(events) => {
            ensure!(events.iter().all(|e| e.mask == AddWatchFlags::IN_CLOSE_WRITE), "{events:?}");
            Ok(events.into_iter().filter_map(|e| Some(e.name?.to_string_lossy().into_owned())).collect())
        }
        Err(Errno::EAGAIN) => Ok(BTreeSet::new()),
        Err(error) => Err(error.into()),
    }
}

fn wait_for_names(watcher: &Inotify, expected: &[&str]) -> Result<()> {
    let mut seen = BTreeSet::new();
    wait_for("the events", SOON, || {
        seen.extend(names(watcher).unwrap_or_default());
        (seen.len() >= expected.len()).then_some(())
    })?;
    ensure!(seen.iter().eq(expected), "{seen:?}, not {expected:?}");
    Ok(())
}

#[test]
fn watchers_are_told_of_each_changed_file() -> Result<()> {
    scratch::require_root()?;
    let upstream = Upstream::new(|import| {
        put(import, &[("a", "1"), ("same", "1"), ("gone", "1"), ("d/changed", "1"), ("d/same", "1"), ("d/e/deep", "1"), ("turns", "1")])
    })?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &["--notify", "inotify"])?;
    // Nothing is known to the kernel but the watched directories; another watcher looks through a bind mount, as a pod does.
    let other = account.mount_point()?;
    nix::mount::mount(Some(mounted.path()), &other, None::<&str>, nix::mount::MsFlags::MS_BIND, None::<&str>)?;
    let (root, below) = (watch(&[mounted.path().to_owned()])?, watch(&[other.join("d"), other.join("d/e")])?);
    upstream.move_on(&mounted, |import| {
        put(import, &[("a", "2"), ("new", "1"), ("d/changed", "2"), ("d/e/deep", "2"), ("d/e/new", "")])?;
        import.delete(b"gone")?.delete(b"turns")?.file(b"turns/inside", "1")?;
        Ok(())
    })?;
    wait_for_names(&root, &["a", "new"])?;
    wait_for_names(&below, &["changed", "deep", "new"])?;
    compare::against_both(mounted.path(), &upstream.repo, MAIN)?;
    let inside = watch(&[other.join("turns")])?;
    upstream.move_on(&mounted, |import| put(import, &[("turns/inside", "2"), ("d/same", "2")]))?;
    wait_for_names(&inside, &["inside"])?;
    wait_for_names(&below, &["same"])?;
    ensure!(names(&root)?.is_empty());
    nix::mount::umount2(&other, nix::mount::MntFlags::MNT_DETACH)?;
    mounted.unmount()?;
    account.wait_until_idle()
}

#[test]
fn nobody_can_write_whatever_is_remounted() -> Result<()> {
    scratch::require_root()?;
    let upstream = Upstream::new(|import| put(import, &[("a", "first content"), ("d/b", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &["--notify", "inotify"])?;
    ensure!(nix::sys::statvfs::statvfs(mounted.path())?.flags().contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
    for remount in [None, Some("remount,rw"), Some("remount,bind,rw")] {
        if let Some(options) = remount {
            // Root may; what matters is what a write gives then.
            run(command("mount").args(["-o", options]).arg(mounted.path()))?;
        }
        let erofs = |result: std::io::Result<()>, what: &str| {
            let errno = result.as_ref().err().and_then(std::io::Error::raw_os_error);
            ensure!(errno == Some(Errno::EROFS as i32), "{what} gave {result:?} with {remount:?}");
            Ok(())
        };
        let write = || {
            let mut file = OpenOptions::new().write(true).open(mounted.join("a"))?;
            std::io::Write::write_all(&mut file, b"x")
        };
        erofs(write(), "writing")?;
        erofs(fs::write(mounted.join("a"), ""), "truncating")?;
        erofs(fs::write(mounted.join("new"), ""), "creating")?;
        erofs(fs::remove_file(mounted.join("a")), "removing")?;
        erofs(fs::create_dir(mounted.join("dir")), "making a directory")?;
        erofs(fs::rename(mounted.join("a"), mounted.join("d/a")), "renaming")?;
        ensure!(mounted.text("a")? == "first content");
    }
    compare::against_both(mounted.path(), &upstream.repo, MAIN)
}

#[test]
fn it_ends_with_its_mount_whoever_unmounts_it() -> Result<()> {
    scratch::require_root()?;
    let upstream = Upstream::new(|import| put(import, &[("a", "1")]))?;
    for program in [&["umount"][..], &["umount", "--lazy"], &["fusermount3", "-u"]] {
        let account = Account::new()?;
        let mounted = account.mount(&upstream.url(), &["--notify", "inotify"])?;
        upstream.move_on(&mounted, |import| put(import, &[("a", program.join(" ").as_str())]))?;
        run(command(program[0]).args(&program[1..]).arg(mounted.path()))?.success()?;
        ensure!(!is_mounted(mounted.path())?);
        account.wait_until_idle()?;
    }
    Ok(())
}

#[test]
fn without_it_there_are_no_events() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let watcher = watch(&[mounted.path().to_owned()])?;
    upstream.switch(&mounted, |import| put(import, &[("a", "2"), ("b", "1")]))?;
    ensure!(names(&watcher)?.is_empty());
    Ok(())
}

#[test]
fn it_is_refused_to_users_other_than_root() -> Result<()> {
    let account = Account::unprivileged()?;
    let dir = account.mount_point()?;
    account.refused(["mount", "--notify", "inotify", "https://example.com/r", &dir.to_string_lossy()], 2, &["--notify inotify", "root"])?;
    Ok(())
}
