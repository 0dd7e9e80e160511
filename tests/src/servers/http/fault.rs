//! The ways in which a server can answer wrongly.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};

use super::wire::Reply;

/// What is wrong with the answers of a server.
#[derive(Debug, Clone)]
pub enum Fault {
    /// No request is answered; connections stay open.
    Silent,
    /// Every request is answered with this status and these headers.
    Status(u16, Vec<(String, String)>),
    /// Every request is answered with this status and a text that repeats its login.
    Echo(u16),
    /// Every request is redirected to the same path below this URL.
    Redirect(String),
    /// After this many bytes of the answer that holds the pack, nothing comes any more; the connection stays open.
    StallPack(usize),
    /// The connection breaks after half of the answer that holds the pack.
    CutPack,
    /// The answer that holds the pack is only its first half, and says that it is whole.
    HalfPack,
    /// One byte in the middle of the pack is another one.
    CorruptPack,
}

impl Fault {
    /// A [`Fault::Status`] without headers.
    pub fn status(status: u16) -> Self {
        Fault::Status(status, Vec::new())
    }

    /// A [`Fault::Status`] with `Retry-After`, in seconds.
    pub fn retry_after(status: u16, seconds: u32) -> Self {
        Fault::Status(status, vec![("Retry-After".to_owned(), seconds.to_string())])
    }

    /// Sends the answer that holds the pack. Says whether the connection can be used further.
    pub(super) fn send_pack(&self, mut reply: Reply, stream: &mut impl Write, stop: &AtomicBool) -> Result<bool> {
        let half = reply.body.len() / 2;
        match self {
            Fault::StallPack(after) => {
                reply.send_head(stream, reply.body.len())?;
                stream.write_all(&reply.body[..reply.body.len().min(*after)])?;
                stream.flush()?;
                Ok(hang(stop))
            }
            Fault::CutPack => {
                reply.send_head(stream, reply.body.len())?;
                stream.write_all(&reply.body[..half])?;
                stream.flush()?;
                Ok(false)
            }
            Fault::HalfPack => {
                reply.body.truncate(half);
                reply.send(stream)
            }
            Fault::CorruptPack => {
                corrupt(&mut reply.body)?;
                reply.send(stream)
            }
            Fault::Silent | Fault::Status(..) | Fault::Echo(_) | Fault::Redirect(_) => reply.send(stream),
        }
    }
}

/// Waits until the server is dropped. The connection is of no use then.
pub(super) fn hang(stop: &AtomicBool) -> bool {
    while !stop.load(Ordering::SeqCst) {
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

/// Changes one byte in the middle of the largest sideband packet of pack data, so that lengths and bands stay right.
fn corrupt(body: &mut [u8]) -> Result<()> {
    let mut at = 0;
    let mut largest = 0..0;
    while at + 4 <= body.len() {
        let length = usize::from_str_radix(std::str::from_utf8(&body[at..at + 4])?, 16)?;
        // Lengths below 4 are marks (flush, delimiter) without content.
        let end = at + length.max(4);
        if length > 5 && body.get(at + 4) == Some(&1) && length > largest.len() {
            largest = at + 5..end;
        }
        at = end;
    }
    let byte = body.get_mut(largest.start + largest.len() / 2).context("the answer holds no pack")?;
    *byte ^= 0x55;
    Ok(())
}
