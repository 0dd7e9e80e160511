//! `Debug` of the messages that carry a credential: it says what there is, and never shows it.

use std::fmt;

use crate::fsd::v1::{Credential, PublishRequest, Ssh, Token, UpdateCredentialRequest, credential};

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

impl fmt::Debug for Ssh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ssh(secret)")
    }
}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.kind {
            None | Some(credential::Kind::Anonymous(_)) => "Credential(anonymous)",
            Some(credential::Kind::Token(_)) => "Credential(token)",
            Some(credential::Kind::Ssh(_)) => "Credential(ssh)",
        })
    }
}

impl fmt::Debug for PublishRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PublishRequest { target, view, credential, volume } = self;
        f.debug_struct("PublishRequest")
            .field("target", target)
            .field("view", view)
            .field("credential", credential)
            .field("volume", volume)
            .finish()
    }
}

impl fmt::Debug for UpdateCredentialRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateCredentialRequest").field("target", &self.target).field("credential", &self.credential).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_prints() {
        let token = Token { username: "u".into(), token: "s3cret".into() };
        let credential = Credential { kind: Some(credential::Kind::Token(token)), ca_crt: String::new() };
        let request = PublishRequest { credential: Some(credential.clone()), ..Default::default() };
        let update = UpdateCredentialRequest { credential: Some(credential), ..Default::default() };
        let shown = format!("{request:?} {update:?} {:?}", Ssh { private_key: "s3cret".into(), known_hosts: String::new() });
        assert!(!shown.contains("s3cret") && shown.contains("token"), "{shown}");
    }
}
