//! An account without rights mounts through `fusermount3`, and others cannot look in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, content};
use gitmount_tests::mount::{Account, is_mounted};
use gitmount_tests::run::{command, run};
use gitmount_tests::servers::daemon::GitDaemon;

#[test]
fn nobody_mounts_reads_pulls_and_unmounts() -> Result<()> {
    let (dir, repo) = fixtures::copy("content", content::content)?;
    let server = GitDaemon::serve(dir.path())?;
    let account = Account::unprivileged()?;
    let mounted = account.mount(&server.url("content.git"), &["--ref", "main"])?;

    // Root is another account, too: it is kept out like everybody else.
    let refused = fs::read_dir(mounted.path()).err().and_then(|e| e.raw_os_error());
    ensure!(refused == Some(nix::errno::Errno::EACCES as i32), "root can read a mount of nobody's: {refused:?}");

    let as_nobody = |script: &str| -> Result<String> {
        let nobody = nix::unistd::User::from_name("nobody")?.context("an account called nobody")?;
        let mut shell = command("sh");
        shell.args(["-ec", script]).arg(mounted.path()).uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
        Ok(run(&mut shell)?.success()?.out())
    };
    ensure!(as_nobody("cat \"$0/sizes/4096\" | wc -c; \"$0/run.sh\"; stat -c %U \"$0/run.sh\"")? == "4096\nit runs\nnobody\n");
    ensure!(as_nobody("tar -C \"$0\" -cf - . | wc -c")?.trim().parse::<u64>()? > 8 << 20);

    fixtures::commit(&repo, "news", &[("one byte", "y")])?;
    mounted.pull()?;
    ensure!(as_nobody("cat \"$0/one byte\"")? == "y");
    let path = mounted.path().to_owned();
    mounted.unmount()?;
    ensure!(!is_mounted(&path)?);
    account.wait_until_idle()
}

#[test]
fn nobody_mounts_a_local_repository() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    // The build directory may be closed to others.
    let (_dir, copy) = fixtures::copy("content", content::content)?;
    run(command("chmod").args(["-R", "a+rX"]).arg(copy.path()))?.success()?;
    let account = Account::unprivileged()?;
    let mounted = account.mount(&copy.arg(), &["--ref", "main"])?;
    ensure!(mounted.status()?.commit == repo.id("main")?);
    mounted.unmount()
}

#[test]
fn a_directory_of_somebody_else_is_no_place_to_mount() -> Result<()> {
    let (dir, _repo) = fixtures::copy("content", content::content)?;
    let server = GitDaemon::serve(dir.path())?;
    let account = Account::unprivileged()?;
    let roots = tempfile::Builder::new().permissions(fs::Permissions::from_mode(0o755)).tempdir()?;
    let ended = account.run(["mount", &server.url("content.git"), &roots.path().to_string_lossy()])?;
    ensure!(ended.code() == 2 && ended.err().contains("give a directory of your own"), "{} {}", ended.code(), ended.err());
    ensure!(!is_mounted(roots.path())?);
    account.wait_until_idle()
}

#[test]
fn allow_other_needs_the_systems_consent() -> Result<()> {
    let consent = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    let repo = fixtures::get("content", content::content)?;
    let root = Account::new()?;
    let mounted = root.mount(&repo.arg(), &["--allow-other"])?;
    let nobody = nix::unistd::User::from_name("nobody")?.context("an account called nobody")?;
    let mut list = command("cat");
    list.arg(mounted.join("one byte")).uid(nobody.uid.as_raw()).gid(nobody.gid.as_raw());
    ensure!(run(&mut list)?.success()?.out() == "x");
    compare::against_both(mounted.path(), &repo, "HEAD")?;

    if !consent.lines().any(|line| line.trim() == "user_allow_other") {
        let (_dir, copy) = fixtures::copy("content", content::content)?;
        let account = Account::unprivileged()?;
        let dir = account.mount_point()?;
        account.refused(["mount", "--allow-other", &copy.arg(), &dir.to_string_lossy()], 2, &["user_allow_other", "/etc/fuse.conf"])?;
    }
    Ok(())
}
