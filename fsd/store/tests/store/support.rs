//! A store of the test's own, and shorter ways to ask it.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use gitmount_store::StoreError;
use gitmount_store::credential::Auth;
use gitmount_store::fetch::{FetchRequest, Fetched, NoProgress};
use gitmount_store::maintenance::{self, GcReport, VerifyReport};
use gitmount_store::refspec::RefSpec;
use gitmount_store::repository::Repository;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};
use gitmount_tests::git::Repo;
use gitmount_tests::scratch;
use tempfile::TempDir;

/// A store in a temporary directory.
pub(crate) struct TestStore {
    _dir: TempDir,
    pub(crate) store: Arc<Store>,
}

impl TestStore {
    pub(crate) fn new() -> Result<Self> {
        let dir = scratch::dir()?;
        let store = Store::open(StoreOptions::new(dir.path().join("store")))?;
        Ok(TestStore { _dir: dir, store })
    }

    /// The repository of `url`.
    pub(crate) fn repository(&self, url: &str) -> Result<Arc<Repository>> {
        let policy = UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] };
        Ok(self.store.repository(&RepoUrl::parse(url, &policy)?)?)
    }
}

/// The `file` URL of a repository.
pub(crate) fn file_url(repo: &Repo) -> String {
    format!("file://{}", repo.path().display())
}

pub(crate) fn request(spec: &str, depth: u32) -> Result<FetchRequest> {
    Ok(FetchRequest { spec: RefSpec::parse(spec)?, depth, auth: Auth::default() })
}

pub(crate) fn try_fetch(repository: &Repository, spec: &str, depth: u32) -> std::result::Result<Fetched, StoreError> {
    let request = FetchRequest { spec: RefSpec::parse(spec)?, depth, auth: Auth::default() };
    repository.fetch(&request, &NoProgress, &Arc::new(AtomicBool::new(false)))
}

pub(crate) fn fetch(repository: &Repository, spec: &str, depth: u32) -> Result<Fetched> {
    Ok(try_fetch(repository, spec, depth)?)
}

pub(crate) fn gc(repository: &Repository) -> std::result::Result<GcReport, StoreError> {
    maintenance::gc(repository, &AtomicBool::new(false))
}

pub(crate) fn verify(repository: &Repository) -> std::result::Result<VerifyReport, StoreError> {
    maintenance::verify(repository, &AtomicBool::new(false))
}

/// The store's repository as git sees it.
pub(crate) fn as_git(repository: &Repository) -> Repo {
    Repo::at(repository.git_dir())
}

/// git finds nothing wrong with the repository, down to its shallow boundary.
pub(crate) fn fsck(repository: &Repository) -> Result<()> {
    let out = as_git(repository).attempt(["fsck", "--full", "--strict", "--no-dangling"], &[])?;
    ensure!(out.code() == 0, "git fsck: {}{}", out.out(), out.err());
    Ok(())
}

/// Nothing temporary is in the repository.
pub(crate) fn clean(repository: &Repository) -> Result<()> {
    for dir in ["", "objects/pack"] {
        for entry in std::fs::read_dir(repository.git_dir().join(dir))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let known = ["pack-", "HEAD", "config", "description", "info", "objects", "refs", "shallow", "gitmount"];
            ensure!(known.iter().any(|known| name.starts_with(known)) && !name.ends_with(".keep"), "{dir}/{name} is left");
            ensure!(name == "gitmount.lock" || !name.ends_with(".lock"), "{dir}/{name} is left");
        }
    }
    Ok(())
}

/// How many commits git counts below `commit`.
pub(crate) fn history(repository: &Repository, commit: impl ToString) -> Result<usize> {
    as_git(repository).line(["rev-list", "--count", &commit.to_string()])?.parse().context("git printed no number")
}

/// The files of the pack directory with this extension.
pub(crate) fn packs(repository: &Repository, extension: &str) -> Result<Vec<std::path::PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(repository.git_dir().join("objects/pack"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// The lines of the `shallow` file.
pub(crate) fn shallow(repository: &Repository) -> Result<Vec<String>> {
    match std::fs::read_to_string(repository.git_dir().join("shallow")) {
        Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
        Err(err) => Err(err.into()),
    }
}

/// The files of the commit as git archives them are those that the store reads.
pub(crate) fn same_files(repository: &Repository, source: &Repo, commit: impl ToString) -> Result<()> {
    let commit = source.id(&commit.to_string())?;
    let theirs = source.run(["archive", "--format=tar", &commit])?;
    let ours = as_git(repository).run(["archive", "--format=tar", &commit])?;
    ensure!(theirs == ours, "the archives of {commit} differ");
    Ok(())
}
