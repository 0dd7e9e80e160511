//! The tree that the object database holds, by `git ls-tree` and `git cat-file`: no attribute or filter changes a byte of it.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdin, ChildStdout, Stdio};

use anyhow::{Context, Result, bail, ensure};
use bstr::ByteSlice;

use super::{Entry, Tree, digest};
use crate::git::Repo;
use crate::run;

/// Everything below the tree of `revision`.
pub fn tree(repo: &Repo, revision: &str) -> Result<Tree> {
    let listing = repo.run(["ls-tree", "-r", "-t", "-z", "--full-tree", revision])?;
    let mut command = repo.command(["cat-file", "--batch"]);
    let mut child = run::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
    let mut ask = child.stdin.take().context("stdin was asked for")?;
    let mut answers = BufReader::with_capacity(1 << 17, child.stdout.take().context("stdout was asked for")?);
    let mut tree = Tree::new();
    for line in listing.split(|&byte| byte == 0).filter(|line| !line.is_empty()) {
        let (about, path) = line.split_once_str("\t").context("a line of ls-tree has a tab")?;
        let words: Vec<&str> = std::str::from_utf8(about)?.split(' ').collect();
        let [mode, _, id] = words[..] else { bail!("ls-tree said {:?}", about.as_bstr()) };
        let entry = match mode {
            "040000" | "160000" => Entry::Directory,
            "120000" => {
                let mut target = Vec::new();
                with_blob(&mut ask, &mut answers, id, |blob| Ok(blob.read_to_end(&mut target).map(drop)?))?;
                Entry::Link(target)
            }
            "100644" | "100755" | "100664" => {
                let (size, digest) = with_blob(&mut ask, &mut answers, id, |blob| digest(blob))?;
                Entry::File { executable: mode == "100755", size, digest }
            }
            other => bail!("git does not write the mode {other}"),
        };
        tree.insert(path.to_vec(), entry);
    }
    drop(ask);
    let status = child.wait()?;
    ensure!(status.success(), "git cat-file ended with {status}");
    Ok(tree)
}

fn with_blob<T>(
    ask: &mut ChildStdin,
    answers: &mut BufReader<ChildStdout>,
    id: &str,
    read: impl FnOnce(&mut dyn Read) -> Result<T>,
) -> Result<T> {
    writeln!(ask, "{id}")?;
    let mut header = String::new();
    answers.read_line(&mut header)?;
    let size: u64 = match header.split_whitespace().collect::<Vec<_>>()[..] {
        [_, "blob", size] => size.parse()?,
        _ => bail!("git cat-file said {header:?} of {id}"),
    };
    let mut blob = answers.by_ref().take(size);
    let result = read(&mut blob)?;
    ensure!(blob.limit() == 0, "the blob {id} was not read to its end");
    answers.read_exact(&mut [0])?;
    Ok(result)
}
