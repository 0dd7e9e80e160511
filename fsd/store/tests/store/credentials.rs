//! Whether a credential has fetched a repository is remembered without the credential, and forgotten when the host refuses it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use base64::Engine;
use gitmount_store::Fault;
use gitmount_store::credential::{Auth, HostKeys, HttpAuth, Login, Secret};
use gitmount_store::error::Result as StoreResult;
use gitmount_store::fetch::{FetchRequest, Fetched, NoProgress};
use gitmount_store::refspec::RefSpec;
use gitmount_store::repository::Repository;
use gitmount_tests::fixtures;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::ssh::{KeyKind, Known, Sshd, new_key};

use crate::support::TestStore;

const TOKEN: &str = "ghp_thisIsTheTokenThatMustNotBeOnDisk";

fn login(token: &str) -> Auth {
    let http = HttpAuth::Login(Login { username: "robot".into(), password: Secret::new(token) });
    Auth { http, ..Auth::default() }
}

fn fetch_as(repository: &Repository, spec: &str, auth: &Auth) -> StoreResult<Fetched> {
    let request = FetchRequest { spec: RefSpec::parse(spec)?, depth: 1, auth: auth.clone() };
    repository.fetch(&request, &NoProgress, &Arc::new(AtomicBool::new(false)))
}

/// No file below `dir` has any of `secrets` in it or in its name.
fn free_of(dir: &Path, secrets: &[&str]) -> Result<usize> {
    let mut files = 0;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            files += free_of(&path, secrets)?;
            continue;
        }
        files += 1;
        let bytes = std::fs::read(&path)?;
        for secret in secrets {
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes()) || path.to_string_lossy().contains(secret);
            ensure!(!found, "{} has a secret in it", path.display());
        }
    }
    Ok(files)
}

#[test]
fn a_login_is_known_by_its_fingerprint_until_it_is_refused() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = fixtures::small(&dir.path().join("r.git"), &[("a", "1\n")])?;
    let http = HttpServer::plain(dir.path())?;
    http.require_login("robot", TOKEN);
    let store = TestStore::new()?;
    let repository = store.repository(&http.url("r.git"))?;
    let (right, wrong, anonymous) = (login(TOKEN), login("wrong"), Auth::default());
    for auth in [&right, &wrong, &anonymous] {
        ensure!(!repository.has_fetched_with(auth)?);
    }
    let commit = fetch_as(&repository, "main", &right)?.commit.to_string();
    for auth in [&wrong, &anonymous] {
        let refused = fetch_as(&repository, "main", auth).err().context("the host refuses it")?;
        ensure!(refused.fault() == Fault::Refused, "{refused}");
        // Nor is the commit theirs because somebody else has fetched it.
        let refused = fetch_as(&repository, &commit, auth).err().context("the host refuses it")?;
        ensure!(refused.fault() == Fault::Refused, "{refused}");
        ensure!(!repository.has_fetched_with(auth)?);
    }
    ensure!(repository.has_fetched_with(&right)?);
    http.take_requests();
    fetch_as(&repository, &commit, &right)?;
    ensure!(http.take_requests().is_empty(), "a commit that is there was asked for");

    // A host that does not answer changes nothing, one that refuses does.
    http.misbehave(gitmount_tests::servers::http::Fault::status(503));
    ensure!(fetch_as(&repository, "main", &right).is_err() && repository.has_fetched_with(&right)?);
    http.behave();
    http.require_login("robot", "another");
    ensure!(fetch_as(&repository, "main", &right).is_err() && !repository.has_fetched_with(&right)?);
    http.require_login("robot", TOKEN);
    ensure!(!fetch_as(&repository, "main", &right)?.received && repository.has_fetched_with(&right)?);

    // The same login for another repository is another fingerprint.
    fixtures::small(&dir.path().join("other.git"), &[("a", "1\n")])?;
    let other = store.repository(&http.url("other.git"))?;
    ensure!(!other.has_fetched_with(&right)?);
    fetch_as(&other, "main", &right)?;
    let read = |repository: &Repository| std::fs::read_to_string(repository.git_dir().join("gitmount-credentials"));
    ensure!(read(&repository)? != read(&other)?);

    let basic = base64::engine::general_purpose::STANDARD.encode(format!("robot:{TOKEN}"));
    ensure!(free_of(store.store.root(), &[TOKEN, &basic, "robot"])? > 10);
    drop(source);
    Ok(())
}

#[test]
fn anonymous_and_keys_are_credentials_too() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = fixtures::small(&dir.path().join("r.git"), &[("a", "1\n")])?;
    let http = HttpServer::plain(dir.path())?;
    let store = TestStore::new()?;
    let public = store.repository(&http.url("r.git"))?;
    fetch_as(&public, "main", &Auth::default())?;
    ensure!(public.has_fetched_with(&Auth::default())? && !public.has_fetched_with(&login(TOKEN))?);

    let server = Sshd::start()?;
    let mut auths = Vec::new();
    for name in ["a", "b"] {
        let key = dir.path().join(name);
        new_key(&key, KeyKind::Ed25519, "")?;
        let mut auth = Auth::default();
        auth.ssh.host_keys = HostKeys::Text(server.known_host(KeyKind::Ed25519, Known::Plain)?);
        let mut by_file = auth.clone();
        by_file.ssh.key_files = vec![key.clone()];
        auth.ssh.keys = vec![Secret::new(std::fs::read_to_string(&key)?)];
        auths.push((auth, by_file));
        if name == "a" {
            server.authorize(&key)?;
        }
    }
    let repository = store.repository(&server.url(source.path())?)?;
    let ((by_text, by_file), (other, _)) = (&auths[0], &auths[1]);
    fetch_as(&repository, "main", by_text)?;
    ensure!(fetch_as(&repository, "main", other).is_err());
    // It is the key that counts, not where it came from.
    ensure!(repository.has_fetched_with(by_text)? && repository.has_fetched_with(by_file)? && !repository.has_fetched_with(other)?);
    let text = std::fs::read_to_string(dir.path().join("a"))?;
    let lines: Vec<&str> = text.lines().filter(|line| line.len() > 20 && !line.starts_with('-')).collect();
    free_of(store.store.root(), &lines)?;
    Ok(())
}

#[test]
fn only_the_latest_are_remembered() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "1\n")])?;
    let http = HttpServer::plain(dir.path())?;
    let store = TestStore::new()?;
    let repository = store.repository(&http.url("r.git"))?;
    // A host that wants no login takes any.
    for n in 0..70 {
        fetch_as(&repository, "main", &login(&format!("token {n}")))?;
    }
    let known = |n: u32| repository.has_fetched_with(&login(&format!("token {n}")));
    ensure!(!known(5)? && known(6)? && known(69)?);
    ensure!(std::fs::read_to_string(repository.git_dir().join("gitmount-credentials"))?.lines().count() == 64);
    Ok(())
}
