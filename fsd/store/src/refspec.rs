//! What a view follows: a branch or tag name, `HEAD`, a full ref name, or a full commit id.

use crate::error::Result;
use crate::ids::CommitId;

/// A parsed `ref`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum RefSpec {
    /// `HEAD`: the host's default branch.
    Head,
    /// A short name: the branch of that name, else the tag.
    Name(String),
    /// A full name that starts with `refs/`.
    Full(String),
    /// A full commit id; never fetched again once present.
    Commit(CommitId),
}

impl RefSpec {
    /// Parses `text` by git's rules for ref names (`git check-ref-format`).
    ///
    /// # Errors
    /// [`crate::Fault::Usage`] for anything that is no valid ref name or full id.
    pub fn parse(text: &str) -> Result<Self> {
        let _ = text;
        todo!()
    }

    /// The full ref names that can satisfy this, in order of preference (empty for a commit id).
    pub fn candidates(&self) -> Vec<String> {
        todo!()
    }
}

impl std::fmt::Display for RefSpec {
    fn fmt(&self, _f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        todo!()
    }
}
