//! A disk that is full at any point of a fetch, gc or merge: the error names it, what was served is still there, and with space it goes on.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use gitmount_store::error::Result as StoreResult;
use gitmount_store::ids::CommitId;
use gitmount_store::maintenance::maintain;
use gitmount_store::repository::Repository;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};
use gitmount_store::{Fault, StoreError};
use gitmount_tests::fixtures::content::noise;
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::scratch::SmallDisk;
use gitmount_tests::servers::daemon::GitDaemon;

use crate::support::{clean, fetch, fsck, gc, same_files, try_fetch, verify};

/// By how much more space is left each time.
const STEP: u64 = 64 << 10;

/// Leaves only `bytes` on the disk.
fn fill(disk: &SmallDisk, bytes: u64) -> Result<()> {
    let path = disk.path().join("filler");
    let mut filler = File::create(&path)?;
    let mut size = 0;
    loop {
        match std::io::Write::write(&mut filler, &[0; 4 << 10]) {
            Ok(written) => size += written as u64,
            Err(err) if err.kind() == std::io::ErrorKind::StorageFull => break,
            Err(err) => return Err(err.into()),
        }
    }
    Ok(filler.set_len(size.saturating_sub(bytes))?)
}

fn commit(source: &Repo, round: u8, bytes: usize) -> Result<()> {
    let mut import = Import::into(source)?;
    let content: Vec<u8> = noise(bytes).iter().map(|byte| byte ^ round).collect();
    import.commit("refs/heads/main", "More")?.file(b"noise", content)?.file(b"round", format!("{round}\n"))?;
    import.finish()
}

/// Does `work` with more and more space until there is enough; how often there was not.
fn until_it_fits(
    disk: &SmallDisk,
    repository: &Arc<Repository>,
    (source, served): (&Repo, CommitId),
    work: &dyn Fn() -> StoreResult<()>,
) -> Result<u32> {
    for failures in 0..200u32 {
        fill(disk, u64::from(failures) * STEP)?;
        let Err(error) = work() else { return Ok(failures) };
        ensure!(error.fault() == Fault::Disk, "{failures}: {:?}: {error}", error.fault());
        let text = error.to_string();
        ensure!(text.contains(&*disk.path().to_string_lossy()) && text.contains("space"), "{failures}: {text}");
        std::fs::remove_file(disk.path().join("filler"))?;
        clean(repository)?;
        same_files(repository, source, served)?;
        let report = verify(repository)?;
        ensure!(report.problems.is_empty(), "{failures}: {report:?}");
    }
    Err(StoreError::new(Fault::Disk, "it never fits").into())
}

#[test]
fn fetch_gc_and_merge() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = Repo::init_bare(dir.path().join("r.git"))?;
    let daemon = GitDaemon::serve(dir.path())?;
    let disk = SmallDisk::new(32 << 20)?;
    let store = Store::open(StoreOptions::new(disk.path().join("store")))?;
    let repository = store.repository(&RepoUrl::parse(&daemon.url("r.git"), &UrlPolicy::default())?)?;
    commit(&source, 0, 300 << 10)?;
    let served = fetch(&repository, "main", 1)?.commit;
    repository.pin_named("view", served)?;

    commit(&source, 1, 500 << 10)?;
    let failed = until_it_fits(&disk, &repository, (&source, served), &|| try_fetch(&repository, "main", 1).map(drop))?;
    ensure!(failed >= 5, "{failed}");
    std::fs::remove_file(disk.path().join("filler"))?;
    same_files(&repository, &source, "main")?;

    let failed = until_it_fits(&disk, &repository, (&source, served), &|| gc(&repository).map(drop))?;
    ensure!(failed >= 8, "{failed}");
    std::fs::remove_file(disk.path().join("filler"))?;

    for round in 2..36 {
        commit(&source, round, 20 << 10)?;
        fetch(&repository, "main", 1)?;
    }
    let merge = || maintain(&repository, &AtomicBool::new(false)).map(drop);
    let failed = until_it_fits(&disk, &repository, (&source, served), &merge)?;
    ensure!(failed >= 5, "{failed}");
    std::fs::remove_file(disk.path().join("filler"))?;
    same_files(&repository, &source, "main").context("after the merge")?;
    same_files(&repository, &source, served)?;
    fsck(&repository)?;
    // What is open on the disk goes before the disk.
    drop((repository, store));
    Ok(())
}
