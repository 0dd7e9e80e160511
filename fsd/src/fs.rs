//! The file system's answers, without any FUSE type.
