//! File contents: text that deflates about as well as source code does, and binary data that hardly deflates.

use std::io::Read;
use std::sync::LazyLock;

use crate::random::Random;

/// What is in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Lines of words.
    Text,
    /// Records with a regular head and an irregular body.
    Binary,
}

/// `size` bytes of `kind`, the same for the same seed; a shorter content is the start of a longer one.
pub(crate) fn content(kind: Kind, seed: u64, size: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = Vec::with_capacity(size + RECORD);
    let mut lines = Vec::new();
    while bytes.len() < size {
        match kind {
            Kind::Text => line(&mut random, &mut lines, &mut bytes),
            Kind::Binary => record(&mut random, &mut bytes),
        }
    }
    bytes.truncate(size);
    bytes
}

/// The same content after somebody worked on it: some bytes in the middle are other ones, the size stays.
pub(crate) fn edited(mut bytes: Vec<u8>, version: u64) -> Vec<u8> {
    let mark = format!("changed {version}\n");
    let at = bytes.len().saturating_sub(mark.len()) / 2;
    for (byte, new) in bytes[at..].iter_mut().zip(mark.bytes()) {
        *byte = new;
    }
    if bytes.len() < mark.len() { mark.into_bytes() } else { bytes }
}

/// An endless stream of binary records.
#[derive(Debug)]
pub(crate) struct Endless {
    random: Random,
    left: Vec<u8>,
    read: usize,
}

impl Endless {
    /// The stream of `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Endless { random: Random::new(seed), left: Vec::new(), read: 0 }
    }
}

impl Read for Endless {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        if self.read == self.left.len() {
            self.left.clear();
            self.read = 0;
            record(&mut self.random, &mut self.left);
        }
        let taken = buf.len().min(self.left.len() - self.read);
        buf[..taken].copy_from_slice(&self.left[self.read..self.read + taken]);
        self.read += taken;
        Ok(taken)
    }
}

/// Bytes of a record: about a fifth is regular.
const RECORD: usize = 640;

fn record(random: &mut Random, out: &mut Vec<u8>) {
    out.extend_from_slice(b"RECORD\0\x01");
    out.resize(out.len() + 120, 0);
    for _ in 0..(RECORD - 128) / 8 {
        out.extend_from_slice(&random.next().to_le_bytes());
    }
}

static WORDS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let syllables = ["ta", "re", "con", "un", "git", "mo", "ser", "val", "pro", "in", "ex", "der", "st", "able", "er", "ion", "lo", "ke"];
    let mut random = Random::new(0x776f_7264);
    (0..4096).map(|_| (0..=random.below(3)).map(|_| *random.pick(&syllables)).collect()).collect()
});

/// A word; some come up far more often than others.
pub(crate) fn word(random: &mut Random) -> &'static str {
    let often = random.unit();
    &WORDS[(often * often * often * WORDS.len() as f64) as usize]
}

/// Writes a line at the end of `out`; `lines` has the starts of those before. Much of source code looks like a line nearby: six of ten
/// lines begin as one of the last forty does.
fn line(random: &mut Random, lines: &mut Vec<usize>, out: &mut Vec<u8>) {
    const JOINTS: [&str; 12] = [" ", " ", " ", "_", "_", ".", "(", ") ", ", ", " = ", "::", "\""];
    let start = out.len();
    let fresh = if !lines.is_empty() && random.below(10) < 6 {
        let like = lines.len() - 1 - random.below(lines.len().min(40));
        let end = lines.get(like + 1).copied().unwrap_or(start);
        let shared = (end - lines[like]).saturating_sub(1 + random.below(20));
        out.extend_from_within(lines[like]..lines[like] + shared);
        1
    } else {
        out.resize(start + 4 * random.below(5), b' ');
        2 + random.below(8)
    };
    for _ in 0..fresh {
        out.extend_from_slice(word(random).as_bytes());
        out.extend_from_slice(random.pick(&JOINTS).as_bytes());
    }
    out.push(b'\n');
    lines.push(start);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_the_same_for_the_same_seed_and_differ_for_another() {
        for kind in [Kind::Text, Kind::Binary] {
            assert_eq!(content(kind, 7, 10_000), content(kind, 7, 10_000));
            assert_ne!(content(kind, 7, 10_000), content(kind, 8, 10_000));
            assert_eq!(content(kind, 7, 10_000)[..777], content(kind, 7, 777));
        }
    }

    #[test]
    fn an_edit_changes_the_content_and_keeps_its_size() {
        let before = content(Kind::Text, 1, 5_000);
        let after = edited(before.clone(), 1);
        assert_eq!(after.len(), before.len());
        assert_ne!(after, before);
        assert_ne!(after, edited(before, 2));
        assert_eq!(edited(vec![], 1), b"changed 1\n");
    }

    #[test]
    fn the_endless_stream_is_binary_content() {
        let mut start = vec![0; 3_000];
        Endless::new(5).read_exact(&mut start).unwrap();
        assert_eq!(start, content(Kind::Binary, 5, 3_000));
    }
}
