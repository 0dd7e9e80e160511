//! `gc` keeps what is pinned or known, and only that, in one pack; `verify` finds what is broken and nothing else.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::maintenance::{is_due, maintain};
use gitmount_tests::fixtures::{self, storage};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;

use crate::support::{TestStore, as_git, fetch, file_url, fsck, gc, packs, same_files, shallow, verify};

/// A source and a store that has fetched it after each of four commits with depth 1.
fn fetched_four_times() -> Result<(tempfile::TempDir, Repo, TestStore, std::sync::Arc<gitmount_store::repository::Repository>)> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = Repo::init_bare(dir.path().join("source.git"))?;
    let store = TestStore::new()?;
    let repository = store.repository(&file_url(&source))?;
    for round in 0..4 {
        let mut import = Import::into(&source)?;
        import.commit("refs/heads/main", &format!("Round {round}"))?;
        for n in 0..10 {
            import.file(format!("{n}/file").as_bytes(), format!("{}\n", if n < 5 { n } else { round * 100 + n }))?;
        }
        import.finish()?;
        fetch(&repository, "main", 1)?;
    }
    Ok((dir, source, store, repository))
}

#[test]
fn gc_leaves_one_pack_with_what_is_known_and_pinned() -> Result<()> {
    let (_dir, source, _store, repository) = fetched_four_times()?;
    let old = source.id("main~2")?;
    let fetched = fetch(&repository, &old, 1)?;
    let pin = repository.pin(fetched.commit)?;
    let objects = repository.objects();
    let dropped = source.id("main~1:9/file")?;
    ensure!(as_git(&repository).attempt(["cat-file", "-e", &dropped], &[])?.code() == 0);

    let report = gc(&repository)?;
    ensure!(report.packs_before >= 4 && report.packs_after == 1, "{report:?}");
    ensure!(report.bytes_after < report.bytes_before, "{report:?}");
    ensure!(as_git(&repository).attempt(["cat-file", "-e", &dropped], &[])?.code() != 0, "what nothing keeps is still there");
    for commit in [&old, &source.id("main")?] {
        same_files(&repository, &source, commit)?;
    }
    // The history below the old commit was there, and is kept with it.
    ensure!(shallow(&repository)? == [source.id("main")?], "{:?}", shallow(&repository)?);
    fsck(&repository)?;
    ensure!(verify(&repository)?.problems.is_empty(), "{:?}", verify(&repository)?);
    // A reader from before sees the new pack.
    ensure!(objects.commit(pin.commit())?.tree.to_string() == source.id(&format!("{old}^{{tree}}"))?);

    let again = gc(&repository)?;
    ensure!(again.bytes_before == again.bytes_after && again.packs_after == 1, "{again:?}");
    Ok(())
}

#[test]
fn a_pin_keeps_its_commit_until_it_is_dropped() -> Result<()> {
    let (_dir, source, _store, repository) = fetched_four_times()?;
    let old = gitmount_store::ids::CommitId::parse(&source.id("main~1")?)?;
    let pin = repository.pin(old)?;
    ensure!(pin.commit() == old);
    gc(&repository)?;
    same_files(&repository, &source, old)?;
    drop(pin);
    ensure!(as_git(&repository).line(["for-each-ref", "refs/gitmount/pins"])?.is_empty());
    gc(&repository)?;
    ensure!(!repository.objects().contains(old.id())?, "an unpinned commit is still there");
    let refused = repository.pin(old).err().context("a commit that is gone is pinned")?;
    ensure!(refused.fault() == Fault::NotFound, "{refused}");
    // The mount that wants it again gets it again.
    ensure!(fetch(&repository, &old.to_string(), 1)?.received);
    same_files(&repository, &source, old)?;
    fsck(&repository)
}

#[test]
fn a_commit_that_is_pinned_late_keeps_the_end_of_its_history() -> Result<()> {
    let (_dir, source, _store, repository) = fetched_four_times()?;
    let late = gitmount_store::ids::CommitId::parse(&source.id("main")?)?;
    // What is before it goes.
    gc(&repository)?;
    // No ref leads to it any more, so that the next fetch drops it from the boundary.
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "More")?.file(b"1/file", "more\n")?;
    import.finish()?;
    fetch(&repository, "main", 1)?;
    ensure!(!shallow(&repository)?.contains(&late.to_string()));
    let _pin = repository.pin(late)?;
    gc(&repository)?;
    same_files(&repository, &source, late)?;
    fsck(&repository)
}

#[test]
fn gc_is_due_when_packs_pile_up() -> Result<()> {
    let (_dir, source, _store, repository) = fetched_four_times()?;
    ensure!(!is_due(&repository)?);
    for round in 0..30 {
        let mut import = Import::into(&source)?;
        import.commit("refs/heads/main", "More")?.file(b"1/file", format!("due {round}\n"))?;
        import.finish()?;
        fetch(&repository, "main", 1)?;
    }
    ensure!(is_due(&repository)?);
    gc(&repository)?;
    ensure!(!is_due(&repository)?);
    same_files(&repository, &source, "main")
}

#[test]
fn small_packs_are_merged_and_the_big_one_is_left_alone() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = Repo::init_bare(dir.path().join("source.git"))?;
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "First")?.file(b"big", fixtures::content::noise(1 << 20))?;
    import.finish()?;
    let store = TestStore::new()?;
    let repository = store.repository(&file_url(&source))?;
    let first = fetch(&repository, "main", 1)?.commit;
    let big = packs(&repository, "pack")?;
    ensure!(maintain(&repository, &AtomicBool::new(false))?.is_none());
    let mut merges = 0;
    for round in 0..80 {
        let mut import = Import::into(&source)?;
        import.commit("refs/heads/main", "More")?.file(b"small", format!("{round}\n"))?;
        import.finish()?;
        fetch(&repository, "main", 1)?;
        if let Some(report) = maintain(&repository, &AtomicBool::new(false))? {
            merges += 1;
            ensure!(report.packs_before == 33 && report.packs_after < 8, "{report:?}");
        }
        ensure!(packs(&repository, "pack")?.len() <= 33 && packs(&repository, "pack")?.contains(&big[0]), "round {round}");
    }
    ensure!((2..5).contains(&merges), "{merges} merges");
    same_files(&repository, &source, "main")?;
    // Merging drops nothing, also not what nothing needs.
    ensure!(repository.objects().contains(first.id())?);
    ensure!(verify(&repository)?.problems.is_empty());
    fsck(&repository)
}

#[test]
fn a_repository_that_has_doubled_is_collected() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = Repo::init_bare(dir.path().join("source.git"))?;
    let store = TestStore::new()?;
    let repository = store.repository(&file_url(&source))?;
    let noise = fixtures::content::noise(16 << 20);
    let mut collected = 0;
    for round in 0..8u8 {
        let mut import = Import::into(&source)?;
        let content: Vec<u8> = noise.iter().map(|byte| byte ^ round.wrapping_mul(37)).collect();
        import.commit("refs/heads/main", "More")?.file(b"big", content)?;
        import.finish()?;
        fetch(&repository, "main", 1)?;
        if let Some(report) = maintain(&repository, &AtomicBool::new(false))? {
            collected += 1;
            ensure!(report.packs_after == 1 && report.bytes_after < 20 << 20, "{report:?}");
        }
    }
    ensure!(collected == 1, "{collected} times");
    fsck(&repository)
}

#[test]
fn gc_and_verify_can_be_interrupted_and_nothing_is_lost() -> Result<()> {
    let (_dir, source, _store, repository) = fetched_four_times()?;
    let before = packs(&repository, "pack")?;
    let stop = AtomicBool::new(true);
    for error in [gitmount_store::maintenance::gc(&repository, &stop).err(), gitmount_store::maintenance::verify(&repository, &stop).err()]
    {
        let error = error.context("it was stopped")?;
        ensure!(error.fault() == Fault::Cancelled, "{error}");
    }
    ensure!(packs(&repository, "pack")? == before);
    let left: Vec<_> = std::fs::read_dir(repository.git_dir().join("objects/pack"))?.map(|entry| entry.map(|e| e.file_name())).collect();
    ensure!(left.len() == 2 * before.len(), "{left:?}");
    same_files(&repository, &source, "main")?;
    gc(&repository)?;
    fsck(&repository)
}

#[test]
fn pins_of_dead_processes_are_swept() -> Result<()> {
    let (_dir, source, _store, repository) = fetched_four_times()?;
    let old = gitmount_store::ids::CommitId::parse(&source.id("main~1")?)?;
    let pin = repository.pin(old)?;
    // As a killed process leaves it: the ref and the owner file, but no lock on it.
    let git = as_git(&repository);
    git.point("refs/gitmount/pins/dead", &old.to_string())?;
    std::fs::write(repository.git_dir().join("gitmount-pins/dead"), "")?;
    git.point("refs/gitmount/pins/without-owner", &old.to_string())?;
    drop(pin);
    gc(&repository)?;
    ensure!(git.line(["for-each-ref", "refs/gitmount/pins"])?.is_empty());
    ensure!(!repository.objects().contains(old.id())?);
    Ok(())
}

#[test]
fn gc_keeps_deltas_and_loose_objects_and_full_history() -> Result<()> {
    for (name, build) in [("deltas", storage::deltas as fixtures::Build), ("mixed", storage::mixed)] {
        let source = fixtures::get(name, build)?;
        let store = TestStore::new()?;
        let repository = store.repository(&file_url(&source))?;
        let fetched = fetch(&repository, "main", 0)?;
        // An object that no pack has, and one that nothing needs.
        let git = as_git(&repository);
        git.write_object("blob", b"nobody needs this\n")?;
        let tree = git.line(["rev-parse", &format!("{}^{{tree}}", fetched.commit)])?;
        let loose = git.run(["cat-file", "tree", &tree])?;
        let packed = packs(&repository, "pack")?[0].metadata()?.len();
        ensure!(git.write_object("tree", &loose)? == tree);
        let report = gc(&repository)?;
        ensure!(report.packs_after == 1);
        let after = packs(&repository, "pack")?[0].metadata()?.len();
        ensure!(after <= packed + 100, "{name}: a pack of {packed} bytes grew to {after}");
        ensure!(git.line(["count-objects"])?.starts_with("0 objects"), "loose objects stay");
        same_files(&repository, &source, "main")?;
        fsck(&repository)?;
        ensure!(verify(&repository)?.problems.is_empty());
    }
    Ok(())
}

#[test]
fn gc_removes_nothing_when_something_to_keep_is_broken() -> Result<()> {
    let (_dir, _source, _store, repository) = fetched_four_times()?;
    let before = packs(&repository, "pack")?;
    damage(before.last().context("there are packs")?)?;
    // The newest pack is not known; any of them may be hit, so look at what gc says.
    match gc(&repository) {
        Err(err) => {
            ensure!(err.fault() == Fault::Corrupt, "{err}");
            ensure!(packs(&repository, "pack")? == before, "packs were removed");
        }
        Ok(_) => ensure!(verify(&repository)?.problems.is_empty(), "gc carried a broken object over"),
    }
    Ok(())
}

#[test]
fn verify_names_what_is_broken() -> Result<()> {
    let (_dir, source, _store, repository) = fetched_four_times()?;
    gc(&repository)?;
    let clean = verify(&repository)?;
    let count: u64 = as_git(&repository).line(["rev-list", "--objects", "--count", "--all"])?.parse()?;
    ensure!(clean.problems.is_empty() && clean.objects == count, "{clean:?}, git counts {count}");

    damage(&packs(&repository, "pack")?[0])?;
    let broken = verify(&repository)?;
    ensure!(broken.problems.iter().any(|problem| problem.contains("wrong checksum")), "{broken:?}");
    ensure!(broken.problems.iter().any(|problem| problem.starts_with("object ")), "{broken:?}");

    for extension in ["idx", "pack"] {
        for path in packs(&repository, extension)? {
            std::fs::remove_file(path)?;
        }
    }
    let missing = verify(&repository)?;
    let head = source.id("main")?;
    ensure!(missing.problems.iter().any(|problem| problem.contains(&head) && problem.contains("missing")), "{missing:?}");
    Ok(())
}

#[test]
fn readers_and_pins_are_undisturbed_by_fetches_and_gc() -> Result<()> {
    let (_dir, source, store, repository) = fetched_four_times()?;
    let url = file_url(&source);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<()> {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| -> Result<usize> {
                    let mut rounds = 0;
                    while !done.load(std::sync::atomic::Ordering::Relaxed) {
                        let commit = repository.known(&gitmount_store::refspec::RefSpec::parse("main")?)?.context("it was fetched")?;
                        // It may be replaced and removed before it is pinned, but not afterwards.
                        let Ok(_pin) = repository.pin(commit) else { continue };
                        let objects = repository.objects();
                        for entry in objects.tree(objects.commit(commit)?.tree)?.entries() {
                            for file in objects.tree(entry.id)?.entries() {
                                objects.blob(file.id)?;
                            }
                        }
                        rounds += 1;
                    }
                    Ok(rounds)
                })
            })
            .collect();
        let work = || -> Result<()> {
            // A second store object stands for a second process: it shares nothing but the files.
            let other = gitmount_store::store::Store::open(gitmount_store::store::StoreOptions::new(store.store.root()))?;
            let policy = gitmount_store::url::UrlPolicy { allow_file: true, ..Default::default() };
            let other = other.repository(&gitmount_store::url::RepoUrl::parse(&url, &policy)?)?;
            for round in 0..15 {
                let mut import = Import::into(&source)?;
                import.commit("refs/heads/main", "More")?.file(b"1/file", format!("more {round}\n"))?;
                import.finish()?;
                fetch(if round % 2 == 0 { &repository } else { &other }, "main", 1)?;
                gc(if round % 3 == 0 { &other } else { &repository })?;
            }
            Ok(())
        };
        let worked = work();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        for reader in readers {
            let rounds = reader.join().expect("the thread does not panic")?;
            ensure!(rounds > 0, "a reader never got to read");
        }
        worked
    })?;
    gc(&repository)?;
    ensure!(verify(&repository)?.problems.is_empty());
    fsck(&repository)
}

/// Changes one byte in the middle of a pack.
fn damage(pack: &Path) -> Result<()> {
    let mut bytes = std::fs::read(pack)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x55;
    // By a new file, as a mapping of the old one is not to be changed under its readers.
    let aside = pack.with_extension("damaged");
    std::fs::write(&aside, bytes)?;
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o644))?;
    Ok(std::fs::rename(aside, pack)?)
}
