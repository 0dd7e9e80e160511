//! The directory of repositories: `<root>/repos/<sha256 of the normalized URL>.git`, `<root>/spool/`, `<root>/known_hosts`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::error::Result;
use crate::repository::Repository;
use crate::url::RepoUrl;

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
}

impl Store {
    /// Opens or creates it.
    pub fn open(options: StoreOptions) -> Result<Arc<Self>> {
        Ok(Arc::new(Store { options }))
    }

    /// Its directory.
    pub fn root(&self) -> &Path {
        &self.options.root
    }

    /// Directory for spooled blobs, on the store's file system.
    pub fn spool_dir(&self) -> PathBuf {
        self.options.root.join("spool")
    }

    /// Opens the repository of `url`, creating it when missing. The same `Arc` for the same URL while it is in use.
    pub fn repository(self: &Arc<Self>, url: &RepoUrl) -> Result<Arc<Repository>> {
        let _ = url;
        todo!()
    }

    /// All repositories on disk, as (URL, directory).
    pub fn list(&self) -> Result<Vec<(String, PathBuf)>> {
        todo!()
    }
}
