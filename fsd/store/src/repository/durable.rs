//! Files that are replaced in one step and are on the disk when the call returns.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::error::{Fault, Result, StoreError};

/// Replaces `path` by `content` through `<path>.lock`, as git does, so that a reader sees the old or the new content and a crash leaves one
/// of them.
pub(crate) fn write(path: &Path, content: &[u8]) -> Result<()> {
    place(path, content)?;
    path.parent().map_or(Ok(()), sync_directory)
}

/// Like [`write()`], but after a crash of the machine the old content may be back.
pub(crate) fn place(path: &Path, content: &[u8]) -> Result<()> {
    let failed = |err| disk(path, "written", err);
    let parent = path.parent().ok_or_else(|| StoreError::new(Fault::Internal, format!("file {} has no directory", path.display())))?;
    std::fs::create_dir_all(parent).map_err(failed)?;
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let lock = Path::new(&name);
    let written = File::create(lock).and_then(|mut file| {
        file.write_all(content)?;
        file.sync_all()
    });
    if let Err(err) = written.and_then(|()| std::fs::rename(lock, path)) {
        // The old content stands; what is left of the new one is of no use.
        let _ = std::fs::remove_file(lock);
        return Err(failed(err));
    }
    Ok(())
}

/// Makes renames and removals in `directory` durable.
pub(crate) fn sync_directory(directory: &Path) -> Result<()> {
    File::open(directory).and_then(|dir| dir.sync_all()).map_err(|err| disk(directory, "written", err))
}

/// Removes a file; one that is not there is fine.
pub(crate) fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(err) if err.kind() != std::io::ErrorKind::NotFound => Err(disk(path, "removed", err)),
        _ => Ok(()),
    }
}

/// The error of an operation on `path`; a full disk is called by its name.
pub(crate) fn disk(path: &Path, what: &str, err: std::io::Error) -> StoreError {
    use std::io::ErrorKind;
    let message = match err.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            format!("no space is left for {}: free some, or put the store on a bigger disk", path.display())
        }
        _ => format!("{} cannot be {what} ({err})", path.display()),
    };
    StoreError::new(Fault::Disk, message).caused_by(err)
}
