//! The ustar format, as much of it as images need. Everything belongs to root and is of the epoch, so that equal contents are equal bytes.

use std::io::{self, Write};

/// Bytes of a header, and what contents are padded to.
const BLOCK: usize = 512;
/// The longest name that fits without the format's extensions.
const LONGEST: usize = 100;

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A file with these bytes.
    File(Vec<u8>),
    /// A directory.
    Directory,
    /// A symbolic link to this target.
    Symlink(String),
}

/// Writes an archive entry by entry.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Writer { out }
    }

    /// Writes one entry.
    ///
    /// # Errors
    /// When the name or the target is too long, or writing fails.
    pub fn add(&mut self, name: &str, mode: u32, kind: &Kind) -> io::Result<()> {
        let (flag, contents, target): (u8, &[u8], &str) = match kind {
            Kind::File(bytes) => (b'0', bytes, ""),
            Kind::Directory => (b'5', &[], ""),
            Kind::Symlink(target) => (b'2', &[], target),
        };
        for text in [name, target] {
            if text.len() > LONGEST {
                return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{text:?} has more than {LONGEST} bytes")));
            }
        }
        let mut header = [0u8; BLOCK];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", contents.len()).as_bytes());
        put(136, b"00000000000");
        // The checksum counts its own place as blanks.
        put(148, b"        ");
        put(156, &[flag]);
        put(157, target.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.out.write_all(&header)?;
        self.out.write_all(contents)?;
        self.out.write_all(&[0; BLOCK][..contents.len().next_multiple_of(BLOCK) - contents.len()])
    }

    /// Writes the end, and gives back what it was written to.
    ///
    /// # Errors
    /// When writing fails.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(Vec::new());
        writer.add("a/", 0o755, &Kind::Directory).unwrap();
        writer.add("a/file", 0o640, &Kind::File(vec![7; 1000])).unwrap();
        writer.add("a/empty", 0o600, &Kind::File(vec![])).unwrap();
        writer.add("a/link", 0o777, &Kind::Symlink("file".into())).unwrap();
        let archive = dir.path().join("x.tar");
        std::fs::write(&archive, writer.finish().unwrap()).unwrap();
        let listed = std::process::Command::new("tar").env("TZ", "UTC").args(["--numeric-owner", "-tvf"]).arg(&archive).output().unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let words: Vec<String> = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            words,
            [
                "drwxr-xr-x 0/0 0 1970-01-01 00:00 a/",
                "-rw-r----- 0/0 1000 1970-01-01 00:00 a/file",
                "-rw------- 0/0 0 1970-01-01 00:00 a/empty",
                "lrwxrwxrwx 0/0 0 1970-01-01 00:00 a/link -> file",
            ]
        );
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused() {
        let error = Writer::new(Vec::new()).add(&"x".repeat(101), 0o644, &Kind::Directory).unwrap_err();
        assert!(error.to_string().contains("more than 100 bytes"), "{error}");
    }
}
