//! Daemon and holder are killed again and again while mounts are read, listed, mapped and switched: no call fails and no byte is wrong.
//!
//! In CI a few kills; `make torture` does them all.

use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::daemon::{Client, Daemon, view};
use gitmount_tests::git::Repo;
use gitmount_tests::run::{self, wait_for};
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::torture::epochs::Epochs;
use gitmount_tests::torture::history::{History, Random};
use gitmount_tests::torture::readers::Readers;

const READERS: usize = 8;
const DEADLINE: Duration = Duration::from_secs(30);

fn times(short: usize, long: usize) -> usize {
    if std::env::var_os("GITMOUNT_TORTURE").is_some() { long } else { short }
}

/// A mapped file, an open directory and a working directory that outlive every switch and every kill. The pages are dropped before each look,
/// so that it asks the daemon.
const KEEPER: &str = r#"
import hashlib, mmap, os, select, sys, time
os.chdir(os.path.join(sys.argv[1], "stable"))
fd = os.open("always", os.O_RDONLY)
size = os.fstat(fd).st_size
mapped = mmap.mmap(fd, size, prot=mmap.PROT_READ)
first = hashlib.sha256(mapped[:]).digest()
print("ready", flush=True)
looks = 0
while not select.select([sys.stdin], [], [], 0.01)[0]:
    mapped.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    assert hashlib.sha256(mapped[:]).digest() == first, "the map has other bytes"
    assert os.pread(fd, size + 1, 0) == mapped[:], "the open file has other bytes"
    assert os.listdir(".") == ["always"], os.listdir(".")
    os.stat("always"); os.stat("../stable")
    looks += 1
assert looks > 0
"#;

struct Stage {
    _dir: tempfile::TempDir,
    _server: GitDaemon,
    repo: Repo,
    history: Arc<History>,
    epochs: Arc<Epochs>,
    daemon: Daemon,
}

const REF: &str = "refs/heads/served";

impl Stage {
    fn new() -> Result<Self> {
        let dir = scratch::dir()?;
        let repo = Repo::init_bare(dir.path().join("r.git"))?;
        let history = Arc::new(History::write(&repo, 50, 5)?);
        repo.run(["repack", "-adq"])?;
        repo.point(REF, &history.ids[0])?;
        let server = GitDaemon::serve(dir.path())?;
        let daemon = Daemon::held(&[])?;
        daemon.publish("t", proto::ViewSpec { r#ref: REF.into(), ..view(&server.url("r.git")) })?;
        Ok(Stage { _dir: dir, _server: server, repo, history, epochs: Arc::new(Epochs::new(0)), daemon })
    }

    /// Runs `kills` under readers, a keeper of maps, and switches without pause.
    fn under_load(&mut self, kills: impl FnOnce(&mut Daemon, &Readers, &Epochs) -> Result<()>) -> Result<()> {
        let target = self.daemon.target("t");
        let readers = Readers::start(READERS, &target, &self.history, &self.epochs)?;
        let mut keeper = keeper(&target)?;
        let stop = AtomicBool::new(false);
        let socket = self.daemon.socket();
        let (history, epochs, repo, daemon) = (&self.history, &self.epochs, &self.repo, &mut self.daemon);
        std::thread::scope(|scope| {
            let switching = scope.spawn(|| switch_without_pause(&socket, &target, history, epochs, repo, &stop));
            let outcome = kills(daemon, &readers, epochs);
            stop.store(true, Ordering::SeqCst);
            switching.join().map_err(|_| anyhow::anyhow!("the switching thread panicked"))?.and(outcome)
        })
        .with_context(|| format!("the daemon logged: {}", tail(&self.daemon)))?;
        let tally = readers.finish()?;
        drop(keeper.stdin.take());
        let kept = wait_for("the end of the keeper", DEADLINE, || keeper.try_wait().ok().flatten())?;
        ensure!(kept.success(), "what was mapped or open failed");
        eprintln!(
            "{} switches, {} operations, {} whole trees, the longest operation {:?}",
            self.epochs.count(),
            tally.operations.load(Ordering::Relaxed),
            tally.trees.load(Ordering::Relaxed),
            tally.longest()
        );
        ensure!(self.epochs.count() > 0 && tally.trees.load(Ordering::Relaxed) > 0, "nothing happened meanwhile");
        Ok(())
    }
}

fn tail(daemon: &Daemon) -> String {
    let log = daemon.log().unwrap_or_default();
    let lines: Vec<&str> = log.lines().collect();
    lines[lines.len().saturating_sub(30)..].join("\n")
}

fn keeper(target: &Path) -> Result<Child> {
    use std::io::{BufRead, BufReader};
    let mut command = run::command("python3");
    let mut child = run::start(command.args(["-c", KEEPER]).arg(target).stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let mut line = String::new();
    BufReader::new(child.stdout.take().context("stdout was asked for")?).read_line(&mut line)?;
    ensure!(line == "ready\n", "the keeper of maps said {line:?}");
    Ok(child)
}

/// Moves the ref and pulls until it is served, again and again, whatever happens to the daemon.
fn switch_without_pause(socket: &Path, target: &Path, history: &History, epochs: &Epochs, repo: &Repo, stop: &AtomicBool) -> Result<()> {
    let (mut random, mut now) = (Random(4242), 0);
    while !stop.load(Ordering::SeqCst) {
        let next = (now + 1 + random.below(history.ids.len() - 1)) % history.ids.len();
        let epoch = epochs.begin(next);
        repo.point(REF, &history.ids[next])?;
        let began = Instant::now();
        loop {
            // A daemon that is just killed does not answer; the next one does.
            let pulled = Client::connect(socket).and_then(|mut client| client.pull(target));
            match pulled {
                Ok(pulled) if pulled.new == history.ids[next] => break,
                Ok(pulled) => bail!("a pull gave {} and not {}", pulled.new, history.ids[next]),
                Err(error) if began.elapsed() > DEADLINE => return Err(error.context("no pull worked for too long")),
                Err(_) => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        epochs.finish(epoch);
        now = next;
    }
    Ok(())
}

/// Waits for a random point in one of the next switches, or in a restart.
fn some_time(random: &mut Random, epochs: &Epochs) {
    let after = epochs.finished() + random.below(3);
    let (began, limit) = (Instant::now(), Duration::from_secs(2));
    while epochs.finished() < after && began.elapsed() < limit {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(random.below(60) as u64));
}

#[test]
fn kills_of_the_daemon_fail_no_call() -> Result<()> {
    let mut stage = Stage::new()?;
    stage.under_load(|daemon, readers, epochs| {
        let mut random = Random(7);
        for kill in 0..times(6, 100) {
            some_time(&mut random, epochs);
            daemon.kill().with_context(|| format!("kill {kill}"))?;
            daemon.restart().with_context(|| format!("start after kill {kill}"))?;
            ensure!(readers.tally().violations().is_empty(), "kill {kill}: {:?}", readers.tally().violations());
        }
        Ok(())
    })
}

#[test]
fn kills_of_daemon_or_holder_lose_no_mount() -> Result<()> {
    let mut stage = Stage::new()?;
    stage.under_load(|daemon, readers, epochs| {
        let mut random = Random(11);
        for kill in 0..times(6, 20) {
            wait_for("the holder's hold", DEADLINE, || daemon.holds().ok().filter(|held| *held == 1))?;
            some_time(&mut random, epochs);
            if random.below(2) == 0 {
                daemon.kill_holder()?;
                daemon.restart_holder()?;
            } else {
                daemon.kill()?;
                daemon.restart()?;
            }
            ensure!(readers.tally().violations().is_empty(), "kill {kill}: {:?}", readers.tally().violations());
        }
        ensure!(!daemon.log()?.contains("held by nobody"), "a mount was lost");
        Ok(())
    })
}
