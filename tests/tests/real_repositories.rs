//! Repositories that were not made for a test are served as git has them.

use anyhow::{Context, Result};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, real};
use gitmount_tests::mount::Account;
use gitmount_tests::servers::daemon::GitDaemon;

#[test]
fn this_project_and_what_tools_have_cloned_here() -> Result<()> {
    let account = Account::new()?;
    for repo in std::iter::once(real::this_project()?).chain(real::cloned_tools()) {
        // Not the branch: somebody may be committing.
        let commit = repo.id("HEAD")?;
        let mounted = account.mount(&repo.arg(), &["--ref", &commit])?;
        compare::against_objects(mounted.path(), &repo, &commit).with_context(|| repo.arg())?;
    }
    Ok(())
}

#[test]
fn a_tree_of_ten_thousand_package_sources_served_in_place() -> Result<()> {
    let repo = fixtures::get("packages", real::packages)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    // By objects alone: packages have attributes of their own.
    compare::against_objects(mounted.path(), &repo, "HEAD")
}

#[test]
fn a_tree_of_ten_thousand_package_sources_fetched() -> Result<()> {
    let repo = fixtures::get("packages", real::packages)?;
    let account = Account::new()?;
    let server = GitDaemon::serve(repo.path().parent().context("a fixture lies in a directory")?)?;
    let mounted = account.mount(&server.url("packages.git"), &[])?;
    compare::against_objects(mounted.path(), &repo, "HEAD")
}
