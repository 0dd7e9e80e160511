//! A daemon whose disk is full goes on serving, says which disk it is, and works again by itself once there is space.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::compare;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures::{self, content};
use gitmount_tests::import::{Import, Mode};
use gitmount_tests::mount::{Account, is_mounted, mounts_below};
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch::{self, SmallDisk};
use gitmount_tests::servers::daemon::GitDaemon;

const MIB: u64 = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(30);

/// Takes all that is left of a disk until it is dropped.
struct Filler(PathBuf);

impl Filler {
    fn new(disk: &SmallDisk) -> Result<Self> {
        let filler = Filler(disk.path().join("filler"));
        let mut file = File::create(&filler.0)?;
        let failed = std::io::copy(&mut std::io::repeat(1), &mut file).err().context("a small disk has an end")?;
        ensure!(failed.kind() == std::io::ErrorKind::StorageFull, "{failed}");
        Ok(filler)
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // The disk goes next.
        let _ = fs::remove_file(&self.0);
    }
}

fn says(text: &str, words: &[&str]) -> Result<()> {
    for word in words {
        ensure!(text.contains(word), "{word:?} is missing in {text:?}");
    }
    Ok(())
}

fn noise(bytes: usize) -> String {
    content::noise(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_fetch_that_does_not_fit() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "1\n"), ("d/b", "1\n")])?;
    fixtures::small(&dir.path().join("big.git"), &[("noise", &noise(8 << 20))])?;
    let server = GitDaemon::serve(dir.path())?;
    let disk = SmallDisk::new(4 * MIB)?;
    let mut account = Account::new()?;
    account.set_store(disk.path().join("store"));
    let mut daemon = Daemon::new(account, &[])?.with_state(disk.path().join("state"));
    daemon.restart()?;
    let (mut client, target) = (daemon.client()?, daemon.target("t"));
    let old = client.publish(&target, view(&server.url("r.git")), None)?.commit;
    let new = fixtures::commit(&repo, "too big", &[("a", "2\n"), ("noise", &noise(8 << 20))])?;

    let store = daemon.account().store().to_string_lossy().into_owned();
    let refused = client.pull(&target).err().context("it does not fit")?.to_string();
    says(&refused, &["Disk", "space", &store])?;
    let shown = daemon.view(&target)?;
    ensure!(shown.commit == old && shown.state() == proto::State::Failing, "{shown:?}");
    says(&shown.error, &["space", &store])?;
    says(&daemon.log()?, &["the fetch failed", "no space is left", &store])?;
    compare::against_both(&target, &repo, &old)?;
    let refused = daemon.publish("u", view(&server.url("big.git"))).err().context("it does not fit")?.to_string();
    says(&refused, &["Disk", "space", &store])?;
    ensure!(!daemon.target("u").exists() && daemon.account().leftovers()?.is_empty(), "{:?}", daemon.account().leftovers()?);

    disk.resize(96 * MIB)?;
    ensure!(client.pull(&target)?.new == new);
    compare::against_both(&target, &repo, &new)?;
    ensure!(daemon.view(&target)?.error.is_empty());
    daemon.publish("u", view(&server.url("big.git")))?;
    ensure!(fs::metadata(daemon.target("u").join("noise"))?.len() == 16 << 20);
    Ok(())
}

#[test]
fn a_big_file_that_cannot_be_spooled() -> Result<()> {
    const SIZE: u64 = 40 << 20;
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("small", "1\n")])?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "A big file that packs small")?;
    import.entry_from(Mode::File, b"big", SIZE, &mut std::io::repeat(b'x'))?;
    import.finish()?;
    let server = GitDaemon::serve(dir.path())?;
    let disk = SmallDisk::new(16 * MIB)?;
    let mut account = Account::new()?;
    account.set_store(disk.path().join("store"));
    let mut daemon = Daemon::new(account, &[])?.with_state(disk.path().join("state"));
    daemon.restart()?;
    let target = daemon.target("t");
    daemon.publish("t", view(&server.url("r.git")))?;
    for _ in 0..2 {
        let failed = fs::read(target.join("big")).err().and_then(|error| error.raw_os_error());
        ensure!(failed == Some(nix::errno::Errno::ENOSPC as i32), "{failed:?}");
        ensure!(fs::read_to_string(target.join("small"))? == "1\n");
    }
    says(&daemon.log()?, &["spool", "No space left", &daemon.account().store().to_string_lossy()])?;
    let new = fixtures::commit(&repo, "next", &[("small", "2\n")])?;
    ensure!(daemon.client()?.pull(&target)?.new == new, "what was half spooled takes no space");

    disk.resize(96 * MIB)?;
    let (size, _) = compare::digest(File::open(target.join("big"))?)?;
    ensure!(size == SIZE);
    compare::against_both(&target, &repo, &new)
}

/// A daemon with a holder whose state is on a small disk, and its store elsewhere.
fn with_small_state(disk: &SmallDisk) -> Result<Daemon> {
    let mut daemon = Daemon::new(Account::new()?, &[])?.with_state(disk.path().join("state")).with_holder()?;
    daemon.restart()?;
    Ok(daemon)
}

fn many(text: &str) -> Vec<(String, String)> {
    (0..2000).map(|n| (format!("d{}/a-name-that-takes-some-space-{n}", n % 7), format!("{text} {n}\n"))).collect()
}

fn borrowed(files: &[(String, String)]) -> Vec<(&str, &str)> {
    files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect()
}

#[test]
fn a_publish_that_cannot_be_written_down() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "1\n")])?;
    let server = GitDaemon::serve(dir.path())?;
    let disk = SmallDisk::new(MIB)?;
    let daemon = with_small_state(&disk)?;
    let commit = daemon.publish("t", view(&server.url("r.git")))?.commit;
    repo.point("refs/heads/other", "refs/heads/main")?;
    let other = || proto::ViewSpec { r#ref: "other".into(), ..view(&server.url("r.git")) };

    let full = Filler::new(&disk)?;
    let state = daemon.state().to_string_lossy().into_owned();
    for _ in 0..2 {
        let refused = daemon.publish("u", other()).err().context("it cannot be written down")?.to_string();
        says(&refused, &["Disk", "No space left", &state])?;
    }
    ensure!(!daemon.target("u").exists() && mounts_below(&daemon.state())?.len() == 1, "nothing stays of it");
    compare::against_both(&daemon.target("t"), &repo, &commit)?;
    ensure!(daemon.client()?.status()?.views.len() == 1);
    drop(full);
    daemon.publish("u", other())?;
    compare::against_both(&daemon.target("u"), &repo, &commit)
}

#[test]
fn what_the_kernel_is_told_that_cannot_be_written_down() -> Result<()> {
    let dir = scratch::dir()?;
    let files = many("one");
    let repo = fixtures::small(&dir.path().join("r.git"), &borrowed(&files))?;
    let server = GitDaemon::serve(dir.path())?;
    let disk = SmallDisk::new(2 * MIB)?;
    let mut daemon = with_small_state(&disk)?;
    let target = daemon.target("t");
    let old = daemon.publish("t", view(&server.url("r.git")))?.commit;
    let open = File::open(target.join(&files[0].0))?;

    let full = Filler::new(&disk)?;
    compare::against_both(&target, &repo, &old)?;
    let new = fixtures::commit(&repo, "all other", &borrowed(&many("two")))?;
    ensure!(daemon.client()?.pull(&target)?.new == new, "it goes on following");
    compare::against_both(&target, &repo, &new)?;
    let state = daemon.state().to_string_lossy().into_owned();
    let error = daemon.view(&target)?.error;
    says(&error, &["No space left", &state])?;
    says(&daemon.log()?, &["No space left", &state])?;
    drop(full);

    wait_for("what is written down to be whole", DEADLINE, || daemon.view(&target).ok().filter(|view| view.error.is_empty()))?;
    // Which is seen when another daemon goes on with it.
    daemon.kill()?;
    daemon.restart()?;
    says(&daemon.log()?, &["a mount is served again"])?;
    ensure!(daemon.view(&target)?.commit == new);
    compare::against_both(&target, &repo, &new)?;
    ensure!(std::io::read_to_string(open)? == "one 0\n", "what was open stays as it was");
    let newest = fixtures::commit(&repo, "again other", &borrowed(&many("three")))?;
    ensure!(daemon.client()?.pull(&target)?.new == newest);
    compare::against_both(&target, &repo, &newest)
}

/// The disk is full when the daemon is killed, and still when the next one starts.
fn killed_on_a_full_disk(holder: bool) -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "1\n"), ("d/b", "1\n")])?;
    let server = GitDaemon::serve(dir.path())?;
    let disk = SmallDisk::new(4 * MIB)?;
    let mut account = Account::new()?;
    account.set_store(disk.path().join("store"));
    let mut daemon = Daemon::new(account, &[])?.with_state(disk.path().join("state"));
    if holder {
        daemon = daemon.with_holder()?;
    }
    daemon.restart()?;
    let (target, other) = (daemon.target("t"), daemon.target("u"));
    let old = daemon.publish("t", view(&server.url("r.git")))?.commit;
    daemon.publish("u", view(&server.url("r.git")))?;

    let full = Filler::new(&disk)?;
    daemon.kill()?;
    daemon.restart()?;
    ensure!(is_mounted(&target)? && is_mounted(&other)?, "what was shown goes on being shown");
    ensure!(daemon.log()?.contains(if holder { "a mount is served again" } else { "it is mounted anew" }));
    compare::against_both(&target, &repo, &old)?;
    compare::against_both(&other, &repo, &old)?;
    drop(full);

    wait_for("what is written down to be whole", DEADLINE, || daemon.view(&target).ok().filter(|view| view.error.is_empty()))?;
    daemon.kill()?;
    daemon.restart()?;
    compare::against_both(&other, &repo, &old)?;
    let new = fixtures::commit(&repo, "next", &[("a", "2\n")])?;
    ensure!(daemon.client()?.pull(&target)?.new == new);
    compare::against_both(&target, &repo, &new)?;
    let mut client = daemon.client()?;
    for target in [&target, &other] {
        client.unpublish(target)?;
    }
    ensure!(mounts_below(&daemon.state())?.is_empty() && views(&daemon.state())? == 0);
    Ok(())
}

fn views(state: &Path) -> Result<usize> {
    Ok(fs::read_dir(state.join("views"))?.count())
}

#[test]
fn a_held_daemon_is_killed_on_a_full_disk() -> Result<()> {
    killed_on_a_full_disk(true)
}

#[test]
fn a_daemon_without_a_holder_is_killed_on_a_full_disk() -> Result<()> {
    killed_on_a_full_disk(false)
}

/// What is spooled of a file that was read is there for the next read of it only: it gives way to another file, of whatever view.
#[test]
fn what_is_spooled_gives_way_to_what_is_read_now() -> Result<()> {
    const SIZE: u64 = 40 << 20;
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("small", "1\n")])?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "Big files that pack small")?;
    for (name, byte) in [("a", b'a'), ("b", b'b'), ("d/c", b'c')] {
        import.entry_from(Mode::File, name.as_bytes(), SIZE, &mut std::io::repeat(byte))?;
    }
    import.finish()?;
    let server = GitDaemon::serve(dir.path())?;
    let disk = SmallDisk::new(64 * MIB)?;
    let mut account = Account::new()?;
    account.set_store(disk.path().join("store"));
    let mut daemon = Daemon::new(account, &[])?.with_state(disk.path().join("state"));
    daemon.restart()?;
    daemon.publish("t", view(&server.url("r.git")))?;
    daemon.publish("u", proto::ViewSpec { path: b"d".to_vec(), ..view(&server.url("r.git")) })?;
    for (name, file) in [("t", "a"), ("t", "b"), ("u", "c"), ("t", "d/c")] {
        let (size, _) = compare::digest(File::open(daemon.target(name).join(file))?).with_context(|| format!("{file} in {name}"))?;
        ensure!(size == SIZE);
    }
    Ok(())
}
