//! What of a Secret is presented to the host. The names are those of `volumes.md`; a Secret's other keys mean nothing here.
//!
//! Promises: no value of a Secret is in an error.

use std::collections::HashMap;

use gitmount_proto::fsd::v1 as fsd;
use gitmount_proto::fsd::v1::credential::Kind;

use super::Refusal;

/// How a URL is fetched, as far as a credential is concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Ssh,
    Http,
    /// `git://` and what the daemon will refuse.
    Other,
}

/// The credential in a Secret's values; `None` when there is no Secret (or an empty one, which looks the same).
///
/// # Errors
/// When none of its keys is of use, or not for this URL.
pub fn parse(secrets: &HashMap<String, String>, url: &str) -> Result<Option<fsd::Credential>, Refusal> {
    if secrets.is_empty() {
        return Ok(None);
    }
    // A line end at the end comes from `echo` and editors and is part of no password.
    let text = |key: &str| secrets.get(key).map(|value| value.trim_end_matches(['\n', '\r'])).filter(|value| !value.is_empty());
    let private_key = ["ssh-privatekey", "identity"].iter().find_map(|key| secrets.get(*key).filter(|value| !value.trim().is_empty()));
    let password = text("token").or_else(|| text("password"));
    let ca_crt = secrets.get("ca.crt").cloned().unwrap_or_default();
    let ssh = private_key
        .map(|key| Kind::Ssh(fsd::Ssh { private_key: key.clone(), known_hosts: secrets.get("known_hosts").cloned().unwrap_or_default() }));
    let token = password
        .map(|password| Kind::Token(fsd::Token { username: text("username").unwrap_or_default().to_owned(), token: password.to_owned() }));
    let kind = match (way(url), ssh, token) {
        (Way::Ssh, Some(ssh), _) => Some(ssh),
        (Way::Http, _, Some(token)) => Some(token),
        (Way::Other, ssh, token) if ssh.is_some() || token.is_some() => {
            return Err(Refusal(format!(
                "the Secret has a credential, which {} cannot present: give an https:// or ssh:// URL, or no Secret",
                scheme(url)
            )));
        }
        (Way::Ssh, None, Some(_)) => {
            return Err(Refusal(
                "the Secret has a token, but the URL is fetched by SSH: give the key \"ssh-privatekey\", or an https:// URL".into(),
            ));
        }
        (Way::Http, Some(_), None) => {
            return Err(Refusal(
                "the Secret has an SSH key, but the URL is fetched by HTTPS: give the key \"token\", or an ssh:// URL".into(),
            ));
        }
        _ if !ca_crt.trim().is_empty() => None,
        _ => return Err(Refusal(no_use(secrets))),
    };
    Ok(Some(fsd::Credential { kind, ca_crt }))
}

fn no_use(secrets: &HashMap<String, String>) -> String {
    let mut keys: Vec<_> = secrets.keys().map(|key| format!("{key:?}")).collect();
    keys.sort_unstable();
    keys.truncate(5);
    format!(
        "the Secret has no key of use (it has {}): give \"ssh-privatekey\" for SSH, or \"token\" or \"username\" and \"password\" for HTTPS",
        keys.join(", ")
    )
}

fn scheme(url: &str) -> &str {
    url.split_once("://").map_or("the URL", |(scheme, _)| scheme)
}

fn way(url: &str) -> Way {
    match url.split_once("://") {
        Some(("ssh", _)) => Way::Ssh,
        Some(("https" | "http", _)) => Way::Http,
        Some(_) => Way::Other,
        // The scp form, `user@host:path`.
        None => Way::Ssh,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HTTPS: &str = "https://example.com/a.git";
    const SSH: &str = "git@example.com:a.git";

    fn given(pairs: &[(&str, &str)], url: &str) -> Result<Option<fsd::Credential>, Refusal> {
        parse(&pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(), url)
    }

    fn token(pairs: &[(&str, &str)]) -> fsd::Token {
        match given(pairs, HTTPS).unwrap().unwrap().kind.unwrap() {
            Kind::Token(token) => token,
            _ => panic!("no token"),
        }
    }

    #[test]
    fn every_documented_form_is_read() {
        assert!(given(&[], HTTPS).unwrap().is_none());
        assert_eq!(token(&[("token", "t\n")]), fsd::Token { username: String::new(), token: "t".into() });
        assert_eq!(token(&[("username", "u\n"), ("password", "p\r\n")]), fsd::Token { username: "u".into(), token: "p".into() });
        assert_eq!(token(&[("username", "u"), ("token", "t"), ("ssh-privatekey", "k")]).token, "t", "by the URL, when it has both");
        for key in ["ssh-privatekey", "identity"] {
            let credential = given(&[(key, "k\n"), ("known_hosts", "h")], "ssh://git@example.com/a.git").unwrap().unwrap();
            assert!(credential.kind == Some(Kind::Ssh(fsd::Ssh { private_key: "k\n".into(), known_hosts: "h".into() })));
        }
        let credential = given(&[("ca.crt", "c")], HTTPS).unwrap().unwrap();
        assert!(credential.kind.is_none() && credential.ca_crt == "c", "a private CA alone is enough for a public repository");
    }

    #[test]
    fn what_is_of_no_use_is_refused_by_name_and_no_value_is_shown() {
        for (pairs, url, word) in [
            (&[("pasword", "s3cret")][..], HTTPS, "pasword"),
            (&[("username", "s3cret")], HTTPS, "username"),
            (&[("token", " \n"), ("known_hosts", "s3cret")], SSH, "ssh-privatekey"),
            (&[("token", "s3cret")], SSH, "ssh-privatekey"),
            (&[("ssh-privatekey", "s3cret")], HTTPS, "token"),
            (&[("token", "s3cret")], "git://example.com/a.git", "git"),
            (&[("token", "")], HTTPS, "token"),
        ] {
            let said = given(pairs, url).unwrap_err().0;
            assert!(said.contains(word) && !said.contains("s3cret"), "{said}");
        }
    }
}
