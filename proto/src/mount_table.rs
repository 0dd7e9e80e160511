//! The kernel's table of mounts. Reading it touches none of them, so it is safe whatever their servers do.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of `/proc/self/mountinfo`, see proc_pid_mountinfo(5).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
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

/// All mounts in this mount namespace, in the order in which they were made.
///
/// # Errors
/// When the table cannot be read.
pub fn read() -> io::Result<Vec<Entry>> {
    Ok(parse(&std::fs::read("/proc/self/mountinfo")?))
}

/// The mount that one sees at `target`: the last one there.
///
/// # Errors
/// When the table cannot be read.
pub fn at(target: &Path) -> io::Result<Option<Entry>> {
    Ok(read()?.into_iter().rev().find(|entry| entry.target == target))
}

/// Reads the table; torn lines are left out.
pub fn parse(table: &[u8]) -> Vec<Entry> {
    table.split(|b| *b == b'\n').filter_map(parse_line).collect()
}

/// `36 35 98:0 /root /mount/point options optional… - type source super`.
fn parse_line(line: &[u8]) -> Option<Entry> {
    let mut fields = line.split(|b| *b == b' ').skip(2);
    let (device, root, target) = (fields.next()?, fields.next()?, fields.next()?);
    let mut fields = fields.skip_while(|f| *f != b"-").skip(1);
    let (kind, source) = (fields.next()?, fields.next()?);
    let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
    Some(Entry {
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
            target: "/mnt/a b\\c".into(),
            device: nix::sys::stat::makedev(0, 50),
            root: "/sub".into(),
            kind: b"fuse.gitmount".to_vec(),
            source: b"https://example.com/a.git".to_vec(),
        };
        assert_eq!(parse(table), [expected]);
    }

    #[test]
    fn an_unfinished_escape_stays_as_it_is() {
        assert_eq!(unescape(b"a\\04"), b"a\\04");
        assert_eq!(unescape(b"a\\999"), b"a\\999");
    }
}
