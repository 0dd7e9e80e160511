//! A damaged store heals: what is broken is not offered to the host, and the next fetch gets it again, also when the ref has not moved.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use gitmount_store::credential::Auth;
use gitmount_store::fetch::NoProgress;
use gitmount_store::ids::CommitId;
use gitmount_store::objects::Objects;
use gitmount_store::repository::Repository;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};
use gitmount_tests::fixtures::content::noise;
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::HttpServer;

use crate::support::{TestStore, fetch, file_url, fsck, gc, packs, same_files, verify};

struct Setting {
    dir: tempfile::TempDir,
    source: Repo,
    http: HttpServer,
    daemon: GitDaemon,
}

impl Setting {
    /// A source of some files that do not compress, so that damage hits one of them.
    fn new() -> Result<Self> {
        let dir = gitmount_tests::scratch::dir()?;
        let source = Repo::init_bare(dir.path().join("source.git"))?;
        let mut import = Import::into(&source)?;
        import.commit("refs/heads/main", "First")?;
        for n in 0..20u8 {
            let content: Vec<u8> = noise(20 << 10).iter().map(|byte| byte ^ n).collect();
            import.file(format!("d{}/f{n}", n % 3).as_bytes(), content)?;
        }
        import.finish()?;
        let (http, daemon) = (HttpServer::plain(dir.path())?, GitDaemon::serve(dir.path())?);
        Ok(Setting { dir, source, http, daemon })
    }

    fn urls(&self) -> [String; 3] {
        [self.http.url("source.git"), self.daemon.url("source.git"), file_url(&self.source)]
    }

    /// One more commit; its pack is a small one of deltas and new files.
    fn more(&self, n: u32) -> Result<()> {
        let mut import = Import::into(&self.source)?;
        import.commit("refs/heads/main", "More")?.file(b"d0/news", format!("news {n}\n"))?;
        import.finish()?;
        Ok(())
    }
}

/// Replaces a file, since a mapping of the old one is not to be changed under its readers.
fn rewrite(path: &Path, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
    let mut bytes = std::fs::read(path)?;
    change(&mut bytes);
    let aside = path.with_extension("damaged");
    std::fs::write(&aside, bytes)?;
    std::fs::set_permissions(&aside, std::fs::Permissions::from_mode(0o644))?;
    Ok(std::fs::rename(aside, path)?)
}

type Damage = fn(&Repository) -> Result<()>;

/// The biggest pack of the repository.
fn biggest(repository: &Repository) -> Result<std::path::PathBuf> {
    let all = packs(repository, "pack")?;
    all.into_iter().max_by_key(|path| path.metadata().map(|meta| meta.len()).unwrap_or_default()).context("there are packs")
}

const DAMAGES: [(&str, Damage); 6] = [
    ("a byte of the pack", |repository| {
        rewrite(&biggest(repository)?, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x55;
        })
    }),
    ("the pack is cut", |repository| rewrite(&biggest(repository)?, |bytes| bytes.truncate(bytes.len() / 2))),
    ("the pack is gone", |repository| Ok(std::fs::remove_file(biggest(repository)?)?)),
    ("the index is cut", |repository| rewrite(&biggest(repository)?.with_extension("idx"), |bytes| bytes.truncate(bytes.len() / 2))),
    ("the index is gone", |repository| Ok(std::fs::remove_file(biggest(repository)?.with_extension("idx"))?)),
    ("all packs are gone", |repository| {
        for extension in ["idx", "pack"] {
            for path in packs(repository, extension)? {
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }),
];

/// The store as a new process opens it.
fn reopen(store: &TestStore, url: &str) -> Result<Arc<Repository>> {
    let again = Store::open(StoreOptions::new(store.store.root()))?;
    let policy = UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] };
    Ok(again.repository(&RepoUrl::parse(url, &policy)?)?)
}

fn sound(repository: &Repository, source: &Repo) -> Result<()> {
    same_files(repository, source, "main")?;
    let report = verify(repository)?;
    ensure!(report.problems.is_empty(), "{report:?}");
    gc(repository)?;
    fsck(repository)
}

#[test]
fn the_next_fetch_mends_every_kind_of_damage() -> Result<()> {
    let setting = Setting::new()?;
    let mut n = 0;
    for url in setting.urls() {
        for (what, damage) in DAMAGES {
            for moved in [false, true] {
                for in_process in [false, true] {
                    n += 1;
                    let store = TestStore::new()?;
                    let mut repository = store.repository(&url)?;
                    fetch(&repository, "main", 1)?;
                    setting.more(n)?;
                    fetch(&repository, "main", 1)?;
                    damage(&repository)?;
                    if moved {
                        setting.more(1000 + n)?;
                    }
                    if !in_process {
                        drop(repository);
                        repository = reopen(&store, &url)?;
                    }
                    let context = || format!("{url}: {what}, the ref moved: {moved}, same process: {in_process}");
                    let fetched = fetch(&repository, "main", 1).with_context(context)?;
                    ensure!(fetched.commit.to_string() == setting.source.id("main")?);
                    sound(&repository, &setting.source).with_context(context)?;
                    ensure!(!fetch(&repository, "main", 1)?.received, "fetched again: {}", context());
                }
            }
        }
    }
    Ok(())
}

/// Every file of a commit.
fn read_all(objects: &Objects, commit: CommitId) -> Result<()> {
    for entry in objects.tree(objects.commit(commit)?.tree)?.entries() {
        for file in objects.tree(entry.id)?.entries() {
            objects.blob(file.id)?;
        }
    }
    Ok(())
}

#[test]
fn what_a_reader_or_verify_finds_is_fetched_again() -> Result<()> {
    let setting = Setting::new()?;
    let url = setting.http.url("source.git");
    for by_reader in [false, true] {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        let commit = fetch(&repository, "main", 1)?.commit;
        let pack = biggest(&repository)?;
        let (meta, modified) = (pack.metadata()?, pack.metadata()?.modified()?);
        // Bits that rot change no time and no size.
        rewrite(&pack, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 0x55;
        })?;
        std::fs::File::options().append(true).open(&pack)?.set_modified(modified)?;
        ensure!(pack.metadata()?.len() == meta.len());
        let repository = {
            drop(repository);
            reopen(&store, &url)?
        };
        ensure!(!fetch(&repository, "main", 1)?.received, "nobody has noticed anything");
        if by_reader {
            ensure!(read_all(&repository.objects(), commit).is_err());
        } else {
            ensure!(!verify(&repository)?.problems.is_empty());
        }
        ensure!(fetch(&repository, "main", 1)?.received);
        read_all(&repository.objects(), commit)?;
        sound(&repository, &setting.source)?;
    }
    Ok(())
}

#[test]
fn what_is_readable_stays_readable_when_the_host_is_away() -> Result<()> {
    let setting = Setting::new()?;
    let url = setting.http.url("source.git");
    let store = TestStore::new()?;
    let repository = store.repository(&url)?;
    let commit = fetch(&repository, "main", 1)?.commit;
    DAMAGES[0].1(&repository)?;
    setting.http.misbehave(gitmount_tests::servers::http::Fault::status(503));
    ensure!(fetch(&repository, "main", 1).is_err());
    let objects = repository.objects();
    let (mut good, mut bad) = (0, 0);
    for entry in objects.tree(objects.commit(commit)?.tree)?.entries() {
        for file in objects.tree(entry.id)?.entries() {
            if objects.blob(file.id).is_ok() { good += 1 } else { bad += 1 }
        }
    }
    ensure!((good, bad) == (19, 1), "{good} files are readable, {bad} are not");
    ensure!(packs(&repository, "pack")?.len() == 1);
    // Not even gc takes what is left, and it ends.
    gc(&repository)?;
    setting.http.behave();
    ensure!(fetch(&repository, "main", 1)?.received);
    sound(&repository, &setting.source)
}

#[test]
fn a_pinned_commit_that_no_ref_names_is_repaired_by_its_id() -> Result<()> {
    let setting = Setting::new()?;
    let url = setting.http.url("source.git");
    let store = TestStore::new()?;
    let repository = store.repository(&url)?;
    let old = fetch(&repository, "main", 1)?.commit;
    repository.pin_named("view", old)?;
    setting.more(1)?;
    fetch(&repository, "main", 1)?;
    gc(&repository)?;
    DAMAGES[5].1(&repository)?;
    let fetched = fetch(&repository, "main", 1)?;
    ensure!(fetched.received && !verify(&repository)?.problems.is_empty());
    let stop = Arc::new(AtomicBool::new(false));
    let repaired = repository.repair(&Auth::default(), &NoProgress, &stop)?;
    ensure!(repaired.len() == 1 && repaired[0].0 == old && repaired[0].1.is_ok(), "{repaired:?}");
    same_files(&repository, &setting.source, old)?;
    sound(&repository, &setting.source)?;
    ensure!(repository.repair(&Auth::default(), &NoProgress, &stop)?.is_empty());
    drop(setting.dir);
    Ok(())
}
