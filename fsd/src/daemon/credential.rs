//! What a view presents to its host. It lives in memory only; a salted fingerprint tells one credential from another.

use std::fmt;

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::credential::{Auth, HostKeys, HttpAuth, Login, Secret, SshAuth};
use gitmount_store::error::Result;
use gitmount_store::{Fault, StoreError};
use sha2::{Digest, Sha256};

/// Longer texts are no credential.
const LONGEST: usize = 48 << 10;

/// Tells credentials apart without telling what they are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(String);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A credential.
#[derive(Clone)]
pub struct Credential {
    auth: Auth,
    fingerprint: Fingerprint,
    anonymous: bool,
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", if self.anonymous { "anonymous" } else { "secret" })
    }
}

impl Credential {
    /// Checks what a caller brought; `salt` is this daemon's own.
    ///
    /// # Errors
    /// `Usage`; the message never repeats a secret.
    pub fn parse(credential: Option<&proto::Credential>, salt: &[u8]) -> Result<Self> {
        let empty = proto::Credential::default();
        let proto::Credential { kind, ca_crt } = credential.unwrap_or(&empty);
        let mut auth = Auth { ca: Some(ca_crt.clone()).filter(|ca| !ca.is_empty()), ..Auth::default() };
        if !ca_crt.is_empty() && !ca_crt.contains("-----BEGIN CERTIFICATE-----") {
            return Err(usage("ca.crt is no PEM certificate: give text that begins with \"-----BEGIN CERTIFICATE-----\""));
        }
        let parts: Vec<&str> = match kind {
            None | Some(proto::credential::Kind::Anonymous(_)) => vec!["anonymous"],
            Some(proto::credential::Kind::Token(token)) => {
                let username = if token.username.is_empty() { "git" } else { &token.username };
                check("username", username, "the name that the host knows, or leave it out")?;
                check("token", &token.token, "the token alone, without a line end")?;
                if username.contains(':') {
                    return Err(usage("username has a colon in it, which basic authentication cannot carry: give it without"));
                }
                auth.http = HttpAuth::Login(Login { username: username.to_owned(), password: Secret::new(token.token.clone()) });
                vec!["token", username, &token.token]
            }
            Some(proto::credential::Kind::Ssh(ssh)) => {
                if ssh.private_key.trim().is_empty() || ssh.private_key.len() > LONGEST {
                    return Err(usage("ssh-privatekey is empty or too long: give a private key as ssh-keygen writes it"));
                }
                if ssh.known_hosts.len() > LONGEST {
                    return Err(usage("known_hosts is too long: give the lines of the repository's host"));
                }
                auth.ssh = SshAuth {
                    keys: vec![Secret::new(ssh.private_key.clone())],
                    keys_optional: false,
                    host_keys: if ssh.known_hosts.trim().is_empty() { HostKeys::FirstUse } else { HostKeys::Text(ssh.known_hosts.clone()) },
                    ..SshAuth::default()
                };
                vec!["ssh", &ssh.private_key, &ssh.known_hosts]
            }
        };
        let anonymous = parts == ["anonymous"];
        let fingerprint = if anonymous && ca_crt.is_empty() { "anonymous".to_owned() } else { fingerprint(&parts, ca_crt, salt) };
        Ok(Credential { auth, fingerprint: Fingerprint(fingerprint), anonymous })
    }

    /// Nothing is presented.
    pub fn anonymous() -> Self {
        Credential { auth: Auth::default(), fingerprint: Fingerprint("anonymous".into()), anonymous: true }
    }

    /// What a fetch presents.
    pub fn auth(&self) -> &Auth {
        &self.auth
    }

    /// Its fingerprint.
    pub fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Whether it can be had again without being told: it is nothing at all.
    pub fn is_nothing(&self) -> bool {
        self.anonymous && self.auth.ca.is_none()
    }
}

fn check(name: &str, value: &str, right: &str) -> Result<()> {
    if value.is_empty() || value.len() > LONGEST || value.chars().any(char::is_control) {
        return Err(usage(format!("{name} is empty, too long or has control characters: give {right}")));
    }
    Ok(())
}

fn fingerprint(parts: &[&str], ca: &str, salt: &[u8]) -> String {
    let mut hash = Sha256::new();
    hash.update(salt);
    for part in parts.iter().chain([&ca]) {
        // With its length, so that no two lists of parts run together to the same bytes.
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    super::state::hex(&hash.finalize()[..16])
}

fn usage(message: impl Into<String>) -> StoreError {
    StoreError::new(Fault::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(username: &str, token: &str) -> proto::Credential {
        let token = proto::Token { username: username.into(), token: token.into() };
        proto::Credential { kind: Some(proto::credential::Kind::Token(token)), ca_crt: String::new() }
    }

    fn parse(credential: &proto::Credential) -> Result<Credential> {
        Credential::parse(Some(credential), b"salt")
    }

    #[test]
    fn equal_credentials_have_equal_fingerprints_and_others_have_not() {
        let print = |c: &proto::Credential| parse(c).unwrap().fingerprint().clone();
        let base = token("git", "s3cret");
        assert_eq!(print(&base), print(&token("", "s3cret")));
        for other in [token("git", "other"), token("gits", "3cret"), proto::Credential { ca_crt: CA.into(), ..base.clone() }] {
            assert_ne!(print(&base), print(&other));
        }
        let elsewhere = Credential::parse(Some(&base), b"pepper").unwrap();
        assert_ne!(&print(&base), elsewhere.fingerprint(), "another node has another salt");
        assert_eq!(Credential::parse(None, b"salt").unwrap().fingerprint(), Credential::anonymous().fingerprint());
    }

    const CA: &str = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n";

    #[test]
    fn what_is_no_credential_is_refused_by_its_name_and_never_shown() {
        let ssh = |key: &str| proto::Credential {
            kind: Some(proto::credential::Kind::Ssh(proto::Ssh { private_key: key.into(), known_hosts: String::new() })),
            ca_crt: String::new(),
        };
        for (bad, name) in [
            (token("git", ""), "token"),
            (token("git", "s3cret\n"), "token"),
            (token("a:b", "s3cret"), "username"),
            (ssh(" "), "ssh-privatekey"),
            (proto::Credential { ca_crt: "s3cret".into(), ..Default::default() }, "ca.crt"),
        ] {
            let error = parse(&bad).unwrap_err();
            assert!(error.to_string().contains(name) && !error.to_string().contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_secret_does_not_print() {
        assert!(!format!("{:?}", parse(&token("git", "s3cret")).unwrap()).contains("s3cret"));
    }
}
