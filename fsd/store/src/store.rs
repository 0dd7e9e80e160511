//! The directory of repositories: `<root>/repos/<sha256 of the normalized URL>.git`, `<root>/spool/`, `<root>/known_hosts`,
//! and `<root>/trash/` for what is being removed.

use std::collections::HashMap;
use std::fmt::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::repository::in_use::InUse;
use crate::repository::{self, Repository, durable};
use crate::transport::NetOptions;
use crate::url::RepoUrl;

mod space;
#[cfg(test)]
mod tests;

pub use space::ShrinkReport;

/// How a store is opened.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Its directory, created with mode 0700 when missing.
    pub root: PathBuf,
    /// No byte for this long ends a fetch (default 60 s).
    pub idle: Duration,
    /// Connecting takes at most this long (default 30 s).
    pub connect: Duration,
    /// Use the proxies of the environment.
    pub proxy_from_env: bool,
}

impl StoreOptions {
    /// Defaults for a store at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        StoreOptions { root: root.into(), idle: Duration::from_secs(60), connect: Duration::from_secs(30), proxy_from_env: false }
    }
}

/// An open store. Several processes may have the same store open: every write happens under the repository's lock file.
#[derive(Debug)]
pub struct Store {
    options: StoreOptions,
    open: Mutex<HashMap<PathBuf, Weak<Repository>>>,
}

impl Store {
    /// Opens or creates it.
    pub fn open(options: StoreOptions) -> Result<Arc<Self>> {
        let private = |path: &Path| {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|err| durable::disk(path, "created", err))
        };
        private(&options.root)?;
        let root = std::fs::canonicalize(&options.root).map_err(|err| durable::disk(&options.root, "opened", err))?;
        let store = Store { options: StoreOptions { root, ..options }, open: Mutex::new(HashMap::new()) };
        private(&store.repos_dir())?;
        private(&store.spool_dir())?;
        store.sweep()?;
        Ok(Arc::new(store))
    }

    /// Its directory, absolute.
    pub fn root(&self) -> &Path {
        &self.options.root
    }

    /// Directory for spooled blobs, on the store's file system.
    pub fn spool_dir(&self) -> PathBuf {
        self.options.root.join("spool")
    }

    /// Opens the repository of `url`, creating it when missing. The same `Arc` for the same URL while it is in use.
    pub fn repository(self: &Arc<Self>, url: &RepoUrl) -> Result<Arc<Repository>> {
        let git_dir = self.repos_dir().join(format!("{}.git", name_of(&url.normalized())));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(repository) = open.get(&git_dir).and_then(Weak::upgrade) {
            return Ok(repository);
        }
        let in_use = loop {
            if !git_dir.join("config").is_file() {
                repository::create(&git_dir, url)?;
            }
            // Another process may be removing it.
            if let Some(in_use) = InUse::share(&git_dir)? {
                break in_use;
            }
        };
        let repository = Arc::new(Repository::open(git_dir.clone(), in_use, url.clone(), self.net())?);
        open.retain(|_, known| known.strong_count() > 0);
        open.insert(git_dir, Arc::downgrade(&repository));
        Ok(repository)
    }

    /// All repositories on disk, as (URL, directory), sorted by URL.
    pub fn list(&self) -> Result<Vec<(String, PathBuf)>> {
        let dir = self.repos_dir();
        let unreadable = |err| durable::disk(&dir, "read", err);
        let mut all = Vec::new();
        for entry in std::fs::read_dir(&dir).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_none_or(|extension| extension != "git") || !path.join("config").is_file() {
                continue;
            }
            match repository::recorded_url(&path) {
                Ok(Some(url)) => all.push((url, path)),
                Ok(None) => {}
                // Removed since it was listed.
                Err(_) if !path.exists() => {}
                Err(err) => return Err(err),
            }
        }
        all.sort();
        Ok(all)
    }

    fn repos_dir(&self) -> PathBuf {
        self.options.root.join("repos")
    }

    fn net(&self) -> NetOptions {
        NetOptions {
            idle: self.options.idle,
            connect: self.options.connect,
            proxy_from_env: self.options.proxy_from_env,
            state: self.options.root.clone(),
        }
    }
}

fn name_of(normalized: &str) -> String {
    Sha256::digest(normalized).iter().fold(String::with_capacity(64), |mut name, byte| {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}
