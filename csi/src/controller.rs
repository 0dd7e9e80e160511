//! The webhook controller: it turns a forge's push into a demand, which every node that holds the volume sees.
//!
//! - [`webhook`]: the requests: who may, how much, how long.
//! - [`forge`], [`payload`], [`repository`]: who sent it, what it says, and which volumes that concerns.
//! - [`volumes`]: the read-only volumes that there are, and their demands.
//! - [`secrets`]: the one Secret that a request names.
//! - [`lease`]: the demand at the start, made by one of the replicas.
//! - [`metrics`]: what was asked, and what came of it.
//!
//! Promises: a request that does not know its Secret's value marks nothing and learns nothing, not even whether there is such a Secret; a
//! Secret of one namespace never marks the volumes of another; memory is bounded whatever comes.

pub mod forge;
pub mod lease;
pub mod metrics;
pub mod payload;
pub mod repository;
pub mod secrets;
pub mod volumes;
pub mod webhook;
