//! A session channel as a blocking reader and writer, with an ear for what the host says besides.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::time::Duration;

use russh::client::{Handle, Msg};
use russh::{Channel, ChannelMsg, ChannelReadHalf};
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::super::failure::{printable, verdict};
use super::super::wire::Wire;
use super::{Client, StoreError};
use crate::error::Fault;

/// How much of the remote's standard error is kept.
const MAX_STDERR: usize = 4096;

/// How long after the end of the data the exit code is waited for.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The two directions of a channel in which a program was started.
pub(super) fn split(handle: Handle<Client>, channel: Channel<Msg>, wire: Wire) -> (Reader, Writer) {
    let writer = Writer { half: Box::pin(channel.make_writer()), wire: wire.clone() };
    let (half, _) = channel.split();
    let reader =
        Reader { half, wire, rest: bytes::Bytes::new(), stderr: vec![], exit: None, received: false, ended: false, _connection: handle };
    (reader, writer)
}

/// What the host's program writes.
pub(super) struct Reader {
    half: ChannelReadHalf,
    wire: Wire,
    rest: bytes::Bytes,
    stderr: Vec<u8>,
    exit: Option<u32>,
    received: bool,
    /// The host said that no more data comes.
    ended: bool,
    _connection: Handle<Client>,
}

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        while self.rest.is_empty() {
            let limit = if self.ended { LAST_WORDS.min(self.wire.idle) } else { self.wire.idle };
            let message = self.wire.wait(limit, "send anything", self.half.wait());
            // Also what is no data must not go on for ever.
            let bytes = if let Ok(Some(ChannelMsg::Data { data })) = &message { data.len() } else { 0 };
            self.wire.heard(bytes).map_err(|e| self.wire.fail(e))?;
            match message {
                Ok(Some(ChannelMsg::Data { data })) => {
                    self.received = true;
                    self.rest = data;
                }
                Ok(Some(ChannelMsg::ExtendedData { data, .. })) => {
                    let room = MAX_STDERR - self.stderr.len();
                    self.stderr.extend_from_slice(&data[..data.len().min(room)]);
                }
                Ok(Some(ChannelMsg::ExitStatus { exit_status })) => self.exit = Some(exit_status),
                Ok(Some(ChannelMsg::Eof)) => self.ended = true,
                Ok(Some(ChannelMsg::Failure)) => {
                    let message = format!("host {} refuses to run git-upload-pack: it may be no git host", self.wire.host);
                    return Err(self.wire.fail(StoreError::new(Fault::Refused, message)));
                }
                Ok(Some(ChannelMsg::Close)) => {
                    self.ended = true;
                    return self.end();
                }
                Ok(None) => return self.end(),
                Ok(Some(_)) => {}
                Err(error) if self.ended && error.fault() == Fault::Unreachable => return self.end(),
                Err(error) => return Err(self.wire.fail(error)),
            }
        }
        let count = out.len().min(self.rest.len());
        out[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

impl Reader {
    /// The end of the data: a plain one, or one whose reason is worth remembering.
    fn end(&self) -> io::Result<usize> {
        let said = printable(&String::from_utf8_lossy(&self.stderr), 300);
        let (host, url) = (&self.wire.host, &self.wire.url);
        let plain = self.received && self.ended && self.exit.unwrap_or(0) == 0;
        if plain {
            return Ok(0);
        }
        let error = if let Some(fault) = verdict(&said) {
            StoreError::new(fault, format!("host {host} does not give {url}: {said}"))
        } else if !said.is_empty() {
            StoreError::new(Fault::Unreachable, format!("host {host} failed to serve {url}: {said}"))
        } else if let Some(code) = self.exit.filter(|code| *code != 0) {
            StoreError::new(Fault::Unreachable, format!("host {host} failed to serve {url}: git-upload-pack ended with exit code {code}"))
        } else if self.ended {
            StoreError::new(Fault::Unreachable, format!("host {host} ended the connection without an answer for {url}"))
        } else {
            StoreError::new(Fault::Unreachable, format!("host {host} broke the connection"))
        };
        Err(self.wire.fail(error))
    }
}

/// What the host's program reads.
pub(super) struct Writer {
    half: Pin<Box<dyn AsyncWrite + Send>>,
    wire: Wire,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.wire.wait(self.wire.idle, "take anything", self.half.write(bytes)).map_err(|e| self.wire.fail(e))?;
        self.wire.hung_up(done, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let done = self.wire.wait(self.wire.idle, "take anything", self.half.flush()).map_err(|e| self.wire.fail(e))?;
        self.wire.hung_up(done.map(|()| 0), 0).map(drop)
    }
}
