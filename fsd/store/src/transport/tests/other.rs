//! Limits and cancelling for every transport, and `git://` against a real daemon.

use std::process::{Child, Command, Stdio};

use super::*;

#[test]
fn a_silent_host_ends_by_the_limits() {
    let (_listener, port) = silent();
    for text in [format!("http://127.0.0.1:{port}/a"), format!("git://127.0.0.1:{port}/a"), format!("ssh://git@127.0.0.1:{port}/a")] {
        let start = Instant::now();
        let error = shake(&url(&text), &Auth::default()).unwrap_err();
        let took = start.elapsed();
        assert_eq!(error.fault(), Fault::Unreachable, "{error}");
        assert!(error.to_string().contains(&format!("127.0.0.1:{port} did not")), "{error}");
        assert!(took >= Duration::from_millis(350) && took < Duration::from_secs(3), "{text} took {took:?}");
    }
}

#[test]
fn cancelling_takes_less_than_100_ms() {
    let (_listener, port) = silent();
    let patient = NetOptions { idle: Duration::from_secs(60), connect: Duration::from_secs(60), ..net(Path::new("/nowhere")) };
    for text in [
        format!("http://127.0.0.1:{port}/a"),
        format!("https://127.0.0.1:{port}/a"),
        format!("git://127.0.0.1:{port}/a"),
        format!("ssh://git@127.0.0.1:{port}/a"),
        // An address of documentation (RFC 5737): connecting to it does not come to an end soon, or fails at once.
        "git://192.0.2.1/a".to_owned(),
        "ssh://git@192.0.2.1/a".to_owned(),
    ] {
        let (done, late) = cancelled(|stop| handshake(&url(&text), &Auth::default(), &patient, stop));
        let error = done.unwrap_err();
        if text.contains("127.0.0.1") {
            assert_eq!(error.fault(), Fault::Cancelled, "{text}: {error}");
        }
        assert!(late < Duration::from_millis(100), "{text}: {late:?} late");
    }
}

#[test]
fn a_host_that_is_not_there_is_unreachable() {
    let port = silent().1;
    for text in [
        format!("http://127.0.0.1:{port}/a"),
        format!("https://127.0.0.1:{port}/a"),
        format!("git://127.0.0.1:{port}/a"),
        format!("ssh://git@127.0.0.1:{port}/a"),
    ] {
        let error = shake(&url(&text), &Auth::default()).unwrap_err();
        assert_eq!(error.fault(), Fault::Unreachable, "{text}: {error}");
        assert!(error.to_string().contains(&format!("host 127.0.0.1:{port} cannot be reached: Connection refused")), "{text}: {error}");
    }
}

#[test]
fn a_local_path_has_no_transport() {
    let error = connect(&url("file:///srv/a"), &Auth::default(), &net(Path::new("/nowhere")), &Arc::default()).err().expect("refused");
    assert_eq!(error.fault(), Fault::Usage);
}

#[test]
fn what_is_no_ssh_host_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || listener.accept().map(|(mut stream, _)| stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")));
    let error = shake(&url(&format!("ssh://git@127.0.0.1:{port}/a")), &Auth::default()).unwrap_err();
    assert_eq!(error.fault(), Fault::Unreachable, "{error}");
}

/// `git daemon` on a free port, ended with the test.
struct Daemon {
    child: Child,
    port: u16,
}

impl Daemon {
    fn new(base: &Path) -> Self {
        let port = silent().1;
        let child = Command::new("git")
            .args(["daemon", "--export-all", "--reuseaddr", "--listen=127.0.0.1", &format!("--port={port}")])
            .arg(format!("--base-path={}", base.display()))
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let daemon = Daemon { child, port };
        let start = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(start.elapsed() < Duration::from_secs(10), "git daemon does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        daemon
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // `git daemon` runs as a child of `git`, which passes the signal on.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

#[test]
fn a_git_daemon_is_spoken_to_and_understood() {
    let dir = tempfile::tempdir().unwrap();
    let made = Command::new("git").args(["init", "-q", "--bare"]).arg(dir.path().join("a b.git")).status().unwrap();
    assert!(made.success());
    let daemon = Daemon::new(dir.path());
    let patient = NetOptions { idle: Duration::from_secs(10), connect: Duration::from_secs(10), ..net(dir.path()) };
    let ask = |path: &str| handshake(&url(&format!("git://127.0.0.1:{}/{path}", daemon.port)), &Auth::default(), &patient, &Arc::default());
    assert_eq!(ask("a%20b.git").unwrap(), Protocol::V2);
    let error = ask("missing.git").unwrap_err();
    assert_eq!(error.fault(), Fault::NotFound, "{error}");
    assert!(
        error.to_string().contains("says: access denied or repository not exported: /missing.git: check the path, and that"),
        "{error}"
    );
}
