//! The tree that `git archive --format=tar` writes, read by a tar reader that keeps every byte of names and targets.

use std::collections::HashMap;
use std::io::Read;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};

use super::{Entry, Tree, digest};
use crate::git::Repo;
use crate::run;

const BLOCK: usize = 512;

/// Archives `revision` and gives what is in the archive.
pub fn tree(repo: &Repo, revision: &str) -> Result<Tree> {
    let mut command = repo.command(["archive", "--format=tar", revision]);
    let mut child = run::start(command.stdin(Stdio::null()).stdout(Stdio::piped()))?;
    let mut stream = std::io::BufReader::with_capacity(1 << 17, child.stdout.take().context("stdout was asked for")?);
    let tree = read(&mut stream);
    // Padding after the end mark, so that git does not end by SIGPIPE.
    std::io::copy(&mut stream, &mut std::io::sink())?;
    let status = child.wait()?;
    ensure!(status.success(), "git archive of {revision} ended with {status}");
    tree
}

/// What is in an archive.
pub fn read(stream: &mut impl Read) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut extended: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
    loop {
        let mut header = [0; BLOCK];
        stream.read_exact(&mut header).context("the archive ends without its end mark")?;
        if header.iter().all(|&byte| byte == 0) {
            return Ok(tree);
        }
        let size = match extended.get(&b"size"[..]) {
            Some(text) => std::str::from_utf8(text)?.parse()?,
            None => octal(&header[124..136])?,
        };
        let kind = header[156];
        if kind == b'x' || kind == b'g' {
            let mut records = vec![0; usize::try_from(size)?];
            stream.read_exact(&mut records)?;
            skip_padding(stream, size)?;
            if kind == b'x' {
                extended = parse_extended(&records)?;
            }
            continue;
        }
        let mut path = extended.remove(&b"path"[..]).unwrap_or_else(|| {
            let (name, prefix) = (text(&header[0..100]), text(&header[345..500]));
            if prefix.is_empty() { name.to_vec() } else { [prefix, b"/", name].concat() }
        });
        let entry = match kind {
            b'5' => {
                while path.last() == Some(&b'/') {
                    path.pop();
                }
                Entry::Directory
            }
            b'2' => Entry::Link(extended.remove(&b"linkpath"[..]).unwrap_or_else(|| text(&header[157..257]).to_vec())),
            b'0' => {
                let (read, digest) = digest(stream.take(size))?;
                ensure!(read == size, "the archive ends within a file");
                skip_padding(stream, size)?;
                Entry::File { executable: octal(&header[100..108])? & 0o100 != 0, size, digest }
            }
            other => bail!("the archive has an entry of type {other}"),
        };
        extended.clear();
        ensure!(tree.insert(path, entry).is_none(), "the archive has a path twice");
    }
}

fn skip_padding(stream: &mut impl Read, size: u64) -> Result<()> {
    let padding = size.next_multiple_of(BLOCK as u64) - size;
    std::io::copy(&mut stream.take(padding), &mut std::io::sink())?;
    Ok(())
}

fn text(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn octal(field: &[u8]) -> Result<u64> {
    let digits = std::str::from_utf8(text(field))?.trim();
    u64::from_str_radix(digits, 8).with_context(|| format!("{digits:?} is no octal number"))
}

/// The records `<length> <key>=<value>\n`; the length counts the whole record, so that a value may hold any byte.
fn parse_extended(mut records: &[u8]) -> Result<HashMap<Vec<u8>, Vec<u8>>> {
    let mut all = HashMap::new();
    while !records.is_empty() {
        let space = records.iter().position(|&byte| byte == b' ').context("an extended record has no length")?;
        let length: usize = std::str::from_utf8(&records[..space])?.parse()?;
        ensure!(length > space + 1 && length <= records.len(), "an extended record has a wrong length");
        let record = &records[space + 1..length - 1];
        let equals = record.iter().position(|&byte| byte == b'=').context("an extended record has no value")?;
        all.insert(record[..equals].to_vec(), record[equals + 1..].to_vec());
        records = &records[length..];
    }
    Ok(all)
}
