//! The certificates, keys and tokens of a cluster: an authority of its own, the API server's certificate for every name it has, the
//! certificate by which it proves itself to kubelets, the key that signs service accounts' tokens, and a random token for each component.

use std::fs;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// An authority whose certificate is in a file.
pub(super) struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// A new one, whose certificate becomes `dir/ca.crt`.
    pub(super) fn new(dir: &Path) -> Result<Self> {
        fs::create_dir_all(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))?;
        let mut params = CertificateParams::new(Vec::default())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "gitmount test cluster");
        params.key_usages.extend([KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign]);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        fs::write(dir.join("ca.crt"), &pem)?;
        Ok(Authority { pem, issuer: Issuer::new(params, key) })
    }

    /// Writes the certificate `dir/file.crt` of a server with these names, or of a client without any, and its key.
    pub(super) fn sign(&self, dir: &Path, file: &str, names: &[&str]) -> Result<()> {
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, file);
        params.extended_key_usages.push(if names.is_empty() {
            ExtendedKeyUsagePurpose::ClientAuth
        } else {
            ExtendedKeyUsagePurpose::ServerAuth
        });
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        fs::write(dir.join(format!("{file}.crt")), params.signed_by(&key, &self.issuer)?.pem())?;
        fs::write(dir.join(format!("{file}.key")), key.serialize_pem())?;
        Ok(())
    }
}

/// Writes all of it into `dir`, and a kubeconfig for every user (name, user name, groups) at `server`.
pub(super) fn write(dir: &Path, names: &[&str], server: &str, users: &[(String, String, String)]) -> Result<()> {
    let authority = Authority::new(dir)?;
    authority.sign(dir, "apiserver", names)?;
    authority.sign(dir, "kubelet-client", &[])?;
    let accounts = KeyPair::generate()?;
    fs::write(dir.join("accounts.key"), accounts.serialize_pem())?;
    fs::write(dir.join("accounts.pub"), accounts.public_key_pem())?;

    let mut tokens = String::new();
    for (file, user, groups) in users {
        let token = random()?;
        tokens.push_str(&format!("{token},{user},{user},\"{groups}\"\n"));
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority-data": STANDARD.encode(&authority.pem)}}],
            "users": [{"name": user, "user": {"token": token}}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": user}}],
        });
        fs::write(dir.join(format!("{file}.conf")), serde_json::to_vec_pretty(&config)?)?;
    }
    fs::write(dir.join("tokens.csv"), tokens)?;
    Ok(())
}

/// Thirty-two random characters.
pub(crate) fn random() -> Result<String> {
    let mut bytes = [0; 16];
    fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(super::hex(&bytes))
}
