//! git's smart HTTP: gix speaks the protocol, this brings its requests to the host.
//!
//! Requests are sent lazily, as gix's trait wants it: when the first byte of an answer is read. A request that failed is never sent again by
//! reading on. Bodies to post are small (wants and haves) and kept in memory, so that a request can be repeated with a login.

use std::io::{self, BufRead, BufReader, Cursor, Read, Write};
use std::sync::{Arc, Mutex};

use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::blocking_io::http::{GetResponse, Http, PostBodyDataKind, PostResponse, Transport};

use super::advertisement::Advertisement;
use super::failure::lock;
use super::wire::Wire;
use super::{Connection, NetOptions, Result, StoreError};
use crate::credential::Auth;
use crate::error::Fault;
use crate::url::RepoUrl;

mod client;
mod memory;
mod refs;
mod session;
mod status;

pub(super) use refs::ls_refs_once;
use session::{Request, Session};

/// Prepares the transport; nothing is sent before gix's handshake.
pub(super) fn connect(url: &RepoUrl, auth: &Auth, net: &NetOptions, wire: Wire) -> Result<Connection> {
    let (failure, talk) = (wire.failure.clone(), wire.talk.clone());
    let session = Arc::new(Session::new(url, auth, net, wire, None)?);
    // gix puts requests together from this URL and parses it; the real one, with whatever is in its path, is the session's.
    let stand_in = format!("{}://{}/", url.scheme().name(), url.authority());
    let stand_in = gix::url::parse(stand_in.as_str())
        .map_err(|e| StoreError::new(Fault::Internal, format!("host {} is no host to gix: {e}", url.authority())))?;
    Ok(Connection { transport: Box::new(Transport::new_http(Requests(session), stand_in, Protocol::V2, false)), failure, talk })
}

/// gix's requests, on their way to a session.
struct Requests(Arc<Session>);

impl Requests {
    fn exchange(&self, post: bool, url: &str, base: &str, headers: impl IntoIterator<Item = impl AsRef<str>>) -> Shared {
        let tail = url.strip_prefix(base).unwrap_or(url).trim_start_matches('/').to_owned();
        let pass = |name: &str| ["git-protocol", "content-type", "accept"].iter().any(|h| h.eq_ignore_ascii_case(name));
        let headers = headers
            .into_iter()
            .filter_map(|h| h.as_ref().split_once(':').map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned())))
            .filter(|(name, _)| pass(name))
            .collect();
        let state = State::Waiting(Request { post, tail, headers, body: vec![] });
        Arc::new(Mutex::new(Exchange { session: self.0.clone(), post, state, seen: vec![] }))
    }
}

impl Http for Requests {
    type Headers = Headers;
    type ResponseBody = BufReader<Advertisement<Body>>;
    type PostBody = PostBody;

    fn get(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> gix::Result<GetResponse<Self::Headers, Self::ResponseBody>> {
        let exchange = self.exchange(false, url, base_url, headers);
        let body = Advertisement::new(Body { exchange: exchange.clone(), rest: bytes::Bytes::new() });
        Ok(GetResponse { headers: Headers { exchange, text: None }, body: BufReader::with_capacity(64 * 1024, body) })
    }

    fn post(
        &mut self,
        url: &str,
        base_url: &str,
        headers: impl IntoIterator<Item = impl AsRef<str>>,
        _kind: PostBodyDataKind,
    ) -> gix::Result<PostResponse<Self::Headers, Self::ResponseBody, Self::PostBody>> {
        let exchange = self.exchange(true, url, base_url, headers);
        let body = Advertisement::passed(Body { exchange: exchange.clone(), rest: bytes::Bytes::new() });
        Ok(PostResponse {
            post_body: PostBody(exchange.clone()),
            headers: Headers { exchange, text: None },
            body: BufReader::with_capacity(64 * 1024, body),
        })
    }

    fn configure(&mut self, _config: &dyn std::any::Any) -> gix::Result<()> {
        Ok(())
    }
}

/// A request and what became of it.
struct Exchange {
    session: Arc<Session>,
    post: bool,
    state: State,
    /// The start of an advertisement, for [`memory`].
    seen: Vec<u8>,
}

type Shared = Arc<Mutex<Exchange>>;

enum State {
    Waiting(Request),
    Answered(reqwest::Response),
    Over,
}

impl Exchange {
    /// The answer, for which the request is sent now if it was not yet.
    fn answer(&mut self) -> io::Result<Option<&mut reqwest::Response>> {
        if let State::Waiting(_) = self.state
            && let State::Waiting(request) = std::mem::replace(&mut self.state, State::Over)
        {
            let response = self.session.send(request).map_err(|e| self.session.wire.fail(e))?;
            self.state = State::Answered(response);
        }
        match &mut self.state {
            State::Answered(response) => Ok(Some(response)),
            _ => Ok(None),
        }
    }

    fn chunk(&mut self) -> io::Result<bytes::Bytes> {
        let session = self.session.clone();
        let Some(response) = self.answer()? else { return Ok(bytes::Bytes::new()) };
        match session.chunk(response) {
            Ok(Some(chunk)) => {
                if !self.post && self.seen.len() < memory::MAX_SEEN {
                    self.seen.extend_from_slice(&chunk[..chunk.len().min(memory::MAX_SEEN)]);
                }
                Ok(chunk)
            }
            Ok(None) => {
                self.state = State::Over;
                if !self.post {
                    self.session.remember(&self.seen);
                }
                Ok(bytes::Bytes::new())
            }
            Err(error) => {
                self.state = State::Over;
                Err(session.wire.fail(error))
            }
        }
    }
}

/// The answer's headers, of which gix reads the content type.
struct Headers {
    exchange: Shared,
    text: Option<Cursor<Vec<u8>>>,
}

impl Headers {
    fn text(&mut self) -> io::Result<&mut Cursor<Vec<u8>>> {
        if self.text.is_none() {
            let mut exchange = lock(&self.exchange);
            let Some(response) = exchange.answer()? else { return Err(io::Error::other("the request has failed")) };
            let line = format!("content-type: {}\n", session::content_type(response));
            self.text = Some(Cursor::new(line.into_bytes()));
        }
        Ok(self.text.as_mut().expect("it was set above"))
    }
}

impl Read for Headers {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.text()?.read(out)
    }
}

impl BufRead for Headers {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.text()?.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        if let Some(text) = &mut self.text {
            text.consume(amount);
        }
    }
}

/// The answer's body.
struct Body {
    exchange: Shared,
    rest: bytes::Bytes,
}

impl Read for Body {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            self.rest = lock(&self.exchange).chunk()?;
        }
        let count = out.len().min(self.rest.len());
        out[..count].copy_from_slice(&self.rest.split_to(count));
        Ok(count)
    }
}

/// What is to be posted.
struct PostBody(Shared);

impl Write for PostBody {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut lock(&self.0).state {
            State::Waiting(request) => request.body.extend_from_slice(bytes),
            _ => return Err(io::Error::other("the request was sent already")),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
