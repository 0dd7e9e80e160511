//! Messages between the holder and who asks it: JSON objects over a `SOCK_SEQPACKET` socket, one a packet, a descriptor beside it where one
//! belongs. Every message carries a version; the holder answers requests of its own version and of earlier ones.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Deserialize, Serialize};

use super::{Error, Result};
use crate::sys;

/// The version of these messages.
pub const VERSION: u32 = 1;
/// The longest message, in bytes.
pub const LONGEST: usize = 64 << 10;
/// The longest name and the longest greeting, in bytes.
pub const LONGEST_ID: usize = 256;
/// See [`LONGEST_ID`].
pub const LONGEST_INIT: usize = 4096;
/// The most bytes of notifications in one message.
pub const LONGEST_NOTIFICATIONS: usize = 24 << 10;

/// What is asked of the holder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Request {
    /// Keep the descriptor beside this message.
    Deposit {
        /// Its name.
        id: String,
        /// What was agreed on with the kernel.
        #[serde(with = "hex")]
        init: Vec<u8>,
    },
    /// Give the first deposit whose name comes after this one.
    Collect {
        /// A name, or nothing for the first of all.
        after: String,
    },
    /// Keep it no longer.
    Withdraw {
        /// Its name.
        id: String,
    },
    /// Tell the kernel of changes in this mount.
    Notify {
        /// Its name.
        id: String,
        /// `FUSE_NOTIFY_INVAL_ENTRY` and `FUSE_NOTIFY_INVAL_INODE` messages of linux/fuse.h, one after the other.
        #[serde(with = "hex")]
        messages: Vec<u8>,
    },
    /// Hand what comes through the pipe beside this message to the kernel, until its end: `FUSE_NOTIFY_STORE` messages of linux/fuse.h, one
    /// after the other, each of at most 128 KiB of a file.
    Store {
        /// The mount's name.
        id: String,
    },
}

/// What the holder answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "lowercase")]
pub enum Answer {
    /// Done.
    Done,
    /// A deposit, its descriptor beside this message.
    Held {
        /// Its name.
        id: String,
        /// As deposited.
        #[serde(with = "hex")]
        init: Vec<u8>,
    },
    /// There is no further deposit.
    End,
    /// Not done.
    Refused {
        /// One sentence.
        why: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    #[serde(flatten)]
    message: T,
}

/// A message as it is sent.
pub fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(&Versioned { v: VERSION, message }).expect("messages are plain data")
}

/// A message as it was received.
///
/// # Errors
/// A sentence: a newer version, or no message at all.
pub fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> std::result::Result<T, String> {
    #[derive(Deserialize)]
    struct Only {
        v: u32,
    }
    let Only { v } = serde_json::from_slice(bytes).map_err(|_| "this is no message of the hold protocol".to_owned())?;
    if v == 0 || v > VERSION {
        return Err(format!("version {v} of the hold protocol is not known here, version {VERSION} is"));
    }
    let Versioned { message, .. } =
        serde_json::from_slice(bytes).map_err(|_| format!("this is no message of version {v} of the hold protocol"))?;
    Ok(message)
}

/// Sends a message and the descriptor that belongs to it.
pub(super) fn send(socket: BorrowedFd<'_>, message: &impl Serialize, device: Option<BorrowedFd<'_>>, flags: MsgFlags) -> io::Result<()> {
    let bytes = encode(message);
    let numbers: Vec<_> = device.iter().map(AsRawFd::as_raw_fd).collect();
    let control = [ControlMessage::ScmRights(&numbers)];
    let control = if numbers.is_empty() { &[][..] } else { &control };
    sendmsg::<()>(socket.as_raw_fd(), &[io::IoSlice::new(&bytes)], control, flags | MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

/// Receives an answer.
pub(super) fn answer(socket: BorrowedFd<'_>) -> Result<(Answer, Option<OwnedFd>)> {
    let mut buffer = vec![0; LONGEST];
    match sys::receive(socket, &mut buffer)? {
        (0, _) => Err(io::Error::from(io::ErrorKind::ConnectionReset).into()),
        (length, device) => Ok((decode(&buffer[..length]).map_err(Error::Garbled)?, device)),
    }
}

/// Bytes as hexadecimal digits.
mod hex {
    use std::fmt::Write;

    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        let mut text = String::with_capacity(bytes.len() * 2);
        for byte in bytes {
            write!(text, "{byte:02x}").expect("a string grows");
        }
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'a, D: Deserializer<'a>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let digit = |byte: u8| char::from(byte).to_digit(16).ok_or_else(|| D::Error::custom("not hexadecimal"));
        let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
            [high, low] => Ok((digit(*high)? << 4 | digit(*low)?) as u8),
            _ => Err(D::Error::custom("an odd number of hexadecimal digits")),
        });
        pairs.collect()
    }
}
