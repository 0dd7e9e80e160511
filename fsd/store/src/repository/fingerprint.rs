//! Which credentials have fetched a repository: a fingerprint of each, salted per store and repository, never the secret. They decide to
//! whom its commits are shown while the host cannot be asked.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::{Repository, durable};
use crate::credential::{Auth, HttpAuth, SshAuth};
use crate::error::{Fault, Result, StoreError};
use crate::url::Scheme;

const FILE: &str = "gitmount-credentials";
const SALT: &str = "salt";
const SALT_BYTES: usize = 32;
/// Most fingerprints of one repository; the oldest go.
const MOST: usize = 64;

impl Repository {
    /// Whether the host let `auth` fetch this repository on this node, and has not refused it since. Nobody is asked; anonymous is a
    /// credential like any other, and so are "whatever the user's helpers give" ([`HttpAuth::Ask`]) and "whatever the agent holds".
    pub fn has_fetched_with(&self, auth: &Auth) -> Result<bool> {
        Ok(self.fingerprints()?.contains(&self.fingerprint(auth)?))
    }

    /// The host let `auth` in.
    pub(crate) fn remember_credential(&self, auth: &Auth) -> Result<()> {
        let own = self.fingerprint(auth)?;
        if self.fingerprints()?.contains(&own) {
            return Ok(());
        }
        self.change_fingerprints(|all| {
            all.retain(|known| *known != own);
            all.push(own);
            let surplus = all.len().saturating_sub(MOST);
            all.drain(..surplus);
        })
    }

    /// The host refused `auth`.
    pub(crate) fn forget_credential(&self, auth: &Auth) -> Result<()> {
        let own = self.fingerprint(auth)?;
        if !self.fingerprints()?.contains(&own) {
            return Ok(());
        }
        self.change_fingerprints(|all| all.retain(|known| *known != own))
    }

    fn change_fingerprints(&self, change: impl FnOnce(&mut Vec<String>)) -> Result<()> {
        let _lock = self.lock_pins()?;
        let mut all = self.fingerprints()?;
        change(&mut all);
        let text: String = all.iter().flat_map(|one| [one.as_str(), "\n"]).collect();
        durable::write(&self.git_dir.join(FILE), text.as_bytes())
    }

    /// Oldest first.
    fn fingerprints(&self) -> Result<Vec<String>> {
        let path = self.git_dir.join(FILE);
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(vec![]),
            Err(err) => Err(durable::disk(&path, "read", err)),
        }
    }

    fn fingerprint(&self, auth: &Auth) -> Result<String> {
        let internal = |err| StoreError::new(Fault::Internal, "a fingerprint cannot be made").caused_by(err);
        let mut mac = Hmac::<Sha256>::new_from_slice(&salt(&self.net.state)?).map_err(internal)?;
        // Lengths go first, so that no two credentials give the same bytes.
        let mut add = |part: &[u8]| {
            mac.update(&(part.len() as u64).to_be_bytes());
            mac.update(part);
        };
        add(self.url.normalized().as_bytes());
        match self.url.scheme() {
            Scheme::Http | Scheme::Https => match &auth.http {
                HttpAuth::None => add(b"anonymous"),
                HttpAuth::Ask(_) => add(b"ask"),
                HttpAuth::Login(login) => {
                    add(b"login");
                    add(login.username.as_bytes());
                    add(login.password.reveal().as_bytes());
                }
            },
            Scheme::Ssh => ssh(&auth.ssh, &mut add),
            Scheme::Git | Scheme::File => add(b"anonymous"),
        }
        let mut hex = String::with_capacity(64);
        for byte in mac.finalize().into_bytes() {
            // Writing to a String cannot fail.
            let _ = write!(hex, "{byte:02x}");
        }
        Ok(hex)
    }
}

fn ssh(auth: &SshAuth, add: &mut dyn FnMut(&[u8])) {
    add(b"ssh");
    add(auth.user.as_deref().unwrap_or_default().as_bytes());
    add(if auth.agent.is_some() { b"agent" } else { b"" });
    for key in &auth.keys {
        add(b"key");
        add(key.reveal().as_bytes());
    }
    for path in &auth.key_files {
        // One that is not there is not offered either.
        if let Ok(key) = std::fs::read(path) {
            add(b"key");
            add(&key);
        }
    }
}

/// The salt of the store at `root`, made when it is first needed.
fn salt(root: &Path) -> Result<Vec<u8>> {
    let path = root.join(SALT);
    for _ in 0..2 {
        match std::fs::read(&path) {
            Ok(salt) if salt.len() == SALT_BYTES => return Ok(salt),
            // Of a crash of the machine; what was made with it is of no use.
            Ok(_) => durable::remove(&path)?,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => {}
            Err(err) => return Err(durable::disk(&path, "read", err)),
        }
        make_salt(root, &path).map_err(|err| durable::disk(&path, "written", err))?;
    }
    std::fs::read(&path).map_err(|err| durable::disk(&path, "read", err))
}

fn make_salt(root: &Path, path: &PathBuf) -> std::io::Result<()> {
    let mut salt = [0; SALT_BYTES];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut salt)?;
    let mut file = tempfile::Builder::new().prefix(".salt-").permissions(std::fs::Permissions::from_mode(0o600)).tempfile_in(root)?;
    file.write_all(&salt)?;
    file.as_file().sync_all()?;
    match file.persist_noclobber(path) {
        Ok(_) => Ok(()),
        // Somebody else was faster: theirs it is.
        Err(err) if err.error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        Err(err) => Err(err.error),
    }
}
