//! The node plugin as a kubelet calls it: repeated, in any order, with the daemon away, and with what is wrong.

use std::fs;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::csi::{self, Plugin};
use gitmount_tests::daemon::Daemon;
use gitmount_tests::fixtures;
use gitmount_tests::git::Repo;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tonic::Code;

const DEADLINE: Duration = Duration::from_secs(30);

struct Bench {
    _dir: TempDir,
    repo: Repo,
    server: HttpServer,
    daemon: Daemon,
    plugin: Plugin,
}

impl Bench {
    fn new() -> Result<Self> {
        let dir = scratch::dir()?;
        let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
        let server = HttpServer::plain(dir.path())?;
        let daemon = Daemon::held(&["--timeout", "5s"])?;
        let plugin = Plugin::start(&daemon)?;
        Ok(Bench { _dir: dir, repo, server, daemon, plugin })
    }

    fn url(&self) -> String {
        self.server.url("r.git")
    }
}

fn shows(target: &Path, text: &str) -> bool {
    fs::read_to_string(target.join("a")).is_ok_and(|read| read == text)
}

#[test]
fn calls_may_be_repeated_and_come_in_any_order() -> Result<()> {
    let bench = Bench::new()?;
    let mut client = bench.plugin.client()?;
    let target = bench.plugin.target("p", "data")?;
    let request = csi::inline(&target, &[("url", &bench.url())]);
    // Before there is anything.
    client.unpublish("v", &target)?;
    client.unstage("v")?;
    for _ in 0..3 {
        client.publish(request.clone())?;
        ensure!(shows(&target, "one\n"));
    }
    for _ in 0..3 {
        client.unpublish("v", &target)?;
        ensure!(!target.exists());
    }
    client.publish(request)?;
    ensure!(shows(&target, "one\n"));
    client.unpublish("v", &target)?;
    let left = bench.daemon.client()?.status()?.views;
    ensure!(left.is_empty(), "{left:?}");
    Ok(())
}

#[test]
fn one_handle_at_many_targets_is_one_tree_and_goes_with_the_last() -> Result<()> {
    let bench = Bench::new()?;
    let mut client = bench.plugin.client()?;
    client.stage("franchises", &[])?;
    let targets = ["a", "b", "c"].map(|pod| bench.plugin.target(pod, "pv"));
    let targets = targets.into_iter().collect::<Result<Vec<_>>>()?;
    for target in &targets {
        client.publish(csi::claim("franchises", target, &[("url", &bench.url())], &[]))?;
    }
    let views = bench.daemon.client()?.status()?.views;
    ensure!(views.len() == 1 && views[0].mounts.len() == 3 && views[0].volumes[0].spec_name == "pv", "{views:?}");
    for target in &targets {
        ensure!(shows(target, "one\n"));
        client.unpublish("franchises", target)?;
    }
    client.unstage("franchises")?;
    ensure!(bench.daemon.client()?.status()?.views.is_empty());
    Ok(())
}

#[test]
fn a_live_target_is_published_again_whatever_is_wrong() -> Result<()> {
    let mut bench = Bench::new()?;
    let mut client = bench.plugin.client()?;
    let target = bench.plugin.target("p", "data")?;
    let url = bench.url();
    client.publish(csi::inline(&target, &[("url", &url)]))?;
    ensure!(shows(&target, "one\n"));
    bench.server.misbehave(Fault::status(500));
    for attributes in [&[("url", url.as_str())][..], &[("url", &url), ("ref", "gone")], &[("url", "nonsense")], &[("what", "this")]] {
        client.publish(csi::inline(&target, attributes))?;
    }
    bench.daemon.kill()?;
    client.publish(csi::inline(&target, &[("url", &url)]))?;
    // Not read here: what the kernel has let go of waits for the next daemon.
    let stats = client.stats("v", &target)?;
    ensure!(stats.volume_condition.context("a condition")?.abnormal, "the daemon is away");
    let elsewhere = bench.plugin.target("q", "data")?;
    let refused = client.publish(csi::inline(&elsewhere, &[("url", &url)])).err().context("nothing can be shown")?;
    ensure!(refused.code() == Code::Unavailable && refused.message().contains("fsd"), "{refused}");
    bench.server.behave();
    bench.daemon.restart()?;
    client.publish(csi::inline(&elsewhere, &[("url", &url)]))?;
    ensure!(shows(&target, "one\n") && shows(&elsewhere, "one\n"));
    Ok(())
}

#[test]
fn a_stopped_daemon_costs_statistics_no_second() -> Result<()> {
    let bench = Bench::new()?;
    let mut client = bench.plugin.client()?;
    let target = bench.plugin.target("p", "data")?;
    client.publish(csi::inline(&target, &[("url", &bench.url())]))?;
    let counted = || client.stats("v", &target).ok().filter(|stats| stats.usage[0].total > 0);
    let before = wait_for("numbers", DEADLINE, counted)?;
    kill(Pid::from_raw(bench.daemon.pid()?), Signal::SIGSTOP)?;
    let mut answers = vec![];
    for _ in 0..3 {
        let begin = Instant::now();
        let stats = client.stats("v", &target)?;
        answers.push((begin.elapsed(), stats.usage == before.usage));
    }
    let republished = client.publish(csi::inline(&bench.plugin.target("x", "none")?, &[("bad", "attribute")]));
    kill(Pid::from_raw(bench.daemon.pid()?), Signal::SIGCONT)?;
    ensure!(answers.iter().all(|(took, same)| *took < Duration::from_secs(1) && *same), "{answers:?}");
    ensure!(republished.is_err_and(|error| error.message().contains("bad")), "what is wrong is told without the daemon");
    Ok(())
}

#[test]
fn statistics_count_the_tree() -> Result<()> {
    let bench = Bench::new()?;
    let mut client = bench.plugin.client()?;
    let target = bench.plugin.target("p", "data")?;
    let unknown = client.stats("v", &target).err().context("nothing is there")?;
    ensure!(unknown.code() == Code::NotFound, "{unknown}");
    client.publish(csi::inline(&target, &[("url", &bench.url())]))?;
    let counted = || client.stats("v", &target).ok().filter(|stats| stats.usage[0].total == 4 && stats.usage[1].total == 2);
    wait_for("four bytes in two inodes", DEADLINE, counted)?;
    Ok(())
}

#[test]
fn a_plugin_that_was_restarted_goes_on_without_a_stage() -> Result<()> {
    let mut bench = Bench::new()?;
    bench.server.require_login("user", "s3cret");
    let secret = [("username", "user"), ("password", "s3cret")];
    let url = bench.url();
    let attributes = [("url", url.as_str()), ("pull", "on-demand")];
    let mut client = bench.plugin.client()?;
    client.stage("pv", &secret)?;
    let targets = ["a", "b", "c"].map(|pod| bench.plugin.target(pod, "pv"));
    let targets = targets.into_iter().collect::<Result<Vec<_>>>()?;
    client.publish(csi::claim("pv", &targets[0], &attributes, &[]))?;
    let told = |plugin: &Plugin| plugin.log().map(|log| log.matches("GitVolumeNoPublishSecret").count()).unwrap_or_default();
    wait_for("the event", DEADLINE, || (told(&bench.plugin) == 1).then_some(()))?;
    client.publish(csi::claim("pv", &targets[0], &attributes, &[]))?;
    bench.plugin.kill()?;
    bench.plugin.restart()?;
    let mut client = bench.plugin.client()?;
    // It keeps the credential that the daemon has, and a new pod shares it.
    for target in &targets[..2] {
        client.publish(csi::claim("pv", target, &attributes, &[]))?;
        ensure!(shows(target, "one\n"));
    }
    wait_for("the event, once for each restart", DEADLINE, || (told(&bench.plugin) == 2).then_some(()))?;
    bench.daemon.client()?.pull(&targets[0])?;
    ensure!(!bench.plugin.log()?.contains("s3cret"));
    Ok(())
}

#[test]
fn what_is_wrong_is_said_with_the_code_that_fits() -> Result<()> {
    let bench = Bench::new()?;
    bench.server.require_login("user", "s3cret");
    let mut client = bench.plugin.client()?;
    let target = bench.plugin.target("p", "data")?;
    let url = bench.url();
    for (attributes, secrets, code, word) in [
        (&[("url", url.as_str()), ("pull", "5")][..], &[][..], Code::InvalidArgument, "5m"),
        (&[("url", &url), ("ref", "a..b")], &[], Code::InvalidArgument, "ref"),
        (&[("url", "ftp://example.com/a")], &[], Code::InvalidArgument, "https://"),
        (&[("url", &url)], &[], Code::PermissionDenied, "give a token"),
        (&[("url", &url)], &[("token", "wr0ng")], Code::PermissionDenied, ""),
        (&[("url", &url)], &[("nothing", "of use")], Code::InvalidArgument, "token"),
        (&[("url", &url), ("ref", "none")], &[("username", "user"), ("password", "s3cret")], Code::NotFound, "none"),
        (&[("url", "http://127.0.0.1:1/a.git")], &[], Code::Unavailable, "127.0.0.1"),
    ] {
        let request = csi::inline(&target, attributes);
        let secrets = secrets.iter().map(|(k, v): &(&str, &str)| ((*k).to_owned(), (*v).to_owned())).collect();
        let refused = client.publish(gitmount_proto::csi::v1::NodePublishVolumeRequest { secrets, ..request });
        let refused = refused.err().with_context(|| format!("{attributes:?} is refused"))?;
        ensure!(refused.code() == code && refused.message().contains(word), "{attributes:?}: {refused}");
        ensure!(!refused.message().contains("wr0ng") && !refused.message().contains("s3cret"), "{refused}");
    }
    ensure!(!target.exists());
    Ok(())
}

#[test]
fn garbage_on_the_socket_disturbs_nobody() -> Result<()> {
    let bench = Bench::new()?;
    let mut client = bench.plugin.client()?;
    let mut open = vec![];
    for garbage in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 70_000], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x05", b""] {
        let mut stream = UnixStream::connect(bench.plugin.socket())?;
        // It may be closed before all is written.
        let _ = stream.write_all(garbage);
        open.push(stream);
    }
    ensure!(client.probe()?);
    let long = "x".repeat(8 << 20);
    ensure!(client.publish(csi::inline(&bench.plugin.target("p", "data")?, &[("url", &long)])).is_err());
    let mut client = bench.plugin.client()?;
    let target = bench.plugin.target("p", "data")?;
    client.publish(csi::inline(&target, &[("url", &bench.url())]))?;
    ensure!(shows(&target, "one\n"));
    Ok(())
}

#[test]
fn the_registration_socket_is_made_again_when_it_is_taken_away() -> Result<()> {
    let bench = Bench::new()?;
    let socket = bench.plugin.registry().join("git.liken.sh-reg.sock");
    let listens = || gitmount_proto::socket::probe(&socket).is_ok().then_some(());
    wait_for("the registration socket", DEADLINE, listens)?;
    fs::remove_file(&socket)?;
    wait_for("the next registration socket", DEADLINE, listens)?;
    Ok(())
}

#[test]
fn a_switch_reaches_all_targets() -> Result<()> {
    let bench = Bench::new()?;
    let mut client = bench.plugin.client()?;
    let targets = ["a", "b"].map(|pod| bench.plugin.target(pod, "data"));
    let targets = targets.into_iter().collect::<Result<Vec<_>>>()?;
    for target in &targets {
        client.publish(csi::inline(target, &[("url", &bench.url()), ("pull", "1s")]))?;
    }
    fixtures::commit(&bench.repo, "second", &[("a", "two\n")])?;
    wait_for("the new commit", DEADLINE, || targets.iter().all(|target| shows(target, "two\n")).then_some(()))?;
    Ok(())
}
