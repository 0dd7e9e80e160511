//! Whether a host's key is the right one, by what `known_hosts` files say.

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use russh::keys::{Algorithm, EcdsaCurve, HashAlg, PublicKey};

use super::{Result, StoreError, named};
use crate::credential::HostKeys;
use crate::error::Fault;
use crate::known_hosts::{HostKey, Known, KnownHosts, Verdict, entry};

/// What is known of a host before it is contacted.
pub(super) struct HostCheck {
    host: String,
    port: u16,
    known: Known,
    /// Where the knowledge comes from, for messages.
    source: String,
    /// The file with it, where it is one.
    file: Option<String>,
    /// The directory of the file in which a first key is recorded.
    first_use: Option<PathBuf>,
}

impl HostCheck {
    /// Reads what is known of `host` at `port`. Files that do not exist know nothing.
    pub(super) fn load(keys: &HostKeys, state: &Path, host: &str, port: u16) -> Result<Self> {
        let (hosts, file, first_use) = match keys {
            HostKeys::Text(text) => (KnownHosts::parse(text), None, None),
            HostKeys::Files(files) => {
                let mut all = KnownHosts::default();
                for file in files {
                    all.extend(read(file)?);
                }
                (all, files.first().map(|f| named(f)), None)
            }
            HostKeys::FirstUse => {
                let file = state.join("known_hosts");
                (read(&file)?, Some(named(&file)), Some(state.to_owned()))
            }
        };
        let source = file.clone().unwrap_or_else(|| "the known_hosts that were given".into());
        Ok(HostCheck { host: host.into(), port, known: hosts.lookup(host, port), source, file, first_use })
    }

    /// Host key algorithms in the order to ask for: first what the host is known by, so that it shows a key that can be compared. (SHA-1
    /// signatures are not accepted, as in OpenSSH.)
    pub(super) fn preferred(&self) -> Vec<Algorithm> {
        let rsa = |hash| Algorithm::Rsa { hash: Some(hash) };
        let ecdsa = |curve| Algorithm::Ecdsa { curve };
        let all = [
            ("ssh-ed25519", Algorithm::Ed25519),
            ("ecdsa-sha2-nistp256", ecdsa(EcdsaCurve::NistP256)),
            ("ecdsa-sha2-nistp384", ecdsa(EcdsaCurve::NistP384)),
            ("ecdsa-sha2-nistp521", ecdsa(EcdsaCurve::NistP521)),
            ("ssh-rsa", rsa(HashAlg::Sha512)),
            ("ssh-rsa", rsa(HashAlg::Sha256)),
        ];
        let known = |name: &str| self.known.keys.iter().any(|k| k.algorithm == name);
        let (first, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|(name, _)| known(name));
        first.into_iter().chain(rest).map(|(_, algorithm)| algorithm).collect()
    }

    /// Accepts a key or says why not; a first key is recorded where that is wanted. May block on the disk.
    pub(super) fn judge(&self, key: &PublicKey) -> Result<()> {
        let internal = |e| StoreError::new(Fault::Internal, format!("the key of host {} cannot be encoded: {e}", self.host));
        let shown = HostKey { algorithm: key.algorithm().as_str().to_owned(), blob: key.to_bytes().map_err(internal)? };
        match self.known.check(&shown.blob) {
            Verdict::Match => Ok(()),
            Verdict::Unknown => match &self.first_use {
                Some(directory) => self.record(directory, key, &shown),
                None => Err(self.refusal(Verdict::Unknown, key)),
            },
            other => Err(self.refusal(other, key)),
        }
    }

    fn refusal(&self, verdict: Verdict, key: &PublicKey) -> StoreError {
        let (host, port, source) = (&self.host, self.port, &self.source);
        let place = if port == 22 { host.clone() } else { format!("[{host}]:{port}") };
        let print = format!("{} {}", key.algorithm().as_str(), key.fingerprint(HashAlg::Sha256));
        let message = match verdict {
            Verdict::Revoked => format!("host {place} shows a key ({print}) that is marked @revoked in {source}: do not use this host"),
            Verdict::Changed => {
                let remedy = match &self.file {
                    // What was recorded by itself lies where whoever reads this may not get to.
                    Some(file) if self.first_use.is_some() => {
                        format!("give its new key in known_hosts, or remove the old one with \"ssh-keygen -R '{place}' -f {file}\"")
                    }
                    Some(file) => format!("remove the old one with \"ssh-keygen -R '{place}' -f {file}\""),
                    None => "replace the old one there".into(),
                };
                format!(
                    "host {place} shows another key ({print}) than {source} has for it, so somebody may be in between: \
                     if the host has really changed its key, {remedy}"
                )
            }
            Verdict::Unknown | Verdict::Match => format!(
                "host {place} is not in {source}, so its key ({print}) cannot be checked: add it with \"ssh-keyscan -p {port} {host}\" after \
                 comparing the fingerprint"
            ),
        };
        StoreError::new(Fault::Refused, message)
    }

    /// Writes a first key, unless another process recorded one meanwhile: then that one counts.
    fn record(&self, directory: &Path, key: &PublicKey, shown: &HostKey) -> Result<()> {
        let failed = |e: io::Error| {
            let message = format!("the key of host {} cannot be recorded in {}: {e}", self.host, self.source);
            StoreError::new(Fault::Disk, message).caused_by(e)
        };
        let path = directory.join("known_hosts");
        let lock = fs::OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(directory.join("known_hosts.lock"));
        let _lock = Flock::lock(lock.map_err(failed)?, FlockArg::LockExclusive).map_err(|(_, errno)| failed(errno.into()))?;
        let mut text = match fs::read(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == io::ErrorKind::NotFound => vec![],
            Err(e) => return Err(failed(e)),
        };
        match KnownHosts::parse(&String::from_utf8_lossy(&text)).lookup(&self.host, self.port).check(&shown.blob) {
            Verdict::Match => return Ok(()),
            Verdict::Unknown => {}
            other => return Err(self.refusal(other, key)),
        }
        if text.last().is_some_and(|last| *last != b'\n') {
            text.push(b'\n');
        }
        text.extend_from_slice(entry(&self.host, self.port, shown).as_bytes());
        text.push(b'\n');
        // Whole file or none: a half-written line would let the next first key in.
        let write = || -> io::Result<()> {
            let mut new = tempfile::NamedTempFile::new_in(directory)?;
            new.write_all(&text)?;
            new.as_file().sync_all()?;
            new.persist(&path).map_err(|e| e.error)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(failed)
    }
}

fn read(file: &Path) -> Result<KnownHosts> {
    match fs::read(file) {
        Ok(text) => {
            let text: Cow<'_, str> = String::from_utf8_lossy(&text);
            let hosts = KnownHosts::parse(&text);
            if hosts.skipped() > 0 {
                tracing::debug!(file = %file.display(), lines = hosts.skipped(), "known_hosts has lines that cannot be read");
            }
            Ok(hosts)
        }
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(KnownHosts::default()),
        Err(e) => {
            let message = format!("known_hosts file {} cannot be read: {e}", named(file));
            Err(StoreError::new(Fault::Refused, message).caused_by(e))
        }
    }
}

#[cfg(test)]
mod tests;
