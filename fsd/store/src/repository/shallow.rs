//! The `shallow` file: the commits whose parents were not fetched. Kept as small as what is in use needs it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::durable;
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;

/// Where the history of a repository ends before its root commits.
pub(crate) type Boundary = BTreeSet<ObjectId>;

pub(crate) fn path(git_dir: &Path) -> PathBuf {
    git_dir.join("shallow")
}

/// Reads the boundary; empty for a repository with full history.
pub(crate) fn read(path: &Path) -> Result<Boundary> {
    let text = match std::fs::read(path) {
        Ok(text) => text,
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(Boundary::new()),
        Err(err) => return Err(durable::disk(path, "read", err)),
    };
    let ids = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(ObjectId::from_hex);
    ids.collect::<std::result::Result<_, _>>()
        .map_err(|err| StoreError::new(Fault::Corrupt, format!("file {} is malformed", path.display())).caused_by(err))
}

/// Replaces the boundary.
pub(crate) fn write(path: &Path, boundary: &Boundary) -> Result<()> {
    if boundary.is_empty() {
        return durable::remove(path);
    }
    durable::write(path, text(boundary).as_bytes())
}

/// Writes a boundary for a moment's use: not in one step, and not durably.
pub(crate) fn write_copy(path: &Path, boundary: &Boundary) -> Result<()> {
    if boundary.is_empty() {
        return Ok(());
    }
    std::fs::write(path, text(boundary)).map_err(|err| durable::disk(path, "written", err))
}

fn text(boundary: &Boundary) -> String {
    let mut text = String::with_capacity(boundary.len() * 41);
    for id in boundary {
        text.push_str(&id.to_string());
        text.push('\n');
    }
    text
}
