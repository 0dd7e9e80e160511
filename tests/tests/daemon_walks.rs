//! Walks of mounts that the holder keeps: it stores files in the page cache ahead of the reader, for a daemon that must always be able to end.
//!
//! The kills are some in CI; `make torture` does fifty.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures;
use gitmount_tests::import::Import;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http_get;
use gitmount_tests::torture::history::Random;

const FILES: usize = 3000;
const A_DIRECTORY: usize = 12;
const DEADLINE: Duration = Duration::from_secs(60);

fn kills() -> usize {
    if std::env::var_os("GITMOUNT_TORTURE").is_some() { 50 } else { 6 }
}

/// What is in file `number`: some bytes to some hundred KiB, some of whole pages.
fn content(number: usize) -> Vec<u8> {
    let length = match number % 50 {
        0 => 300 << 10,
        1 => 128 << 10,
        2 => (128 << 10) + 1,
        3 => 4096,
        _ => 1 + number * 7 % 9000,
    };
    let mut state = number as u32 + 1;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        b"0123456789abcdef"[(state >> 28) as usize]
    };
    (0..length).map(|_| next()).collect()
}

fn import(path: &Path) -> Result<()> {
    let repo = fixtures::small(path, &[("first", "first\n")])?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "Many files")?;
    for number in 0..FILES {
        import.file(format!("d{}/f{number:04}", number / A_DIRECTORY).as_bytes(), content(number))?;
    }
    import.finish()?;
    repo.run(["repack", "-adq"])?;
    Ok(())
}

/// Reads everything while it lists, directory by directory, and compares it; `at` counts the files.
fn walk(dir: &Path, at: &AtomicUsize) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), at)?;
        } else if let Some(number) = entry.file_name().to_string_lossy().strip_prefix('f').and_then(|number| number.parse().ok()) {
            let expected = content(number);
            ensure!(fs::read(entry.path())? == expected, "{} has other bytes", entry.path().display());
            // Also beyond the end, where nothing may have been stored.
            let mut more = [0; 8];
            ensure!(fs::File::open(entry.path())?.read_at(&mut more, expected.len() as u64)? == 0);
            at.fetch_add(1, Ordering::SeqCst);
        }
    }
    Ok(())
}

/// Reads that the kernel asked for.
fn reads(address: &str) -> Result<u64> {
    let metrics = http_get(address, "/metrics")?;
    let of_reads = metrics.lines().filter(|line| line.starts_with("gitmount_fuse_requests_total") && line.contains("operation=\"read\""));
    of_reads.map(|line| Ok(line.rsplit(' ').next().context("a number ends the line")?.parse::<u64>()?)).sum()
}

#[test]
fn files_are_stored_ahead_through_the_holder() -> Result<()> {
    let _alone = scratch::exclusive("kernel-caches")?;
    let dir = scratch::dir()?;
    import(&dir.path().join("r.git"))?;
    let server = GitDaemon::serve(dir.path())?;
    let daemon = Daemon::held(&["--metrics", "127.0.0.1:0"])?;
    let address = wait_for("the address in the log", DEADLINE, || {
        let log = daemon.log().ok()?;
        let line = log.lines().find(|line| line.contains("metrics are served"))?;
        Some(line.split("address=").nth(1)?.split_whitespace().next()?.to_owned())
    })?;
    daemon.publish("t", view(&server.url("r.git")))?;
    let mut before = 0;
    for round in ["first", "second"] {
        let read = AtomicUsize::new(0);
        walk(&daemon.target("t"), &read)?;
        let asked = reads(&address)? - before;
        eprintln!("{FILES} files were read the {round} time with {asked} messages");
        ensure!(read.into_inner() == FILES && asked < FILES as u64, "{asked} reads for {FILES} files: nothing was stored ahead");
        before += asked;
        // The memory was needed for something else, and then all is read again.
        std::thread::sleep(Duration::from_millis(1100));
        scratch::drop_caches(true)?;
    }
    Ok(())
}

#[test]
fn kills_fail_no_walk() -> Result<()> {
    let _alone = scratch::exclusive("kernel-caches")?;
    let dir = scratch::dir()?;
    import(&dir.path().join("r.git"))?;
    let server = GitDaemon::serve(dir.path())?;
    let mut daemon = Daemon::held(&[])?;
    daemon.publish("t", view(&server.url("r.git")))?;
    let target = daemon.target("t");
    let mut random = Random(23);
    for kill in 0..kills() {
        scratch::drop_caches(true)?;
        let read = AtomicUsize::new(0);
        let when = random.below(FILES);
        std::thread::scope(|scope| -> Result<()> {
            let reader = scope.spawn(|| walk(&target, &read));
            while read.load(Ordering::SeqCst) < when && !reader.is_finished() {
                std::thread::sleep(Duration::from_micros(200));
            }
            let outcome = if random.below(3) > 0 {
                daemon.kill().and_then(|()| daemon.restart())
            } else {
                daemon
                    .kill_holder()
                    .and_then(|()| daemon.restart_holder())
                    .and_then(|()| wait_for("the deposit", DEADLINE, || daemon.holds().ok().filter(|held| *held > 0)).map(drop))
            };
            outcome.with_context(|| format!("kill {kill} at file {when}"))?;
            reader.join().map_err(|_| anyhow::anyhow!("the reader panicked"))?.with_context(|| format!("kill {kill} at file {when}"))
        })?;
        ensure!(read.into_inner() == FILES);
    }
    Ok(())
}
