//! Hides `deepen-relative` in the advertisement of a protocol V0 or V1 host.
//!
//! gix asks for a relative depth whenever a host offers it, and a depth relative to an empty repository is the full history. Without the
//! offer it asks for the absolute depth it was told. Only the first line with capabilities is touched; all other bytes pass unchanged.

use std::io::{self, Read};

use super::pkt;

const HIDDEN: &[u8] = b"deepen-relative";

/// A reader that rewrites the advertisement at its start.
pub(super) struct Advertisement<R> {
    inner: R,
    /// What was read ahead and is handed out first.
    ahead: Vec<u8>,
    given: usize,
    done: bool,
}

impl<R: Read> Advertisement<R> {
    pub(super) fn new(inner: R) -> Self {
        Advertisement { inner, ahead: vec![], given: 0, done: false }
    }

    /// The same type for a stream that starts with no advertisement.
    pub(super) fn passed(inner: R) -> Self {
        Advertisement { done: true, ..Self::new(inner) }
    }

    /// Reads up to and including the first line with capabilities: behind `# service=…` and a flush over HTTP, else at once.
    fn open(&mut self) -> io::Result<()> {
        for _ in 0..4 {
            let mut packet = self.up_to(4)?;
            match pkt::length(&packet) {
                Some(length) if length > 4 => {
                    packet.extend(self.up_to(length - 4)?);
                    if packet.len() < length {
                        // Cut: whoever reads it is to see exactly that.
                        self.ahead.extend(packet);
                        return Ok(());
                    }
                }
                Some(_) if !self.ahead.is_empty() => {
                    self.ahead.extend(packet);
                    continue;
                }
                _ => {
                    self.ahead.extend(packet);
                    return Ok(());
                }
            }
            let service = packet.get(4..).is_some_and(|line| line.starts_with(b"# service="));
            self.ahead.extend(hide(packet));
            if !service {
                return Ok(());
            }
        }
        Ok(())
    }

    fn up_to(&mut self, count: usize) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(count);
        (&mut self.inner).take(count as u64).read_to_end(&mut bytes)?;
        Ok(bytes)
    }
}

impl<R: Read> Read for Advertisement<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if !self.done {
            self.done = true;
            self.open()?;
        }
        if self.given < self.ahead.len() {
            let count = (&self.ahead[self.given..]).read(out)?;
            self.given += count;
            return Ok(count);
        }
        self.inner.read(out)
    }
}

/// The same packet without the capability.
fn hide(packet: Vec<u8>) -> Vec<u8> {
    let Some(nul) = packet.iter().position(|b| *b == 0) else { return packet };
    let (head, capabilities) = packet.split_at(nul + 1);
    let (capabilities, end) = match capabilities.strip_suffix(b"\n") {
        Some(without) => (without, &b"\n"[..]),
        None => (capabilities, &b""[..]),
    };
    if !capabilities.split(|b| *b == b' ').any(|c| c == HIDDEN) {
        return packet;
    }
    let kept: Vec<&[u8]> = capabilities.split(|b| *b == b' ').filter(|c| *c != HIDDEN).collect();
    let mut payload = head[4..].to_vec();
    payload.extend(kept.join(&b' '));
    payload.extend_from_slice(end);
    let mut rewritten = vec![];
    pkt::put(&mut rewritten, &payload);
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(payload: &str) -> Vec<u8> {
        let mut out = vec![];
        pkt::put(&mut out, payload.as_bytes());
        out
    }

    /// Reads through one byte at a time, so that every boundary is met.
    fn through(bytes: &[u8]) -> Vec<u8> {
        struct Single<'a>(&'a [u8]);
        impl Read for Single<'_> {
            fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
                let count = out.len().min(1);
                self.0.read(&mut out[..count])
            }
        }
        let mut out = vec![];
        Advertisement::new(Single(bytes)).read_to_end(&mut out).unwrap();
        out
    }

    const ID: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn the_capability_is_hidden_and_nothing_else_changes() {
        let rest = [line(&format!("{ID} refs/heads/deepen-relative\n")), b"0000 binary deepen-relative \0".to_vec()].concat();
        let cases = [
            ("\0shallow deepen-relative no-progress\n", "\0shallow no-progress\n"),
            ("\0deepen-relative\n", "\0\n"),
            ("\0deepen-relative shallow", "\0shallow"),
            ("\0 shallow deepen-relative", "\0 shallow"),
            ("\0shallow deepen-since deepen-relatives x-deepen-relative\n", "\0shallow deepen-since deepen-relatives x-deepen-relative\n"),
        ];
        for (before, after) in cases {
            let head = format!("{ID} HEAD");
            let sent = [line(&format!("{head}{before}")), rest.clone()].concat();
            let expected = [line(&format!("{head}{after}")), rest.clone()].concat();
            assert_eq!(through(&sent), expected, "{before:?}");
            let service = [line("# service=git-upload-pack\n"), b"0000".to_vec()].concat();
            assert_eq!(through(&[service.clone(), sent].concat()), [service, expected].concat(), "over HTTP: {before:?}");
        }
    }

    #[test]
    fn other_streams_pass_unchanged() {
        let long = [line("version 2\n"), line("fetch=shallow deepen-relative\0deepen-relative\n"), b"0000".to_vec()].concat();
        let broken = b"00ff only the start \0 deepen-relative";
        for bytes in [&b""[..], b"0", b"0000", b"0001", b"<html>", b"0008ERR ", broken, &long] {
            assert_eq!(through(bytes), bytes, "{:?}", String::from_utf8_lossy(bytes));
        }
        let sent = line(&format!("{ID} HEAD\0deepen-relative\n"));
        let mut out = vec![];
        Advertisement::passed(sent.as_slice()).read_to_end(&mut out).unwrap();
        assert_eq!(out, sent);
    }
}
