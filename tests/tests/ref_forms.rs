//! Every form of a ref that a host can be asked for, and the refusals of what is no commit there.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures::{self, refs, shape};
use gitmount_tests::git::Repo;
use gitmount_tests::mount::Account;
use gitmount_tests::run::run;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::HttpServer;

fn parent(repo: &Repo) -> Result<&Path> {
    repo.path().parent().context("a fixture lies in a directory")
}

#[test]
fn names_full_names_and_ids() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let server = GitDaemon::serve(parent(&repo)?)?;
    let account = Account::new()?;
    let main = repo.id("refs/heads/main")?;
    let pull = repo.id("refs/pull/7/head")?;
    for (reference, which) in [
        ("HEAD", "main"),
        ("main", "main"),
        ("refs/heads/main", "main"),
        ("feature/with/slashes", "feature"),
        ("both", "branch both"),
        ("refs/tags/both", "tag both"),
        ("refs/heads/both", "branch both"),
        ("refs/heads/HEAD", "branch HEAD"),
        ("orphan", "orphan"),
        ("ünï", "unicode"),
        ("light", "old"),
        ("annotated", "old"),
        ("tag-of-tag", "old"),
        ("refs/tags/tag-of-tag", "old"),
        ("refs/pull/7/head", "pull"),
        (&main, "main"),
        (&main.to_uppercase(), "main"),
        (&pull, "pull"),
    ] {
        let mounted = account.mount(&server.url("refs.git"), &["--ref", reference]).with_context(|| format!("--ref {reference}"))?;
        let found = mounted.text("which")?;
        ensure!(found.trim_end() == which, "--ref {reference} is {found}, not {which}");
        ensure!(mounted.attribute("", "user.git.ref")? == reference || reference.len() == 40, "{}", mounted.attribute("", "user.git.ref")?);
        mounted.unmount()?;
    }
    Ok(())
}

#[test]
fn the_default_branch_when_none_is_named() -> Result<()> {
    let (_dir, repo) = fixtures::copy("refs", refs::refs)?;
    repo.run(["symbolic-ref", "HEAD", "refs/heads/orphan"])?;
    let server = GitDaemon::serve(parent(&repo)?)?;
    let account = Account::new()?;
    let mounted = account.mount(&server.url("refs.git"), &[])?;
    ensure!(mounted.text("which")? == "orphan\n");
    Ok(())
}

#[test]
fn an_old_commit_that_no_ref_stands_at() -> Result<()> {
    let (_dir, repo) = fixtures::copy("mixed", fixtures::storage::mixed)?;
    let old = repo.id("main~2")?;
    let account = Account::new()?;
    // `git daemon` tells nobody of such an id unless it is configured to.
    let server = GitDaemon::serve(parent(&repo)?)?;
    let mounted = account.mount(&server.url("mixed.git"), &["--ref", &old])?;
    ensure!(mounted.commit()? == old);
    gitmount_tests::compare::against_both(mounted.path(), &repo, &old)
}

#[test]
fn an_old_commit_at_a_host_that_refuses_unadvertised_ids() -> Result<()> {
    let (_dir, repo) = fixtures::copy("mixed", fixtures::storage::mixed)?;
    let old = repo.id("main~2")?;
    let account = Account::new()?;
    let server = HttpServer::plain(parent(&repo)?)?;
    // In protocol V0 a server refuses an id that it has not advertised: branches are fetched instead.
    server.speak_only_v0();
    let mounted = account.mount(&server.url("mixed.git"), &["--allow-http", "--ref", &old])?;
    ensure!(mounted.commit()? == old);
    gitmount_tests::compare::against_both(mounted.path(), &repo, &old)
}

#[test]
fn a_commit_that_is_present_is_not_asked_for_again() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let server = HttpServer::plain(parent(&repo)?)?;
    let account = Account::new()?;
    let commit = repo.id("refs/heads/main")?;
    let first = account.mount(&server.url("refs.git"), &["--allow-http", "--ref", &commit])?;
    server.take_requests();
    let second = account.mount(&server.url("refs.git"), &["--allow-http", "--ref", &commit])?;
    ensure!(first.pull()?.contains(&commit[..7]));
    ensure!(second.text("which")? == "main\n" && server.requests().is_empty(), "{:?}", server.requests());
    Ok(())
}

#[test]
fn what_is_no_commit_is_refused() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let server = GitDaemon::serve(parent(&repo)?)?;
    let account = Account::new()?;
    let dir = account.mount_point()?;
    let dir = dir.to_string_lossy();
    let url = server.url("refs.git");
    let unknown = "0123456789012345678901234567890123456789";
    for (reference, words) in [
        ("no-such-branch", &["no-such-branch", "branch"][..]),
        ("refs/heads/no-such-branch", &["refs/heads/no-such-branch"]),
        ("refs/pull/8/head", &["refs/pull/8/head"]),
        (unknown, &[unknown]),
        ("tag-of-blob", &["tag-of-blob", "blob"]),
        ("tag-of-tree", &["tag-of-tree", "tree"]),
    ] {
        account.refused(["mount", "--ref", reference, &url, &dir], 3, words).with_context(|| format!("--ref {reference}"))?;
        account.refused(["mount", "--ref", reference, &repo.arg(), &dir], 3, &[reference]).with_context(|| format!("local {reference}"))?;
    }
    Ok(())
}

#[test]
fn an_empty_repository_is_refused() -> Result<()> {
    let repo = fixtures::get("empty", shape::empty)?;
    let server = GitDaemon::serve(parent(&repo)?)?;
    let account = Account::new()?;
    let dir = account.mount_point()?;
    let dir = dir.to_string_lossy();
    account.refused(["mount", &server.url("empty.git"), &dir], 3, &["empty"])?;
    account.refused(["mount", &server.url("empty.git"), &dir, "--ref", "main"], 3, &["main"])?;
    account.refused(["mount", &repo.arg(), &dir], 3, &["empty"])?;
    Ok(())
}

#[test]
fn history_as_deep_as_asked() -> Result<()> {
    let repo = fixtures::get("mixed", fixtures::storage::mixed)?;
    let server = GitDaemon::serve(parent(&repo)?)?;
    let commits: usize = repo.line(["rev-list", "--count", "main"])?.parse()?;
    for (depth, expected) in [("1", 1), ("2", 2), ("0", commits)] {
        let account = Account::new()?;
        let _mounted = account.mount(&server.url("mixed.git"), &["--depth", depth])?;
        let stored = std::fs::read_dir(account.store().join("repos"))?.next().context("one repository is stored")??.path();
        let stored = Repo::at(stored);
        let count = run(&mut stored.command(["rev-list", "--count", &repo.id("main")?]))?.success()?.out();
        ensure!(count.trim_end() == expected.to_string(), "--depth {depth} fetched {count} commits");
    }
    Ok(())
}
