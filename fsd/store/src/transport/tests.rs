//! Transports against scripted hosts on loopback: what a real server seldom does on demand.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Instant;

use gix::protocol::transport::{Protocol, Service};

use super::failure::lock;
use super::*;
use crate::credential::{HttpAuth, Login, Secret};
use crate::url::UrlPolicy;

mod http;
mod other;

/// A host that answers each request with the next of its answers, and remembers the requests.
struct Host {
    port: u16,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Host {
    /// `{port}` in an answer is replaced by the host's own.
    fn new(answers: impl IntoIterator<Item = String>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut answers: VecDeque<String> = answers.into_iter().map(|a| a.replace("{port}", &port.to_string())).collect();
        let requests = Arc::new(Mutex::new(vec![]));
        let seen = requests.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(std::result::Result::ok) {
                let Some(request) = read_request(&stream) else { continue };
                lock(&seen).push(request);
                // The last answer serves for all that follows, so that a request too many is seen as such.
                let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
                let _ = (&stream).write_all(answer.unwrap_or_default().as_bytes());
            }
        });
        Host { port, requests }
    }

    fn url(&self) -> RepoUrl {
        url(&format!("http://127.0.0.1:{}/a b.git", self.port))
    }

    fn requests(&self) -> Vec<String> {
        lock(&self.requests).clone()
    }
}

fn read_request(mut stream: &TcpStream) -> Option<String> {
    let mut text = vec![];
    let mut buffer = [0; 4096];
    loop {
        let count = stream.read(&mut buffer).ok().filter(|n| *n > 0)?;
        text.extend_from_slice(&buffer[..count]);
        let all = String::from_utf8_lossy(&text);
        if let Some((head, body)) = all.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|l| l.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse::<usize>().ok());
            if body.len() >= length.unwrap_or(0) {
                return Some(all.into_owned());
            }
        }
    }
}

/// A host that takes connections and says nothing.
fn silent() -> (TcpListener, u16) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn url(text: &str) -> RepoUrl {
    RepoUrl::parse(text, &UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] }).unwrap()
}

fn net(state: &Path) -> NetOptions {
    let limit = Duration::from_millis(400);
    NetOptions { idle: limit, connect: limit, proxy_from_env: false, state: state.to_owned() }
}

fn login(user: &str) -> Login {
    Login { username: user.into(), password: Secret::new("pw") }
}

/// Connects and shakes hands; gives the version the host speaks.
fn handshake(url: &RepoUrl, auth: &Auth, net: &NetOptions, stop: &Arc<AtomicBool>) -> Result<Protocol> {
    let mut connection = connect(url, auth, net, stop)?;
    match connection.transport.handshake(Service::UploadPack, &[]) {
        Ok(answer) => Ok(answer.actual_protocol),
        Err(error) => Err(classify(&error, &connection.failure, url)),
    }
}

fn shake(url: &RepoUrl, auth: &Auth) -> Result<Protocol> {
    handshake(url, auth, &net(Path::new("/nowhere")), &Arc::default())
}

/// Runs `work` with a flag that is raised after 150 ms, and gives what came of it and how long it took after that.
fn cancelled<T>(work: impl FnOnce(&Arc<AtomicBool>) -> T) -> (T, Duration) {
    let stop = Arc::new(AtomicBool::new(false));
    let raiser = stop.clone();
    let raised = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(150));
        raiser.store(true, Ordering::Relaxed);
        Instant::now()
    });
    let done = work(&stop);
    let end = Instant::now();
    (done, end.saturating_duration_since(raised.join().unwrap()))
}
