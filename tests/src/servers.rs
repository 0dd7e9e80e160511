//! Git servers on loopback, started by a test and ended with it.
//!
//! - [`http`]: `git http-backend` behind a small HTTP/1.1 server, plain or with [`tls`], that counts requests and can misbehave
//!   ([`http::Fault`]).
//! - [`daemon`]: `git daemon`.
//! - [`ssh`]: OpenSSH's `sshd`, with host keys, user keys and an agent of the test's own.

pub mod daemon;
pub mod http;
pub mod proxy;
pub mod ssh;
pub mod tls;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::run;

/// A port nobody listens on.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The answer to `GET path`, with its headers, of whatever listens on `address`.
///
/// # Errors
/// When nobody answers.
pub fn http_get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// A server process; it and its children end when this is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts a server by `command(port)` and waits until it takes connections. Another process may take the free port first, so
    /// this tries a few.
    pub(crate) fn listening(command: impl FnMut(u16) -> Result<Command>) -> Result<(Self, u16)> {
        Self::listening_at(Ipv4Addr::LOCALHOST, command)
    }

    /// The same for a server on another address of this machine.
    pub(crate) fn listening_at(host: Ipv4Addr, mut command: impl FnMut(u16) -> Result<Command>) -> Result<(Self, u16)> {
        for _ in 0..5 {
            let port = TcpListener::bind((host, 0))?.local_addr()?.port();
            let mut process = Process { child: run::start(&mut command(port)?)? };
            if process.answers(host, port)? {
                return Ok((process, port));
            }
        }
        bail!("a server ended five times before it listened")
    }

    /// Starts a process that does not listen on a port.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        Ok(Process { child: run::start(command)? })
    }

    fn answers(&mut self, host: Ipv4Addr, port: u16) -> Result<bool> {
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(20) {
            if self.child.try_wait().context("a server cannot be waited for")?.is_some() {
                return Ok(false);
            }
            if TcpStream::connect((host, port)).is_ok() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        bail!("a server did not listen on port {port} within 20 seconds")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        run::kill_group(self.child.id());
        // Only so that no zombie stays.
        let _ = self.child.wait();
    }
}
