//! Objects that are missing, damaged or hostile fail their own entry with EIO; the mount lives on.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures::{self, hostile};
use gitmount_tests::git::Repo;
use gitmount_tests::mount::Account;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use nix::errno::Errno;

const EIO: Option<i32> = Some(Errno::EIO as i32);

/// A repository with loose objects only.
fn loose(path: &Path) -> Result<Repo> {
    fixtures::small(path, &[("good", "good\n"), ("bad", "bad\n"), ("dir/inside", "inside\n"), ("bad-dir/inside", "lost\n")])
}

#[test]
fn a_blob_that_is_removed_under_the_mount() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = loose(&dir.path().join("r.git"))?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let object = repo.loose_object(&repo.id("main:bad")?);
    let aside = dir.path().join("aside");
    fs::rename(&object, &aside)?;
    // The size is in the object too, so the entry itself may fail as well.
    let failed = fs::read(mounted.join("bad")).err().context("a blob that is not there was read")?;
    ensure!(failed.raw_os_error() == EIO, "{failed}");
    ensure!(mounted.text("good")? == "good\n" && mounted.text("dir/inside")? == "inside\n");
    ensure!(mounted.names("")? == ["bad", "bad-dir", "dir", "good"], "the listing needs no blob");

    fs::rename(&aside, &object)?;
    ensure!(mounted.text("bad")? == "bad\n", "the object is back");
    Ok(())
}

#[test]
fn a_tree_that_is_removed_under_the_mount() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = loose(&dir.path().join("r.git"))?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    fs::remove_file(repo.loose_object(&repo.id("main:bad-dir")?))?;
    let failed = fs::read_dir(mounted.join("bad-dir")).and_then(|listing| listing.collect::<std::io::Result<Vec<_>>>());
    ensure!(failed.as_ref().err().and_then(std::io::Error::raw_os_error) == EIO, "{failed:?}");
    ensure!(mounted.text("good")? == "good\n" && mounted.text("dir/inside")? == "inside\n");
    Ok(())
}

#[test]
fn a_damaged_blob() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = loose(&dir.path().join("r.git"))?;
    let object = repo.loose_object(&repo.id("main:bad")?);
    fs::set_permissions(&object, fs::Permissions::from_mode(0o600))?;
    let mut bytes = fs::read(&object)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&object, bytes)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let failed = fs::read(mounted.join("bad")).err().context("a damaged blob was read")?;
    ensure!(failed.raw_os_error() == EIO, "{failed}");
    ensure!(mounted.text("good")? == "good\n");
    Ok(())
}

#[test]
fn all_packs_of_a_fetched_repository_are_removed() -> Result<()> {
    let repo = fixtures::get("mixed", fixtures::storage::mixed)?;
    let server = HttpServer::plain(repo.path().parent().context("a fixture lies in a directory")?)?;
    let account = Account::new()?;
    let mounted = account.mount(&server.url("mixed.git"), &["--allow-http", "--pull", "never"])?;
    ensure!(mounted.text("round-0/file-0")? == "0 0\n");
    let stored = fs::read_dir(account.store().join("repos"))?.next().context("one repository is stored")??.path();
    fs::remove_dir_all(stored.join("objects/pack"))?;
    fs::create_dir(stored.join("objects/pack"))?;
    // Whatever the daemon still holds open: an answer or EIO, no hang and no death.
    for file in ["round-1/file-1", "round-2/file-2", "every round"] {
        let read = fs::read(mounted.join(file));
        ensure!(read.is_ok() || read.as_ref().err().and_then(std::io::Error::raw_os_error) == EIO, "{read:?}");
    }
    ensure!(mounted.status()?.commit == repo.id("HEAD")? && mounted.text("round-0/file-0")? == "0 0\n", "what the kernel has stays");
    Ok(())
}

#[test]
fn hostile_trees() -> Result<()> {
    let repo = fixtures::get("hostile", hostile::hostile)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    ensure!(mounted.text("good/file")? == "x\n");
    let bad = hostile::BAD.iter().map(|(name, _)| *name).chain(["cut", "mode", "missing"]);
    for name in bad {
        let listed = fs::read_dir(mounted.join(name)).and_then(|listing| listing.collect::<std::io::Result<Vec<_>>>());
        ensure!(listed.as_ref().err().and_then(std::io::Error::raw_os_error) == EIO, "{name} is listed as {listed:?}");
    }
    ensure!(!mounted.join("absolute/etc").exists() && !mounted.join("slash/a").exists());
    ensure!(mounted.text("good/file")? == "x\n" && mounted.names("")?.len() == hostile::BAD.len() + 4);
    Ok(())
}

#[test]
fn verify_finds_what_is_damaged() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "1\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let account = Account::new()?;
    let mounted = account.mount(&server.url("r.git"), &["--allow-http"])?;
    account.run(["verify", &mounted.path().to_string_lossy()])?.success()?;
    let stored = fs::read_dir(account.store().join("repos"))?.next().context("one repository is stored")??.path();
    let pack = fs::read_dir(stored.join("objects/pack"))?
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .find(|path| path.extension().is_some_and(|e| e == "pack"))
        .context("a pack is stored")?;
    fs::set_permissions(&pack, fs::Permissions::from_mode(0o600))?;
    let mut bytes = fs::read(&pack)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0xff;
    fs::write(&pack, bytes)?;
    let found = account.run(["verify", &mounted.path().to_string_lossy()])?;
    ensure!(found.code() == 1 && !found.err().is_empty(), "{} {}", found.out(), found.err());
    Ok(())
}
