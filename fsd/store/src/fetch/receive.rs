//! Receives a pack: negotiation, the pack into the object store, what the host says about the boundary.

use std::io::{BufRead, Read};
use std::sync::Arc;

use gix::protocol::fetch::response::ShallowUpdate;
use gix::protocol::fetch::{Context, Options, Shallow, Tags};

use super::monitor::{self, Counters, Gix};
use super::negotiate::{Haves, Lookup};
use super::remote::{Remote, agent, failed};
use super::{Fetch, Phase};
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::maintenance::heal;
use crate::packing::{self, NewPack};
use crate::points;
use crate::repository::shallow::Boundary;
use crate::repository::{Repository, durable, shallow};
use crate::transport::Talk;

/// What came. The objects are durable already; nothing refers to them yet.
pub(super) struct Received {
    /// The pack, when there was any object.
    pub(super) pack: Option<NewPack>,
    /// What the host says about where the history is cut.
    pub(super) shallow: Vec<ShallowUpdate>,
    /// The commits whose history ends with them, although the host sent their parents.
    pub(super) cut: Option<Boundary>,
}

impl Received {
    /// Whether there was any object.
    pub(super) fn any(&self) -> bool {
        self.pack.is_some()
    }

    /// Removes the pack again.
    pub(super) fn discard(&self, repository: &Repository) -> Result<()> {
        if let Some(pack) = self.pack.as_ref().filter(|pack| pack.fresh) {
            // Without its index a pack is no part of the repository.
            for extension in ["idx", points::EXTENSION] {
                durable::remove(&pack.path.with_extension(extension))?;
            }
            durable::remove(&pack.path)?;
            repository.objects().relist()?;
        }
        Ok(())
    }
}

impl Remote<'_> {
    /// Receives `wants` with `depth` commits of history (0: all of it). Of what is here the host is told of `lead` first.
    pub(super) fn receive(&mut self, fetch: &Fetch<'_>, wants: &[ObjectId], depth: u32, lead: Option<ObjectId>) -> Result<Received> {
        fetch.progress.update(Phase::Negotiating, 0, None);
        monitor::watch(fetch.progress, |counters| self.receive_counted(fetch, wants, depth, lead, counters))
    }

    fn receive_counted(
        &mut self,
        fetch: &Fetch<'_>,
        wants: &[ObjectId],
        depth: u32,
        lead: Option<ObjectId>,
        counters: &Arc<Counters>,
    ) -> Result<Received> {
        let repository = fetch.repository;
        let objects = repository.objects();
        objects.relist()?;
        let boundary = repository.boundary()?;
        let mut tips: Vec<ObjectId> = repository.tips()?.into_iter().filter(|tip| objects.contains_now(tip)).collect();
        if fetch.damaged {
            tips = heal::whole_tips(repository, &tips, self.stop)?;
        }
        // gix writes the shallow file by itself, not durably and before we had a look: it gets a copy.
        let scratch = tempfile::Builder::new()
            .prefix(".tmp-")
            .tempdir_in(repository.git_dir())
            .map_err(|err| durable::disk(repository.git_dir(), "written", err))?;
        let shallow_file = scratch.path().join("shallow");
        shallow::write_copy(&shallow_file, &boundary)?;
        let shallow = match std::num::NonZeroU32::new(depth) {
            Some(depth) => Shallow::DepthAtRemote(depth),
            None if boundary.is_empty() => Shallow::NoChange,
            None => Shallow::undo(),
        };
        let lookup = Lookup(objects.clone());
        let talk = Arc::clone(&self.connection.talk);
        let mut pack = None;
        let mut own_error = None;
        let lead = lead.filter(|lead| tips.contains(lead));
        let mut haves = Haves::new(wants, tips, lead, &lookup);
        let outcome = gix::protocol::fetch(
            &mut haves,
            |stream, _progress, stop| {
                let mut stream = Told { stream, talk: &talk };
                match packing::receive(&mut stream, &repository.pack_dir(), &objects, &counters.pack, stop) {
                    Ok(received) => {
                        pack = received;
                        Ok(true)
                    }
                    Err(err) => {
                        let shown = gix::Error::from_error(std::io::Error::other(err.to_string()));
                        own_error = Some(err);
                        Err(shown)
                    }
                }
            },
            Gix::new(counters),
            self.stop,
            Context {
                handshake: &mut self.handshake,
                transport: &mut self.connection.transport,
                user_agent: agent(),
                trace_packetlines: false,
            },
            Options { shallow_file, shallow: &shallow, tags: Tags::None, reject_shallow_remote: false },
        );
        match outcome {
            Ok(outcome) => {
                let shallow = outcome.map(|outcome| outcome.last_response.shallow_updates().to_vec()).unwrap_or_default();
                Ok(Received { pack, shallow, cut: None })
            }
            Err(err) => {
                Received { pack, shallow: Vec::new(), cut: None }.discard(repository)?;
                let below = self.connection.failure.lock().is_ok_and(|failure| failure.is_some());
                let classified = failed(&err, &self.connection, self.url, self.stop);
                if own_error.as_ref().is_some_and(is_refusal) {
                    let message = format!("host of {} does not give what was asked for by its id", self.url);
                    return Err(StoreError::new(Fault::NotFound, message).caused_by(classified));
                }
                Err(match own_error {
                    // The transport's own failure, or the user's, came first; else what the pack says is most telling.
                    Some(own) if !below && !matches!(classified.fault(), Fault::Unreachable | Fault::Cancelled | Fault::Refused) => own,
                    _ => classified,
                })
            }
        }
    }
}

/// The stream of a pack, of which the transport is told.
struct Told<'a> {
    stream: &'a mut dyn BufRead,
    talk: &'a Talk,
}

impl Read for Told<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let count = self.fill_buf()?.read(out)?;
        self.consume(count);
        Ok(count)
    }
}

impl BufRead for Told<'_> {
    fn fill_buf(&mut self) -> std::io::Result<&[u8]> {
        let bytes = self.stream.fill_buf()?;
        if !bytes.is_empty() {
            self.talk.objects_came();
        }
        Ok(bytes)
    }

    fn consume(&mut self, amount: usize) {
        self.stream.consume(amount);
    }
}

/// Whether a pack could not be read because the host said `ERR` instead: with protocol V0 gix takes any line that is no acknowledgement for
/// the beginning of the pack, and then tells of its first byte only.
fn is_refusal(error: &StoreError) -> bool {
    const INSTEAD: &str = "non-side channel line or input was malformed: 69";
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if error.to_string().contains(INSTEAD) {
            return true;
        }
        next = error.source();
    }
    false
}
