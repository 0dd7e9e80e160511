//! Tree objects from the wire format to checked entries. Everything a hostile repository can put into a tree is refused here:
//! names a file system cannot show, names that appear twice, entries beyond any honest size.

use bstr::{BStr, BString, ByteSlice};

use super::{Entry, EntryKind, Tree};
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;

/// Largest tree object that is decoded, in bytes.
pub const MAX_TREE_BYTES: u64 = 256 << 20;
/// Most entries of one tree.
pub const MAX_TREE_ENTRIES: usize = 2_000_000;
/// Longest name of one entry in bytes (`NAME_MAX` of Linux).
pub const MAX_NAME: usize = 255;

/// The smallest entry: five digits of mode, a space, one byte of name, NUL; the id comes on top.
const MIN_ENTRY: usize = 8;

pub(super) fn decode(data: &[u8], hash: gix::hash::Kind) -> Result<Tree> {
    if data.len() as u64 > MAX_TREE_BYTES {
        return Err(corrupt(format!("tree of {} bytes is too big: a tree may have {MAX_TREE_BYTES} bytes", data.len())));
    }
    let id_len = hash.len_in_bytes();
    let mut entries: Vec<Entry> = Vec::with_capacity((data.len() / (MIN_ENTRY + id_len + 16)).min(MAX_TREE_ENTRIES));
    let mut sorted = true;
    let mut rest = data;
    while !rest.is_empty() {
        if entries.len() == MAX_TREE_ENTRIES {
            return Err(corrupt(format!("tree has too many entries: a tree may have {MAX_TREE_ENTRIES}")));
        }
        let (entry, after) = decode_entry(rest, id_len)?;
        rest = after;
        if is_dot_git(entry.name.as_bstr()) {
            continue;
        }
        sorted = sorted && entries.last().is_none_or(|last| last.name < entry.name);
        entries.push(entry);
    }
    // Git sorts directories as if their names ended in a slash; look-ups want plain byte order.
    if !sorted {
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(corrupt(format!("tree has two entries named {:?}", pair[0].name)));
        }
    }
    entries.shrink_to_fit();
    Ok(Tree { entries })
}

fn decode_entry(data: &[u8], id_len: usize) -> Result<(Entry, &[u8])> {
    let truncated = || corrupt("tree ends in the middle of an entry".to_owned());
    // "100644 " or "40000 ": a mode has at most six digits.
    let space = data.iter().take(8).position(|b| *b == b' ').ok_or_else(|| corrupt("tree has an entry without a mode".to_owned()))?;
    let kind = decode_mode(&data[..space])?;
    let after_mode = &data[space + 1..];
    let nul = after_mode.find_byte(0).ok_or_else(truncated)?;
    let name = after_mode[..nul].as_bstr();
    check_name(name)?;
    let id_and_rest = &after_mode[nul + 1..];
    let id = id_and_rest.get(..id_len).ok_or_else(truncated)?;
    let id = ObjectId::try_from(id).map_err(|err| corrupt("tree has an entry with a malformed id".to_owned()).caused_by(err))?;
    Ok((Entry { name: BString::from(name), id, kind }, &id_and_rest[id_len..]))
}

/// The kind of an octal mode, as git canonicalizes it: historic modes such as `100664` are regular files.
fn decode_mode(digits: &[u8]) -> Result<EntryKind> {
    let refuse = || corrupt(format!("tree has an entry with mode {:?}, which git does not know", digits.as_bstr()));
    let mut mode = 0u32;
    if digits.is_empty() {
        return Err(refuse());
    }
    for digit in digits {
        match digit {
            b'0'..=b'7' => mode = mode << 3 | u32::from(digit - b'0'),
            _ => return Err(refuse()),
        }
    }
    match mode & 0o170_000 {
        0o040_000 => Ok(EntryKind::Directory),
        0o100_000 if mode & 0o100 != 0 => Ok(EntryKind::Executable),
        0o100_000 => Ok(EntryKind::File),
        0o120_000 => Ok(EntryKind::Symlink),
        0o160_000 => Ok(EntryKind::Submodule),
        _ => Err(refuse()),
    }
}

fn check_name(name: &BStr) -> Result<()> {
    let refuse = |what: &str| {
        let shown = name[..name.len().min(80)].as_bstr();
        Err(corrupt(format!("tree has an entry named {shown:?}, {what}")))
    };
    // A NUL cannot be in it: it ends the name.
    match name.as_bytes() {
        b"" => refuse("an empty name cannot be shown"),
        b"." | b".." => refuse("which would mean another directory"),
        name if name.len() > MAX_NAME => refuse("which is longer than 255 bytes"),
        name if name.contains(&b'/') => refuse("a slash cannot be in a name"),
        _ => Ok(()),
    }
}

/// Git never makes such an entry and refuses to check one out. Shown, it would be a repository whose config is the host's word, and any
/// `git` that runs below it would do what that says; so it is left out.
fn is_dot_git(name: &BStr) -> bool {
    name.eq_ignore_ascii_case(b".git")
}

fn corrupt(message: String) -> StoreError {
    StoreError::new(Fault::Corrupt, message)
}
