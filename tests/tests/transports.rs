//! HTTPS, HTTP and the git protocol against real servers: protocol versions, authorities, proxies, redirects. SSH is in `ssh.rs`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, refs};
use gitmount_tests::git::Repo;
use gitmount_tests::mount::Account;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::{Fault, HttpServer};
use gitmount_tests::servers::tls::TestCa;

fn served() -> Result<Repo> {
    fixtures::get("refs", refs::refs)
}

fn root(repo: &Repo) -> Result<&Path> {
    repo.path().parent().context("a fixture lies in a directory")
}

/// Mounts `url` and compares.
fn check(account: &Account, repo: &Repo, url: &str, options: &[&str]) -> Result<()> {
    let mounted = account.mount(url, options)?;
    compare::against_both(mounted.path(), repo, "refs/heads/main")?;
    ensure!(mounted.status()?.url == url);
    mounted.unmount()
}

#[test]
fn https_with_a_private_authority() -> Result<()> {
    let repo = served()?;
    let ca = TestCa::new()?;
    let server = HttpServer::tls(root(&repo)?, &ca)?;
    for name in ["GIT_SSL_CAINFO", "SSL_CERT_FILE"] {
        let mut account = Account::new()?;
        account.set_env(name, ca.file());
        check(&account, &repo, &server.url("refs.git"), &["--ref", "main"]).context(name)?;
    }
    let account = Account::new()?;
    account.write_home(".gitconfig", &format!("[http]\n\tsslCAInfo = {}\n", ca.file().display()))?;
    check(&account, &repo, &server.url("refs.git"), &["--ref", "main"]).context("http.sslCAInfo")?;
    let asked = server.requests();
    ensure!(asked.iter().all(|a| a.user_agent.as_deref().is_some_and(|agent| agent.contains("gitmount"))), "{asked:?}");
    Ok(())
}

#[test]
fn https_refuses_an_unknown_authority_and_another_hosts_certificate() -> Result<()> {
    let repo = served()?;
    let (ca, other) = (TestCa::new()?, TestCa::new()?);
    let server = HttpServer::tls(root(&repo)?, &ca)?;
    let elsewhere = HttpServer::tls_named(root(&repo)?, &ca, "elsewhere.example")?;
    let mut account = Account::new()?;
    let dir = account.mount_point()?;
    let dir = dir.to_string_lossy().into_owned();
    account.refused(["mount", &server.url("refs.git"), &dir], 4, &["certificate", "127.0.0.1"])?;
    account.set_env("GIT_SSL_CAINFO", other.file());
    account.refused(["mount", &server.url("refs.git"), &dir], 4, &["certificate"])?;
    account.set_env("GIT_SSL_CAINFO", ca.file());
    account.refused(["mount", &elsewhere.url("refs.git"), &dir], 4, &["certificate"])?;
    ensure!(server.requests().is_empty(), "a request went to a host that was not trusted");
    Ok(())
}

#[test]
fn http_only_behind_its_switch() -> Result<()> {
    let repo = served()?;
    let server = HttpServer::plain(root(&repo)?)?;
    let account = Account::new()?;
    let dir = account.mount_point()?;
    account.refused(["mount", &server.url("refs.git"), &dir.to_string_lossy()], 2, &["--allow-http", "use https"])?;
    ensure!(server.requests().is_empty());
    check(&account, &repo, &server.url("refs.git"), &["--allow-http", "--ref", "main"])
}

#[test]
fn file_urls_only_behind_their_switch() -> Result<()> {
    let repo = served()?;
    let account = Account::new()?;
    let dir = account.mount_point()?;
    let url = format!("file://{}", repo.arg());
    account.refused(["mount", &url, &dir.to_string_lossy()], 2, &["--allow-file"])?;
    check(&account, &repo, &url, &["--allow-file", "--ref", "main"])
}

#[test]
fn the_git_protocol() -> Result<()> {
    let repo = served()?;
    let server = GitDaemon::serve(root(&repo)?)?;
    let account = Account::new()?;
    check(&account, &repo, &server.url("refs.git"), &["--ref", "main"])
}

#[test]
fn a_host_that_speaks_only_protocol_v0() -> Result<()> {
    let (dir, repo) = fixtures::copy("refs", refs::refs)?;
    let server = HttpServer::plain(dir.path())?;
    server.speak_only_v0();
    let account = Account::new()?;
    check(&account, &repo, &server.url("refs.git"), &["--allow-http", "--ref", "main"])?;
    let mounted = account.mount(&server.url("refs.git"), &["--allow-http", "--ref", "main"])?;
    let new = fixtures::commit(&repo, "news", &[("which", "new\n")])?;
    mounted.pull()?;
    ensure!(mounted.commit()? == new && mounted.text("which")? == "new\n");
    let stored = std::fs::read_dir(account.store().join("repos"))?.next().context("one repository is stored")??.path();
    let count = Repo::at(stored).line(["rev-list", "--count", &new])?;
    ensure!(count == "1" || count == "2", "the whole history of {count} commits was fetched");
    Ok(())
}

#[test]
fn redirects_are_followed_but_never_from_https_to_http() -> Result<()> {
    let repo = served()?;
    let ca = TestCa::new()?;
    let mut account = Account::new()?;
    account.set_env("GIT_SSL_CAINFO", ca.file());
    let target = HttpServer::tls(root(&repo)?, &ca)?;
    let front = HttpServer::tls(root(&repo)?, &ca)?;
    front.misbehave(Fault::Redirect(target.base()));
    check(&account, &repo, &front.url("refs.git"), &["--ref", "main"])?;
    ensure!(!target.requests().is_empty());

    let plain = HttpServer::plain(root(&repo)?)?;
    front.misbehave(Fault::Redirect(plain.base()));
    let dir = account.mount_point()?;
    account.refused(["mount", "--allow-http", &front.url("refs.git"), &dir.to_string_lossy()], 4, &["from https to http", "redirect"])?;
    ensure!(plain.requests().is_empty(), "an https:// URL was fetched over http://");
    Ok(())
}

#[test]
fn an_endless_redirect_ends() -> Result<()> {
    let repo = served()?;
    let server = HttpServer::plain(root(&repo)?)?;
    server.misbehave(Fault::Redirect(server.base()));
    let account = Account::new()?;
    let dir = account.mount_point()?;
    account.refused(["mount", "--allow-http", &server.url("refs.git"), &dir.to_string_lossy()], 4, &["redirect"])?;
    ensure!(server.requests().len() <= 21);
    Ok(())
}

#[test]
fn a_proxy_of_the_environment_is_used() -> Result<()> {
    let repo = served()?;
    // A proxy gets absolute targets; this one is the git server itself, which shows that it was asked.
    let proxy = HttpServer::plain(root(&repo)?)?;
    let mut account = Account::new()?;
    account.set_env("http_proxy", proxy.base());
    let mounted = account.mount("http://git.example/refs.git", &["--allow-http", "--ref", "main"])?;
    ensure!(mounted.text("which")? == "main\n");
    let asked = proxy.requests();
    ensure!(asked.iter().all(|asked| asked.target.starts_with("http://git.example/refs.git/")), "{asked:?}");
    Ok(())
}
