//! HTTP clients with their connection pools: one per host, trust and way out, so that connections are reused between polls and never shared
//! between repositories that trust differently.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lru::LruCache;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

use super::super::failure::lock;
use super::super::{AGENT, NetOptions};
use crate::credential::Auth;
use crate::error::{Fault, Result, StoreError};
use crate::url::RepoUrl;

/// How many clients are kept.
const KEPT: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not 0");

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    origin: (&'static str, String),
    ca: Option<String>,
    only_ca: bool,
    proxy: bool,
    connect: Duration,
}

/// The client for the host of `url`.
pub(super) fn client(url: &RepoUrl, auth: &Auth, net: &NetOptions) -> Result<reqwest::Client> {
    static CLIENTS: OnceLock<Mutex<LruCache<Key, reqwest::Client>>> = OnceLock::new();
    let key = Key {
        origin: (url.scheme().name(), url.authority()),
        ca: auth.ca.clone(),
        only_ca: auth.only_ca,
        proxy: net.proxy_from_env,
        connect: net.connect,
    };
    let mut clients = lock(CLIENTS.get_or_init(|| Mutex::new(LruCache::new(KEPT))));
    if let Some(client) = clients.get(&key) {
        return Ok(client.clone());
    }
    let mut builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls(auth)?)
        .user_agent(AGENT)
        .connect_timeout(net.connect)
        .pool_max_idle_per_host(2)
        .tcp_keepalive(Duration::from_secs(30))
        // Redirects are followed one by one in `Session::send`, which knows where a login may go.
        .redirect(reqwest::redirect::Policy::none())
        .referer(false);
    if !net.proxy_from_env {
        builder = builder.no_proxy();
    }
    let client = builder.build().map_err(|e| {
        let cause = super::super::failure::root_cause(&e);
        StoreError::new(Fault::Usage, format!("the HTTP client could not be set up: {cause} (are the proxy variables right?)")).caused_by(e)
    })?;
    clients.put(key, client.clone());
    Ok(client)
}

fn tls(auth: &Auth) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    if !auth.only_ca {
        roots = RootCertStore::clone(system_roots());
    }
    if let Some(pem) = &auth.ca {
        for certificate in certificates(pem)? {
            roots.add(certificate).map_err(|e| bad_ca(&format!("holds a certificate that cannot be read ({e})")))?;
        }
    } else if auth.only_ca {
        return Err(bad_ca("is missing, and nothing else is to be trusted"));
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let versions = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = versions.expect("ring offers ciphers for TLS 1.2 and 1.3").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    let all: std::result::Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match all {
        Ok(all) if !all.is_empty() => Ok(all),
        _ => Err(bad_ca("holds no PEM certificate")),
    }
}

fn bad_ca(what: &str) -> StoreError {
    let message = format!("the CA certificate {what}: give PEM text that starts with \"-----BEGIN CERTIFICATE-----\"");
    StoreError::new(Fault::Usage, message)
}

/// The system's trusted roots (or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name), read once.
fn system_roots() -> &'static RootCertStore {
    static ROOTS: OnceLock<RootCertStore> = OnceLock::new();
    ROOTS.get_or_init(|| {
        let found = rustls_native_certs::load_native_certs();
        for error in &found.errors {
            tracing::warn!(%error, "some of the system's root certificates cannot be read");
        }
        let mut roots = RootCertStore::empty();
        let (_, unusable) = roots.add_parsable_certificates(found.certs);
        if roots.is_empty() {
            tracing::warn!(unusable, "no root certificates found on this system: no https host will be trusted without a CA of its own");
        }
        roots
    })
}
