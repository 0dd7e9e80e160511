//! What the scenarios share: the repositories and their servers, a checkout to compare with, and directories that stay until the end.

use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::git;
use gitmount_tests::mount::Account;
use gitmount_tests::scratch::{self, Lock};
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::HttpServer;
use tempfile::TempDir;

use crate::clock::{say, time_shell};
use crate::options::Options;
use crate::process;
use crate::repos::{self, MAIN, Repos};

/// Everything that is measured with.
#[derive(Debug)]
pub(crate) struct Bench<'a> {
    /// The command line.
    pub(crate) options: &'a Options,
    /// What is served.
    pub(crate) repos: Repos,
    /// Serves it by the git protocol.
    pub(crate) daemon: GitDaemon,
    /// Serves it by HTTP and counts.
    pub(crate) http: HttpServer,
    /// The tree as ordinary files.
    pub(crate) checkout: PathBuf,
    ended: RefCell<Vec<Account>>,
    served: PathBuf,
    directories: Cell<usize>,
    root: TempDir,
    _quiet: Lock,
}

impl<'a> Bench<'a> {
    /// Writes the repositories and starts the servers.
    pub(crate) fn prepare(options: &'a Options) -> Result<Self> {
        scratch::require_root()?;
        scratch::require_fuse()?;
        // Tests that count messages or drop caches would be disturbed, and disturb.
        let quiet = scratch::exclusive("kernel-caches")?;
        let root = scratch::dir()?;
        ensure_space(root.path(), options)?;
        let served = root.path().join("served");
        std::fs::create_dir(&served)?;
        let repos = Repos::write(&served, options)?;
        let checkout = root.path().join("checkout");
        repos::check_out(&repos.tree, MAIN, &checkout)?;
        let daemon = GitDaemon::serve(&served)?;
        let http = HttpServer::plain(&served)?;
        Ok(Bench {
            options,
            repos,
            daemon,
            http,
            checkout,
            ended: RefCell::default(),
            served,
            directories: Cell::new(0),
            root,
            _quiet: quiet,
        })
    }

    /// Runs per figure.
    pub(crate) fn runs(&self) -> usize {
        self.options.runs()
    }

    /// The URL of the tree.
    pub(crate) fn url(&self) -> String {
        self.daemon.url("tree.git")
    }

    /// The directory of the served repositories.
    pub(crate) fn served(&self) -> &Path {
        &self.served
    }

    /// A path that does not exist and stays until the end once it does.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        self.directories.set(self.directories.get() + 1);
        self.root.path().join(format!("{name}-{}", self.directories.get()))
    }

    /// Keeps the files of an account until the end.
    pub(crate) fn keep(&self, account: Account) {
        self.ended.borrow_mut().push(account);
    }
}

/// A shallow clone, as a person would make it.
pub(crate) fn clone_command(url: &str, target: &Path) -> std::process::Command {
    let mut command = git::git();
    command.args(["clone", "--quiet", "--depth", "1", url]).arg(target);
    command
}

/// The time of `ls` in `dir`.
pub(crate) fn list(dir: &Path) -> Result<Duration> {
    time_shell(dir, "ls >/dev/null")
}

/// The memory of the processes that serve an account's mounts.
pub(crate) fn memory(account: &Account, field: &str) -> Result<f64> {
    let processes = account.processes();
    ensure!(!processes.is_empty(), "no process serves the mount");
    process::memory(&processes, field)
}

/// Fails early when the disk cannot hold what is never deleted: per run two clones and two work trees, and the objects of the rest;
/// ten clones once.
fn ensure_space(dir: &Path, options: &Options) -> Result<()> {
    let needed = (options.shape().bytes * 3 + options.big()) * (options.runs() as u64 + 2) + options.shape().bytes * 10;
    let disk = nix::sys::statvfs::statvfs(dir)?;
    let free = disk.blocks_available() * disk.fragment_size();
    say(&format!("working in {}, which needs up to {} GB", dir.display(), needed / 1_000_000_000));
    ensure!(free > needed, "{} has {} GB free, {} are needed: set TMPDIR", dir.display(), free / 1_000_000_000, needed / 1_000_000_000);
    Ok(())
}
