//! The git command line, isolated: no system or user configuration, fixed identity and dates, so that ids are the same everywhere.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::run::{self, DEADLINE, Finished};

/// The committer time of the first commit of a fixture, seconds since 1970; later ones count on.
pub const FIRST_COMMIT_TIME: i64 = 1_700_000_000;

/// A repository on the local disk, bare or with a work tree.
#[derive(Debug, Clone)]
pub struct Repo {
    path: PathBuf,
}

/// `git` itself, without a repository.
pub fn git() -> Command {
    let mut command = run::command("git");
    let date = format!("{FIRST_COMMIT_TIME} +0000");
    command
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0")
        .env("GIT_AUTHOR_NAME", "A. Author")
        .env("GIT_AUTHOR_EMAIL", "author@example.com")
        .env("GIT_AUTHOR_DATE", &date)
        .env("GIT_COMMITTER_NAME", "C. Committer")
        .env("GIT_COMMITTER_EMAIL", "committer@example.com")
        .env("GIT_COMMITTER_DATE", &date)
        .args(["-c", "init.defaultBranch=main", "-c", "safe.directory=*", "-c", "protocol.file.allow=always", "-c", "gc.auto=0"]);
    command
}

impl Repo {
    /// The repository at `path`, which exists.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Repo { path: path.into() }
    }

    /// Makes a bare repository whose default branch is `main`.
    pub fn init_bare(path: impl Into<PathBuf>) -> Result<Self> {
        Self::init(path, &["--bare"])
    }

    /// Makes a repository with further options of `git init`.
    pub fn init(path: impl Into<PathBuf>, options: &[&str]) -> Result<Self> {
        let repo = Repo { path: path.into() };
        run::run(git().args(["init", "--quiet"]).args(options).arg("--").arg(&repo.path))?.success()?;
        Ok(repo)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its path as a word of a command line.
    pub fn arg(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    /// Its git directory.
    pub fn git_dir(&self) -> PathBuf {
        let inner = self.path.join(".git");
        if inner.exists() { inner } else { self.path.clone() }
    }

    /// A `git` command in it.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = git();
        command.arg("-C").arg(&self.path).args(args);
        command
    }

    /// Runs git in it and gives what it printed.
    ///
    /// # Errors
    /// When git fails, with what it said.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Vec<u8>> {
        self.feed(args, &[])
    }

    /// The same with `input` on standard input.
    pub fn feed<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, input: &[u8]) -> Result<Vec<u8>> {
        Ok(self.attempt(args, input)?.success()?.stdout)
    }

    /// The same, whatever the exit code.
    pub fn attempt<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, input: &[u8]) -> Result<Finished> {
        run::run_with(&mut self.command(args), input, DEADLINE)
    }

    /// Runs git in it and gives what it printed as a text without the last line's end.
    pub fn line<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<String> {
        let out = self.run(args)?;
        Ok(String::from_utf8(out).context("git printed no UTF-8")?.trim_end().to_owned())
    }

    /// The full id of `revision`.
    pub fn id(&self, revision: &str) -> Result<String> {
        self.line(["rev-parse", "--verify", "--end-of-options", revision])
    }

    /// Points a ref at `revision`.
    pub fn point(&self, full_ref: &str, revision: &str) -> Result<()> {
        self.run(["update-ref", full_ref, revision]).map(drop)
    }

    /// Writes `bytes` as an object of `kind` whatever is in it, and gives its id.
    pub fn write_object(&self, kind: &str, bytes: &[u8]) -> Result<String> {
        let out = self.feed(["hash-object", "-t", kind, "-w", "--literally", "--stdin"], bytes)?;
        Ok(String::from_utf8(out)?.trim_end().to_owned())
    }

    /// The file of the loose object `id`.
    pub fn loose_object(&self, id: &str) -> PathBuf {
        self.git_dir().join("objects").join(&id[..2]).join(&id[2..])
    }
}
