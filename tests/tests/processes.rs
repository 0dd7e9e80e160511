//! The command returns once the tree is served and leaves one process, which forks neither git nor ssh and goes with the mount.

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures::{self, refs};
use gitmount_tests::mount::{Account, is_mounted};
use gitmount_tests::run::{self, run_with, start, wait_for};
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::ssh::{KeyKind, Known, Sshd, new_key};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const SOON: Duration = Duration::from_secs(10);

#[test]
fn the_command_returns_lets_go_of_its_pipes_and_one_process_serves() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let account = Account::new()?;
    let dir = account.mount_point()?;
    // `run_with` waits until nobody holds the pipes: a process in the background that did would be noticed.
    let mut mount = account.command(["mount", "--ref", "main", &repo.arg(), &dir.to_string_lossy()]);
    let finished = run_with(&mut mount, &[], SOON)?.success()?;
    ensure!(finished.stderr.is_empty(), "no progress bar and no chatter without a terminal: {}", finished.err());
    // The tree is served at once, not soon.
    ensure!(fs::read_to_string(dir.join("which"))? == "main\n");
    let processes = account.processes();
    ensure!(processes.len() == 1, "{} processes serve one mount", processes.len());

    let server = Pid::from_raw(processes[0]);
    ensure!(nix::unistd::getsid(Some(server))? == server, "the process would get the signals of the terminal");
    let cwd = fs::read_link(format!("/proc/{server}/cwd"))?;
    ensure!(cwd == Path::new("/"), "the process keeps {} busy", cwd.display());

    run::run(account.command(["unmount"]).arg(&dir))?.success()?;
    account.wait_until_idle()?;
    let left: Vec<_> = fs::read_dir(account.runtime())?.filter_map(|e| e.ok().map(|e| e.file_name())).collect();
    ensure!(account.status()?.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn a_mount_that_fails_leaves_no_process() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let account = Account::new()?;
    let dir = account.mount_point()?;
    account.refused(["mount", "--ref", "nothing", &repo.arg(), &dir.to_string_lossy()], 3, &["nothing"])?;
    account.wait_until_idle()
}

#[test]
fn unmounting_by_other_means_ends_the_process() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let account = Account::new()?;
    for program in [&["umount"][..], &["fusermount3", "-u"]] {
        let mounted = account.mount(&repo.arg(), &["--ref", "main"])?;
        run::run(run::command(program[0]).args(&program[1..]).arg(mounted.path()))?.success()?;
        account.wait_until_idle().with_context(|| program.join(" "))?;
        ensure!(account.status()?.is_empty());
    }
    Ok(())
}

#[test]
fn a_signal_ends_it_and_takes_the_mount_away() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let account = Account::new()?;
        let dir = account.mount_point()?;
        let mut command = account.command(["mount", "--foreground", "--ref", "main", &repo.arg(), &dir.to_string_lossy()]);
        let mut child = start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        wait_for("the mount", SOON, || dir.join("which").exists().then_some(()))?;
        kill(Pid::from_raw(child.id().cast_signed()), signal)?;
        let ended = wait_for("the end of the process", SOON, || child.try_wait().ok().flatten());
        run::kill_group(child.id());
        ended?;
        ensure!(!is_mounted(&dir)?, "{signal:?} left a mount that nobody answers for");
        account.wait_until_idle()?;
    }
    Ok(())
}

#[test]
fn a_busy_mount_is_kept_and_a_lazy_unmount_lets_its_user_finish() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &["--ref", "main"])?;
    let open = fs::File::open(mounted.join("which"))?;
    account.refused(["unmount".as_ref(), mounted.path().as_os_str()], 1, &["busy", "--lazy"])?;
    ensure!(mounted.text("which")? == "main\n");
    run::run(account.command(["unmount", "--lazy"]).arg(mounted.path()))?.success()?;
    ensure!(!is_mounted(mounted.path())?);
    ensure!(std::io::read_to_string(&open)? == "main\n", "an open file outlives a lazy unmount");
    drop(open);
    account.wait_until_idle()
}

#[test]
fn a_killed_process_leaves_a_mount_that_can_be_taken_away_and_replaced() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &["--ref", "main"])?;
    for id in account.processes() {
        kill(Pid::from_raw(id), Signal::SIGKILL)?;
    }
    account.wait_until_idle()?;
    let status = account.status()?;
    ensure!(status.iter().all(|status| status.state == "dead"), "{status:?}");
    let path = mounted.path().to_owned();
    // Also by a relative name, which could be a URL's.
    let (parent, name) = (path.parent().context("it lies in a directory")?, path.file_name().context("it has a name")?);
    let verified = run::run(account.command(["verify"]).arg(name).current_dir(parent))?;
    ensure!(verified.code() == 1 && verified.err().contains("died"), "{}", verified.err());
    mounted.unmount()?;
    run::run(account.command(["mount", "--ref", "main", &repo.arg()]).arg(&path))?.success()?;
    ensure!(fs::read_to_string(path.join("which"))? == "main\n");
    run::run(account.command(["unmount"]).arg(&path))?.success().map(drop)
}

#[test]
fn neither_git_nor_ssh_is_run() -> Result<()> {
    run::require("strace", "strace")?;
    let (_dir, repo) = fixtures::copy("refs", refs::refs)?;
    let daemon = GitDaemon::serve(repo.path().parent().context("a copy lies in a directory")?)?;
    let sshd = Sshd::start()?;
    let account = Account::new()?;
    account.write_home(".ssh/known_hosts", &sshd.known_host(KeyKind::Ed25519, Known::Plain)?)?;
    let key = account.home().join(".ssh/id_ed25519");
    new_key(&key, KeyKind::Ed25519, "")?;
    sshd.authorize(&key)?;
    let logs = scratch::dir()?;
    // Hooks and configuration in the repository must not run either.
    fs::write(repo.path().join("config"), "[core]\n\tbare = true\n\tfsmonitor = /bin/false\n\tpager = /bin/false\n")?;
    for (n, url) in [repo.arg(), daemon.url("refs.git"), sshd.url(repo.path())?].into_iter().enumerate() {
        let dir = account.mount_point()?;
        let log = logs.path().join(n.to_string());
        let traced = account.command(["mount", "--foreground", "--ref", "main", &url, &dir.to_string_lossy()]);
        let mut strace = run::command("strace");
        strace.args(["-f", "-qq", "-e", "trace=execve,execveat", "-e", "signal=none", "-o"]).arg(&log).arg(traced.get_program());
        strace.args(traced.get_args()).current_dir(account.home());
        strace.envs(traced.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let mut child = start(strace.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()))?;
        let served = wait_for("the mount", Duration::from_secs(30), || dir.join("which").exists().then_some(()));
        let pulled = account.run(["pull".as_ref(), dir.as_os_str()]);
        let unmounted = account.run(["unmount".as_ref(), dir.as_os_str()]);
        let ended = wait_for("the end of the process", SOON, || child.try_wait().ok().flatten());
        run::kill_group(child.id());
        served?;
        pulled?.success()?;
        unmounted?.success()?;
        ended?;
        let log = fs::read_to_string(&log)?;
        let started: Vec<&str> = log.lines().filter(|line| line.contains("exec")).collect();
        let foreign: Vec<_> = started.iter().filter(|line| !line.contains("/gitmount\"") && !line.contains("fusermount3")).collect();
        ensure!(!started.is_empty() && foreign.is_empty(), "{url} runs {foreign:?}");
    }
    Ok(())
}
