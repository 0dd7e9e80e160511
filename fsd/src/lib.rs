//! The per-node daemon and the `gitmount` command: git trees through FUSE, straight out of an object database.
//!
//! The map, lowest layer first (imports only point down this list):
//!
//! - [`inode`]: versioned node ids: what a node id stands for never changes under it.
//! - [`view`]: what a mount shows: the current snapshot behind one pointer, and the two-phase switch to the next.
//! - [`fs`]: the file system's answers, without any FUSE type.
//! - [`fuse`]: the adapter to the kernel: mounting, session, notifications; no logic.
//! - [`handover`]: mounts that outlive the process that serves them: the holder of descriptors, and who asks it.
//! - [`control`]: the socket on which a mount answers `status`, `pull`, `unmount`.
//! - [`daemon`]: one served mount from URL to FUSE: fetch, follow, report.
//! - [`sys`]: the crate's only unsafe code: allocator settings, descriptors, signals to threads.
//! - [`cli`]: the `gitmount` command.
#![deny(unsafe_code)]

pub mod cli;
pub mod control;
pub mod daemon;
pub mod fs;
pub mod fuse;
pub mod handover;
pub mod inode;
pub mod sys;

pub mod view;
