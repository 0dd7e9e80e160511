//! A certificate authority of a test's own, and a server certificate of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;

/// An authority that no system trusts.
#[derive(Debug)]
pub struct TestCa {
    dir: TempDir,
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TestCa {
    /// A new one.
    pub fn new() -> Result<Self> {
        let mut params = CertificateParams::new(Vec::default())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "gitmount tests");
        params.key_usages.extend([KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign]);
        let key = KeyPair::generate()?;
        let pem = params.self_signed(&key)?.pem();
        let dir = crate::scratch::dir()?;
        std::fs::write(dir.path().join("ca.crt"), &pem)?;
        Ok(TestCa { dir, pem, issuer: Issuer::new(params, key) })
    }

    /// Its certificate as PEM.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A file with its certificate.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("ca.crt")
    }

    /// The directory of that file.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The configuration of a server that answers for `names` (DNS names or addresses).
    pub(crate) fn server_config(&self, names: &[&str]) -> Result<Arc<rustls::ServerConfig>> {
        let mut params = CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.distinguished_name.push(DnType::CommonName, "a git server on loopback");
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        params.key_usages.push(KeyUsagePurpose::DigitalSignature);
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())))?;
        Ok(Arc::new(config))
    }
}
