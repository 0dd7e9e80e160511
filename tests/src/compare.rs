//! A directory against what git says of a commit, in two independent ways: nothing missing, nothing extra, every byte equal.
//!
//! [`against_archive`] reads `git archive`, which is what git would write to a disk (and so obeys attributes); [`against_objects`]
//! walks `git ls-tree` and `git cat-file`, which is what the object database holds. Both turn into a [`Tree`], and so does the directory.

pub mod archive;
pub mod objects;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use bstr::{BStr, ByteSlice};
use sha2::{Digest, Sha256};

use crate::git::Repo;

/// What is at one path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Entry {
    /// A directory (or a submodule, which is an empty one).
    Directory,
    /// A file.
    File {
        /// Whether it may be executed.
        executable: bool,
        /// Its size in bytes.
        size: u64,
        /// The SHA-256 of its bytes.
        digest: [u8; 32],
    },
    /// A symbolic link and its target.
    Link(Vec<u8>),
}

/// All paths below a root, as raw bytes without leading slash.
pub type Tree = BTreeMap<Vec<u8>, Entry>;

/// Checks that `dir` is what `git archive` makes of `revision`.
pub fn against_archive(dir: &Path, repo: &Repo, revision: &str) -> Result<()> {
    same(&directory(dir)?, &archive::tree(repo, revision)?, "git archive")
}

/// Checks that `dir` holds the objects of `revision` as they are in the database.
pub fn against_objects(dir: &Path, repo: &Repo, revision: &str) -> Result<()> {
    same(&directory(dir)?, &objects::tree(repo, revision)?, "git ls-tree")
}

/// Both checks, reading the directory once.
pub fn against_both(dir: &Path, repo: &Repo, revision: &str) -> Result<()> {
    let found = directory(dir)?;
    same(&found, &archive::tree(repo, revision)?, "git archive")?;
    same(&found, &objects::tree(repo, revision)?, "git ls-tree")
}

/// Everything below `dir`.
pub fn directory(dir: &Path) -> Result<Tree> {
    let mut tree = Tree::new();
    walk(dir, b"", &mut tree)?;
    Ok(tree)
}

/// Fails with the first differences when two trees are not the same.
pub fn same(found: &Tree, expected: &Tree, source: &str) -> Result<()> {
    let mut differences = Vec::new();
    for (path, entry) in expected {
        match found.get(path) {
            None => differences.push(format!("{:?} is missing", path.as_bstr())),
            Some(other) if other != entry => differences.push(format!("{:?} is {other:?}, not {entry:?}", path.as_bstr())),
            Some(_) => {}
        }
    }
    let extra = found.keys().filter(|path| !expected.contains_key(*path));
    differences.extend(extra.map(|path| format!("{:?} should not be there", path.as_bstr())));
    if differences.is_empty() {
        return Ok(());
    }
    let count = differences.len();
    differences.truncate(10);
    bail!("{count} differences from {source}:\n  {}", differences.join("\n  "))
}

fn walk(dir: &Path, prefix: &[u8], tree: &mut Tree) -> Result<()> {
    let listing = fs::read_dir(dir).with_context(|| format!("{:?} cannot be listed", prefix.as_bstr()))?;
    for listed in listing {
        let listed = listed.with_context(|| format!("the listing of {:?} breaks off", prefix.as_bstr()))?;
        let name = listed.file_name().into_vec();
        let path = if prefix.is_empty() { name } else { [prefix, b"/", name.as_slice()].concat() };
        let entry = entry(&listed.path(), path.as_bstr())?;
        let listed_as = listed.file_type()?;
        let right_type = match &entry {
            Entry::Directory => listed_as.is_dir(),
            Entry::File { .. } => listed_as.is_file(),
            Entry::Link(_) => listed_as.is_symlink(),
        };
        ensure!(right_type, "{:?} is listed as another type ({listed_as:?}) than it has", path.as_bstr());
        let is_dir = entry == Entry::Directory;
        ensure!(tree.insert(path.clone(), entry).is_none(), "{:?} is listed twice", path.as_bstr());
        if is_dir {
            walk(&listed.path(), &path, tree)?;
        }
    }
    Ok(())
}

fn entry(file: &Path, shown: &BStr) -> Result<Entry> {
    let status = file.symlink_metadata().with_context(|| format!("{shown:?} has no attributes"))?;
    let kind = status.file_type();
    if kind.is_dir() {
        return Ok(Entry::Directory);
    }
    if kind.is_symlink() {
        let target = fs::read_link(file).with_context(|| format!("the link {shown:?} cannot be read"))?;
        let target = target.as_os_str().as_bytes().to_vec();
        ensure!(status.size() == target.len() as u64, "the link {shown:?} says {} bytes but has {}", status.size(), target.len());
        return Ok(Entry::Link(target));
    }
    ensure!(!kind.is_fifo() && !kind.is_socket() && kind.is_file(), "{shown:?} is neither file, directory nor link");
    let content = File::open(file).with_context(|| format!("{shown:?} cannot be opened"))?;
    let (size, digest) = digest(content).with_context(|| format!("{shown:?} cannot be read"))?;
    ensure!(status.size() == size, "{shown:?} says {} bytes but has {size}", status.size());
    Ok(Entry::File { executable: status.mode() & 0o111 == 0o111, size, digest })
}

/// Reads `from` to its end: how many bytes, and their SHA-256.
pub fn digest(mut from: impl Read) -> Result<(u64, [u8; 32])> {
    let mut hash = Sha256::new();
    let mut size = 0;
    let mut buffer = vec![0; 1 << 17];
    loop {
        let read = from.read(&mut buffer)?;
        if read == 0 {
            return Ok((size, hash.finalize().into()));
        }
        size += read as u64;
        hash.update(&buffer[..read]);
    }
}
