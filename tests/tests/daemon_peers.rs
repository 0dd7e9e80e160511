//! Peers that mean no good: strangers, garbage, messages that are too long, connections that say nothing.

use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::daemon::{Daemon, resources, token, view};
use gitmount_tests::fixtures;
use gitmount_tests::mount::Account;
use gitmount_tests::run::{kill_group, start, wait_for};
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;

#[test]
fn a_stranger_is_not_answered() -> Result<()> {
    let daemon = Daemon::start(&[])?;
    ensure!(std::fs::metadata(daemon.socket())?.mode() & 0o777 == 0o600);
    let nobody = Account::unprivileged()?;
    let socket = daemon.socket();
    let ask = || nobody.run(["status".as_ref(), "--socket".as_ref(), socket.as_os_str()]);
    ensure!(ask()?.code() != 0, "the socket's mode keeps strangers out");
    // Should the mode be changed, the kernel's word on who connects still stands.
    std::fs::set_permissions(&socket, std::fs::Permissions::from_mode(0o666))?;
    std::fs::set_permissions(daemon.account().home(), std::fs::Permissions::from_mode(0o755))?;
    let refused = ask()?;
    ensure!(refused.code() != 0 && !refused.out().contains("nothing is mounted"), "{}", refused.out());
    ensure!(daemon.client()?.status()?.views.is_empty());
    Ok(())
}

#[test]
fn half_open_connections_keep_nobody_out() -> Result<()> {
    let daemon = Daemon::start(&[])?;
    let (threads, _) = resources(daemon.pid()?)?;
    let silent: Vec<UnixStream> = (0..200).map(|_| UnixStream::connect(daemon.socket())).collect::<std::io::Result<_>>()?;
    // Some begin to speak and then stop.
    for mut stream in silent.iter().take(100) {
        stream.write_all(b"PRI * HTTP/2.0\r\n")?;
    }
    for _ in 0..20 {
        ensure!(daemon.client()?.status()?.views.is_empty());
    }
    let (with, _) = resources(daemon.pid()?)?;
    ensure!(with.len() <= threads.len() + 4, "silent connections cost threads: {with:?}");
    drop(silent);
    Ok(())
}

#[test]
fn garbage_ends_its_connection_and_nothing_else() -> Result<()> {
    let daemon = Daemon::start(&[])?;
    for garbage in [vec![0xff; 4096], b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![0; 1 << 20]] {
        let mut stream = UnixStream::connect(daemon.socket())?;
        stream.set_read_timeout(Some(Duration::from_secs(20)))?;
        // It may be closed before all is written.
        let _ = stream.write_all(&garbage);
        let _ = stream.read_to_end(&mut Vec::new());
        ensure!(daemon.client()?.status()?.views.is_empty());
    }
    Ok(())
}

#[test]
fn a_message_that_is_too_long_is_refused_and_not_kept() -> Result<()> {
    let daemon = Daemon::start(&[])?;
    let long = "x".repeat(8 << 20);
    let mut client = daemon.client()?;
    for (spec, credential) in [
        (view(&format!("https://example.com/{long}")), None),
        (view("https://example.com/a.git"), Some(token("git", &long))),
        (proto::ViewSpec { r#ref: long.clone(), ..view("https://example.com/a.git") }, None),
    ] {
        ensure!(client.publish(&daemon.target("a"), spec, credential).is_err());
    }
    ensure!(client.status()?.views.is_empty() && !daemon.target("a").exists());
    Ok(())
}

/// What comes of a credential or a mount's descriptor is for root, and for who runs the program.
#[test]
fn who_listens_in_the_place_of_a_daemon_or_holder_is_told_nothing() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = GitDaemon::serve(dir.path())?;
    let nobody = Account::unprivileged()?;
    let socket = nobody.home().join("hold.sock");
    let mut hold = nobody.command(["hold".as_ref(), "--socket".as_ref(), socket.as_os_str()]);
    let mut holder = start(hold.stdin(std::process::Stdio::null()))?;
    let outcome = (|| {
        wait_for("the stranger to listen", Duration::from_secs(20), || socket.exists().then_some(()))?;
        let daemon = Daemon::start(&["--hold", socket.to_str().context("UTF-8")?])?;
        daemon.publish("a", view(&server.url("r.git")))?;
        let log = daemon.log()?;
        ensure!(log.contains("is of user") && log.contains("where only root can write"), "{log}");

        let mounted = nobody.mount(&server.url("r.git"), &[])?;
        let listens = std::fs::read_dir(nobody.runtime())?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
        let listens = listens.iter().find(|path| path.extension().is_some_and(|e| e == "sock")).context("a mount has a socket")?;
        let target = daemon.target("b");
        let args = ["mount".as_ref(), "--socket".as_ref(), listens.as_os_str(), "https://example.com/a.git".as_ref(), target.as_os_str()];
        daemon.account().refused(args, 1, &["who listens there"])?;
        mounted.unmount()
    })();
    kill_group(holder.id());
    let _ = holder.wait();
    outcome
}
