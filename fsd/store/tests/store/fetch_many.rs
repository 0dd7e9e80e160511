//! Several refs cost one connection, one list of refs and one pack; what one of them lacks is its own matter.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use gitmount_store::credential::{Auth, HostKeys, Secret};
use gitmount_store::error::Result as StoreResult;
use gitmount_store::fetch::{Fetched, NoProgress};
use gitmount_store::refspec::RefSpec;
use gitmount_store::repository::Repository;
use gitmount_store::{Fault, StoreError};
use gitmount_tests::fixtures::{self, storage};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::ssh::{KeyKind, Known, Sshd, new_key};

use crate::support::{TestStore, file_url, fsck, packs, same_files, shallow};

fn fetch_many(repository: &Repository, specs: &[&str], depth: u32, auth: &Auth) -> Result<Vec<StoreResult<Fetched>>> {
    let specs: Vec<RefSpec> = specs.iter().map(|spec| RefSpec::parse(spec)).collect::<StoreResult<_>>()?;
    Ok(repository.fetch_many(&specs, depth, auth, &NoProgress, &Arc::new(AtomicBool::new(false)))?)
}

fn commits(results: Vec<StoreResult<Fetched>>) -> Result<Vec<String>> {
    let commits: StoreResult<Vec<String>> = results.into_iter().map(|one| one.map(|one| one.commit.to_string())).collect();
    Ok(commits?)
}

/// A source with branches, tags, and a commit that no ref names.
fn source() -> Result<(tempfile::TempDir, Repo, String)> {
    let (dir, source) = fixtures::copy("mixed", storage::mixed)?;
    source.point("refs/heads/old", "main~1")?;
    source.run(["tag", "-m", "annotated", "v1", "main~2"])?;
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/side", "Side")?.file(b"side", "another root\n")?;
    import.finish()?;
    let between = source.id("main~3")?;
    Ok((dir, source, between))
}

/// Fetches mixed refs and looks at everything that came.
fn mixed(repository: &Repository, source: &Repo, between: &str, auth: &Auth) -> Result<()> {
    let specs = ["main", "HEAD", "refs/heads/old", "v1", "side", between];
    let results = fetch_many(repository, &specs, 1, auth)?;
    ensure!(results.iter().all(|one| one.as_ref().is_ok_and(|one| one.received)), "{results:?}");
    let names: Vec<Option<&str>> = results.iter().map(|one| one.as_ref().ok().and_then(|one| one.ref_name.as_deref())).collect();
    ensure!(names[0] == Some("refs/heads/main") && names[3] == Some("refs/tags/v1") && names[5].is_none(), "{names:?}");
    let expected =
        [source.id("main")?, source.id("HEAD")?, source.id("old")?, source.id("v1^{commit}")?, source.id("side")?, between.into()];
    ensure!(commits(results)? == expected);
    ensure!(packs(repository, "pack")?.len() == 1, "{:?}", packs(repository, "pack")?);
    for (spec, commit) in specs.iter().zip(&expected) {
        ensure!(repository.known(&RefSpec::parse(spec)?)?.map(|known| known.to_string()).as_ref() == Some(commit), "{spec}");
        same_files(repository, source, commit)?;
    }
    fsck(repository)?;
    let again = fetch_many(repository, &specs, 1, auth)?;
    ensure!(again.iter().all(|one| one.as_ref().is_ok_and(|one| !one.received)), "{again:?}");
    Ok(())
}

#[test]
fn mixed_refs_come_in_one_pack_by_every_transport() -> Result<()> {
    let (dir, source, between) = source()?;
    let daemon = GitDaemon::serve(dir.path())?;
    let http = HttpServer::plain(dir.path())?;
    let name = source.path().file_name().context("it has a name")?.to_string_lossy().into_owned();
    for url in [daemon.url(&name), http.url(&name), file_url(&source)] {
        mixed(&*TestStore::new()?.repository(&url)?, &source, &between, &Auth::default()).context(url)?;
    }
    let (sshd, auth) = ssh(dir.path())?;
    let url = sshd.url(source.path())?;
    mixed(&*TestStore::new()?.repository(&url)?, &source, &between, &auth).context(url)
}

fn ssh(dir: &Path) -> Result<(Sshd, Auth)> {
    let server = Sshd::start()?;
    let key = dir.join("key");
    new_key(&key, KeyKind::Ed25519, "")?;
    server.authorize(&key)?;
    let mut auth = Auth::default();
    auth.ssh.keys = vec![Secret::new(std::fs::read_to_string(&key)?)];
    auth.ssh.host_keys = HostKeys::Text(server.known_host(KeyKind::Ed25519, Known::Plain)?);
    Ok((server, auth))
}

#[test]
fn the_host_is_asked_once_for_refs_and_once_for_objects() -> Result<()> {
    let (dir, source, between) = source()?;
    let name = source.path().file_name().context("it has a name")?.to_string_lossy().into_owned();
    let specs = ["main", "old", "v1", "side", &between];
    for v0 in [false, true] {
        // What a host speaks is remembered.
        let http = HttpServer::plain(dir.path())?;
        if v0 {
            http.speak_only_v0();
        }
        let store = TestStore::new()?;
        let repository = store.repository(&http.url(&name))?;
        http.take_requests();
        // V0 gives no commit that no ref names.
        let asked = if v0 { &specs[..4] } else { &specs[..] };
        commits(fetch_many(&repository, asked, 1, &Auth::default())?)?;
        let requests = http.take_requests();
        ensure!(requests.iter().filter(|asked| asked.fetch).count() == 1, "V0 {v0}: {requests:?}");
        let lists = requests.iter().filter(|asked| asked.method == "POST" && !asked.fetch).count();
        ensure!(lists == usize::from(!v0) && requests.len() <= 3, "V0 {v0}: {requests:?}");
        fetch_many(&repository, &specs, 1, &Auth::default())?;
        http.take_requests();
        commits(fetch_many(&repository, &specs, 1, &Auth::default())?)?;
        let poll = http.take_requests();
        ensure!(poll.len() == 1, "a poll without news, V0 {v0}: {poll:?}");
    }
    Ok(())
}

#[test]
fn a_missing_ref_fails_alone() -> Result<()> {
    let (dir, source, between) = source()?;
    let absent = "1".repeat(40);
    let blob = source.write_object("blob", b"no commit\n")?;
    source.point("refs/tags/blob", &blob)?;
    let http = HttpServer::plain(dir.path())?;
    let daemon = GitDaemon::serve(dir.path())?;
    let name = source.path().file_name().context("it has a name")?.to_string_lossy().into_owned();
    let urls = [http.url(&name), daemon.url(&name), file_url(&source)];
    for v0 in [false, true] {
        if v0 {
            http.speak_only_v0();
        }
        for url in &urls {
            let store = TestStore::new()?;
            let repository = store.repository(url)?;
            let specs = ["main", "absent", &between, "blob", &absent, "side"];
            let results = fetch_many(&repository, &specs, 1, &Auth::default()).with_context(|| format!("{url}, V0 {v0}"))?;
            for (position, spec) in specs.iter().enumerate() {
                match &results[position] {
                    Ok(fetched) => {
                        ensure!([0, 2, 5].contains(&position), "{url} {spec}: {fetched:?}");
                        same_files(&repository, &source, fetched.commit)?;
                    }
                    Err(error) => {
                        ensure!([1, 3, 4].contains(&position), "{url} {spec}: {error}");
                        ensure!(error.fault() == Fault::NotFound && error.to_string().contains(spec), "{url} {spec}: {error}");
                    }
                }
            }
            fsck(&repository)?;
            let nothing = fetch_many(&repository, &["absent", "absent2"], 1, &Auth::default())?;
            ensure!(nothing.iter().all(|one| matches!(one, Err(error) if error.fault() == Fault::NotFound)), "{nothing:?}");
        }
    }
    Ok(())
}

#[test]
fn a_host_that_does_not_answer_fails_all_and_nothing_changes() -> Result<()> {
    let (dir, source, _) = source()?;
    let http = HttpServer::plain(dir.path())?;
    let name = source.path().file_name().context("it has a name")?.to_string_lossy().into_owned();
    let store = TestStore::new()?;
    let repository = store.repository(&http.url(&name))?;
    let old = commits(fetch_many(&repository, &["main", "side"], 1, &Auth::default())?)?;
    let cut = shallow(&repository)?;
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "News")?.file(b"news", "news\n")?;
    import.finish()?;
    for fault in [gitmount_tests::servers::http::Fault::CutPack, gitmount_tests::servers::http::Fault::status(503)] {
        http.misbehave(fault);
        let error = fetch_many(&repository, &["main", "side", "absent"], 1, &Auth::default()).err().context("the host is down")?;
        let fault = error.downcast_ref::<StoreError>().map(StoreError::fault);
        ensure!(fault == Some(Fault::Unreachable), "{error:#}");
        ensure!(repository.known(&RefSpec::parse("main")?)?.map(|known| known.to_string()).as_ref() == Some(&old[0]));
        ensure!(shallow(&repository)? == cut);
    }
    http.behave();
    ensure!(commits(fetch_many(&repository, &["main", "side"], 1, &Auth::default())?)? == [source.id("main")?, old[1].clone()]);
    fsck(&repository)
}

#[test]
fn nothing_asked_is_nothing_done() -> Result<()> {
    let store = TestStore::new()?;
    let repository = store.repository("http://127.0.0.1:1/nobody.git")?;
    ensure!(fetch_many(&repository, &[], 1, &Auth::default())?.is_empty());
    Ok(())
}
