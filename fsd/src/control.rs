//! The socket on which a mount answers `status`, `pull`, `unmount`.
