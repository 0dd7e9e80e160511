//! Which forge sent a request, and whether it knows the secret. Forges copy each other's headers, so the most particular one counts.
//!
//! Sources: the forges' documentation of their webhooks; what Gitea 1.26 sends was seen.

use std::fmt;

use axum::http::HeaderMap;
use base64::Engine as _;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;

/// Where a request comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Forge {
    /// Forgejo.
    Forgejo,
    /// Gitea.
    Gitea,
    /// Gogs.
    Gogs,
    /// GitHub.
    GitHub,
    /// GitLab.
    GitLab,
    /// Bitbucket Cloud and Data Center.
    Bitbucket,
    /// Azure DevOps.
    Azure,
    /// Whoever signs `{"url", "ref"}`.
    Generic,
}

impl fmt::Display for Forge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Forge::Forgejo => "forgejo",
            Forge::Gitea => "gitea",
            Forge::Gogs => "gogs",
            Forge::GitHub => "github",
            Forge::GitLab => "gitlab",
            Forge::Bitbucket => "bitbucket",
            Forge::Azure => "azure",
            Forge::Generic => "generic",
        })
    }
}

/// The header in which the generic form is signed.
pub const GENERIC: &str = "x-gitmount-signature-256";

/// What a request says of itself, before its body is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claimed {
    /// Who sent it.
    pub forge: Forge,
    /// What happened, in the forge's words; empty where the body says it.
    pub event: String,
    proof: Proof,
}

/// How it shows that it knows the secret.
#[derive(Clone, PartialEq, Eq)]
enum Proof {
    /// HMAC-SHA256 of the body, hexadecimal.
    Signature(String),
    /// The secret itself, which need not be text.
    Secret(Vec<u8>),
    None,
}

impl fmt::Debug for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Proof")
    }
}

/// Reads a request's headers.
pub fn claimed(headers: &HeaderMap) -> Claimed {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let signed = |forge, event: &str, name: &str, prefix: &str| {
        let proof = header(name).and_then(|value| value.strip_prefix(prefix)).map_or(Proof::None, |hex| Proof::Signature(hex.to_owned()));
        Claimed { forge, event: event.to_owned(), proof }
    };
    if let Some(event) = header("x-forgejo-event") {
        return signed(Forge::Forgejo, event, "x-forgejo-signature", "");
    }
    if let Some(event) = header("x-gitea-event") {
        return signed(Forge::Gitea, event, "x-gitea-signature", "");
    }
    if let Some(event) = header("x-gogs-event") {
        return signed(Forge::Gogs, event, "x-gogs-signature", "");
    }
    if let Some(event) = header("x-gitlab-event") {
        let proof = headers.get("x-gitlab-token").map_or(Proof::None, |token| Proof::Secret(token.as_bytes().to_vec()));
        return Claimed { forge: Forge::GitLab, event: event.to_owned(), proof };
    }
    if let Some(event) = header("x-event-key") {
        return signed(Forge::Bitbucket, event, "x-hub-signature", "sha256=");
    }
    if let Some(event) = header("x-github-event") {
        return signed(Forge::GitHub, event, "x-hub-signature-256", "sha256=");
    }
    if header(GENERIC).is_some() {
        return signed(Forge::Generic, "", GENERIC, "sha256=");
    }
    if let Some(password) = header("authorization").and_then(basic_password) {
        return Claimed { forge: Forge::Azure, event: String::new(), proof: Proof::Secret(password) };
    }
    Claimed { forge: Forge::Generic, event: String::new(), proof: Proof::None }
}

fn basic_password(value: &str) -> Option<Vec<u8>> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some(decoded[colon + 1..].to_vec())
}

/// The signature of a body that comes in pieces.
#[derive(Clone)]
pub struct Signer(Hmac<Sha256>);

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signer")
    }
}

impl Signer {
    /// Signs with a key of any length.
    pub fn new(key: &[u8]) -> Self {
        Signer(Hmac::new_from_slice(key).unwrap_or_else(|_| unreachable!("HMAC takes keys of any length")))
    }

    /// The next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Whether the body was signed with this key. The time it takes does not depend on what is wrong.
    pub fn verifies(self, claimed: &Claimed, key: &[u8]) -> bool {
        let own = self.0.finalize().into_bytes();
        match &claimed.proof {
            Proof::Signature(hex) => {
                let given = decode(hex);
                bool::from(own.as_slice().ct_eq(&given.unwrap_or_default())) & given.is_some()
            }
            Proof::Secret(secret) => {
                // Of equal length first, so that the length of the key does not show.
                let hash = |text: &[u8]| {
                    let mut mac = Signer::new(key);
                    mac.update(text);
                    mac.0.finalize().into_bytes()
                };
                bool::from(hash(secret).as_slice().ct_eq(hash(key).as_slice()))
            }
            Proof::None => false,
        }
    }
}

fn decode(hex: &str) -> Option<[u8; 32]> {
    let bytes = hex.as_bytes();
    if bytes.len() != 64 {
        return None;
    }
    let mut out = [0; 32];
    for (at, pair) in bytes.chunks_exact(2).enumerate() {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        out[at] = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_bytes(value.as_bytes()).unwrap())).collect()
    }

    fn signature(body: &[u8], key: &[u8]) -> String {
        let mut signer = Signer::new(key);
        signer.update(body);
        signer.0.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn verifies(pairs: &[(&'static str, &str)], body: &[u8], key: &[u8]) -> bool {
        let mut signer = Signer::new(key);
        body.chunks(3).for_each(|piece| signer.update(piece));
        signer.verifies(&claimed(&headers(pairs)), key)
    }

    #[test]
    fn the_most_particular_header_tells_the_forge() {
        let all = [
            ("x-github-event", "push"),
            ("x-hub-signature-256", "sha256=00"),
            ("x-gogs-event", "push"),
            ("x-gitea-event", "push"),
            ("x-forgejo-event", "push"),
        ];
        let forge = |pairs: &[(&'static str, &str)]| claimed(&headers(pairs)).forge;
        assert_eq!(forge(&all), Forge::Forgejo);
        assert_eq!(forge(&all[..4]), Forge::Gitea);
        assert_eq!(forge(&all[..3]), Forge::Gogs);
        assert_eq!(forge(&all[..2]), Forge::GitHub);
        assert_eq!(forge(&[("x-gitlab-event", "Push Hook")]), Forge::GitLab);
        assert_eq!(forge(&[("x-event-key", "repo:push"), ("x-hub-signature", "sha256=00")]), Forge::Bitbucket);
        assert_eq!(forge(&[("authorization", "Basic dTpw")]), Forge::Azure);
        assert_eq!(forge(&[]), Forge::Generic);
    }

    #[test]
    fn each_forges_own_proof_counts_and_no_other() {
        let (body, key) = (&b"{\"ref\": 1}"[..], &b"s3cret"[..]);
        let hex = signature(body, key);
        let prefixed = format!("sha256={hex}");
        let good: [&[(&'static str, &str)]; 8] = [
            &[("x-forgejo-event", "push"), ("x-forgejo-signature", &hex)],
            &[("x-gitea-event", "push"), ("x-gitea-signature", &hex)],
            &[("x-gogs-event", "push"), ("x-gogs-signature", &hex)],
            &[("x-github-event", "push"), ("x-hub-signature-256", &prefixed)],
            &[("x-event-key", "repo:push"), ("x-hub-signature", &prefixed)],
            &[(GENERIC, &prefixed)],
            &[("x-gitlab-event", "Push Hook"), ("x-gitlab-token", "s3cret")],
            &[("authorization", "Basic dTpzM2NyZXQ=")],
        ];
        for pairs in good {
            assert!(verifies(pairs, body, key), "{pairs:?}");
            assert!(!verifies(pairs, body, b"other"), "{pairs:?}");
            if !pairs.iter().any(|(name, _)| ["x-gitlab-token", "authorization"].contains(name)) {
                assert!(!verifies(pairs, b"another body", key), "{pairs:?}");
            }
        }
        for pairs in [
            &[][..],
            &[("x-github-event", "push")],
            &[("x-github-event", "push"), ("x-hub-signature-256", hex.as_str())],
            &[("x-github-event", "push"), ("x-hub-signature-256", "sha256=00")],
            &[("x-github-event", "push"), ("x-hub-signature-256", "sha256=")],
            &[("x-gitlab-event", "Push Hook"), ("x-gitlab-token", "")],
            &[("x-gitlab-event", "Push Hook"), ("x-gitlab-token", "s3cre")],
            // Its own signature is missing, another's is right.
            &[("x-forgejo-event", "push"), ("x-gitea-event", "push"), ("x-gitea-signature", &hex)],
        ] {
            assert!(!verifies(pairs, body, key), "{pairs:?}");
        }
    }

    #[test]
    fn a_secret_that_is_sent_as_it_is_may_have_any_characters() {
        let key = "pässwörd".as_bytes();
        let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode([&b"user:"[..], key].concat()));
        for pairs in [&[("x-gitlab-event", "Push Hook"), ("x-gitlab-token", "pässwörd")][..], &[("authorization", basic.as_str())]] {
            assert!(verifies(pairs, b"{}", key), "{pairs:?}");
            assert!(!verifies(pairs, b"{}", b"passwort"), "{pairs:?}");
        }
    }

    #[test]
    fn the_signature_is_the_documented_one() {
        // The example of GitHub's documentation of webhooks.
        let documented = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
        assert_eq!(signature(b"Hello, World!", b"It's a Secret to Everybody"), documented);
        // The guide's example, signed by openssl.
        let body = br#"{"url":"https://git.example.com/data/franchises.git","ref":"refs/heads/main"}"#;
        let signed = "sha256=8f3f0f87db843491faff5fd3a073161a2fbcfae207841ccf60a76f8cfaa97083";
        assert!(verifies(&[(GENERIC, signed)], body, b"the string you gave"));
    }
}
