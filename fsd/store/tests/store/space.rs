//! Whole repositories go when the store is over its limit, when nothing was ever fetched into them, or when they are dropped; never one
//! that is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};
use gitmount_tests::fixtures;
use gitmount_tests::git::Repo;
use tempfile::TempDir;

use crate::support::{TestStore, as_git, fetch, file_url, fsck, same_files, try_fetch};

/// Sources `0.git` to `3.git`, each fetched, last used in this order.
fn four() -> Result<(TempDir, Vec<Repo>, TestStore)> {
    let dir = gitmount_tests::scratch::dir()?;
    let store = TestStore::new()?;
    let mut sources = Vec::new();
    for n in 0..4u64 {
        let noise: String = fixtures::content::noise(100 << 10).iter().map(|byte| format!("{byte:02x}")).collect();
        let source = fixtures::small(&dir.path().join(format!("{n}.git")), &[("noise", &noise), ("n", &n.to_string())])?;
        let git_dir = {
            let repository = store.repository(&file_url(&source))?;
            fetch(&repository, "HEAD", 1)?;
            repository.git_dir().to_owned()
        };
        let used = std::fs::File::options().append(true).open(git_dir.join("gitmount-in-use"))?;
        used.set_modified(SystemTime::now() - Duration::from_secs(1000 - n))?;
        sources.push(source);
    }
    Ok((dir, sources, store))
}

fn urls(store: &Store) -> Result<Vec<String>> {
    Ok(store.list()?.into_iter().map(|(url, _)| url).collect())
}

/// A second store object stands for a second process: the two share nothing but the files.
fn another(store: &TestStore) -> Result<Arc<Store>> {
    Ok(Store::open(StoreOptions::new(store.store.root()))?)
}

fn parse(url: &str) -> Result<RepoUrl> {
    Ok(RepoUrl::parse(url, &UrlPolicy { allow_file: true, ..Default::default() })?)
}

#[test]
fn the_least_recently_used_go_until_the_store_is_small_enough() -> Result<()> {
    let (_dir, sources, store) = four()?;
    let all: Vec<String> = sources.iter().map(file_url).collect();
    let nobody = |_: &std::path::Path| false;
    let idle = store.store.shrink(1 << 40, &nobody)?;
    ensure!(idle.removed.is_empty() && idle.bytes_before == idle.bytes_after && idle.shortage().is_none(), "{idle:?}");

    let report = store.store.shrink(idle.bytes_before - 1, &nobody)?;
    ensure!(report.removed == [all[0].clone()] && report.shortage().is_none(), "{report:?}");
    ensure!(urls(&store.store)? == all[1..]);
    // What is used again is not the next to go.
    drop(store.repository(&all[1])?);
    let report = store.store.shrink(report.bytes_after - 1, &nobody)?;
    ensure!(report.removed == [all[2].clone()], "{report:?}");
    ensure!(std::fs::read_dir(store.store.root().join("trash"))?.count() == 0);
    // What was removed is fetched again.
    let repository = store.repository(&all[0])?;
    ensure!(fetch(&repository, "HEAD", 1)?.received);
    same_files(&repository, &sources[0], "HEAD")
}

#[test]
fn what_is_in_use_stays_and_the_shortage_is_told() -> Result<()> {
    let (_dir, sources, store) = four()?;
    let all: Vec<String> = sources.iter().map(file_url).collect();
    // One is open in another process, in one a commit is kept by name, in one an object, and one the caller knows to be in use.
    let other = another(&store)?;
    let open = other.repository(&parse(&all[0])?)?;
    let pinned = store.repository(&all[1])?;
    pinned.pin_named("view", fetch(&pinned, "HEAD", 1)?.commit)?;
    drop(pinned);
    let kept = store.repository(&all[2])?;
    kept.keep_objects("open file", &[kept.objects().tree(kept.objects().commit(fetch(&kept, "HEAD", 1)?.commit)?.tree)?.entries()[0].id])?;
    drop(kept);
    let named = store.repository(&all[3])?.git_dir().to_owned();

    let report = store.store.shrink(1 << 10, &|dir| dir == named)?;
    ensure!(report.removed.is_empty() && report.bytes_after == report.bytes_before, "{report:?}");
    let shortage = report.shortage().context("nothing could be removed")?;
    ensure!(shortage.contains("--store-limit") && shortage.contains("1 MiB"), "{shortage}");
    for url in &all[..3] {
        let refused = store.store.drop_repository(&parse(url)?).err().context("it is in use")?;
        ensure!(refused.fault() == Fault::Usage && refused.to_string().contains(url), "{refused}");
    }
    fsck(&open)?;

    drop(open);
    let pinned = store.repository(&all[1])?;
    pinned.unpin_named("view")?;
    drop(pinned);
    store.repository(&all[2])?.keep_objects("open file", &[])?;
    for url in &all {
        ensure!(store.store.drop_repository(&parse(url)?)?);
        ensure!(!store.store.drop_repository(&parse(url)?)?, "{url} was removed twice");
    }
    ensure!(urls(&store.store)?.is_empty());
    Ok(())
}

#[test]
fn what_a_killed_removal_leaves_goes_when_the_store_is_opened() -> Result<()> {
    let (_dir, sources, store) = four()?;
    let git_dir = store.repository(&file_url(&sources[0]))?.git_dir().to_owned();
    let trash = store.store.root().join("trash");
    std::fs::create_dir_all(&trash)?;
    std::fs::rename(&git_dir, trash.join("1-0"))?;
    another(&store)?;
    ensure!(std::fs::read_dir(&trash)?.count() == 0);
    ensure!(urls(&store.store)?.len() == 3);
    Ok(())
}

#[test]
fn repositories_of_mistyped_urls_are_removed() -> Result<()> {
    let (_dir, sources, store) = four()?;
    let wrong = format!("{}x", file_url(&sources[0]));
    let repository = store.repository(&wrong)?;
    ensure!(try_fetch(&repository, "HEAD", 1).is_err());
    ensure!(store.store.remove_empty()?.is_empty(), "one that is in use was removed");
    drop(repository);
    ensure!(store.store.remove_empty()? == [wrong]);
    ensure!(urls(&store.store)?.len() == 4);
    Ok(())
}

#[test]
fn removing_and_fetching_at_once_disturb_nobody() -> Result<()> {
    let (_dir, sources, store) = four()?;
    let other = another(&store)?;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let remover = scope.spawn(|| -> Result<usize> {
            let mut removed = 0;
            while !done.load(Ordering::Relaxed) {
                removed += other.shrink(0, &|_| false)?.removed.len();
                other.remove_empty()?;
            }
            Ok(removed)
        });
        let work = || -> Result<()> {
            for round in 0..40 {
                let source = &sources[round % 4];
                let repository = store.repository(&file_url(source))?;
                let commit = fetch(&repository, "HEAD", 1)?.commit;
                let pin = repository.pin(commit)?;
                same_files(&repository, source, "HEAD")?;
                drop(pin);
                ensure!(as_git(&repository).path().exists());
            }
            Ok(())
        };
        let worked = work();
        done.store(true, Ordering::Relaxed);
        let removed = remover.join().expect("the thread does not panic")?;
        worked?;
        ensure!(removed > 0, "nothing was ever removed");
        Ok(())
    })
}
