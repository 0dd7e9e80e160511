//! Access points of big blobs: made by a fetch, carried along by `gc`, gone with their pack; and never needed.

use std::fs;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use gitmount_store::maintenance::gc;
use gitmount_store::objects::Objects;
use gitmount_store::repository::Repository;
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::servers::daemon::GitDaemon;

use crate::support::{TestStore, fetch, fsck, packs};

const NAME: &str = "points";

/// 24 MiB that deflate into many blocks.
fn big() -> Vec<u8> {
    let mut text = String::new();
    for n in 0_u64.. {
        if text.len() >= 24 << 20 {
            break;
        }
        text += &format!("line {n} of {:x}\n", n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40);
    }
    text.into_bytes()
}

fn source() -> Result<(tempfile::TempDir, Repo, GitDaemon)> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = Repo::init_bare(dir.path().join("source.git"))?;
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "Big")?.file(b"big", big())?.file(b"small", "small\n")?;
    import.finish()?;
    let daemon = GitDaemon::serve(dir.path())?;
    Ok((dir, source, daemon))
}

/// The blob as its parts give it, the last first; `None` when it has none.
fn by_parts(objects: &Objects, id: &str) -> Result<Option<Vec<u8>>> {
    let Some(parts) = objects.parts(gix::ObjectId::from_hex(id.as_bytes())?)? else { return Ok(None) };
    let mut whole = vec![0; usize::try_from(parts.size())?];
    for number in (0..parts.count()).rev() {
        let (offset, length) = parts.range(number).context("a part has a range")?;
        let mut part = Vec::new();
        parts.write(number, &mut part)?;
        whole[offset as usize..(offset + length) as usize].copy_from_slice(&part);
    }
    ensure!(parts.count() > 3 && parts.range(parts.count()).is_none(), "{} parts", parts.count());
    Ok(Some(whole))
}

fn whole(objects: &Objects, id: &str) -> Result<Vec<u8>> {
    let mut whole = Vec::new();
    objects.blob_to(gix::ObjectId::from_hex(id.as_bytes())?, &std::env::temp_dir(), &mut whole)?;
    Ok(whole)
}

#[test]
fn a_big_blob_is_read_in_parts_before_and_after_gc() -> Result<()> {
    let (_dir, source, daemon) = source()?;
    let store = TestStore::new()?;
    let repository = store.repository(&daemon.url("source.git"))?;
    fetch(&repository, "main", 1)?;
    let id = source.id("main:big")?;
    ensure!(by_parts(&repository.objects(), &id)? == Some(big()));
    ensure!(by_parts(&repository.objects(), &source.id("main:small")?)?.is_none());

    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "More")?.file(b"more", "more\n")?;
    import.finish()?;
    fetch(&repository, "main", 1)?;
    let before = packs(&repository, NAME)?;
    let reader = repository.objects();
    ensure!(gc(&repository, &AtomicBool::new(false))?.packs_after == 1);
    let after = packs(&repository, NAME)?;
    ensure!(before.len() == 1 && after.len() == 1 && before != after, "{before:?} {after:?}");
    ensure!(after[0].with_extension("pack").exists());
    for objects in [reader, repository.objects()] {
        ensure!(by_parts(&objects, &id)? == Some(big()));
    }

    // Nothing is left of a blob that goes.
    source.run(["update-ref", "-d", "refs/heads/main"])?;
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "Small")?.file(b"small", "small\n")?;
    import.finish()?;
    fetch(&repository, "main", 1)?;
    gc(&repository, &AtomicBool::new(false))?;
    ensure!(packs(&repository, NAME)? == [] as [std::path::PathBuf; 0]);
    fsck(&repository)
}

#[test]
fn without_its_points_or_with_broken_ones_a_blob_is_the_same() -> Result<()> {
    let (_dir, source, daemon) = source()?;
    let (id, url) = (source.id("main:big")?, daemon.url("source.git"));
    type Spoil = fn(&std::path::Path) -> Result<()>;
    let cases: [(&str, Spoil); 4] = [
        ("absent", |path| Ok(fs::remove_file(path)?)),
        ("cut", |path| Ok(fs::write(path, &fs::read(path)?[..100_000])?)),
        ("of another pack", |path| {
            let mut bytes = fs::read(path)?;
            let end = bytes.len();
            bytes[end - 30] ^= 1;
            Ok(fs::write(path, bytes)?)
        }),
        ("empty", |path| Ok(fs::write(path, "")?)),
    ];
    for (what, spoil) in cases {
        let store = TestStore::new()?;
        fetch(&*store.repository(&url)?, "main", 1)?;
        let path = packs(&*store.repository(&url)?, NAME)?.pop().context("the points are there")?;
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
        spoil(&path)?;
        let repository: std::sync::Arc<Repository> = store.repository(&url)?;
        ensure!(by_parts(&repository.objects(), &id)?.is_none(), "{what}");
        ensure!(whole(&repository.objects(), &id)? == big(), "{what}");
        gc(&repository, &AtomicBool::new(false))?;
        ensure!(whole(&repository.objects(), &id)? == big(), "{what}");
    }
    Ok(())
}

#[test]
fn a_part_whose_window_or_data_is_broken_is_an_error_and_the_others_are_read() -> Result<()> {
    let (_dir, source, daemon) = source()?;
    let (id, url) = (source.id("main:big")?, daemon.url("source.git"));
    let store = TestStore::new()?;
    fetch(&*store.repository(&url)?, "main", 1)?;
    let path = packs(&*store.repository(&url)?, NAME)?.pop().context("the points are there")?;
    fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
    let mut bytes = fs::read(&path)?;
    bytes[1000] ^= 1;
    fs::write(&path, bytes)?;
    let repository = store.repository(&url)?;
    let parts = repository.objects().parts(gix::ObjectId::from_hex(id.as_bytes())?)?.context("the table is good")?;
    ensure!(parts.write(1, &mut Vec::new()).is_err());
    for number in [0, 2] {
        let (offset, length) = parts.range(number).context("a part has a range")?;
        let mut part = Vec::new();
        parts.write(number, &mut part)?;
        ensure!(part == big()[offset as usize..(offset + length) as usize]);
    }
    Ok(())
}
