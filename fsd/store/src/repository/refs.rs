//! The repository's own refs, all below `refs/gitmount/`: `fetched/` has the commit of each successful fetch, `pins/` what
//! living processes use, `keep/` what is kept by name.
//! They are plain loose refs, so git itself shows them (`git for-each-ref refs/gitmount`).

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use super::durable;
use crate::error::{Fault, Result, StoreError};
use crate::ids::{CommitId, ObjectId};
use crate::refspec::RefSpec;

/// Longest file name that is made of a ref name as it is; longer ones go by their hash.
const MAX_ENCODED: usize = 200;
/// A fetched ref says that it is in use by its time, renewed at most this often.
const RENEW: Duration = Duration::from_secs(60 * 60);

/// Where pins are, in the git directory.
pub(super) const PINS: &str = "refs/gitmount/pins";

/// Where named pins are, in the git directory.
pub(super) const NAMED: &str = "refs/gitmount/keep";

/// The ref files of one repository.
#[derive(Debug)]
pub(super) struct Refs {
    root: PathBuf,
}

impl Refs {
    pub(super) fn new(git_dir: &Path) -> Self {
        Refs { root: git_dir.join("refs/gitmount") }
    }

    pub(super) fn pins(&self) -> PathBuf {
        self.root.join("pins")
    }

    pub(super) fn named(&self) -> PathBuf {
        self.root.join("keep")
    }

    fn fetched_dir(&self) -> PathBuf {
        self.root.join("fetched")
    }

    /// The file for `spec`. The kinds have directories of their own, so that HEAD and a branch called HEAD do not meet.
    fn fetched_path(&self, spec: &RefSpec) -> PathBuf {
        let (kind, name) = match spec {
            RefSpec::Head => ("head", "HEAD".to_owned()),
            RefSpec::Name(name) => ("name", encode(name)),
            RefSpec::Full(name) => ("full", encode(name)),
            RefSpec::Commit(commit) => ("commit", commit.to_string()),
        };
        self.fetched_dir().join(kind).join(name)
    }

    /// The commit of the last successful fetch of `spec`.
    pub(super) fn fetched(&self, spec: &RefSpec) -> Result<Option<CommitId>> {
        Ok(read(&self.fetched_path(spec))?.map(CommitId::new))
    }

    /// Records the commit of a successful fetch.
    pub(super) fn set_fetched(&self, spec: &RefSpec, commit: CommitId) -> Result<()> {
        durable::write(&self.fetched_path(spec), format!("{commit}\n").as_bytes())
    }

    /// Says that `spec` is still asked for. Only bookkeeping: failing is no reason to fail a fetch.
    pub(super) fn renew(&self, spec: &RefSpec) {
        let path = self.fetched_path(spec);
        let age = std::fs::metadata(&path).and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
        if age.is_none_or(|age| age < RENEW) {
            return;
        }
        let file = std::fs::OpenOptions::new().append(true).open(&path);
        if let Err(err) = file.and_then(|file| file.set_modified(SystemTime::now())) {
            tracing::debug!(path = %path.display(), "a fetched ref could not be renewed: {err}");
        }
    }

    /// Every fetched ref: its file, its commit, and how long nobody asked for it.
    pub(super) fn all_fetched(&self) -> Result<Vec<(PathBuf, ObjectId, Duration)>> {
        let mut all = Vec::new();
        for kind in list(&self.fetched_dir())? {
            for path in list(&kind)? {
                if let Some(id) = read(&path)? {
                    let age = std::fs::metadata(&path).and_then(|meta| meta.modified()).ok().and_then(|time| time.elapsed().ok());
                    all.push((path, id, age.unwrap_or_default()));
                }
            }
        }
        Ok(all)
    }

    /// Every pin's ref file and commit.
    pub(super) fn all_pins(&self) -> Result<Vec<(PathBuf, ObjectId)>> {
        read_all(&self.pins())
    }

    /// Every named pin's ref file and commit.
    pub(super) fn all_named(&self) -> Result<Vec<(PathBuf, ObjectId)>> {
        read_all(&self.named())
    }
}

fn read_all(dir: &Path) -> Result<Vec<(PathBuf, ObjectId)>> {
    let mut all = Vec::new();
    for path in list(dir)? {
        if let Some(id) = read(&path)? {
            all.push((path, id));
        }
    }
    Ok(all)
}

/// Reads one ref file; `None` when there is none.
pub(super) fn read(path: &Path) -> Result<Option<ObjectId>> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(err) if matches!(err.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => return Ok(None),
        Err(err) => return Err(durable::disk(path, "read", err)),
    };
    let id = ObjectId::from_hex(text.trim_ascii_end());
    id.map(Some).map_err(|err| StoreError::new(Fault::Corrupt, format!("ref file {} is malformed", path.display())).caused_by(err))
}

/// What is in a directory, lock files aside; a directory that is not there is empty.
pub(super) fn list(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(err) => return Err(durable::disk(dir, "read", err)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|err| durable::disk(dir, "read", err))?.path();
        if path.extension().is_none_or(|extension| extension != "lock") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// A ref name as one file name that is a valid ref component: letters, digits, `-` and `_` stay, the rest is `%XX`. So `a` and `a/b` can
/// both exist, and nothing ends in `.lock`.
pub(super) fn encode(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len() + 8);
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    if encoded.len() <= MAX_ENCODED {
        return encoded;
    }
    // A name as it is never starts with "%%".
    let mut hashed = "%%".to_owned();
    for byte in Sha256::digest(name) {
        let _ = write!(hashed, "{byte:02x}");
    }
    hashed
}

/// The name that [`encode`] made `encoded` of; `None` when only its hash is left.
pub(super) fn decode(encoded: &str) -> Option<String> {
    let mut name = Vec::with_capacity(encoded.len());
    let mut rest = encoded.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            name.push(byte);
            continue;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let (high, low) = (digit(rest.next()?)?, digit(rest.next()?)?);
        name.push(u8::try_from(high * 16 + low).ok()?);
    }
    String::from_utf8(name).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_names_are_distinct_valid_components() {
        let long = "x/".repeat(300) + "y";
        let names = ["a", "a/b", "a%2Fb", "v1.lock", "HEAD", "ä", long.as_str(), &(long.clone() + "z")];
        for name in &names[..6] {
            assert_eq!(decode(&encode(name)).as_deref(), Some(*name));
        }
        assert_eq!(decode(&encode(&long)), None);
        let encoded: std::collections::BTreeSet<_> = names.iter().map(|name| encode(name)).collect();
        assert_eq!(encoded.len(), names.len());
        for name in encoded {
            let full = format!("refs/gitmount/fetched/name/{name}");
            assert!(name.len() <= 255 && gix::refs::FullName::try_from(full.clone()).is_ok(), "{full} is no valid ref");
        }
    }

    #[test]
    fn head_and_a_branch_called_head_are_kept_apart() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let refs = Refs::new(dir.path());
        let commit = |digit: &str| CommitId::parse(&digit.repeat(40)).expect("an id");
        refs.set_fetched(&RefSpec::Head, commit("1")).expect("written");
        refs.set_fetched(&RefSpec::Name("HEAD".into()), commit("2")).expect("written");
        refs.set_fetched(&RefSpec::Full("refs/heads/HEAD".into()), commit("3")).expect("written");
        assert_eq!(refs.fetched(&RefSpec::Head).expect("read"), Some(commit("1")));
        assert_eq!(refs.fetched(&RefSpec::Name("HEAD".into())).expect("read"), Some(commit("2")));
        assert_eq!(refs.all_fetched().expect("read").len(), 3);
        assert_eq!(refs.fetched(&RefSpec::Name("other".into())).expect("read"), None);
    }
}
