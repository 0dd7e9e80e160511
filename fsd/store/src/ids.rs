//! Ids of objects and commits.

use std::fmt;

pub use gix::ObjectId;

use crate::error::{Fault, Result, StoreError};

/// The id of a commit (never of a tag or tree).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CommitId(ObjectId);

impl CommitId {
    /// Takes an id that is known to name a commit.
    pub fn new(id: ObjectId) -> Self {
        CommitId(id)
    }

    /// Parses a full hexadecimal id: 40 digits (SHA-1) or 64 (SHA-256), lower or upper case.
    pub fn parse(text: &str) -> Result<Self> {
        ObjectId::from_hex(text.as_bytes()).map(CommitId).map_err(|_| {
            StoreError::new(
                Fault::Usage,
                format!("commit {text:?} is no full commit id: give all 40 (SHA-1) or 64 (SHA-256) hexadecimal digits"),
            )
        })
    }

    /// The object id.
    pub fn id(self) -> ObjectId {
        self.0
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
