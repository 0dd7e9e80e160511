//! Many views of one daemon, all read as a whole: memory stays small, and nothing of them is left after the last unpublish.
//!
//! In CI 20 views of a small tree; `make torture` takes 100 views of 50,000 files in 6,500 directories each.

use std::fs;
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::daemon::{Daemon, resources, view};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::mount::mounts_below;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;

const DEADLINE: Duration = Duration::from_secs(60);
const READERS: usize = 4;
/// As many go by number into nine directories; some eight in each, as in real trees.
const FILES_A_GROUP: usize = 69;
/// What all of them may take, in KiB.
const MOST: u64 = 200 << 10;

/// Views, and files of each.
fn size() -> (usize, usize) {
    let long = std::env::var_os("GITMOUNT_TORTURE").is_some();
    let files = std::env::var("GITMOUNT_TORTURE_FILES").ok().and_then(|files| files.parse().ok());
    (if long { 100 } else { 20 }, files.unwrap_or(if long { 50_000 } else { 400 }))
}

/// Anonymous memory of a process, in KiB.
fn anonymous(pid: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("a process has memory")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Reads every file below `dir`; how many there are.
fn read(dir: &Path) -> Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        ensure!(entry.ino() != 0);
        if entry.file_type()?.is_dir() {
            files += read(&entry.path())?;
        } else {
            ensure!(!fs::read(entry.path())?.is_empty());
            files += 1;
        }
    }
    Ok(files)
}

#[test]
fn memory_stays_small_and_nothing_is_left() -> Result<()> {
    let (views, files) = size();
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "Many files")?;
    for file in 0..files {
        let path = format!("part{}/dir{}/file-number-{file}.txt", file % 9, file / FILES_A_GROUP);
        import.file(path.as_bytes(), format!("{file} has a content of its own\n"))?;
    }
    import.finish()?;
    let server = GitDaemon::serve(dir.path())?;
    // Another ref makes another view, of the same commit.
    let refs: String = (0..views).map(|n| format!("create refs/heads/view{n} refs/heads/main\n")).collect();
    repo.feed(["update-ref", "--stdin"], refs.as_bytes())?;

    let daemon = Daemon::held(&[])?;
    let pid = daemon.pid()?;
    let mut client = daemon.client()?;
    // What is started once and for all is started.
    client.publish(&daemon.target("first"), view(&server.url("r.git")), None)?;
    read(&daemon.target("first"))?;
    client.unpublish(&daemon.target("first"))?;
    let idle = |daemon: &Daemon| {
        let (mut threads, descriptors) = resources(daemon.pid()?)?;
        // Threads that wait for calls come and go by themselves.
        threads.retain(|name| !name.starts_with("tokio") && !name.starts_with("gitmount"));
        Ok::<_, anyhow::Error>((threads, descriptors))
    };
    let before = idle(&daemon)?;

    let began = Instant::now();
    for n in 0..views {
        let spec = proto::ViewSpec { r#ref: format!("view{n}"), ..view(&server.url("r.git")) };
        client.publish(&daemon.target(&format!("t{n}")), spec, None)?;
    }
    let published = began.elapsed();
    let empty = anonymous(pid)?;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|reader| {
                let daemon = &daemon;
                scope.spawn(move || -> Result<()> {
                    for n in (reader..views).step_by(READERS) {
                        let read = read(&daemon.target(&format!("t{n}")))?;
                        ensure!(read == files, "view {n} has {read} files and not {files}");
                    }
                    Ok(())
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))?)
    })?;
    let full = anonymous(pid)?;
    eprintln!(
        "{views} views of {files} files: published in {published:?}, all read after {:?}, anonymous memory {} MiB before and {} MiB after",
        began.elapsed(),
        empty >> 10,
        full >> 10
    );
    // The one before was silent for too long.
    client = daemon.client()?;
    ensure!(client.status()?.views.len() == views);
    if std::env::var_os("GITMOUNT_TORTURE_FILES").is_none() {
        ensure!(full <= MOST, "{full} KiB of anonymous memory");
    }
    for n in 0..views {
        client.unpublish(&daemon.target(&format!("t{n}")))?;
    }
    ensure!(mounts_below(&daemon.state())?.is_empty() && client.status()?.views.is_empty());
    let left = || idle(&daemon).ok().filter(|now| now.0 == before.0 && now.1 <= before.1);
    wait_for("the end of all threads and descriptors", DEADLINE, left)
        .with_context(|| format!("before {before:?}, now {:?}", idle(&daemon)))?;
    wait_for("the holder to keep nothing", DEADLINE, || daemon.holds().ok().filter(|held| *held == 0)).map(drop)
}
