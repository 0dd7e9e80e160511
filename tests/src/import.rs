//! Commits of any bytes and any names, written by `git fast-import`.

use std::collections::HashSet;
use std::io::{BufWriter, Read, Write};
use std::process::{Child, ChildStdin, Stdio};

use anyhow::{Context, Result, bail};

use crate::git::{FIRST_COMMIT_TIME, Repo};
use crate::run;

/// A running `git fast-import`. Nothing is in the repository before [`Import::finish`].
#[derive(Debug)]
pub struct Import {
    repo: Repo,
    child: Child,
    stream: BufWriter<ChildStdin>,
    commits: i64,
    started: HashSet<String>,
}

/// How an entry is recorded in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// A file.
    File,
    /// A file that may be executed.
    Executable,
    /// A symbolic link; its content is its target.
    Symlink,
}

impl Mode {
    fn octal(self) -> &'static str {
        match self {
            Mode::File => "100644",
            Mode::Executable => "100755",
            Mode::Symlink => "120000",
        }
    }
}

impl Import {
    /// Starts an import into `repo`.
    pub fn into(repo: &Repo) -> Result<Self> {
        let mut command = repo.command(["-c", "core.compression=1", "fast-import", "--quiet", "--force", "--done"]);
        let mut child = run::start(command.stdin(Stdio::piped()))?;
        let stream = BufWriter::with_capacity(1 << 20, child.stdin.take().context("stdin was asked for")?);
        let commits = repo.line(["rev-list", "--count", "--all"])?.parse()?;
        Ok(Import { repo: repo.clone(), child, stream, commits, started: HashSet::new() })
    }

    /// Starts a commit on the branch or ref `full_ref`, on top of what is there; entries follow.
    pub fn commit(&mut self, full_ref: &str, message: &str) -> Result<&mut Self> {
        let known = self.started.contains(full_ref);
        let tip = format!("{full_ref}^0");
        let exists = !known && self.repo.attempt(["rev-parse", "--verify", "--quiet", &tip], &[])?.status.success();
        self.commit_on(full_ref, message, exists.then_some(tip.as_str()))
    }

    /// Starts a commit whose parent is `parent`, or, with an empty `parent`, a commit without one.
    pub fn commit_from(&mut self, full_ref: &str, message: &str, parent: &str) -> Result<&mut Self> {
        self.commit_on(full_ref, message, Some(parent))
    }

    fn commit_on(&mut self, full_ref: &str, message: &str, parent: Option<&str>) -> Result<&mut Self> {
        let time = FIRST_COMMIT_TIME + 60 * self.commits;
        self.commits += 1;
        self.started.insert(full_ref.to_owned());
        if parent == Some("") {
            writeln!(self.stream, "reset {full_ref}\n")?;
        }
        writeln!(self.stream, "commit {full_ref}")?;
        writeln!(self.stream, "author A. Author <author@example.com> {time} +0000")?;
        writeln!(self.stream, "committer C. Committer <committer@example.com> {time} +0000")?;
        writeln!(self.stream, "data {}\n{message}", message.len())?;
        if let Some(parent) = parent.filter(|p| !p.is_empty()) {
            writeln!(self.stream, "from {parent}")?;
        }
        Ok(self)
    }

    /// Puts `content` at `path` in the commit that was started last.
    pub fn entry(&mut self, mode: Mode, path: &[u8], content: &[u8]) -> Result<&mut Self> {
        self.entry_from(mode, path, content.len() as u64, &mut { content })
    }

    /// The same for an ordinary file.
    pub fn file(&mut self, path: &[u8], content: impl AsRef<[u8]>) -> Result<&mut Self> {
        self.entry(Mode::File, path, content.as_ref())
    }

    /// The same with a content of `size` bytes that is read from `content`.
    pub fn entry_from(&mut self, mode: Mode, path: &[u8], size: u64, content: &mut dyn Read) -> Result<&mut Self> {
        write!(self.stream, "M {} inline ", mode.octal())?;
        self.quoted(path)?;
        writeln!(self.stream, "data {size}")?;
        let copied = std::io::copy(&mut Read::take(content, size), &mut self.stream)?;
        if copied != size {
            bail!("a content of {size} bytes ended after {copied}");
        }
        writeln!(self.stream)?;
        Ok(self)
    }

    /// Records that the submodule at `path` stands at `commit`.
    pub fn gitlink(&mut self, path: &[u8], commit: &str) -> Result<&mut Self> {
        write!(self.stream, "M 160000 {commit} ")?;
        self.quoted(path)?;
        Ok(self)
    }

    /// Removes the file or directory at `path`.
    pub fn delete(&mut self, path: &[u8]) -> Result<&mut Self> {
        write!(self.stream, "D ")?;
        self.quoted(path)?;
        Ok(self)
    }

    /// Moves the file or directory at `from`.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<&mut Self> {
        self.stream.write_all(b"R ")?;
        self.stream.write_all(&quote(from))?;
        self.stream.write_all(b" ")?;
        self.quoted(to)?;
        Ok(self)
    }

    /// Ends the import.
    ///
    /// # Errors
    /// When git did not like the stream.
    pub fn finish(mut self) -> Result<()> {
        self.stream.write_all(b"done\n")?;
        self.stream.flush()?;
        drop(self.stream);
        let status = self.child.wait()?;
        if !status.success() {
            bail!("git fast-import ended with {status}");
        }
        Ok(())
    }

    fn quoted(&mut self, path: &[u8]) -> Result<()> {
        self.stream.write_all(&quote(path))?;
        self.stream.write_all(b"\n")?;
        Ok(())
    }
}

/// A path in git's C style, which can hold any byte.
fn quote(path: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'"'];
    for &byte in path {
        match byte {
            b'"' | b'\\' => quoted.extend([b'\\', byte]),
            0x20..=0x7e => quoted.push(byte),
            _ => quoted.extend(format!("\\{byte:03o}").into_bytes()),
        }
    }
    quoted.push(b'"');
    quoted
}
