//! Packs on their way in: received from a host and indexed, or copied together from packs that are here. Either way the pack becomes part
//! of the repository in one step, after it and its index are on the disk, and every object of it has been hashed or copied with its
//! checksum.

use std::sync::atomic::AtomicU64;

mod copy;
mod index;
mod input;
mod output;
mod receive;
mod resolve;
#[cfg(test)]
mod tests;

pub(crate) use copy::copy;
pub(crate) use receive::receive;

/// A pack that became part of the repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NewPack {
    /// Its file.
    pub(crate) path: std::path::PathBuf,
    /// Whether it is new; else exactly this pack was there already.
    pub(crate) fresh: bool,
    /// How many objects it has.
    pub(crate) objects: u64,
}

/// How far the work is, for whoever looks.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Bytes of the pack received.
    pub(crate) received: AtomicU64,
    /// Objects seen, and how many the pack has (0: not known yet).
    pub(crate) indexed: AtomicU64,
    pub(crate) objects: AtomicU64,
    /// Deltas resolved, and how many there are.
    pub(crate) resolved: AtomicU64,
    pub(crate) deltas: AtomicU64,
}
