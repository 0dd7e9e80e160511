//! A mount is what git says of the commit: every fixture, served from its own repository and from a fetched copy, against
//! `git archive` and `git ls-tree`, with names, modes, link targets and every byte.

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, Build, big, content, names, shape, storage};
use gitmount_tests::mount::Account;
use gitmount_tests::servers::daemon::GitDaemon;

/// Mounts the fixture from its path and from a server, and compares both.
fn check(name: &str, build: Build) -> Result<()> {
    let repo = fixtures::get(name, build)?;
    let account = Account::new()?;
    let local = account.mount(&repo.arg(), &[])?;
    compare::against_both(local.path(), &repo, "HEAD").context("served from its own path")?;
    ensure!(local.commit()? == repo.id("HEAD")?);
    local.unmount()?;

    let server = GitDaemon::serve(repo.path().parent().context("a fixture lies in a directory")?)?;
    let fetched = account.mount(&server.url(&format!("{name}.git")), &[])?;
    compare::against_both(fetched.path(), &repo, "HEAD").context("fetched")?;
    ensure!(fetched.commit()? == repo.id("HEAD")?);
    fetched.unmount()
}

#[test]
fn names_of_every_kind() -> Result<()> {
    check("names", names::names)
}

#[test]
fn contents_of_every_kind() -> Result<()> {
    check("content", content::content)
}

#[test]
fn a_hundred_thousand_entries_in_one_directory() -> Result<()> {
    check("wide", shape::wide)
}

#[test]
fn two_hundred_levels() -> Result<()> {
    check("deep", shape::deep)
}

#[test]
fn a_commit_of_the_empty_tree() -> Result<()> {
    check("empty-tree", shape::empty_tree)
}

#[test]
fn a_sha256_repository() -> Result<()> {
    check("sha256", shape::sha256)
}

#[test]
fn packs_and_loose_objects() -> Result<()> {
    check("mixed", storage::mixed)
}

#[test]
fn delta_chains_of_depth_50() -> Result<()> {
    check("deltas", storage::deltas)
}

#[test]
fn alternates() -> Result<()> {
    check("alternates", storage::alternates)
}

#[test]
fn a_file_of_one_gigabyte() -> Result<()> {
    let repo = fixtures::get("big", big::big)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    compare::against_objects(mounted.path(), &repo, "HEAD")
}

#[test]
fn attributes_of_a_checkout_change_no_byte() -> Result<()> {
    let repo = fixtures::get("attributes", content::attributes)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    // Not `git archive`: it obeys them.
    compare::against_objects(mounted.path(), &repo, "HEAD")?;
    ensure!(mounted.text("unix.txt")? == "one\ntwo\n" && mounted.text("dos.txt")? == "one\r\ntwo\r\n");
    ensure!(mounted.text("archive.subst")? == "$Format:%H$\n" && mounted.text("keyword.id")? == "$Id$\n");
    Ok(())
}

#[test]
fn an_orphan_branch_and_a_tag_beside_the_default_branch() -> Result<()> {
    let repo = fixtures::get("refs", fixtures::refs::refs)?;
    let account = Account::new()?;
    for revision in ["orphan", "tag-of-tag", "feature/with/slashes"] {
        let mounted = account.mount(&repo.arg(), &["--ref", revision])?;
        compare::against_both(mounted.path(), &repo, revision).context(revision)?;
    }
    Ok(())
}

#[test]
fn a_sub_directory_as_root() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    for path in ["sizes", "sizes/", "links"] {
        let mounted = account.mount(&repo.arg(), &["--path", path])?;
        compare::against_both(mounted.path(), &repo, format!("HEAD:{path}").trim_end_matches('/')).context(path)?;
    }
    let repo = fixtures::get("deep", shape::deep)?;
    let path = (1..=shape::DEEP).map(|level| format!("level-{level}")).collect::<Vec<_>>().join("/");
    let mounted = account.mount(&repo.arg(), &["--path", &path])?;
    ensure!(mounted.text("file")? == format!("at level {}\n", shape::DEEP));
    Ok(())
}
