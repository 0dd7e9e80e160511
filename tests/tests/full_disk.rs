//! A full disk fails a fetch with a clear sentence; what is mounted goes on, and with space the next fetch works.

use anyhow::{Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, big, content};
use gitmount_tests::mount::Account;
use gitmount_tests::scratch::{self, SmallDisk};
use gitmount_tests::servers::daemon::GitDaemon;

const MIB: u64 = 1 << 20;

#[test]
fn a_first_fetch_that_does_not_fit() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let server = GitDaemon::serve(repo.path().parent().unwrap_or(repo.path()))?;
    let disk = SmallDisk::new(4 * MIB)?;
    let mut account = Account::new()?;
    account.set_store(disk.path().join("store"));
    let url = server.url("content.git");
    let dir = account.mount_point()?;
    account.refused(["mount", &url, &dir.to_string_lossy()], 1, &["space", "store"])?;
    ensure!(account.leftovers()?.is_empty(), "{:?}", account.leftovers()?);

    disk.resize(64 * MIB)?;
    let mounted = account.mount(&url, &[])?;
    compare::against_both(mounted.path(), &repo, "HEAD")?;
    mounted.unmount()?;
    account.wait_until_idle()
}

#[test]
fn a_pull_that_does_not_fit() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "1\n"), ("d/b", "1\n")])?;
    let server = GitDaemon::serve(dir.path())?;
    let disk = SmallDisk::new(4 * MIB)?;
    let mut account = Account::new()?;
    account.set_store(disk.path().join("store"));
    let mounted = account.mount(&server.url("r.git"), &["--pull", "never"])?;
    let old = mounted.commit()?;
    let noise: String = content::noise(8 << 20).iter().map(|byte| format!("{byte:02x}")).collect();
    let new = fixtures::commit(&repo, "too big", &[("a", "2\n"), ("noise", &noise)])?;
    account.refused(["pull".as_ref(), mounted.path().as_os_str()], 1, &["space"])?;
    ensure!(mounted.commit()? == old && account.leftovers()?.is_empty(), "{:?}", account.leftovers()?);
    compare::against_both(mounted.path(), &repo, &old)?;

    disk.resize(64 * MIB)?;
    mounted.pull()?;
    ensure!(mounted.commit()? == new);
    compare::against_both(mounted.path(), &repo, &new)?;
    mounted.unmount()?;
    account.wait_until_idle()
}

#[test]
fn a_big_file_that_cannot_be_spooled_fails_alone() -> Result<()> {
    let repo = fixtures::get("big", big::big)?;
    let server = GitDaemon::serve(repo.path().parent().unwrap_or(repo.path()))?;
    // Room for the packed file, not for the file.
    let disk = SmallDisk::new(64 * MIB)?;
    let mut account = Account::new()?;
    account.set_store(disk.path().join("store"));
    let mounted = account.mount(&server.url("big.git"), &[])?;
    let failed = std::fs::read(mounted.join("big")).err().and_then(|e| e.raw_os_error());
    ensure!(failed == Some(nix::errno::Errno::ENOSPC as i32) || failed == Some(nix::errno::Errno::EIO as i32), "{failed:?}");
    ensure!(mounted.text("small")? == "beside a big one\n");
    disk.resize(2048 * MIB)?;
    let (size, _) = compare::digest(std::fs::File::open(mounted.join("big"))?)?;
    ensure!(size == big::BIG);
    mounted.unmount()?;
    account.wait_until_idle()
}
