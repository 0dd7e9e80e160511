//! The kernel's table of mounts. Reading it touches none of them, so it is safe whatever their servers do.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// What the kernel calls mounts of gitmount.
const GITMOUNT: &[u8] = b"fuse.gitmount";

/// One line of `/proc/self/mountinfo`, see proc_pid_mountinfo(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The mount, and the one that it is mounted on.
    pub id: u64,
    /// See [`id`](Entry::id).
    pub parent: u64,
    /// Where, absolute.
    pub target: PathBuf,
    /// The file system's device (`st_dev`), the same for all its bind mounts.
    pub device: u64,
    /// The directory in the file system that is its root.
    pub root: PathBuf,
    /// The kind of file system.
    pub kind: Vec<u8>,
    /// What is mounted, as who mounted it said.
    pub source: Vec<u8>,
}

impl Entry {
    /// Whether gitmount mounted it, whichever of its processes.
    pub fn is_gitmount(&self) -> bool {
        self.kind == GITMOUNT
    }
}

/// All mounts in this mount namespace.
///
/// # Errors
/// When the table cannot be read.
pub fn read() -> io::Result<Vec<Entry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount that one sees at `target`: the one on top, unless something above `target` hides it.
///
/// # Errors
/// When the table cannot be read.
pub fn at(target: &Path) -> io::Result<Option<Entry>> {
    Ok(top(&read()?, target).cloned())
}

/// The same in a table that was read.
pub fn top<'a>(table: &'a [Entry], target: &Path) -> Option<&'a Entry> {
    table.iter().find(|entry| entry.target.as_os_str() == target.as_os_str() && hider(table, entry).is_none())
}

/// The mount that one sees at the nearest directory above `target` on which something is mounted.
pub fn around<'a>(table: &'a [Entry], target: &Path) -> Option<&'a Entry> {
    target.ancestors().skip(1).find_map(|above| top(table, above))
}

/// What hides a mount: another one on top of it, or one on a directory above it. Of several the last, which one sees.
pub fn hider<'a>(table: &'a [Entry], entry: &Entry) -> Option<&'a Entry> {
    let over = |lower: &Entry, except: Option<u64>| {
        table.iter().find(|upper| {
            let stacked = upper.parent == lower.id && upper.target.as_os_str() == lower.target.as_os_str();
            let above = upper.parent == lower.parent && is_above(&upper.target, &lower.target);
            (stacked || above) && upper.id != lower.id && Some(upper.id) != except
        })
    };
    // A mount is as hidden as what it is mounted on.
    let (mut hider, mut lower, mut from) = (None, entry, None);
    // A table that makes sense takes fewer steps.
    for _ in 0..2 * table.len() {
        match over(lower, from) {
            Some(upper) => (hider, lower, from) = (Some(upper), upper, None),
            None => match table.iter().find(|parent| parent.id == lower.parent && parent.id != lower.id) {
                Some(parent) => (from, lower) = (Some(lower.id), parent),
                None => break,
            },
        }
    }
    hider
}

/// Whether a directory is above another one. The kernel's names are plain, and there are many to compare.
fn is_above(upper: &Path, lower: &Path) -> bool {
    let (upper, lower) = (upper.as_os_str().as_bytes(), lower.as_os_str().as_bytes());
    lower.strip_prefix(upper).is_some_and(|rest| rest.first() == Some(&b'/') || (upper == b"/" && !rest.is_empty()))
}

/// Reads the table; torn lines are left out.
pub fn parse(table: &[u8]) -> Vec<Entry> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mount/point options optional… - type source super`.
fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|b| *b == b' ');
    let mut number = || std::str::from_utf8(fields.next()?).ok()?.parse().ok();
    let (id, parent) = (number()?, number()?);
    let (device, root, target) = (fields.next()?, fields.next()?, fields.next()?);
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let (kind, source) = (fields.next()?, fields.next()?);
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(Entry {
        id,
        parent,
        target: path(target),
        device: nix::sys::stat::makedev(major.parse().ok()?, minor.parse().ok()?),
        root: path(root),
        kind: kind.to_vec(),
        source: unescape(source),
    })
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

/// Undoes the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| byte == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        if let Some(digits) = octal {
            out.push(digits.iter().fold(0u8, |n, d| n.wrapping_mul(8).wrapping_add(d - b'0')));
            rest = &tail[3..];
        } else {
            out.push(byte);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_device_root_place_kind_and_source() {
        let table = b"96 22 0:50 /sub /mnt/a\\040b\\134c rw,nosuid shared:5 master:1 - fuse.gitmount https://example.com/a.git ro\n\
            torn line";
        let expected = Entry {
            id: 96,
            parent: 22,
            target: "/mnt/a b\\c".into(),
            device: nix::sys::stat::makedev(0, 50),
            root: "/sub".into(),
            kind: b"fuse.gitmount".to_vec(),
            source: b"https://example.com/a.git".to_vec(),
        };
        assert_eq!(parse(table), [expected]);
    }

    /// A table of (id, parent, target).
    fn table(mounts: &[(u64, u64, &str)]) -> Vec<Entry> {
        let line = |(id, parent, target): &(u64, u64, &str)| format!("{id} {parent} 0:{id} / {target} rw - tmpfs none rw\n");
        parse(mounts.iter().map(line).collect::<String>().as_bytes())
    }

    #[test]
    fn what_one_sees_is_the_mount_on_top_and_nothing_below_a_hidden_directory() {
        let seen = |mounts: &[(u64, u64, &str)], target: &str| top(&table(mounts), Path::new(target)).map(|entry| entry.id);
        let stacked = [(1, 0, "/"), (2, 1, "/a"), (4, 3, "/a"), (3, 2, "/a"), (5, 1, "/ab")];
        assert_eq!(seen(&stacked, "/a"), Some(4));
        assert_eq!((seen(&stacked, "/ab"), seen(&stacked, "/b")), (Some(5), None));
        // `/m` was mounted after `/m/t`, and `/m/u` on it.
        let above = [(1, 0, "/"), (2, 1, "/m/t"), (3, 1, "/m"), (4, 3, "/m/u"), (5, 2, "/m/t/deep")];
        assert_eq!((seen(&above, "/m/t"), seen(&above, "/m/t/deep"), seen(&above, "/m/u")), (None, None, Some(4)));
        let table = table(&above);
        assert_eq!(hider(&table, &table[4]).map(|entry| entry.id), Some(3), "by what hides the one it is mounted on");
        assert_eq!(around(&table, Path::new("/m/u/x/y")).map(|entry| entry.id), Some(4));
        assert_eq!(around(&table, Path::new("/m/t/x")).map(|entry| entry.id), Some(3));
    }

    #[test]
    fn a_table_that_makes_no_sense_has_an_end() {
        let circles = table(&[(1, 2, "/a"), (2, 1, "/a"), (3, 3, "/b")]);
        assert!(top(&circles, Path::new("/a")).is_none());
        assert_eq!(top(&circles, Path::new("/b")).map(|entry| entry.id), Some(3));
    }

    #[test]
    fn an_unfinished_escape_stays_as_it_is() {
        assert_eq!(unescape(b"a\\04"), b"a\\04");
        assert_eq!(unescape(b"a\\999"), b"a\\999");
    }
}
