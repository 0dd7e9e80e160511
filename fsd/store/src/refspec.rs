//! What a view follows: a branch or tag name, `HEAD`, a full ref name, or a full commit id.

use std::fmt;

use crate::error::{Fault, Result, StoreError};
use crate::ids::CommitId;

#[cfg(test)]
mod tests;

/// Longest ref name that is taken, in bytes.
const MAX_LENGTH: usize = 1024;

/// What a right ref looks like, for messages.
const EXAMPLE: &str =
    "give a branch or tag such as \"main\" or \"v1.2\", a full name such as \"refs/pull/7/head\", HEAD, or a full commit id";

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
    /// Parses `text` by git's rules for ref names (`git check-ref-format`). What looks like a full commit id is one; a branch with such a
    /// name, or one called `HEAD`, is reached by its full name.
    ///
    /// # Errors
    /// [`crate::Fault::Usage`] for anything that is no valid ref name or full id.
    pub fn parse(text: &str) -> Result<Self> {
        if let Err(what) = check(text) {
            let shown: String = text.chars().take(100).collect();
            return Err(StoreError::new(Fault::Usage, format!("ref {shown:?} {what}: {EXAMPLE}")));
        }
        if text == "HEAD" {
            return Ok(RefSpec::Head);
        }
        if matches!(text.len(), 40 | 64) && text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return CommitId::parse(text).map(RefSpec::Commit);
        }
        Ok(if text.starts_with("refs/") { RefSpec::Full(text.into()) } else { RefSpec::Name(text.into()) })
    }

    /// The full ref names that can satisfy this, in order of preference (empty for a commit id).
    pub fn candidates(&self) -> Vec<String> {
        match self {
            RefSpec::Head => vec!["HEAD".into()],
            RefSpec::Name(name) => {
                let mut all = vec![format!("refs/heads/{name}"), format!("refs/tags/{name}")];
                // `heads/main` and `tags/v1` are short names to git, too.
                if name.starts_with("heads/") || name.starts_with("tags/") {
                    all.push(format!("refs/{name}"));
                }
                all
            }
            RefSpec::Full(name) => vec![name.clone()],
            RefSpec::Commit(_) => vec![],
        }
    }
}

impl fmt::Display for RefSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RefSpec::Head => f.write_str("HEAD"),
            RefSpec::Name(name) | RefSpec::Full(name) => f.write_str(name),
            RefSpec::Commit(id) => id.fmt(f),
        }
    }
}

/// The rules of `git check-ref-format --allow-onelevel`, and that of `--branch` that no name starts with a dash.
fn check(name: &str) -> std::result::Result<(), &'static str> {
    let refuse = |bad: bool, what: &'static str| if bad { Err(what) } else { Ok(()) };
    refuse(name.is_empty(), "is empty")?;
    refuse(name.len() > MAX_LENGTH, "is longer than 1024 bytes")?;
    refuse(name.contains('\0'), "contains a NUL")?;
    refuse(name.contains(['\n', '\r']), "contains a newline")?;
    refuse(name.chars().any(char::is_control), "contains a control character")?;
    refuse(name.contains(' '), "contains a space")?;
    refuse(name.contains(['~', '^', ':', '?', '*', '[', '\\']), "contains one of ~ ^ : ? * [ \\, which no ref name can")?;
    refuse(name.starts_with('-'), "starts with a dash and could be taken for an option")?;
    refuse(name == "@", "is \"@\"")?;
    refuse(name.contains("@{"), "contains \"@{\"")?;
    refuse(name.contains(".."), "contains \"..\"")?;
    refuse(name.ends_with('.'), "ends with a dot")?;
    refuse(name.split('/').any(str::is_empty), "starts or ends with a slash, or has two in a row")?;
    refuse(name.split('/').any(|part| part.starts_with('.')), "has a part that starts with a dot")?;
    refuse(name.split('/').any(|part| part.ends_with(".lock")), "has a part that ends with \".lock\"")
}
