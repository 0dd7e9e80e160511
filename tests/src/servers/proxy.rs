//! A TCP proxy in front of a server that goes silent: after a number of bytes from the server, on all connections together, nothing comes
//! any more, and the connections stay open.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;

/// A running proxy; it ends when dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    server: u16,
    /// How many bytes of the server are let through.
    limit: AtomicU64,
    passed: AtomicU64,
    ended: AtomicBool,
    /// Both ends of every connection.
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// A proxy in front of the server on `port` of this host, that lets everything through.
    pub fn to(port: u16) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let own = listener.local_addr()?.port();
        let state = Arc::new(State {
            server: port,
            limit: AtomicU64::new(u64::MAX),
            passed: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
        });
        let serving = Arc::clone(&state);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if serving.ended.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { return };
                // A client that is gone again is no reason to end.
                let _ = serving.connect(client);
            }
        });
        Ok(Proxy { port: own, state })
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on `bytes` more bytes of the server come through, and then nothing.
    pub fn silent_after(&self, bytes: u64) {
        self.state.limit.store(self.state.passed.load(Ordering::SeqCst) + bytes, Ordering::SeqCst);
    }

    /// From now on everything comes through, on new connections; those that were silent end.
    pub fn behave(&self) {
        self.state.limit.store(u64::MAX, Ordering::SeqCst);
        self.state.close();
    }

    /// How many bytes of the server came through.
    pub fn passed(&self) -> u64 {
        self.state.passed.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.ended.store(true, Ordering::SeqCst);
        self.state.close();
        // Wakes the thread that accepts.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
    }
}

impl State {
    fn close(&self) {
        for stream in self.open.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn connect(self: &Arc<Self>, client: TcpStream) -> Result<()> {
        let server = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server))?;
        for stream in [&client, &server] {
            stream.set_nodelay(true)?;
        }
        self.open.lock().unwrap_or_else(PoisonError::into_inner).extend([client.try_clone()?, server.try_clone()?]);
        let (up, down) = (Arc::clone(self), Arc::clone(self));
        let (client_reads, server_writes) = (client.try_clone()?, server.try_clone()?);
        std::thread::spawn(move || up.forward(client_reads, server_writes, false));
        std::thread::spawn(move || down.forward(server, client, true));
        Ok(())
    }

    fn forward(&self, mut from: TcpStream, mut to: TcpStream, counted: bool) {
        let mut piece = [0; 16 << 10];
        loop {
            let read = match from.read(&mut piece) {
                Ok(0) | Err(_) => break,
                Ok(read) => read,
            };
            let mut room = read;
            if counted {
                let before = self.passed.load(Ordering::SeqCst);
                let left = self.limit.load(Ordering::SeqCst).saturating_sub(before);
                room = usize::try_from(left).unwrap_or(usize::MAX).min(read);
                self.passed.fetch_add(room as u64, Ordering::SeqCst);
            }
            if to.write_all(&piece[..room]).is_err() {
                break;
            }
            if room < read {
                // Silent, and open until the proxy behaves again.
                return;
            }
        }
        // An end is not passed on by a server that has gone silent.
        if !counted || self.passed.load(Ordering::SeqCst) < self.limit.load(Ordering::SeqCst) {
            let _ = to.shutdown(Shutdown::Write);
        }
    }
}
