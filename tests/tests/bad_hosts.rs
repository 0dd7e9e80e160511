//! Hosts that refuse, stall, break off or send nonsense: an exit code, one sentence, no temporary pack, and the next try works.

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, content};
use gitmount_tests::git::Repo;
use gitmount_tests::mount::Account;
use gitmount_tests::run::{kill_group, start, wait_for};
use gitmount_tests::servers::free_port;
use gitmount_tests::servers::http::{Fault, HttpServer};

/// A server whose pack is some megabytes that do not compress.
fn setting() -> Result<(HttpServer, Repo, Account)> {
    let repo = fixtures::get("content", content::content)?;
    let server = HttpServer::plain(repo.path().parent().context("a fixture lies in a directory")?)?;
    Ok((server, repo, Account::new()?))
}

/// A first mount and a pull both fail with `code`; the store has nothing left over, and a mount works once the host does.
fn check(fault: Fault, code: i32, words: &[&str]) -> Result<()> {
    let (server, repo, account) = setting()?;
    let url = server.url("content.git");
    let dir = account.mount_point()?;
    let shown = dir.to_string_lossy();
    server.misbehave(fault.clone());
    let args = ["mount", "--allow-http", "--timeout", "2s", "--pull", "never", &url, &shown];
    account.refused(args, code, words).with_context(|| format!("{fault:?}"))?;
    ensure!(!gitmount_tests::mount::is_mounted(&dir)?);
    ensure!(account.leftovers()?.is_empty(), "{fault:?} left {:?}", account.leftovers()?);
    account.wait_until_idle()?;

    server.behave();
    let mounted = account.mount(&url, &["--allow-http", "--timeout", "2s", "--pull", "never"])?;
    compare::against_both(mounted.path(), &repo, "HEAD")
}

#[test]
fn status_401() -> Result<()> {
    check(Fault::Status(401, vec![("WWW-Authenticate".to_owned(), "Basic realm=\"git\"".to_owned())]), 4, &["127.0.0.1", "credential"])
}

#[test]
fn status_403() -> Result<()> {
    check(Fault::status(403), 4, &["127.0.0.1", "403"])
}

#[test]
fn status_404() -> Result<()> {
    check(Fault::status(404), 3, &["content.git", "does not exist"])
}

#[test]
fn status_429_with_a_time_to_wait() -> Result<()> {
    check(Fault::retry_after(429, 77), 5, &["127.0.0.1", "429", "in 77 s"])
}

#[test]
fn status_503() -> Result<()> {
    check(Fault::status(503), 5, &["127.0.0.1", "503"])
}

#[test]
fn status_500() -> Result<()> {
    check(Fault::status(500), 5, &["127.0.0.1", "500"])
}

#[test]
fn silence_from_the_start() -> Result<()> {
    let started = Instant::now();
    check(Fault::Silent, 5, &["127.0.0.1", "did not answer"])?;
    ensure!(started.elapsed() < Duration::from_secs(20), "the limit of 2 s took {:?}", started.elapsed());
    Ok(())
}

#[test]
fn silence_in_the_middle_of_the_pack() -> Result<()> {
    let started = Instant::now();
    check(Fault::StallPack(500_000), 5, &["127.0.0.1", "2 s"])?;
    ensure!(started.elapsed() < Duration::from_secs(20), "the limit of 2 s took {:?}", started.elapsed());
    Ok(())
}

#[test]
fn a_pack_cut_in_half_with_the_connection() -> Result<()> {
    check(Fault::CutPack, 5, &["127.0.0.1"])
}

#[test]
fn half_a_pack_that_says_it_is_whole() -> Result<()> {
    check(Fault::HalfPack, 5, &["whole pack"])
}

#[test]
fn a_corrupt_pack() -> Result<()> {
    check(Fault::CorruptPack, 1, &["pack", "broken"])
}

#[test]
fn no_git_server_at_all() -> Result<()> {
    check(Fault::Status(200, vec![("Content-Type".to_owned(), "text/html".to_owned())]), 3, &["127.0.0.1", "git"])
}

#[test]
fn a_failed_pull_leaves_the_mount_as_it_was() -> Result<()> {
    let (dir, repo) = fixtures::copy("content", content::content)?;
    let server = HttpServer::plain(dir.path())?;
    let account = Account::new()?;
    let mounted = account.mount(&server.url("content.git"), &["--allow-http", "--timeout", "2s", "--pull", "never"])?;
    let old = repo.id("main")?;
    let noise: String = content::noise(1 << 19).iter().map(|byte| format!("{byte:02x}")).collect();
    let new = fixtures::commit(&repo, "news", &[("news", &noise)])?;
    for (fault, code, word) in [
        (Fault::Silent, 5, "127.0.0.1"),
        (Fault::StallPack(100_000), 5, "127.0.0.1"),
        (Fault::CutPack, 5, "127.0.0.1"),
        (Fault::HalfPack, 5, "pack"),
        (Fault::CorruptPack, 1, "pack"),
        (Fault::status(403), 4, "127.0.0.1"),
        (Fault::status(404), 3, "127.0.0.1"),
    ] {
        server.misbehave(fault.clone());
        account.refused(["pull".as_ref(), mounted.path().as_os_str()], code, &[word]).with_context(|| format!("{fault:?}"))?;
        let status = mounted.status()?;
        ensure!(status.state != "ok" && status.error.is_some_and(|error| error.contains(word)), "{fault:?}: {}", status.state);
        ensure!(mounted.commit()? == old && account.leftovers()?.is_empty(), "{fault:?} left {:?}", account.leftovers()?);
        compare::against_both(mounted.path(), &repo, &old)?;
    }
    server.behave();
    mounted.pull()?;
    ensure!(mounted.commit()? == new && mounted.status()?.state == "ok" && mounted.status()?.error.is_none());
    compare::against_both(mounted.path(), &repo, "main")
}

#[test]
fn an_interrupted_mount_leaves_nothing() -> Result<()> {
    use nix::sys::signal::{Signal, kill};
    let (server, repo, account) = setting()?;
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        server.misbehave(Fault::StallPack(500_000));
        server.take_requests();
        let dir = account.mount_point()?;
        let mut command = account.command(["mount", "--allow-http", &server.url("content.git"), &dir.to_string_lossy()]);
        let mut child = start(command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::null()))?;
        wait_for("the fetch", Duration::from_secs(20), || server.requests().iter().any(|asked| asked.fetch).then_some(()))?;
        std::thread::sleep(Duration::from_millis(300));
        let asked = Instant::now();
        kill(nix::unistd::Pid::from_raw(child.id().cast_signed()), signal)?;
        let status = wait_for("the end of the command", Duration::from_secs(5), || child.try_wait().ok().flatten());
        kill_group(child.id());
        let status = status?;
        ensure!(!status.success(), "{signal:?} ended it with 0");
        ensure!(asked.elapsed() < Duration::from_secs(2), "{signal:?} took {:?}", asked.elapsed());
        account.wait_until_idle()?;
        ensure!(account.leftovers()?.is_empty(), "{signal:?} left {:?}", account.leftovers()?);
    }
    server.behave();
    let mounted = account.mount(&server.url("content.git"), &["--allow-http"])?;
    compare::against_both(mounted.path(), &repo, "HEAD")
}

#[test]
fn what_a_killed_fetch_left_is_removed_by_the_next() -> Result<()> {
    let (server, repo, account) = setting()?;
    server.misbehave(Fault::StallPack(2_000_000));
    let dir = account.mount_point()?;
    let mut command = account.command(["mount", "--allow-http", &server.url("content.git"), &dir.to_string_lossy()]);
    let mut child = start(command.stdin(std::process::Stdio::null()).stderr(std::process::Stdio::null()))?;
    let begun = wait_for("a temporary pack", Duration::from_secs(20), || account.leftovers().ok().filter(|left| !left.is_empty()));
    for id in account.processes() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), nix::sys::signal::Signal::SIGKILL)?;
    }
    let _ = child.wait();
    begun?;
    account.wait_until_idle()?;
    ensure!(!account.leftovers()?.is_empty(), "a killed fetch cleans nothing up: this test does not test what it says");
    server.behave();
    let mounted = account.mount(&server.url("content.git"), &["--allow-http"])?;
    ensure!(account.leftovers()?.is_empty(), "{:?} stayed", account.leftovers()?);
    compare::against_both(mounted.path(), &repo, "HEAD")
}

#[test]
fn a_host_that_is_not_there() -> Result<()> {
    let account = Account::new()?;
    let port = free_port()?;
    let dir = account.mount_point()?;
    let shown = dir.to_string_lossy();
    for (url, host) in [
        (format!("https://127.0.0.1:{port}/r.git"), "127.0.0.1"),
        (format!("git://127.0.0.1:{port}/r.git"), "127.0.0.1"),
        (format!("ssh://git@127.0.0.1:{port}/r.git"), "127.0.0.1"),
        ("https://no-such-host.invalid/r.git".to_owned(), "no-such-host.invalid"),
        ("git://no-such-host.invalid/r.git".to_owned(), "no-such-host.invalid"),
        ("git@no-such-host.invalid:r.git".to_owned(), "no-such-host.invalid"),
    ] {
        account.refused(["mount", &url, &shown], 5, &[host]).with_context(|| url.clone())?;
    }
    Ok(())
}

#[test]
fn a_host_that_takes_connections_and_says_nothing() -> Result<()> {
    let account = Account::new()?;
    // The kernel takes the connections; nobody reads them.
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let port = listener.local_addr()?.port();
    let dir = account.mount_point()?;
    let shown = dir.to_string_lossy();
    for scheme in ["https", "git", "ssh"] {
        let url = format!("{scheme}://127.0.0.1:{port}/r.git");
        let finished = account.refused(["mount", "--timeout", "1s", &url, &shown], 5, &["127.0.0.1"]).with_context(|| scheme)?;
        ensure!(finished.took < Duration::from_secs(10), "{scheme} took {:?}", finished.took);
    }
    Ok(())
}

#[test]
fn allow_stale_serves_the_last_commit_of_a_host_that_is_gone() -> Result<()> {
    let (server, repo, account) = setting()?;
    let url = server.url("content.git");
    let dir = account.mount_point()?;
    let shown = dir.to_string_lossy().into_owned();
    let stale = ["mount", "--allow-http", "--offline", "allowStale", &url, &shown];
    account.mount(&url, &["--allow-http"])?.unmount()?;
    drop(server);
    account.refused(["mount", "--allow-http", &url, &shown], 5, &["127.0.0.1"])?;
    account.run(stale)?.success()?;
    compare::against_both(&dir, &repo, "HEAD")?;
    let status = account.status()?.into_iter().next().context("one mount is served")?;
    ensure!(status.state == "stale" && status.error.is_some(), "{status:?}");
    account.run(["unmount", &shown])?.success()?;

    // Never fetched: there is nothing to serve.
    let other = Account::new()?;
    let dir = other.mount_point()?;
    other.refused(["mount", "--allow-http", "--offline", "allowStale", &url, &dir.to_string_lossy()], 5, &["127.0.0.1"])?;
    Ok(())
}
