//! A host that goes silent at any byte of what it has to say: the fetch ends by its idle limit, others go on, and the next one works.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::credential::{Auth, HostKeys, Secret};
use gitmount_store::error::Result as StoreResult;
use gitmount_store::fetch::{FetchRequest, Fetched, NoProgress};
use gitmount_store::refspec::RefSpec;
use gitmount_store::repository::Repository;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};
use gitmount_tests::fixtures::content::noise;
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::proxy::Proxy;
use gitmount_tests::servers::ssh::{KeyKind, Known, Sshd, new_key};

use crate::support::{file_url, same_files};

const IDLE: Duration = Duration::from_millis(300);
/// Far more than the limits add up to: only a fetch that hangs takes this long.
const HANGS: Duration = Duration::from_secs(20);
const WORKERS: usize = 4;

fn source(dir: &Path) -> Result<Repo> {
    let repo = Repo::init_bare(dir.join("r.git"))?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "First")?.file(b"noise", noise(60 << 10))?.file(b"d/small", "small\n")?;
    import.finish()?;
    Ok(repo)
}

/// The repository of `url` in the store at `root`, as a process with this idle limit opens it.
fn open(root: &Path, url: &str, limit: Duration) -> Result<Arc<Repository>> {
    let mut options = StoreOptions::new(root);
    (options.idle, options.connect) = (limit, limit);
    let policy = UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] };
    Ok(Store::open(options)?.repository(&RepoUrl::parse(url, &policy)?)?)
}

fn fetch_as(repository: &Repository, auth: &Auth, stop: &Arc<AtomicBool>) -> StoreResult<Fetched> {
    let request = FetchRequest { spec: RefSpec::parse("main")?, depth: 1, auth: auth.clone() };
    repository.fetch(&request, &NoProgress, stop)
}

/// The bytes after which to go silent: each of the first ones, then some, then the last ones.
fn points(total: u64) -> Vec<u64> {
    let mut points: BTreeSet<u64> = (0..4).chain((4..600).step_by(41)).collect();
    points.extend((1..24).map(|part| total * part / 24).flat_map(|at| [at - 1, at]));
    points.extend((1..6).map(|left| total.saturating_sub(left)));
    points.into_iter().filter(|at| *at < total).collect()
}

/// Tries every point through a proxy of its own in front of `port`.
fn silent_at_every_point(source: &Repo, port: u16, url: &(dyn Fn(u16) -> Result<String> + Sync), auth: &Auth) -> Result<()> {
    let never = Arc::new(AtomicBool::new(false));
    let dir = gitmount_tests::scratch::dir()?;
    let proxy = Proxy::to(port)?;
    fetch_as(&*open(&dir.path().join("reference"), &url(proxy.port())?, HANGS)?, auth, &never)?;
    let points = points(proxy.passed());
    ensure!(points.len() > 40, "{points:?}");
    let (next, failed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let one = |at: u64| -> Result<()> {
        let proxy = Proxy::to(port)?;
        let (root, url) = (dir.path().join(at.to_string()), url(proxy.port())?);
        proxy.silent_after(at);
        let started = Instant::now();
        let silent = fetch_as(&*open(&root, &url, IDLE)?, auth, &never);
        ensure!(started.elapsed() < HANGS, "it took {:?}", started.elapsed());
        match silent {
            // What came last may be of no importance.
            Ok(_) => {}
            Err(error) => {
                failed.fetch_add(1, Ordering::Relaxed);
                ensure!(error.fault() == Fault::Unreachable, "{:?}: {error}", error.fault());
            }
        }
        proxy.behave();
        let repository = open(&root, &url, HANGS)?;
        fetch_as(&repository, auth, &never).context("the next fetch")?;
        same_files(&repository, source, "main")
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    while let Some(at) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                        one(*at).with_context(|| format!("silent after {at} bytes"))?;
                    }
                    Ok(())
                })
            })
            .collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("the thread does not panic"))
    })?;
    ensure!(failed.load(Ordering::Relaxed) >= points.len() - 10, "only {failed:?} of {} fetches failed", points.len());
    Ok(())
}

#[test]
fn http() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = source(dir.path())?;
    let http = HttpServer::plain(dir.path())?;
    silent_at_every_point(&source, http.port(), &|port| Ok(format!("http://127.0.0.1:{port}/r.git")), &Auth::default())
}

#[test]
fn ssh() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = source(dir.path())?;
    let server = Sshd::start()?;
    let key = dir.path().join("key");
    new_key(&key, KeyKind::Ed25519, "")?;
    server.authorize(&key)?;
    let mut auth = Auth::default();
    auth.ssh.keys = vec![Secret::new(std::fs::read_to_string(&key)?)];
    auth.ssh.host_keys = HostKeys::Text(server.known_host(KeyKind::Ed25519, Known::WithoutPort)?);
    let user = server.user()?;
    let url = |port: u16| Ok(format!("ssh://{user}@127.0.0.1:{port}{}", source.path().display()));
    silent_at_every_point(&source, server.port(), &url, &auth)
}

#[test]
fn other_repositories_do_not_wait_for_a_silent_host() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = source(dir.path())?;
    let http = HttpServer::plain(dir.path())?;
    let proxy = Proxy::to(http.port())?;
    proxy.silent_after(20 << 10);
    let root = dir.path().join("store");
    let silent = open(&root, &format!("http://127.0.0.1:{}/r.git", proxy.port()), Duration::from_secs(600))?;
    let stop = Arc::new(AtomicBool::new(false));
    let waiting = std::thread::spawn({
        let (silent, stop) = (Arc::clone(&silent), Arc::clone(&stop));
        move || fetch_as(&silent, &Auth::default(), &stop)
    });
    gitmount_tests::run::wait_for("silence", HANGS, || (proxy.passed() >= 20 << 10).then_some(()))?;
    let never = Arc::new(AtomicBool::new(false));
    for url in [http.url("r.git"), file_url(&source)] {
        let other = open(&root, &url, HANGS)?;
        ensure!(fetch_as(&other, &Auth::default(), &never)?.received);
        same_files(&other, &source, "main")?;
    }
    ensure!(!waiting.is_finished());
    stop.store(true, Ordering::Relaxed);
    let error = waiting.join().expect("the thread does not panic").err().context("the host is silent")?;
    ensure!(error.fault() == Fault::Cancelled, "{error}");
    Ok(())
}
