//! `git://`: plain TCP to a `git daemon`. Not encrypted, no login.

use std::io::{self, BufReader, BufWriter, Read, Write};

use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::git::{ConnectMode, blocking_io};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::advertisement::Advertisement;
use super::wire::Wire;
use super::{Connection, Result};
use crate::url::{RepoUrl, Scheme};

/// Connects and leaves the greeting to gix.
pub(super) fn connect(url: &RepoUrl, wire: Wire) -> Result<Connection> {
    let port = url.port().unwrap_or(Scheme::Git.default_port());
    let stream =
        wire.wait(wire.connect, "accept the connection", TcpStream::connect((url.host(), port)))?.map_err(|e| wire.unreachable(e))?;
    stream.set_nodelay(true).map_err(|e| wire.unreachable(e))?;
    let (read, write) = stream.into_split();
    let (failure, talk) = (wire.failure.clone(), wire.talk.clone());
    let read = BufReader::with_capacity(64 * 1024, Advertisement::new(Reader { half: read, wire: wire.clone() }));
    let host = if url.host().contains(':') { format!("[{}]", url.host()) } else { url.host().to_owned() };
    let transport = blocking_io::Connection::new(
        read,
        // gix writes in parts of a few bytes, and flushes when a request is complete.
        BufWriter::with_capacity(64 * 1024, Writer { half: write, wire }),
        Protocol::V2,
        url.path(),
        Some((host, url.port())),
        ConnectMode::Daemon,
        false,
    )
    .custom_url(Some(format!("git://{}/", url.authority()).into()));
    Ok(Connection { transport: Box::new(transport), failure, talk })
}

struct Reader {
    half: OwnedReadHalf,
    wire: Wire,
}

impl Read for Reader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        // `git daemon` sends its answer in small parts, each held back until the one before is acknowledged; left alone, the kernel
        // acknowledges after 40 ms. It falls back to that by itself, so it is told each time. A slower answer is no failure.
        let _ = self.half.as_ref().set_quickack(true);
        let done = self.wire.wait(self.wire.idle, "send anything", self.half.read(out)).map_err(|e| self.wire.fail(e))?;
        let count = done.map_err(|e| self.wire.fail(self.wire.unreachable(e)))?;
        self.wire.heard(count).map_err(|e| self.wire.fail(e))?;
        Ok(count)
    }
}

struct Writer {
    half: OwnedWriteHalf,
    wire: Wire,
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let done = self.wire.wait(self.wire.idle, "take anything", self.half.write(bytes)).map_err(|e| self.wire.fail(e))?;
        self.wire.hung_up(done, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
