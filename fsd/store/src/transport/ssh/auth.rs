//! Logging in with public keys: those of the agent, then those that were given. Nobody is ever asked for a passphrase.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::MethodKind;
use russh::client::{AuthResult, Handle};
use russh::keys::agent::AgentIdentity;
use russh::keys::agent::client::AgentClient;
use russh::keys::ssh_key::public::KeyData;
use russh::keys::{self, HashAlg, PrivateKey, PrivateKeyWithHashAlg};
use tokio::net::UnixStream;

use super::super::failure::printable;
use super::super::wire::Wire;
use super::{Client, Result, StoreError, named, protocol_error};
use crate::credential::SshAuth;
use crate::error::Fault;

/// The longest key file that is read.
const MAX_KEY: u64 = 1 << 20;

/// What can be offered to a host.
pub(super) struct Offer {
    agent: Option<PathBuf>,
    keys: Vec<Key>,
    /// Keys with a passphrase: of use only if the agent holds them.
    locked: Vec<(String, Option<KeyData>)>,
    /// What else is worth telling when no key is taken.
    notes: Vec<String>,
}

struct Key {
    name: String,
    key: Arc<PrivateKey>,
}

enum Loaded {
    Key(Arc<PrivateKey>),
    Locked(Option<KeyData>),
}

impl Offer {
    /// Reads all keys, and refuses at once what can never work.
    pub(super) fn load(auth: &SshAuth) -> Result<Self> {
        let mut offer = Offer { agent: auth.agent.clone(), keys: vec![], locked: vec![], notes: vec![] };
        for (index, text) in auth.keys.iter().enumerate() {
            let name = if auth.keys.len() == 1 { "the SSH key".to_owned() } else { format!("SSH key {}", index + 1) };
            match decode(text.reveal()) {
                Ok(Loaded::Key(key)) => offer.keys.push(Key { name, key }),
                // It comes from a Secret: there is no agent to speak of.
                Ok(Loaded::Locked(_)) => return Err(locked(&name, "a \"ssh-privatekey\" without one")),
                Err(why) => return Err(StoreError::new(Fault::Refused, format!("{name} {why}"))),
            }
        }
        for path in &auth.key_files {
            let name = format!("key {}", named(path));
            match read(path).and_then(|text| decode(&text)) {
                Ok(Loaded::Key(key)) => offer.keys.push(Key { name, key }),
                Ok(Loaded::Locked(public)) => offer.locked.push((name, public)),
                Err(_) if auth.keys_optional && !path.exists() => {}
                Err(why) if auth.keys_optional => offer.notes.push(format!("{name} {why}")),
                Err(why) => return Err(StoreError::new(Fault::Refused, format!("{name} {why}"))),
            }
        }
        if let Some((name, _)) = offer.locked.first()
            && offer.agent.is_none()
            && (offer.keys.is_empty() || !auth.keys_optional)
        {
            return Err(locked(name, "a key without one, or add it to an ssh-agent with ssh-add"));
        }
        Ok(offer)
    }

    /// Offers one key after the other until the host takes one.
    pub(super) async fn log_in(self, wire: &Wire, handle: &mut Handle<Client>, user: &str) -> Result<()> {
        let mut attempt = Attempt { wire, handle, user, tried: vec![], rsa: None };
        let mut notes = self.notes;
        let wanted: Vec<&KeyData> = self
            .keys
            .iter()
            .map(|k| k.key.public_key().key_data())
            .chain(self.locked.iter().filter_map(|(_, public)| public.as_ref()))
            .collect();
        let mut offered: Vec<KeyData> = vec![];
        if let Some(socket) = &self.agent {
            match identities(socket).await {
                Ok((mut agent, mut all)) => {
                    // Hosts count attempts: the keys that the user named come first.
                    all.sort_by_key(|identity| !wanted.contains(&identity.public_key().key_data()));
                    for identity in &all {
                        if attempt.agent_key(&mut agent, identity, &mut notes).await? {
                            return Ok(());
                        }
                        if matches!(identity, AgentIdentity::PublicKey { .. }) {
                            offered.push(identity.public_key().key_data().clone());
                        }
                    }
                }
                Err(why) => notes.push(format!("the ssh-agent at {} cannot be used ({why})", named(socket))),
            }
        }
        for Key { name, key } in self.keys.iter().filter(|k| !offered.contains(k.key.public_key().key_data())) {
            if attempt.key(name, key).await? {
                return Ok(());
            }
        }
        if attempt.tried.is_empty() && attempt.none().await? {
            return Ok(());
        }
        notes.extend(self.locked.iter().map(|(name, _)| format!("{name} has a passphrase, add it to the ssh-agent with ssh-add")));
        Err(attempt.refused(&notes, None))
    }
}

fn locked(name: &str, remedy: &str) -> StoreError {
    StoreError::new(Fault::Refused, format!("{name} has a passphrase, which nobody is asked for: give {remedy}"))
}

/// The state of a login.
struct Attempt<'a> {
    wire: &'a Wire,
    handle: &'a mut Handle<Client>,
    user: &'a str,
    tried: Vec<String>,
    /// Hashes to try RSA keys with, once the host was asked.
    rsa: Option<Vec<Option<HashAlg>>>,
}

impl Attempt<'_> {
    async fn agent_key(&mut self, agent: &mut AgentClient<UnixStream>, identity: &AgentIdentity, notes: &mut Vec<String>) -> Result<bool> {
        let public = identity.public_key().into_owned();
        let name = format!("{} of the ssh-agent", public.fingerprint(HashAlg::Sha256));
        for hash in self.hashes(public.algorithm().is_rsa()).await? {
            let done = match identity {
                AgentIdentity::PublicKey { key, .. } => self.handle.authenticate_publickey_with(self.user, key.clone(), hash, agent).await,
                AgentIdentity::Certificate { certificate, .. } => {
                    self.handle.authenticate_certificate_with(self.user, certificate.clone(), hash, agent).await
                }
            };
            match done {
                Ok(result) => {
                    if self.taken(result, &name)? {
                        return Ok(true);
                    }
                }
                // The agent may hold keys that it does not sign with: locked, or not confirmed.
                Err(e) => notes.push(format!("{name} does not sign ({})", printable(&e.to_string(), 100))),
            }
        }
        Ok(false)
    }

    async fn key(&mut self, name: &str, key: &Arc<PrivateKey>) -> Result<bool> {
        for hash in self.hashes(key.algorithm().is_rsa()).await? {
            let done = self.handle.authenticate_publickey(self.user, PrivateKeyWithHashAlg::new(key.clone(), hash)).await;
            let result = done.map_err(|e| protocol_error(self.wire, e))?;
            if self.taken(result, name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Some hosts serve public repositories to everybody.
    async fn none(&mut self) -> Result<bool> {
        let done = self.handle.authenticate_none(self.user).await;
        Ok(done.map_err(|e| protocol_error(self.wire, e))?.success())
    }

    /// What to sign with. A host that names SHA-512 first may still take only SHA-256, and one that names nothing may take either.
    async fn hashes(&mut self, rsa: bool) -> Result<Vec<Option<HashAlg>>> {
        if !rsa {
            return Ok(vec![None]);
        }
        if self.rsa.is_none() {
            let best = self.handle.best_supported_rsa_hash().await.map_err(|e| protocol_error(self.wire, e))?;
            let (sha512, sha256) = (Some(HashAlg::Sha512), Some(HashAlg::Sha256));
            self.rsa = Some(if best == Some(sha256) { vec![sha256, sha512] } else { vec![sha512, sha256] });
        }
        Ok(self.rsa.clone().unwrap_or_default())
    }

    /// Whether a key was taken; an error when the host takes no more keys.
    fn taken(&mut self, result: AuthResult, name: &str) -> Result<bool> {
        if self.tried.last().is_none_or(|last| last != name) {
            self.tried.push(name.to_owned());
        }
        match result {
            AuthResult::Success => Ok(true),
            AuthResult::Failure { partial_success: true, .. } => Err(self.refused(&[], Some("it wants a second proof beside the key"))),
            AuthResult::Failure { remaining_methods, .. } if remaining_methods.is_empty() || self.handle.is_closed() => {
                Err(self.refused(&[], Some("it ended the connection, perhaps after too many keys")))
            }
            AuthResult::Failure { remaining_methods, .. } if !remaining_methods.contains(&MethodKind::PublicKey) => {
                Err(self.refused(&[], Some("it takes no public keys")))
            }
            AuthResult::Failure { .. } => Ok(false),
        }
    }

    fn refused(&self, notes: &[String], why: Option<&str>) -> StoreError {
        let tried = match self.tried.as_slice() {
            [] => "no key was there to offer".to_owned(),
            tried => format!("offered: {}", tried.join(", ")),
        };
        let notes: String = notes.iter().map(|note| format!("; {note}")).collect();
        let why = why.map(|why| format!("{why}; ")).unwrap_or_default();
        let message = format!(
            "host {} refused to log user {:?} in ({why}{tried}{notes}): give a key that the host knows for this user",
            self.wire.host, self.user
        );
        StoreError::new(Fault::Refused, message)
    }
}

async fn identities(socket: &Path) -> std::result::Result<(AgentClient<UnixStream>, Vec<AgentIdentity>), String> {
    let mut agent = AgentClient::connect_uds(socket).await.map_err(|e| printable(&e.to_string(), 100))?;
    let all = agent.request_identities().await.map_err(|e| printable(&e.to_string(), 100))?;
    Ok((agent, all))
}

fn read(path: &Path) -> std::result::Result<String, String> {
    let mut bytes = vec![];
    let read = File::open(path).and_then(|file| file.take(MAX_KEY).read_to_end(&mut bytes));
    read.map_err(|e| format!("cannot be read: {e}"))?;
    String::from_utf8(bytes).map_err(|_| "is no private key: give one in OpenSSH, PEM or PKCS#8 form".to_owned())
}

/// Decodes a private key. A passphrase is looked for first, since not every format's decoder tells it from damage.
fn decode(text: &str) -> std::result::Result<Loaded, String> {
    // Secrets are often indented or lose their last newline on their way here.
    let text: String = text.lines().map(str::trim).filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect();
    let encrypted_ppk = text.lines().any(|line| line.strip_prefix("Encryption:").is_some_and(|with| with.trim() != "none"));
    if text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED") || encrypted_ppk {
        return Ok(Loaded::Locked(None));
    }
    match keys::decode_secret_key(&text, None) {
        Ok(key) => Ok(Loaded::Key(Arc::new(key))),
        Err(keys::Error::KeyIsEncrypted) => {
            Ok(Loaded::Locked(PrivateKey::from_openssh(&text).ok().map(|key| key.public_key().key_data().clone())))
        }
        // The decoder's words could quote the key.
        Err(_) => match openssh::in_full_length(&text).and_then(|text| keys::decode_secret_key(&text, None).ok()) {
            Some(key) => Ok(Loaded::Key(Arc::new(key))),
            None => Err("is no private key: give one in OpenSSH, PEM or PKCS#8 form, such as ssh-keygen writes".to_owned()),
        },
    }
}

mod openssh;
#[cfg(test)]
mod tests;
