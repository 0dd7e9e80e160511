//! `gc` keeps what is pinned or known, and only that, in one pack; `verify` finds what is broken and nothing else.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::maintenance::{gc, verify};
use gitmount_tests::fixtures::{self, storage};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;

use crate::support::{TestStore, as_git, fetch, file_url, fsck, packs, same_files, shallow};

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
