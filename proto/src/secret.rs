//! `Debug` of the messages that carry a credential: it says what there is, and never shows it.

use std::fmt;

use crate::csi::v1::{NodePublishVolumeRequest, NodeStageVolumeRequest};
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
        let PublishRequest { target, view, credential, volume, one_credential, staged, keep_credential } = self;
        f.debug_struct("PublishRequest")
            .field("target", target)
            .field("view", view)
            .field("credential", credential)
            .field("volume", volume)
            .field("one_credential", one_credential)
            .field("staged", staged)
            .field("keep_credential", keep_credential)
            .finish()
    }
}

impl fmt::Debug for UpdateCredentialRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateCredentialRequest").field("target", &self.target).field("credential", &self.credential).finish()
    }
}

impl fmt::Debug for NodeStageVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodeStageVolumeRequest({} at {})", self.volume_id, self.staging_target_path)
    }
}

impl fmt::Debug for NodePublishVolumeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NodePublishVolumeRequest({} at {})", self.volume_id, self.target_path)
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
        let secrets: std::collections::HashMap<_, _> = [("token".to_owned(), "s3cret".to_owned())].into();
        let stage = NodeStageVolumeRequest { secrets: secrets.clone(), ..Default::default() };
        let shown = format!("{stage:?} {:?}", NodePublishVolumeRequest { secrets, ..Default::default() });
        assert!(!shown.contains("s3cret"), "{shown}");
    }
}
