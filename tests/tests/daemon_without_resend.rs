//! Kernels that cannot send requests again (`--without-kernel resend`): a daemon is killed under reads.
//!
//! As docs/kernels.md says: a reader whose request the killed daemon had read waits, and so does whoever reads the same part of that file;
//! everybody else goes on; and the wait ends with an error when the view is unpublished.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures;
use gitmount_tests::mount::mounts_below;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};

const READERS: usize = 8;
const DEADLINE: Duration = Duration::from_secs(30);
/// A reader that has read nothing for so long waits for the killed daemon.
const QUIET: Duration = Duration::from_secs(1);

/// One reader: a file that it reads from the daemon each time, and what it has read.
#[derive(Default)]
struct Reader {
    reads: AtomicU64,
    /// How it ended: 0 for no error, else the error's number; none while it reads.
    ended: std::sync::OnceLock<i32>,
}

fn read(path: &PathBuf, reader: &Reader, stop: &AtomicBool) -> Result<i32> {
    let file = File::open(path)?;
    let mut first = [0; 64];
    let length = file.read_at(&mut first, 0)?;
    while !stop.load(Ordering::SeqCst) {
        posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
        let mut now = [0; 64];
        match file.read_at(&mut now, 0) {
            Ok(read) => ensure!(now[..read] == first[..length], "wrong bytes"),
            Err(error) => return Ok(error.raw_os_error().unwrap_or(-1)),
        }
        reader.reads.fetch_add(1, Ordering::SeqCst);
    }
    Ok(0)
}

#[test]
fn who_waits_for_a_killed_daemon_waits_until_the_mount_ends_and_nobody_else() -> Result<()> {
    let dir = scratch::dir()?;
    let files: Vec<(String, String)> = (0..READERS).map(|n| (format!("d/f{n}"), format!("file {n}\n"))).collect();
    let mut borrowed: Vec<(&str, &str)> = files.iter().map(|(path, content)| (path.as_str(), content.as_str())).collect();
    borrowed.push(("other", "one\n"));
    let repo = fixtures::small(&dir.path().join("r.git"), &borrowed)?;
    let server = GitDaemon::serve(dir.path())?;
    let mut daemon = Daemon::held(&["--without-kernel", "resend"])?;
    let (target, other) = (daemon.target("t"), daemon.target("u"));
    daemon.publish("t", view(&server.url("r.git")))?;
    daemon.publish("u", view(&server.url("r.git")))?;
    ensure!(daemon.log()?.contains("this kernel has no FUSE_NOTIFY_RESEND"), "it is said");

    // The first file that is closed costs a message. A daemon that is started below must not wait for that itself: it inherits what the readers
    // have open, and closes it.
    compare::against_both(&target, &repo, "main")?;
    let readers: Vec<Reader> = (0..READERS).map(|_| Reader::default()).collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads: Vec<_> = readers
            .iter()
            .zip(&files)
            .map(|(reader, (path, _))| {
                let (path, stop) = (target.join(path), &stop);
                scope.spawn(move || {
                    let ended = read(&path, reader, stop);
                    // Set once, here.
                    let _ = reader.ended.set(*ended.as_ref().unwrap_or(&-1));
                    ended.map(drop)
                })
            })
            .collect();
        let outcome = (|| {
            let mut waiting = 0;
            for kill in 0..40 {
                wait_for("reads", DEADLINE, || readers.iter().any(|r| r.reads.load(Ordering::SeqCst) > kill).then_some(()))?;
                daemon.kill()?;
                daemon.restart()?;
                // Others are served, in any case and at any target.
                works(&target, "one\n")?;
                works(&other, "one\n")?;
                waiting = waiters(&readers);
                if waiting > 0 {
                    break;
                }
            }
            ensure!(waiting > 0, "no kill came between a request and its answer");
            ensure!(readers.iter().all(|reader| reader.ended.get().is_none()), "nobody got an error");
            // It goes on to follow the ref, and nobody's wait ends by that.
            let new = fixtures::commit(&repo, "next", &[("other", "two\n"), ("d/f0", "other\n")])?;
            ensure!(daemon.client()?.pull(&target)?.new == new);
            works(&other, "two\n")?;
            // Others that read stop by themselves; who waits stays.
            stop.store(true, Ordering::SeqCst);
            let left = || readers.iter().filter(|reader| reader.ended.get().is_none()).count();
            wait_for("the end of the others", DEADLINE, || (left() == waiting).then_some(()))?;
            // Of two targets one goes: the mount stays.
            daemon.client()?.unpublish(&other)?;
            works(&target, "two\n")?;
            ensure!(left() == waiting);
            daemon.client()?.unpublish(&target)?;
            wait_for("the end of who waits", DEADLINE, || (left() == 0).then_some(()))?;
            let errors: Vec<i32> = readers.iter().filter_map(|r| r.ended.get().copied()).filter(|code| *code != 0).collect();
            ensure!(errors.len() == waiting, "{errors:?}");
            ensure!(errors.iter().all(|code| [Errno::ECONNABORTED as i32, Errno::ENOTCONN as i32].contains(code)), "{errors:?}");
            eprintln!("{waiting} of {READERS} readers waited");
            Ok(())
        })();
        stop.store(true, Ordering::SeqCst);
        if outcome.is_err() {
            // Whoever waits is let go, so that the test ends.
            for target in [&target, &other, &daemon.state().join("mounts")] {
                for mount in mounts_below(target).unwrap_or_default() {
                    let _ = nix::mount::umount2(&mount, nix::mount::MntFlags::MNT_FORCE | nix::mount::MntFlags::MNT_DETACH);
                }
            }
        }
        for thread in threads {
            let ended = thread.join().map_err(|_| anyhow::anyhow!("a reader panicked"))?;
            if outcome.is_ok() {
                ended.context("a reader")?;
            }
        }
        outcome
    })?;
    ensure!(mounts_below(&daemon.state())?.is_empty());
    wait_for("the end of the view", DEADLINE, || daemon.client().ok()?.status().ok().filter(|s| s.views.is_empty()))?;
    ensure!(daemon.stop()?.success());
    Ok(())
}

/// Whether a mount is listed and a file of it read from the daemon, by a thread of its own: this one must not wait for ever.
fn works(target: &Path, content: &'static str) -> Result<()> {
    let (target, (done, finished)) = (target.to_owned(), mpsc::channel());
    std::thread::spawn(move || {
        let read = || -> Result<String> {
            ensure!(std::fs::read_dir(target.join("d"))?.count() == READERS);
            let file = File::open(target.join("other"))?;
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED)?;
            Ok(std::io::read_to_string(file)?)
        };
        // Nobody waits for it any more when it took too long.
        let _ = done.send(read());
    });
    let read = finished.recv_timeout(DEADLINE).context("another reader waits as well")??;
    ensure!(read == content, "{read:?} is no {content:?}");
    Ok(())
}

/// How many have read nothing for a while.
fn waiters(readers: &[Reader]) -> usize {
    let before: Vec<u64> = readers.iter().map(|reader| reader.reads.load(Ordering::SeqCst)).collect();
    std::thread::sleep(QUIET);
    readers.iter().zip(before).filter(|(reader, before)| reader.reads.load(Ordering::SeqCst) == *before).count()
}
