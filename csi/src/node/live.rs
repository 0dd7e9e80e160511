//! Whether a target shows something, read from the kernel's table of mounts: it touches no file system, so it never waits for one.

use std::path::Path;

use gitmount_proto::mount_table;
use tonic::Status;

/// Whether a tree is shown at `target`.
///
/// # Errors
/// When the table cannot be read.
pub fn is_live(target: &str) -> Result<bool, Status> {
    Ok(at(target)?.is_some_and(|entry| entry.is_gitmount()))
}

/// Whether anything is mounted at `target`.
///
/// # Errors
/// When the table cannot be read.
pub fn is_mounted(target: &str) -> Result<bool, Status> {
    Ok(at(target)?.is_some())
}

fn at(target: &str) -> Result<Option<mount_table::Entry>, Status> {
    let trimmed = target.trim_end_matches('/');
    mount_table::at(Path::new(trimmed)).map_err(|error| Status::internal(format!("/proc/self/mountinfo cannot be read ({error})")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_not_mounted_and_another_kind_of_mount_is_not_live() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_mounted(dir.path().to_str().unwrap()).unwrap());
        assert!(is_mounted("/proc/").unwrap() && !is_live("/proc").unwrap());
    }
}
