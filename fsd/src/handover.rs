//! Mounts that outlive the process that serves them.
//!
//! A tiny process, the *holder* (`gitmount hold`), keeps a copy of the `/dev/fuse` descriptor of every mount. While it does, a mount whose
//! server was killed goes on: what is cached is served, and the rest waits for the next server, which collects the descriptors and resumes.
//!
//! - [`hold`]: the holder.
//! - [`client`]: asks it; [`keeper`]: does so for a daemon, and deposits everything again when the holder was replaced.
//! - [`message`]: what they say to each other.
//!
//! Promises: only the holder's own user and root are answered; a message of any kind cannot make the holder fail, wait or grow; a holder that goes
//! loses no mount while the daemon lives, and a daemon that goes loses none while the holder lives.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;

pub mod client;
mod crew;
pub mod hold;
pub mod keeper;
pub mod message;
mod store;

pub use client::Holder;
pub use keeper::Keeper;

/// What is given to the holder.
#[derive(Debug)]
pub struct Deposit<'a> {
    /// Names it; a second deposit with the same name replaces the first.
    pub id: String,
    /// What was agreed on with the kernel, as [`Mount::begin`](crate::fuse::Mount::begin) gave it.
    pub init: Vec<u8>,
    /// The open `/dev/fuse` of the mount.
    pub device: BorrowedFd<'a>,
}

/// What the holder gives back.
#[derive(Debug)]
pub struct Held {
    /// Its name.
    pub id: String,
    /// As deposited.
    pub init: Vec<u8>,
    /// As deposited; the holder keeps its copy.
    pub device: OwnedFd,
}

/// Why the holder cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No process listens.
    #[error("no holder listens on {}: start one with `gitmount hold --socket {}`", .0.display(), .0.display())]
    Absent(PathBuf),
    /// It is somebody else's, who is not given what mounts are served with.
    #[error("what listens on {} is of user {}, not of this one or root: put the holder's socket where only root can write", .0.display(), .1)]
    Stranger(PathBuf, u32),
    /// It said no, and why.
    #[error("the holder refused: {0}")]
    Refused(String),
    /// It speaks another language.
    #[error("the holder's answer makes no sense ({0}): run the holder and the daemon of the same or the next release")]
    Garbled(String),
    /// The connection failed.
    #[error("the connection to the holder failed: {0}")]
    Io(#[from] io::Error),
}

impl From<nix::errno::Errno> for Error {
    fn from(errno: nix::errno::Errno) -> Self {
        Error::Io(errno.into())
    }
}

/// The layer's result.
pub type Result<T> = std::result::Result<T, Error>;

#[cfg(test)]
mod tests;
