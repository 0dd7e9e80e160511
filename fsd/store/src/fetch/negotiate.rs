//! Tells the host what is here already, so that it sends only the rest.

use gix::negotiate::{Algorithm, Graph, Negotiator};
use gix::protocol::fetch::negotiate::{Action, Round, one_round};
use gix::protocol::fetch::{Arguments, Negotiate, Response};

use crate::error::Fault;
use crate::ids::ObjectId;
use crate::objects::Objects;

/// The wants, and the haves below our own commits.
pub(super) struct Haves<'a> {
    wants: &'a [ObjectId],
    tips: Vec<ObjectId>,
    lead: Option<ObjectId>,
    negotiator: Box<dyn Negotiator>,
    graph: Graph<'a, 'static>,
}

impl<'a> Haves<'a> {
    /// Wants `wants`, has what `tips` lead to, and tells of `lead` before all others.
    pub(super) fn new(wants: &'a [ObjectId], tips: Vec<ObjectId>, lead: Option<ObjectId>, objects: &'a Lookup) -> Self {
        Haves { wants, tips, lead, negotiator: Algorithm::Consecutive.into_negotiator(), graph: Graph::new(objects, None) }
    }
}

impl Negotiate for Haves<'_> {
    fn mark_complete_and_common_ref(&mut self) -> gix::Result<Action> {
        for tip in &self.tips {
            self.negotiator.add_tip(*tip, &mut self.graph)?;
        }
        Ok(Action::MustNegotiate { remote_ref_target_known: vec![false; self.wants.len()] })
    }

    fn add_wants(&mut self, arguments: &mut Arguments, _known: &[bool]) -> bool {
        for want in self.wants {
            arguments.want(want);
        }
        !self.wants.is_empty()
    }

    fn one_round(
        &mut self,
        state: &mut one_round::State,
        arguments: &mut Arguments,
        answer: Option<&Response>,
    ) -> gix::Result<(Round, bool)> {
        if let Some(lead) = self.lead.take() {
            // Told again in its turn, which the host ignores.
            arguments.have(lead);
        }
        one_round(&mut *self.negotiator, &mut self.graph, state, arguments, answer)
    }
}

/// [`Objects`] as gix looks things up.
pub(super) struct Lookup(pub(super) Objects);

impl gix::objs::Find for Lookup {
    fn try_find<'b>(&self, id: &gix::hash::oid, buffer: &'b mut Vec<u8>) -> gix::Result<Option<gix::objs::Data<'b>>> {
        // Parents beyond the boundary are asked for, too: a miss is no reason to list packs again.
        if !self.0.contains_now(id) {
            return Ok(None);
        }
        match self.0.read(id.to_owned(), buffer) {
            Ok(kind) => Ok(Some(gix::objs::Data::new(buffer, kind, self.0.hash()))),
            Err(err) if err.fault() == Fault::Corrupt && !self.0.contains_now(id) => Ok(None),
            Err(err) => Err(gix::Error::from_error(err)),
        }
    }
}
