//! What a handshake has shown of a repository's host, kept for the life of the process: with it a poll is one request.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock, Weak};

use lru::LruCache;

use super::super::failure::lock;
use super::super::pkt::{self, Packet};
use crate::credential::{Login, LoginSource};

/// How many repositories are remembered.
const KEPT: NonZeroUsize = NonZeroUsize::new(4096).expect("4096 is not 0");

/// How much of an advertisement is looked at; that of protocol V2 has less than a kilobyte.
pub(super) const MAX_SEEN: usize = 16 * 1024;

/// A host that speaks protocol V2.
#[derive(Clone)]
pub(super) struct Remembered {
    /// Where the repository is, after redirects.
    pub(super) base: reqwest::Url,
    /// `sha1` or `sha256`, where the host names it.
    pub(super) object_format: Option<String>,
    /// A login the host took, and whose it is: only the same source may use it again.
    pub(super) login: Option<(Weak<dyn LoginSource>, Login)>,
}

impl Remembered {
    /// The login, for the source it came from.
    pub(super) fn login_of(&self, source: &Arc<dyn LoginSource>) -> Option<Login> {
        let (owner, login) = self.login.as_ref()?;
        Arc::ptr_eq(&owner.upgrade()?, source).then(|| login.clone())
    }
}

fn all() -> &'static Mutex<LruCache<String, Remembered>> {
    static ALL: OnceLock<Mutex<LruCache<String, Remembered>>> = OnceLock::new();
    ALL.get_or_init(|| Mutex::new(LruCache::new(KEPT)))
}

/// What is remembered of the repository at `url`.
pub(super) fn recall(url: &str) -> Option<Remembered> {
    lock(all()).get(url).cloned()
}

/// Remembers.
pub(super) fn remember(url: &str, what: Remembered) {
    lock(all()).put(url.to_owned(), what);
}

/// Forgets what turned out wrong.
pub(super) fn forget(url: &str) {
    lock(all()).pop(url);
}

/// Whether an advertisement is that of protocol V2 with `ls-refs`, and the object format it names.
pub(super) fn understand(advertisement: &[u8]) -> Option<Option<String>> {
    let mut rest = advertisement;
    let (mut version, mut ls_refs, mut format) = (false, false, None);
    while let Some(packet) = pkt::next(&mut rest) {
        match packet {
            Packet::Line(line) if line.starts_with(b"# service=") => {}
            Packet::Line(b"version 2") => version = true,
            Packet::Line(_) if !version => return None,
            Packet::Line(line) => {
                ls_refs |= line == b"ls-refs" || line.starts_with(b"ls-refs=");
                if let Some(name) = line.strip_prefix(b"object-format=") {
                    format = Some(String::from_utf8(name.to_vec()).ok().filter(|n| n == "sha1" || n == "sha256")?);
                }
            }
            Packet::Flush if version => return ls_refs.then_some(format),
            Packet::Flush => {}
            Packet::Delimiter => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advertisement(lines: &[&str]) -> Vec<u8> {
        let mut out = vec![];
        for line in lines {
            match *line {
                "0000" => pkt::put_flush(&mut out),
                line => pkt::put(&mut out, line.as_bytes()),
            }
        }
        out
    }

    #[test]
    fn protocol_v2_is_recognized() {
        let sha1 = Some(Some("sha1".to_owned()));
        let lines = ["version 2\n", "agent=git/2.39.5\n", "ls-refs=unborn\n", "fetch=shallow\n", "object-format=sha1\n", "0000"];
        assert_eq!(understand(&advertisement(&lines)), sha1);
        let service = [&["# service=git-upload-pack\n", "0000"], &lines[..]].concat();
        assert_eq!(understand(&advertisement(&service)), sha1);
        assert_eq!(understand(&advertisement(&["version 2\n", "ls-refs\n", "0000"])), Some(None));
    }

    #[test]
    fn anything_else_is_not() {
        for lines in [
            &["version 2\n", "fetch\n", "0000"][..],
            &["version 2\n", "ls-refs\n"],
            &["version 2\n", "ls-refs\n", "object-format=md5\n", "0000"],
            &["# service=git-upload-pack\n", "0000", "0123456789abcdef0123456789abcdef01234567 HEAD\0multi_ack\n", "0000"],
            &["version 1\n", "ls-refs\n", "0000"],
        ] {
            assert_eq!(understand(&advertisement(lines)), None, "{lines:?}");
        }
        assert_eq!(understand(b"<html>"), None);
    }
}
