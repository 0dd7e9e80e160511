//! OpenSSH's `known_hosts`, read as OpenSSH reads it: hashed names, `[host]:port` with fall-back to the entry without port, wildcards and
//! negation, tabs, `@revoked`. A line that cannot be read is skipped and never makes the others unreadable; `@cert-authority` is ignored.
//!
//! The format is that of sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT". Nothing here reads a file or knows a network.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

#[cfg(test)]
mod tests;

/// A public key of a host.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostKey {
    /// The key's type as it stands in the file, such as `ssh-ed25519`.
    pub algorithm: String,
    /// The key in SSH's wire form, its type included.
    pub blob: Vec<u8>,
}

/// What is known of one host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Known {
    /// Keys the host may show, in file order.
    pub keys: Vec<HostKey>,
    /// Keys that are refused whoever shows them for this host.
    pub revoked: Vec<HostKey>,
}

/// How a shown key stands to what is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The key is known for the host.
    Match,
    /// Nothing is known of the host.
    Unknown,
    /// Other keys are known for the host, this one is not.
    Changed,
    /// The key is marked `@revoked`.
    Revoked,
}

impl Known {
    /// Judges the key `blob` (wire form) that a host has shown.
    pub fn check(&self, blob: &[u8]) -> Verdict {
        if self.revoked.iter().any(|k| k.blob == blob) {
            Verdict::Revoked
        } else if self.keys.iter().any(|k| k.blob == blob) {
            Verdict::Match
        } else if self.keys.is_empty() {
            Verdict::Unknown
        } else {
            Verdict::Changed
        }
    }
}

/// A parsed `known_hosts` text.
#[derive(Debug, Clone, Default)]
pub struct KnownHosts {
    lines: Vec<Line>,
    skipped: usize,
}

#[derive(Debug, Clone)]
struct Line {
    hosts: Hosts,
    revoked: bool,
    key: HostKey,
}

#[derive(Debug, Clone)]
enum Hosts {
    Hashed { salt: Vec<u8>, hash: Vec<u8> },
    Patterns(Vec<Pattern>),
}

#[derive(Debug, Clone)]
struct Pattern {
    negated: bool,
    text: String,
}

impl KnownHosts {
    /// Parses the text of a file. Never fails: lines that are no entry are skipped.
    pub fn parse(text: &str) -> Self {
        let mut parsed = KnownHosts::default();
        for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            match parse_line(line) {
                Some(Some(line)) => parsed.lines.push(line),
                Some(None) => {}
                None => parsed.skipped += 1,
            }
        }
        parsed
    }

    /// Adds the entries of another file behind these.
    pub fn extend(&mut self, other: KnownHosts) {
        self.lines.extend(other.lines);
        self.skipped += other.skipped;
    }

    /// How many lines could not be read.
    pub fn skipped(&self) -> usize {
        self.skipped
    }

    /// What is known of `host` at `port`. With a port other than 22 the entries for `[host]:port` count; where there are none, those for
    /// `host`. Revoked keys of both count.
    pub fn lookup(&self, host: &str, port: u16) -> Known {
        let host = host.to_ascii_lowercase();
        let plain = self.named(&host);
        if port == 22 {
            return plain;
        }
        let mut known = self.named(&format!("[{host}]:{port}"));
        if known.keys.is_empty() {
            known.keys = plain.keys;
        }
        known.revoked.extend(plain.revoked);
        known
    }

    fn named(&self, name: &str) -> Known {
        let mut known = Known::default();
        for line in self.lines.iter().filter(|line| line.hosts.matches(name)) {
            if line.revoked { &mut known.revoked } else { &mut known.keys }.push(line.key.clone());
        }
        known
    }
}

/// The line to write for a host whose key was accepted (no newline).
pub fn entry(host: &str, port: u16, key: &HostKey) -> String {
    let host = host.to_ascii_lowercase();
    let name = if port == 22 { host } else { format!("[{host}]:{port}") };
    format!("{name} {} {}", key.algorithm, STANDARD.encode(&key.blob))
}

/// `None`: unreadable; `Some(None)`: readable and of no use here.
fn parse_line(line: &str) -> Option<Option<Line>> {
    let mut fields = line.split([' ', '\t']).filter(|f| !f.is_empty());
    let mut first = fields.next()?;
    let mut revoked = false;
    if first.starts_with('@') {
        match first {
            "@revoked" => revoked = true,
            "@cert-authority" => return Some(None),
            _ => return None,
        }
        first = fields.next()?;
    }
    let hosts = Hosts::parse(first)?;
    let algorithm = fields.next()?.to_owned();
    let blob = STANDARD.decode(fields.next()?).ok()?;
    // The wire form starts with the type again; a line where the two differ is damaged.
    let length = u32::from_be_bytes(blob.get(..4)?.try_into().ok()?);
    let named = blob.get(4..4usize.checked_add(usize::try_from(length).ok()?)?)?;
    (named == algorithm.as_bytes()).then_some(Some(Line { hosts, revoked, key: HostKey { algorithm, blob } }))
}

impl Hosts {
    fn parse(field: &str) -> Option<Self> {
        if let Some(hashed) = field.strip_prefix('|') {
            let (salt, hash) = hashed.strip_prefix("1|")?.split_once('|')?;
            let (salt, hash) = (STANDARD.decode(salt).ok()?, STANDARD.decode(hash).ok()?);
            return (!salt.is_empty() && hash.len() == 20).then_some(Hosts::Hashed { salt, hash });
        }
        let patterns = field.split(',').filter(|p| !p.is_empty()).map(|p| {
            let (negated, text) = p.strip_prefix('!').map_or((false, p), |rest| (true, rest));
            Pattern { negated, text: text.to_ascii_lowercase() }
        });
        Some(Hosts::Patterns(patterns.collect()))
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Hosts::Hashed { salt, hash } => {
                let mut mac = Hmac::<Sha1>::new_from_slice(salt).expect("HMAC takes keys of any length");
                mac.update(name.as_bytes());
                mac.finalize().into_bytes().as_slice() == hash.as_slice()
            }
            Hosts::Patterns(patterns) => {
                let hit = |negated| patterns.iter().any(|p| p.negated == negated && glob(p.text.as_bytes(), name.as_bytes()));
                hit(false) && !hit(true)
            }
        }
    }
}

/// `*` and `?` as in OpenSSH's `match_pattern`, in time linear in `pattern` times `text`.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}
