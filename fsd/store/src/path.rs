//! A path inside a repository, as raw bytes.

use bstr::{BStr, BString, ByteSlice};

use crate::error::{Fault, Result, StoreError};

/// A relative path inside a tree: no empty, `.` or `..` segment, no NUL; the empty path is the root.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RepoPath(BString);

impl RepoPath {
    /// Parses a path; one trailing slash is fine.
    ///
    /// # Errors
    /// [`Fault::Usage`] for a leading slash, a NUL, and for empty, `.` and `..` segments.
    pub fn parse(text: impl AsRef<[u8]>) -> Result<Self> {
        let raw = text.as_ref();
        let bytes = raw.strip_suffix(b"/").unwrap_or(raw);
        let shown = raw.as_bstr();
        let refuse = |what: &str| {
            Err(StoreError::new(Fault::Usage, format!("path {shown:?} {what}: give a directory of the repository such as \"docs/api\"")))
        };
        if bytes.is_empty() {
            return if raw.is_empty() { Ok(RepoPath::default()) } else { refuse("starts with a slash") };
        }
        if bytes.starts_with(b"/") {
            return refuse("starts with a slash");
        }
        if bytes.contains(&0) {
            return refuse("contains a NUL");
        }
        if bytes.split_str("/").any(|s| s.is_empty() || s == b"." || s == b"..") {
            return refuse("has an empty, \".\" or \"..\" segment");
        }
        Ok(RepoPath(bytes.into()))
    }

    /// The path without leading or trailing slash; empty for the root.
    pub fn as_bstr(&self) -> &BStr {
        self.0.as_bstr()
    }

    /// Whether this is the root of the tree.
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The names along the path, outermost first.
    pub fn segments(&self) -> impl Iterator<Item = &BStr> {
        self.0.split_str("/").filter(|s| !s.is_empty()).map(ByteSlice::as_bstr)
    }
}
