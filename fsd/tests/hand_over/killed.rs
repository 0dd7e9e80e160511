//! `kill -9` of the server fails no system call and gives no wrong byte.
//!
//! A short run in CI; with `GITMOUNT_TORTURE` 100 kills.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::mount::is_mounted;
use gitmount_tests::run::{require, start, wait_for};
use gitmount_tests::torture::epochs::Epochs;
use gitmount_tests::torture::history::Random;
use gitmount_tests::torture::readers::Readers;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

use crate::server::{SOON, Scene};

const READERS: usize = 6;

fn times(short: usize, long: usize) -> usize {
    if std::env::var_os("GITMOUNT_TORTURE").is_some() { long } else { short }
}

/// Maps a file and compares it with what it was at first, from the server again each time, until its standard input ends.
const MAPPER: &str = "
import mmap, os, select, sys
f = os.open(sys.argv[1], os.O_RDONLY)
m = mmap.mmap(f, 0, prot=mmap.PROT_READ)
was = bytes(m)
assert was, 'an empty file'
print('mapped', flush=True)
while not select.select([0], [], [], 0)[0]:
    m.madvise(mmap.MADV_DONTNEED)
    os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
    assert bytes(m) == was, 'other bytes'
";

fn map(scene: &Scene, path: &str) -> Result<Child> {
    require("python3", "python3")?;
    let mut command = Command::new("python3");
    command.args(["-c", MAPPER]).arg(scene.home.target().join(path)).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = start(&mut command)?;
    let mut line = [0; 7];
    child.stdout.take().context("is piped")?.read_exact(&mut line)?;
    ensure!(&line == b"mapped\n");
    Ok(child)
}

/// Reads an open file again and again, from the server each time.
fn reread(file: &File, was: &[u8]) -> Result<()> {
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
    let mut now = vec![0; was.len() + 1];
    let length = file.read_at(&mut now, 0)?;
    ensure!(now[..length] == *was, "an open file has other bytes");
    Ok(())
}

/// A file that is there in the first commit.
fn some_file(scene: &Scene) -> Result<String> {
    let found = scene.history.paths.iter().find(|path| {
        let place = scene.home.target().join(path);
        place.symlink_metadata().is_ok_and(|meta| meta.is_file() && meta.len() > 0)
    });
    found.cloned().context("there is no file")
}

#[test]
fn readers_lists_maps_and_switches_go_on() -> Result<()> {
    let (scene, kills) = (Arc::new(Scene::new()?), times(8, 100));
    let path = some_file(&scene)?;
    let mut mapper = map(&scene, &path)?;
    let mut open = File::open(scene.home.target().join(&path))?;
    let mut was = Vec::new();
    open.read_to_end(&mut was)?;
    open.seek(SeekFrom::Start(0))?;

    let epochs = Arc::new(Epochs::new(0));
    let readers = Readers::start(READERS, &scene.home.target(), &scene.history, &epochs)?;
    let (done, killed) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let killer = thread::spawn({
        let (scene, done, killed) = (scene.clone(), done.clone(), killed.clone());
        move || -> Result<Duration> {
            let (mut random, mut slowest) = (Random(5), Duration::ZERO);
            while killed.load(Ordering::SeqCst) < kills {
                thread::sleep(Duration::from_millis(5 + random.below(120) as u64));
                let began = Instant::now();
                scene.kill_server()?;
                scene.serve()?;
                slowest = slowest.max(began.elapsed());
                killed.fetch_add(1, Ordering::SeqCst);
            }
            done.store(true, Ordering::SeqCst);
            Ok(slowest)
        }
    });
    let (mut random, mut now) = (Random(99), 0);
    let outcome = (|| -> Result<()> {
        while !done.load(Ordering::SeqCst) && !killer.is_finished() {
            let next = (now + 1 + random.below(scene.history.ids.len() - 1)) % scene.history.ids.len();
            let epoch = epochs.begin(next);
            scene.point(next)?;
            scene.wait_for(next)?;
            epochs.finish(epoch);
            now = next;
            reread(&open, &was)?;
            ensure!(readers.tally().violations().is_empty(), "after {} kills", killed.load(Ordering::SeqCst));
        }
        Ok(())
    })();
    let slowest = killer.join().ok().context("the killer panicked")?;
    let tally = readers.finish()?;
    outcome?;
    let slowest = slowest?;
    reread(&open, &was)?;
    mapper.stdin.take().context("is piped")?.write_all(b"end")?;
    let status = wait_for("the end of the mapper", SOON, || mapper.try_wait().ok().flatten())?;
    ensure!(status.success(), "the mapper ended with {status}");
    let (operations, trees) = (tally.operations.load(Ordering::Relaxed), tally.trees.load(Ordering::Relaxed));
    eprintln!(
        "{kills} kills, {} switches, {operations} operations, {trees} whole trees, the longest operation {:?}, the slowest restart {slowest:?}",
        epochs.count(),
        tally.longest()
    );
    ensure!(trees > 0, "no tree was read");
    Ok(())
}

#[test]
fn holder_or_server_may_be_killed_in_any_order() -> Result<()> {
    let scene = Scene::new()?;
    let path = some_file(&scene)?;
    let open = File::open(scene.home.target().join(&path))?;
    let was = std::fs::read(scene.home.target().join(&path))?;
    let mut random = Random(17);
    for round in 0..times(6, 20) {
        if random.below(2) == 0 {
            scene.kill_holder()?;
            scene.hold()?;
            scene.wait_until_held()?;
        } else {
            scene.kill_server()?;
            ensure!(is_mounted(&scene.home.target())?, "the mount was lost in round {round}");
            scene.serve()?;
        }
        let next = random.below(scene.history.ids.len());
        scene.point(next)?;
        scene.wait_for(next)?;
        reread(&open, &was).with_context(|| format!("round {round}"))?;
    }
    Ok(())
}
