//! A connection to the host that has shaken hands.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::bstr::{BString, ByteSlice};
use gix::progress::Discard;
use gix::protocol::Handshake;
use gix::protocol::handshake::Ref;
use gix::protocol::transport::{Protocol, Service};

use crate::credential::Auth;
use crate::error::{Fault, Result, StoreError};
use crate::repository::Repository;
use crate::transport::{self, Connection, RemoteRef};
use crate::url::RepoUrl;

/// How the program names itself to hosts.
const AGENT: &str = concat!("gitmount/", env!("CARGO_PKG_VERSION"));

pub(super) struct Remote<'a> {
    pub(super) url: &'a RepoUrl,
    pub(super) connection: Connection,
    pub(super) handshake: Handshake,
    pub(super) stop: &'a Arc<AtomicBool>,
}

impl<'a> Remote<'a> {
    pub(super) fn connect(repository: &'a Repository, auth: &Auth, stop: &'a Arc<AtomicBool>) -> Result<Self> {
        let url = repository.url();
        let mut connection = transport::connect(url, auth, repository.net(), stop)?;
        let handshake = gix::protocol::handshake(&mut connection.transport, Service::UploadPack, |_| Ok(None), Vec::new(), &mut Discard)
            .map_err(|err| failed(&err, &connection, url, stop))?;
        Ok(Remote { url, connection, handshake, stop })
    }

    /// The hash of the host's repository.
    pub(super) fn hash(&self) -> gix::hash::Kind {
        let format = self.handshake.capabilities.capability("object-format").and_then(|format| format.value().map(BString::from));
        // Hosts from before there was a choice do not say.
        format.and_then(|format| format.to_str().ok().and_then(|format| format.parse().ok())).unwrap_or(gix::hash::Kind::Sha1)
    }

    /// The refs below `prefixes`; with protocol V0, where the host lists them unasked, all of them.
    pub(super) fn ls_refs(&mut self, prefixes: &[String]) -> Result<Vec<RemoteRef>> {
        let refs = match &self.handshake.refs {
            Some(refs) => refs.clone(),
            None => {
                let mut wanted = gix::protocol::ls_refs::RefPrefixes::new();
                wanted.extend(prefixes.iter().map(|prefix| BString::from(prefix.as_str())));
                gix::protocol::LsRefsCommand::new(Some(wanted), &self.handshake.capabilities, agent())
                    .invoke_blocking(&mut self.connection.transport, &mut Discard, false)
                    .map_err(|err| failed(&err, &self.connection, self.url, self.stop))?
            }
        };
        Ok(refs.into_iter().filter_map(listed).collect())
    }

    /// Tells the host that this is all; how that goes does not matter any more.
    pub(super) fn finish(mut self) {
        if self.handshake.server_protocol_version == Protocol::V2 {
            let _ = gix::protocol::indicate_end_of_interaction(&mut self.connection.transport, false);
        }
    }
}

pub(super) fn agent() -> gix::protocol::command::Feature {
    ("agent", Some(AGENT.to_owned()))
}

/// What a failure of gix's amounts to.
pub(super) fn failed(err: &(dyn std::error::Error + 'static), connection: &Connection, url: &RepoUrl, stop: &AtomicBool) -> StoreError {
    let classified = transport::classify(err, &connection.failure, url);
    if stop.load(Ordering::Relaxed) && classified.fault() != Fault::Cancelled {
        return StoreError::new(Fault::Cancelled, format!("the fetch of {url} was cancelled")).caused_by(classified);
    }
    classified
}

fn listed(found: Ref) -> Option<RemoteRef> {
    let text = |name: BString| String::from_utf8(name.into()).ok();
    Some(match found {
        Ref::Direct { full_ref_name, object } => RemoteRef { name: text(full_ref_name)?, id: object, peeled: None, symref: None },
        Ref::Peeled { full_ref_name, tag, object } => RemoteRef { name: text(full_ref_name)?, id: tag, peeled: Some(object), symref: None },
        Ref::Symbolic { full_ref_name, target, tag, object } => RemoteRef {
            name: text(full_ref_name)?,
            id: tag.unwrap_or(object),
            peeled: tag.is_some().then_some(object),
            symref: text(target),
        },
        Ref::Unborn { .. } => return None,
    })
}
