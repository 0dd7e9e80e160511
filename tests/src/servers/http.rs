//! `git http-backend` behind a small HTTP/1.1 server, plain or with TLS. It keeps a record of every request, asks for a login when
//! told to, and misbehaves on demand.

mod backend;
mod fault;
mod wire;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::{Result, ensure};
use base64::Engine;

pub use fault::Fault;
use wire::{Reply, Request};

use super::tls::TestCa;

/// What a client asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// `GET` or `POST`.
    pub method: String,
    /// The path below the server's root, with the query.
    pub target: String,
    /// The `Authorization` header.
    pub authorization: Option<String>,
    /// The `User-Agent` header.
    pub user_agent: Option<String>,
    /// Whether objects were asked for (a protocol V2 `fetch` with wants, or any V0 upload-pack request).
    pub fetch: bool,
    /// The status that was answered; 0 for none.
    pub status: u16,
}

/// A running server for the repositories below one directory; it ends when dropped.
#[derive(Debug)]
pub struct HttpServer {
    shared: Arc<Shared>,
    scheme: &'static str,
    host: Ipv4Addr,
    port: u16,
    listener: TcpListener,
    accepting: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    root: PathBuf,
    tls: Option<Arc<rustls::ServerConfig>>,
    stop: AtomicBool,
    rules: Mutex<Rules>,
    asked: Mutex<Vec<Asked>>,
    connections: Mutex<Vec<TcpStream>>,
}

#[derive(Debug, Clone, Default)]
struct Rules {
    authorization: Option<String>,
    fault: Option<Fault>,
    only_v0: bool,
}

impl HttpServer {
    /// Serves the repositories below `root` over `http://`.
    pub fn plain(root: &Path) -> Result<Self> {
        Self::start(root, (Ipv4Addr::LOCALHOST, 0), None)
    }

    /// The same on another address of this machine, such as the one that a cluster's pods reach.
    pub fn plain_at(host: Ipv4Addr, root: &Path) -> Result<Self> {
        Self::start(root, (host, 0), None)
    }

    /// The same on a port, such as that of a server that was dropped.
    pub fn plain_on(host: Ipv4Addr, port: u16, root: &Path) -> Result<Self> {
        Self::start(root, (host, port), None)
    }

    /// The same over `https://`, with a certificate of `ca`.
    pub fn tls_at(host: Ipv4Addr, root: &Path, ca: &TestCa) -> Result<Self> {
        Self::start(root, (host, 0), Some(ca.server_config(&[&host.to_string()])?))
    }

    /// Serves the repositories below `root` over `https://127.0.0.1`, with a certificate of `ca`.
    pub fn tls(root: &Path, ca: &TestCa) -> Result<Self> {
        Self::start(root, (Ipv4Addr::LOCALHOST, 0), Some(ca.server_config(&["localhost", "127.0.0.1"])?))
    }

    /// The same with a certificate for another host.
    pub fn tls_named(root: &Path, ca: &TestCa, name: &str) -> Result<Self> {
        Self::start(root, (Ipv4Addr::LOCALHOST, 0), Some(ca.server_config(&[name])?))
    }

    fn start(root: &Path, (host, port): (Ipv4Addr, u16), tls: Option<Arc<rustls::ServerConfig>>) -> Result<Self> {
        ensure!(backend::program().exists(), "these tests need `git http-backend`: install the package git");
        let listener = TcpListener::bind((host, port))?;
        let port = listener.local_addr()?.port();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let shared = Arc::new(Shared {
            root: root.to_owned(),
            tls,
            stop: AtomicBool::new(false),
            rules: Mutex::default(),
            asked: Mutex::default(),
            connections: Mutex::default(),
        });
        let accepting = std::thread::spawn({
            let (listener, shared) = (listener.try_clone()?, shared.clone());
            move || accept(&listener, &shared)
        });
        Ok(HttpServer { shared, scheme, host, port, listener, accepting: Some(accepting) })
    }

    /// The URL of the repository `name` below the root.
    pub fn url(&self, name: &str) -> String {
        format!("{}/{name}", self.base())
    }

    /// The URL of the root, without trailing slash.
    pub fn base(&self) -> String {
        format!("{}://{}:{}", self.scheme, self.host, self.port)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on, requests without this login are answered 401.
    pub fn require_login(&self, username: &str, password: &str) {
        let login = base64::engine::general_purpose::STANDARD.encode(format!("{username}:{password}"));
        lock(&self.shared.rules).authorization = Some(format!("Basic {login}"));
    }

    /// From now on, requests are answered wrongly.
    pub fn misbehave(&self, fault: Fault) {
        lock(&self.shared.rules).fault = Some(fault);
    }

    /// From now on, requests are answered rightly again.
    pub fn behave(&self) {
        lock(&self.shared.rules).fault = None;
    }

    /// From now on, the client's wish for protocol V2 is not heard.
    pub fn speak_only_v0(&self) {
        lock(&self.shared.rules).only_v0 = true;
    }

    /// The requests since the start or the last call.
    pub fn take_requests(&self) -> Vec<Asked> {
        std::mem::take(&mut *lock(&self.shared.asked))
    }

    /// The requests since the start or the last [`HttpServer::take_requests`].
    pub fn requests(&self) -> Vec<Asked> {
        lock(&self.shared.asked).clone()
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes `accept`; Linux lets a listening socket be shut down.
        let _ = nix::sys::socket::shutdown(std::os::fd::AsRawFd::as_raw_fd(&self.listener), nix::sys::socket::Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
        for connection in lock(&self.shared.connections).drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    for connection in listener.incoming() {
        let Ok(connection) = connection else { return };
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        if let Ok(handle) = connection.try_clone() {
            lock(&shared.connections).push(handle);
        }
        let shared = shared.clone();
        // A connection that breaks is the client's business; what it got is what the test looks at.
        std::thread::spawn(move || drop(serve(connection, &shared)));
    }
}

fn serve(connection: TcpStream, shared: &Shared) -> Result<()> {
    connection.set_nodelay(true)?;
    let handle = connection.try_clone()?;
    let served = match &shared.tls {
        None => requests(connection, shared),
        Some(config) => {
            let session = rustls::ServerConnection::new(config.clone())?;
            requests(rustls::StreamOwned::new(session, connection), shared)
        }
    };
    // Another handle of the socket sits in `connections`: without this the client would not see the end.
    let _ = handle.shutdown(Shutdown::Both);
    served
}

fn requests(mut stream: impl Read + Write, shared: &Shared) -> Result<()> {
    while let Some(request) = Request::read(&mut stream)? {
        let rules = lock(&shared.rules).clone();
        let reply = answer(&request, &rules, shared)?;
        lock(&shared.asked).push(Asked {
            method: request.method.clone(),
            target: request.target.clone(),
            authorization: request.header("authorization").map(str::to_owned),
            user_agent: request.header("user-agent").map(str::to_owned),
            fetch: request.is_fetch(),
            status: reply.as_ref().map_or(0, |reply| reply.status),
        });
        let go_on = match reply {
            None => fault::hang(&shared.stop),
            Some(reply) => match rules.fault.filter(|_| request.is_fetch() && reply.status == 200) {
                Some(fault) => fault.send_pack(reply, &mut stream, &shared.stop)?,
                None => reply.send(&mut stream)?,
            },
        };
        if !go_on || request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
            return Ok(());
        }
    }
    Ok(())
}

/// The reply, or `None` for silence.
fn answer(request: &Request, rules: &Rules, shared: &Shared) -> Result<Option<Reply>> {
    if let Some(fault) = &rules.fault {
        match fault {
            Fault::Silent => return Ok(None),
            Fault::Status(status, headers) => return Ok(Some(Reply::error(*status, headers))),
            Fault::Echo(status) => {
                let login = request.header("authorization").unwrap_or_default();
                let decoded = base64::engine::general_purpose::STANDARD.decode(login.trim_start_matches("Basic ")).unwrap_or_default();
                let body = [b"you said ", login.as_bytes(), b" that is ", &decoded].concat();
                return Ok(Some(Reply { status: *status, headers: vec![("Content-Type".to_owned(), "text/plain".to_owned())], body }));
            }
            Fault::Redirect(base) => {
                let location = format!("{base}{}", request.target);
                return Ok(Some(Reply::error(302, &[("Location".to_owned(), location)])));
            }
            _ => {}
        }
    }
    if rules.authorization.as_deref().is_some_and(|right| request.header("authorization") != Some(right)) {
        return Ok(Some(Reply::error(401, &[("WWW-Authenticate".to_owned(), "Basic realm=\"git\"".to_owned())])));
    }
    backend::answer(&shared.root, request, rules.only_v0).map(Some)
}
