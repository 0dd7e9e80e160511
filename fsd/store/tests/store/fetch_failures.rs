//! A fetch that fails leaves the repository as it was: full disk, cut and corrupt packs, cancelled and killed half way.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::fetch::{Phase, Progress};
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};
use gitmount_tests::fixtures::content::noise;
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::scratch::SmallDisk;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::{Fault as Misbehaviour, HttpServer};

use crate::support::{TestStore, clean, fetch, fsck, packs, request, same_files, try_fetch};

/// A source with one file of 3 MB that does not compress.
fn source(dir: &Path) -> Result<Repo> {
    let repo = Repo::init_bare(dir.join("source.git"))?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "First")?.file(b"noise", noise(3 << 20))?.file(b"small", "small\n")?;
    import.finish()?;
    Ok(repo)
}

#[test]
fn a_full_disk_is_named_and_the_next_fetch_works() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = source(dir.path())?;
    let daemon = GitDaemon::serve(dir.path())?;
    for url in [daemon.url("source.git"), format!("file://{}", source.path().display())] {
        let disk = SmallDisk::new(2 << 20)?;
        let store = Store::open(StoreOptions::new(disk.path().join("store")))?;
        let repository = store.repository(&RepoUrl::parse(&url, &UrlPolicy { allow_file: true, ..Default::default() })?)?;
        let error = try_fetch(&repository, "main", 1).err().context("3 MB do not fit into 2 MB")?;
        ensure!(error.fault() == Fault::Disk, "{error}");
        ensure!(error.to_string().contains(&*disk.path().to_string_lossy()) && error.to_string().contains("space"), "{error}");
        clean(&repository)?;
        ensure!(packs(&repository, "pack")?.is_empty());
        disk.resize(16 << 20)?;
        ensure!(fetch(&repository, "main", 1)?.received);
        same_files(&repository, &source, "main")?;
        // What is open on the disk goes before the disk.
        drop((repository, store));
    }
    Ok(())
}

#[test]
fn cut_and_corrupt_packs_leave_the_old_commit_in_place() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = source(dir.path())?;
    let http = HttpServer::plain(dir.path())?;
    let store = TestStore::new()?;
    let repository = store.repository(&http.url("source.git"))?;
    let old = fetch(&repository, "main", 1)?.commit;
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "Second")?.file(b"more", noise(1 << 20).into_iter().rev().collect::<Vec<u8>>())?;
    import.finish()?;
    let bad = [
        (Misbehaviour::CutPack, Fault::Unreachable),
        (Misbehaviour::HalfPack, Fault::Unreachable),
        (Misbehaviour::CorruptPack, Fault::Corrupt),
    ];
    for (misbehaviour, fault) in bad {
        http.misbehave(misbehaviour.clone());
        let error = try_fetch(&repository, "main", 1).err().context("the pack is bad")?;
        ensure!(error.fault() == fault, "{misbehaviour:?}: {:?}: {error}", error.fault());
        clean(&repository)?;
        ensure!(repository.known(&request("main", 1)?.spec)? == Some(old));
        ensure!(packs(&repository, "pack")?.len() == 1);
        fsck(&repository)?;
    }
    http.behave();
    ensure!(fetch(&repository, "main", 1)?.received);
    same_files(&repository, &source, "main")
}

/// Sets `stop` when the first bytes of the pack have come, and keeps what it was told.
struct StopWhenReceiving {
    stop: Arc<AtomicBool>,
    told: Mutex<Vec<Phase>>,
}

impl Progress for StopWhenReceiving {
    fn update(&self, phase: Phase, done: u64, _total: Option<u64>) {
        self.told.lock().expect("no panic").push(phase);
        if phase == Phase::Receiving && done > 0 {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_fetch_is_cancelled_while_the_host_is_silent() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = source(dir.path())?;
    let http = HttpServer::plain(dir.path())?;
    http.misbehave(Misbehaviour::StallPack(1 << 20));
    let store = TestStore::new()?;
    let repository = store.repository(&http.url("source.git"))?;
    let stop = Arc::new(AtomicBool::new(false));
    let progress = StopWhenReceiving { stop: stop.clone(), told: Mutex::default() };
    let started = Instant::now();
    let error = repository.fetch(&request("main", 1)?, &progress, &stop).err().context("the pack never ends")?;
    ensure!(error.fault() == Fault::Cancelled, "{error}");
    ensure!(started.elapsed() < Duration::from_secs(5), "it took {:?}", started.elapsed());
    ensure!(progress.told.lock().expect("no panic").contains(&Phase::Negotiating));
    clean(&repository)?;
    http.behave();
    ensure!(fetch(&repository, "main", 1)?.received);
    same_files(&repository, &source, "main")
}

#[test]
fn a_commit_with_a_missing_blob_is_refused() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = source(dir.path())?;
    source.run(["repack", "-a", "-d", "-q"])?;
    source.run(["prune-packed"])?;
    let blob = source.id("main:small")?;
    // All objects but one, loose.
    let pack = std::fs::read_dir(source.path().join("objects/pack"))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|e| e == "pack"))
        .context("there is a pack")?;
    let bytes = std::fs::read(&pack)?;
    std::fs::remove_dir_all(source.path().join("objects/pack"))?;
    source.feed(["unpack-objects", "-q"], &bytes)?;
    std::fs::remove_file(source.loose_object(&blob))?;
    let store = TestStore::new()?;
    let repository = store.repository(&format!("file://{}", source.path().display()))?;
    let error = try_fetch(&repository, "main", 1).err().context("a blob is missing")?;
    ensure!(error.fault() == Fault::Corrupt && error.to_string().contains(&blob), "{error}");
    ensure!(packs(&repository, "pack")?.is_empty());
    clean(&repository)
}
