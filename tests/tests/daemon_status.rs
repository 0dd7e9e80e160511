//! Status, statistics and metrics answer from memory, whatever hangs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::event::Kind;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};
use gitmount_tests::servers::http_get;

const DEADLINE: Duration = Duration::from_secs(30);

#[test]
fn status_and_statistics_answer_while_fetches_hang() -> Result<()> {
    let dir = scratch::dir()?;
    for n in 0..20 {
        fixtures::small(&dir.path().join(format!("r{n}.git")), &[("a", "one\n"), ("d/b", "four\n")])?;
    }
    let server = HttpServer::plain(dir.path())?;
    let other_dir = scratch::dir()?;
    fixtures::small(&other_dir.path().join("o.git"), &[("a", "one\n")])?;
    let other = HttpServer::plain(other_dir.path())?;
    let daemon = Daemon::start(&[])?;
    let mut client = daemon.client()?;
    for n in 0..20 {
        client.publish(&daemon.target(&format!("t{n}")), view(&server.url(&format!("r{n}.git"))), None)?;
    }
    let target = daemon.target("t3");
    let counted = wait_for("the tree to be counted", DEADLINE, || client.statistics(&target).ok().filter(|s| s.inodes.is_some()))?;
    ensure!(counted.inodes == Some(4) && counted.bytes == Some(9), "{counted:?}");
    server.misbehave(Fault::Silent);
    std::thread::scope(|scope| {
        // More than there are workers, and a publish that hangs as well.
        for n in 0..20 {
            let (daemon, name) = (&daemon, daemon.target(&format!("t{n}")));
            scope.spawn(move || daemon.client().and_then(|mut client| client.pull(&name)));
        }
        let hanging = scope.spawn(|| daemon.publish("hangs", proto::ViewSpec { r#ref: "other".into(), ..view(&server.url("r1.git")) }));
        let outcome = (|| {
            let hanging_requests = || server.requests().iter().filter(|asked| asked.status == 0).count();
            wait_for("the fetches to hang", DEADLINE, || (hanging_requests() >= 4).then_some(()))?;
            let mut slowest = Duration::ZERO;
            for _ in 0..20 {
                let begun = Instant::now();
                ensure!(client.status()?.views.len() == 20);
                client.statistics(&target)?;
                client.log(&target)?;
                slowest = slowest.max(begun.elapsed());
            }
            eprintln!("the slowest of 20 answers took {slowest:?}");
            // The promise is 100 ms on a quiet machine; this only notices a wait for the host.
            ensure!(slowest < Duration::from_secs(5), "{slowest:?}");
            // Another host is not held up, since one may use half of the workers.
            client.publish(&daemon.target("other"), view(&other.url("o.git")), None)?;
            client.pull(&daemon.target("other"))?;
            // An unpublish makes the publish in progress give up.
            client.unpublish(&daemon.target("hangs"))?;
            let said = hanging.join().map_err(|_| anyhow::anyhow!("a publish panicked"))?;
            ensure!(said.err().context("it is given up")?.to_string().contains("Cancelled"));
            Ok(())
        })();
        // The calls that hang are let go.
        server.behave();
        for n in 0..20 {
            client.unpublish(&daemon.target(&format!("t{n}")))?;
        }
        outcome
    })
}

#[test]
fn a_watcher_is_told_of_switches_failures_and_what_is_not_served() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n"), (".gitattributes", "*.bin filter=lfs\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&[])?;
    let mut watch = daemon.client()?.watch()?;
    let mut client = daemon.client()?;
    let target = daemon.target("a");
    let published = client.publish(&target, view(&server.url("r.git")), None)?;
    let notice = watch.next_of(Kind::Notice)?;
    ensure!(notice.message.contains("LFS"), "{notice:?}");
    ensure!(published.notices.is_empty() || published.notices[0].contains("LFS"));
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    client.pull(&target)?;
    ensure!(watch.next_of(Kind::Switched)?.commit == new);
    server.misbehave(Fault::status(500));
    for _ in 0..3 {
        ensure!(client.pull(&target).is_err());
    }
    server.behave();
    client.pull(&target)?;
    ensure!(watch.next_of(Kind::FetchFailed)?.message.contains("500"));
    ensure!(watch.event()?.kind() == Kind::FetchRecovered, "only the first failure is told");
    client.unpublish(&target)?;
    let gone = watch.next_of(Kind::Unpublished)?;
    ensure!(gone.targets == [target.as_os_str().as_encoded_bytes().to_vec()], "{gone:?}");
    Ok(())
}

#[test]
fn metrics_follow_the_views_and_go_with_them() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&["--metrics", "127.0.0.1:0"])?;
    let address = wait_for("the address in the log", DEADLINE, || {
        let log = daemon.log().ok()?;
        let line = log.lines().find(|line| line.contains("metrics are served"))?;
        Some(line.split("address=").nth(1)?.split_whitespace().next()?.to_owned())
    })?;
    let mut client = daemon.client()?;
    let target = daemon.target("a");
    let commit = client.publish(&target, view(&server.url("r.git")), None)?.commit;
    std::fs::read(target.join("a"))?;
    // A request is counted after its answer, which the reader has already.
    let read = || http_get(&address, "/metrics").ok().filter(|metrics| metrics.contains("operation=\"read\"} 1\n"));
    let metrics = wait_for("the read in the metrics", DEADLINE, read)?;
    for part in [
        "git_csi_volume_abnormal{namespace=\"n\",volume=\"v\"} 0",
        &format!("commit=\"{commit}\""),
        "gitmount_fetch_duration_seconds_count{result=\"worked\"} 1",
        "gitmount_view_since_success_seconds{",
        "gitmount_switch_duration_seconds_count 0",
        "gitmount_fetched_bytes_total ",
        "gitmount_cache_requests_total{cache=\"trees\",result=\"miss\"} ",
        "gitmount_cache_requests_total{cache=\"blobs\",result=\"hit\"} ",
        "gitmount_cache_bytes{cache=\"trees\"} ",
        "gitmount_refused_credentials_total 0",
        "gitmount_store_bytes ",
    ] {
        ensure!(metrics.contains(part), "{part} is missing in {metrics}");
    }
    // The time of an answer is above zero and below that of this test.
    let series = |name: &str, label: &str| -> Result<f64> {
        let line = metrics.lines().find(|line| line.starts_with(name) && line.contains(label));
        Ok(line.and_then(|line| line.rsplit(' ').next()).with_context(|| format!("{name} is missing in {metrics}"))?.parse()?)
    };
    let took = series("gitmount_fuse_request_seconds_total{", "operation=\"read\"")?;
    ensure!(took > 0.0 && took < DEADLINE.as_secs_f64(), "{took}");
    ensure!(series("gitmount_cache_bytes", "trees")? > 0.0);
    server.misbehave(Fault::status(500));
    ensure!(client.pull(&target).is_err());
    ensure!(http_get(&address, "/metrics")?.contains("git_csi_volume_abnormal{namespace=\"n\",volume=\"v\"} 1"));
    client.unpublish(&target)?;
    let metrics = http_get(&address, "/metrics")?;
    for gone in ["volume=\"v\"", &commit, "view=\"", &server.url("r.git")] {
        ensure!(!metrics.contains(gone), "{gone} is still in {metrics}");
    }
    ensure!(http_get(&address, "/healthz")?.starts_with("HTTP/1.1 200") && http_get(&address, "/readyz")?.starts_with("HTTP/1.1 200"));
    ensure!(http_get(&address, "/else")?.starts_with("HTTP/1.1 404"));
    Ok(())
}

/// A few trees that stand ten times in each other claim to hold ten thousand million files.
#[test]
fn a_tree_that_nobody_could_count_is_counted_and_holds_up_no_other() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    fixtures::small(&dir.path().join("o.git"), &[("a", "one\n")])?;
    let mut tree = repo.id("main^{tree}")?;
    for _ in 0..10 {
        let entries: String = (0..10).map(|n| format!("040000 tree {tree}\td{n}\n")).collect();
        tree = String::from_utf8(repo.feed(["mktree"], entries.as_bytes())?)?.trim().to_owned();
    }
    let commit = repo.line(["commit-tree", "-m", "bomb", &tree])?;
    repo.point("refs/heads/main", &commit)?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&[])?;
    let mut client = daemon.client()?;
    let mut counted = |name: &str| -> Result<proto::StatisticsResponse> {
        client.publish(&daemon.target(name), view(&server.url(&format!("{name}.git"))), None)?;
        wait_for("the tree to be counted", DEADLINE, || client.statistics(&daemon.target(name)).ok().filter(|s| s.inodes.is_some()))
    };
    // Directories of ten levels with the root, and a file in each of the last.
    let (directories, files) = ((0..=10).map(|level| 10u64.pow(level)).sum::<u64>(), 10u64.pow(10));
    let bomb = counted("r")?;
    ensure!(bomb.inodes == Some(directories + files) && bomb.bytes == Some(4 * files), "{bomb:?}");
    ensure!(counted("o")?.inodes == Some(2));
    let usage = nix::sys::statvfs::statvfs(&daemon.target("r"))?;
    ensure!(usage.files() >= files, "{}", usage.files());
    Ok(())
}

/// Where a view is written down a disk may hang: here a pipe that nobody reads.
#[test]
fn status_answers_while_the_disk_of_the_state_hangs() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let daemon = Daemon::start(&[])?;
    daemon.publish("t", view(&server.url("r.git")))?;
    let id = daemon.view(&daemon.target("t"))?.id;
    let pipe = daemon.state().join("views").join(id).join("view.new");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU)?;
    let (published, _drain) = std::thread::scope(|scope| {
        let hanging = scope.spawn(|| daemon.publish("u", view(&server.url("r.git"))));
        let two = || daemon.client().ok()?.status().ok()?.views.first().filter(|view| view.mounts.len() == 2).map(drop);
        let outcome = wait_for("the other target, in the status", DEADLINE, two).and_then(|()| {
            daemon.client()?.statistics(&daemon.target("t"))?;
            ensure!(!hanging.is_finished(), "the publish does not hang: this test does not test what it says");
            Ok(())
        });
        // As long as somebody reads it, nobody waits.
        let drain = std::fs::File::options().read(true).write(true).open(&pipe)?;
        let published = hanging.join().map_err(|_| anyhow::anyhow!("a publish panicked"))?;
        outcome.map(|()| (published, drain))
    })?;
    ensure!(published.is_err(), "a pipe is no file to keep something in");
    std::fs::remove_file(&pipe)?;
    daemon.publish("u", view(&server.url("r.git")))?;
    Ok(())
}
