//! A fetch brings exactly the ref that was asked for, by every transport that needs no login, and says in one sentence when it cannot.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::fetch::{Fetched, NoProgress};
use gitmount_store::refspec::RefSpec;
use gitmount_store::repository::Repository;
use gitmount_tests::fixtures::{self, refs, shape, storage};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::HttpServer;

use crate::support::{TestStore, fetch, file_url, fsck, history, packs, request, same_files, shallow, try_fetch};

/// Every transport that needs no login, for one repository.
struct Hosts {
    source: Repo,
    _daemon: GitDaemon,
    http: HttpServer,
    urls: Vec<String>,
}

fn hosts(source: &Repo) -> Result<Hosts> {
    let root = source.path().parent().context("a fixture is in a directory")?;
    let name = source.path().file_name().context("a fixture has a name")?.to_string_lossy().into_owned();
    let daemon = GitDaemon::serve(root)?;
    let http = HttpServer::plain(root)?;
    let urls = vec![daemon.url(&name), http.url(&name), file_url(source)];
    Ok(Hosts { source: source.clone(), _daemon: daemon, http, urls })
}

#[test]
fn every_form_of_a_ref() -> Result<()> {
    let hosts = hosts(&fixtures::get("refs", refs::refs)?)?;
    let source = &hosts.source;
    let all = source.line(["for-each-ref", "--format=%(refname)"])?;
    for url in &hosts.urls {
        let store = TestStore::new()?;
        let repository = store.repository(url)?;
        let head = fetch(&repository, "HEAD", 1).with_context(|| url.clone())?;
        ensure!(head.commit.to_string() == source.id("HEAD")?, "{url}");
        ensure!(head.ref_name.as_deref() == Some(source.line(["symbolic-ref", "HEAD"])?.as_str()), "{url}: {head:?}");
        for name in all.lines() {
            let Ok(commit) = source.id(&format!("{name}^{{commit}}")) else {
                let refused = try_fetch(&repository, name, 1).err().with_context(|| format!("{name} leads to no commit"))?;
                ensure!(refused.fault() == Fault::NotFound && refused.to_string().contains("not to a commit"), "{url} {name}: {refused}");
                continue;
            };
            let fetched = fetch(&repository, name, 1).with_context(|| format!("{url} {name}"))?;
            ensure!(fetched.commit.to_string() == commit && fetched.ref_name.as_deref() == Some(name), "{url} {name}: {fetched:?}");
            ensure!(repository.known(&RefSpec::parse(name)?)? == Some(fetched.commit));
            same_files(&repository, source, &commit)?;
            let by_id = fetch(&repository, &commit, 1)?;
            ensure!(by_id == Fetched { commit: fetched.commit, ref_name: None, received: false }, "{by_id:?}");
        }
        fsck(&repository)?;
    }
    Ok(())
}

#[test]
fn a_branch_wins_over_a_tag_of_its_name() -> Result<()> {
    let (_dir, source) = fixtures::copy("mixed", storage::mixed)?;
    source.point("refs/heads/both", "main")?;
    source.point("refs/tags/both", "main~1")?;
    source.run(["tag", "-m", "only a tag", "only", "main~2"])?;
    for url in hosts(&source)?.urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        let both = fetch(&repository, "both", 1)?;
        ensure!(both.ref_name.as_deref() == Some("refs/heads/both") && both.commit.to_string() == source.id("main")?, "{url}: {both:?}");
        let only = fetch(&repository, "only", 1)?;
        ensure!(only.ref_name.as_deref() == Some("refs/tags/only") && only.commit.to_string() == source.id("main~2")?, "{url}: {only:?}");
    }
    Ok(())
}

#[test]
fn what_is_not_there_is_named() -> Result<()> {
    let (_dir, source) = fixtures::copy("mixed", storage::mixed)?;
    for url in hosts(&source)?.urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        for spec in ["absent", "refs/heads/absent", &"1".repeat(40)] {
            let error = try_fetch(&repository, spec, 1).err().with_context(|| format!("{spec} is fetched from {url}"))?;
            ensure!(error.fault() == Fault::NotFound && error.to_string().contains(spec), "{url} {spec}: {error}");
        }
        ensure!(packs(&repository, "pack")?.is_empty(), "objects stay of a fetch that failed");
    }
    Ok(())
}

#[test]
fn an_empty_repository_is_called_empty() -> Result<()> {
    let source = fixtures::get("empty", shape::empty)?;
    for url in hosts(&source)?.urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        for spec in ["HEAD", "main"] {
            let error = try_fetch(&repository, spec, 1).err().with_context(|| format!("{spec} of nothing"))?;
            ensure!(error.fault() == Fault::NotFound && error.to_string().contains("empty"), "{url} {spec}: {error}");
        }
    }
    Ok(())
}

#[test]
fn a_commit_that_no_ref_names_is_fetched_also_where_the_host_gives_only_refs() -> Result<()> {
    let (_dir, source) = fixtures::copy("mixed", storage::mixed)?;
    let old = source.id("main~2")?;
    let hosts = hosts(&source)?;
    for v0 in [false, true] {
        if v0 {
            hosts.http.speak_only_v0();
        }
        for url in &hosts.urls {
            let store = TestStore::new()?;
            let repository = store.repository(url)?;
            let fetched = fetch(&repository, &old, 1).with_context(|| format!("{url}, only V0: {v0}"))?;
            ensure!(fetched.commit.to_string() == old && fetched.received);
            same_files(&repository, &source, &old)?;
            hosts.http.take_requests();
            ensure!(!fetch(&repository, &old, 1)?.received);
            ensure!(hosts.http.take_requests().is_empty(), "a commit that is there was asked for");
            fsck(&repository)?;
        }
    }
    Ok(())
}

#[test]
fn a_poll_without_news_is_one_request_and_receives_nothing() -> Result<()> {
    let (_dir, source) = fixtures::copy("mixed", storage::mixed)?;
    let hosts = hosts(&source)?;
    let url = &hosts.urls[1];
    let store = TestStore::new()?;
    let repository = store.repository(url)?;
    ensure!(fetch(&repository, "main", 1)?.received);
    hosts.http.take_requests();
    ensure!(!fetch(&repository, "main", 1)?.received);
    let asked = hosts.http.take_requests();
    ensure!(asked.len() == 1, "a poll took {} requests", asked.len());

    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "News")?.file(b"news", "news\n")?;
    import.finish()?;
    let news = fetch(&repository, "main", 1)?;
    ensure!(news.received && news.commit.to_string() == source.id("main")?);
    let indexes = packs(&repository, "idx")?;
    ensure!(indexes.len() == 2, "{indexes:?}");
    ensure!(shallow(&repository)? == [source.id("main")?], "the old boundary stays: {:?}", shallow(&repository)?);
    ensure!(history(&repository, news.commit)? == 1);
    same_files(&repository, &source, "main")?;
    fsck(&repository)
}

#[test]
fn sha256_repositories() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = Repo::init(dir.path().join("sha256.git"), &["--bare", "--object-format=sha256"])?;
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "First")?.file(b"a/b", "content\n")?;
    import.finish()?;
    for url in hosts(&source)?.urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        let fetched = fetch(&repository, "main", 1).with_context(|| url.clone())?;
        ensure!(fetched.commit.to_string() == source.id("main")?);
        let objects = repository.objects();
        let root = objects.commit(fetched.commit)?.tree;
        ensure!(objects.tree(root)?.entries()[0].name == "a");
        same_files(&repository, &source, "main")?;
        fsck(&repository)?;
        // It is known to be one when it is opened again.
        drop(repository);
        ensure!(!fetch(&*store.repository(&url)?, "main", 1)?.received);
    }
    Ok(())
}

#[test]
fn a_remote_that_changes_its_hash_is_told() -> Result<()> {
    let (dir, source) = fixtures::copy("mixed", storage::mixed)?;
    let store = TestStore::new()?;
    let repository = store.repository(&file_url(&source))?;
    fetch(&repository, "main", 1)?;
    std::fs::remove_dir_all(source.path())?;
    let source = Repo::init(source.path(), &["--bare", "--object-format=sha256"])?;
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "First")?.file(b"a", "content\n")?;
    import.finish()?;
    let error = try_fetch(&repository, "main", 1).err().context("two hashes in one repository")?;
    ensure!(error.to_string().contains("sha256") && error.fault() == Fault::Corrupt, "{error}");
    drop(dir);
    Ok(())
}

#[test]
fn a_fetch_can_be_cancelled_while_it_waits_for_another() -> Result<()> {
    let (_dir, source) = fixtures::copy("mixed", storage::mixed)?;
    let store = TestStore::new()?;
    let repository: Arc<Repository> = store.repository(&file_url(&source))?;
    let lock = std::fs::File::create(repository.git_dir().join("gitmount.lock"))?;
    let _lock = nix::fcntl::Flock::lock(lock, nix::fcntl::FlockArg::LockExclusive).map_err(|(_, err)| err)?;
    let stop = Arc::new(AtomicBool::new(false));
    let waiting = std::thread::spawn({
        let (repository, stop, request) = (repository.clone(), stop.clone(), request("main", 1)?);
        move || repository.fetch(&request, &NoProgress, &stop)
    });
    std::thread::sleep(std::time::Duration::from_millis(100));
    ensure!(!waiting.is_finished());
    stop.store(true, Ordering::Relaxed);
    let error = waiting.join().expect("the thread does not panic").err().context("the lock is taken")?;
    ensure!(error.fault() == Fault::Cancelled, "{error}");
    Ok(())
}

#[test]
fn leftovers_of_a_killed_fetch_are_cleared() -> Result<()> {
    let (_dir, source) = fixtures::copy("mixed", storage::mixed)?;
    let store = TestStore::new()?;
    let url = file_url(&source);
    let git_dir = store.repository(&url)?.git_dir().to_owned();
    let left = ["objects/pack/.tmpAbc123", "objects/pack/tmp_pack_x", "objects/pack/pack-1.keep", "shallow.lock", "refs/gitmount/x.lock"];
    for name in left {
        let path = git_dir.join(name);
        std::fs::create_dir_all(path.parent().context("a file is in a directory")?)?;
        std::fs::write(path, "left")?;
    }
    let repository = store.repository(&url)?;
    for name in left {
        ensure!(!git_dir.join(name).exists(), "{name} is still there");
    }
    ensure!(fetch(&repository, "main", 1)?.received);
    Ok(())
}
