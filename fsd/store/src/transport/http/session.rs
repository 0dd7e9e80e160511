//! One connection's requests: where they go after redirects, and with which login.
//!
//! A login goes to the host (scheme, name and port) of the URL and to no other, except from http to https on the default ports of one host.
//! Redirects are followed for the first request only, as git does; later requests go where it ended.

use std::sync::{Arc, Mutex};

use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, LOCATION, PRAGMA};
use reqwest::{Method, Response, StatusCode, Url};

use super::super::failure::lock;
use super::super::wire::Wire;
use super::super::{NetOptions, Result, StoreError};
use super::memory::{self, Remembered};
use super::{client, status};
use crate::credential::{Auth, HttpAuth, Login, LoginSource};
use crate::error::Fault;
use crate::url::RepoUrl;

/// How many redirects are followed.
const MAX_REDIRECTS: usize = 5;

/// A request below the repository's URL.
pub(super) struct Request {
    pub(super) post: bool,
    /// What follows the repository's URL and a slash.
    pub(super) tail: String,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

/// A connection in git's sense; the sockets are the client's.
pub(super) struct Session {
    pub(super) wire: Wire,
    client: reqwest::Client,
    url: RepoUrl,
    base: Mutex<Url>,
    source: HttpAuth,
    login: Mutex<LoginState>,
}

#[derive(Default)]
struct LoginState {
    current: Option<(Origin, Login)>,
    /// The source was asked in this connection.
    asked: bool,
    /// The login came from the source in this connection, and it does not know yet what became of it.
    untold: bool,
}

#[derive(Clone, PartialEq, Eq)]
struct Origin {
    scheme: String,
    host: String,
    port: Option<u16>,
}

impl Origin {
    fn of(url: &Url) -> Self {
        Origin { scheme: url.scheme().into(), host: url.host_str().unwrap_or_default().into(), port: url.port_or_known_default() }
    }

    /// Whether a login for this origin may be sent to `url`.
    fn covers(&self, url: &Url) -> bool {
        let other = Origin::of(url);
        let upgraded = (self.scheme.as_str(), self.port, other.scheme.as_str(), other.port) == ("http", Some(80), "https", Some(443));
        *self == other || self.host == other.host && upgraded
    }
}

impl Session {
    /// A session for `url`, or at `base`, where an earlier one was redirected to.
    pub(super) fn new(url: &RepoUrl, auth: &Auth, net: &NetOptions, wire: Wire, base: Option<Url>) -> Result<Self> {
        let own = parse(url)?;
        let current = match &auth.http {
            HttpAuth::None => None,
            HttpAuth::Login(login) => Some((Origin::of(&own), login.clone())),
            HttpAuth::Ask(source) => {
                memory::recall(&wire.url).and_then(|known| known.login_of(source).map(|login| (Origin::of(&known.base), login)))
            }
        };
        Ok(Session {
            client: client::client(url, auth, net)?,
            wire,
            url: url.clone(),
            base: Mutex::new(base.unwrap_or(own)),
            source: auth.http.clone(),
            login: Mutex::new(LoginState { current, ..LoginState::default() }),
        })
    }

    /// Whether requests go elsewhere than to the URL that was given.
    pub(super) fn is_redirected(&self) -> bool {
        parse(&self.url).is_ok_and(|own| own != *lock(&self.base))
    }

    /// Sends a request, follows what is to be followed, logs in when the host wants it, and gives the answer when it is a success.
    pub(super) fn send(&self, request: Request) -> Result<Response> {
        let wire = &self.wire;
        let base = lock(&self.base).clone();
        let mut target = below(&base, &request.tail)?;
        let mut redirects = 0;
        loop {
            let mut builder = self.client.request(if request.post { Method::POST } else { Method::GET }, target.clone());
            for (name, value) in &request.headers {
                builder = builder.header(name, value);
            }
            if let Some(login) = self.login_for(&target) {
                builder = builder.basic_auth(&login.username, Some(login.password.reveal()));
            }
            builder = if request.post { builder.body(request.body.clone()) } else { builder.header(PRAGMA, "no-cache") };
            let answer = wire.wait(wire.connect + wire.idle, "answer", builder.send())?;
            let response = answer.map_err(|e| status::network_error(wire, e))?;
            let code = response.status();
            if code.is_success() {
                self.settle(&target, &request, redirects > 0)?;
                check_content(wire, &request, &response)?;
                return Ok(response);
            }
            if code == StatusCode::UNAUTHORIZED {
                let said = status::said(wire, response);
                self.log_in(&target, &request.tail, &said)?;
            } else if code.is_redirection() && response.headers().contains_key(LOCATION) {
                if request.post {
                    let message = format!("host {} redirects in the middle of a fetch of {}", wire.host, wire.url);
                    return Err(StoreError::new(Fault::Corrupt, message));
                }
                redirects += 1;
                if redirects > MAX_REDIRECTS {
                    let message = format!("{} redirects more than {MAX_REDIRECTS} times: give the url it ends at", wire.url);
                    return Err(StoreError::new(Fault::Refused, message));
                }
                target = self.follow(&target, &response)?;
            } else {
                return Err(status::failure(wire, response, self.login_for(&target).is_some()));
            }
        }
    }

    /// The next piece of an answer's body; `None` at its end.
    pub(super) fn chunk(&self, response: &mut Response) -> Result<Option<bytes::Bytes>> {
        let chunk = self.wire.wait(self.wire.idle, "send anything", response.chunk())?;
        let chunk = chunk.map_err(|e| status::network_error(&self.wire, e))?;
        self.wire.heard(chunk.as_ref().map_or(0, bytes::Bytes::len))?;
        Ok(chunk)
    }

    /// Remembers what the start of an advertisement shows.
    pub(super) fn remember(&self, advertisement: &[u8]) {
        let Some(object_format) = memory::understand(advertisement) else { return };
        let login = match (&self.source, &lock(&self.login).current) {
            (HttpAuth::Ask(source), Some((_, login))) => Some((Arc::downgrade(source), login.clone())),
            _ => None,
        };
        memory::remember(&self.wire.url, Remembered { base: lock(&self.base).clone(), object_format, login });
    }

    fn login_for(&self, target: &Url) -> Option<Login> {
        let state = lock(&self.login);
        state.current.as_ref().filter(|(origin, _)| origin.covers(target)).map(|(_, login)| login.clone())
    }

    /// After a success: the new base where there were redirects, and the good news for who gave the login.
    fn settle(&self, target: &Url, request: &Request, redirected: bool) -> Result<()> {
        if redirected {
            let base = target.as_str().strip_suffix(&request.tail).and_then(|base| base.strip_suffix('/'));
            let Some(base) = base.and_then(|base| Url::parse(base).ok()) else {
                let message = format!(
                    "{} redirects to {}, which is no git repository: give the repository's own url, or a login if it is private",
                    self.wire.url,
                    shown(target)
                );
                return Err(StoreError::new(Fault::Refused, message));
            };
            *lock(&self.base) = base;
        }
        let accepted = {
            let mut state = lock(&self.login);
            let login = state.current.as_ref().filter(|(origin, _)| origin.covers(target)).map(|(_, login)| login.clone());
            login.filter(|_| std::mem::take(&mut state.untold))
        };
        if let (HttpAuth::Ask(source), Some(login)) = (&self.source, accepted) {
            source.accepted(&asked_for(target, &request.tail), &login);
        }
        Ok(())
    }

    /// After a 401: takes another login to try with, or says why there is none.
    fn log_in(&self, target: &Url, tail: &str, said: &str) -> Result<()> {
        let host = target.host_str().unwrap_or_default();
        let refuse = |what: String| Err(StoreError::new(Fault::Refused, format!("{what} (HTTP 401{said})")));
        let sent = self.login_for(target);
        match &self.source {
            HttpAuth::None => refuse(format!("{} wants a login: give a token, or a user name and a password", self.wire.url)),
            HttpAuth::Login(_) if sent.is_some() => refuse(format!(
                "host {host} refused the login for {}: give a token that is valid and may read the repository",
                self.wire.url
            )),
            HttpAuth::Login(_) => refuse(format!(
                "{} redirects to host {host}, which wants a login, and the login given is not sent to another host: give that host's url",
                self.wire.url
            )),
            HttpAuth::Ask(source) => self.ask(source, target, tail, sent, &refuse),
        }
    }

    fn ask(
        &self,
        source: &Arc<dyn LoginSource>,
        target: &Url,
        tail: &str,
        sent: Option<Login>,
        refuse: &dyn Fn(String) -> Result<()>,
    ) -> Result<()> {
        let place = asked_for(target, tail);
        let (asked, untold) = {
            let mut state = lock(&self.login);
            state.current = None;
            (std::mem::replace(&mut state.asked, true), std::mem::take(&mut state.untold))
        };
        if let Some(login) = sent.as_ref().filter(|_| untold) {
            source.refused(&place, login);
        }
        if sent.is_some() {
            memory::forget(&self.wire.url);
        }
        if asked {
            return refuse(format!("host refused the login for {place}: give a token that is valid and may read the repository"));
        }
        match source.login(&place)? {
            Some(login) => {
                let mut state = lock(&self.login);
                state.current = Some((Origin::of(target), login));
                state.untold = true;
                Ok(())
            }
            None => refuse(format!("{place} wants a login and none was found: {}", source.remedy())),
        }
    }

    fn follow(&self, from: &Url, response: &Response) -> Result<Url> {
        let refuse = |what: String| Err(StoreError::new(Fault::Refused, format!("{} {what}", self.wire.url)));
        let location = response.headers().get(LOCATION).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let Ok(mut to) = from.join(location) else { return refuse("redirects to something that is no url".into()) };
        to.set_fragment(None);
        if !matches!((from.scheme(), to.scheme()), ("https" | "http", "https") | ("http", "http")) {
            return refuse(format!("redirects from {} to {}, which is less safe and not followed", from.scheme(), to.scheme()));
        }
        if !to.username().is_empty() || to.password().is_some() {
            return refuse("redirects to a url with a login in it, which is not followed".into());
        }
        let host = to.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        if !self.url.allows_host(&host) {
            return refuse(format!("redirects to host {host}, which is not in the allow-list"));
        }
        Ok(to)
    }
}

/// The repository's URL for the HTTP client, which must read the same host out of it.
fn parse(url: &RepoUrl) -> Result<Url> {
    let bad = |what: String| StoreError::new(Fault::Usage, format!("url {:?} {what}", url.to_string()));
    let parsed = Url::parse(&url.to_string()).map_err(|e| bad(format!("is no url: {e}")))?;
    let host = parsed.host_str().unwrap_or_default();
    if host.trim_matches(['[', ']']) != url.host() {
        return Err(bad(format!("has a host that is another spelling of {host}: write that")));
    }
    Ok(parsed)
}

fn below(base: &Url, tail: &str) -> Result<Url> {
    let joined = format!("{}/{tail}", base.as_str().trim_end_matches('/'));
    Url::parse(&joined).map_err(|e| StoreError::new(Fault::Internal, format!("{joined} is no url: {e}")))
}

/// The repository that a request was about, as a login is asked for it.
fn asked_for(target: &Url, tail: &str) -> String {
    let whole = target.as_str();
    whole.strip_suffix(tail).unwrap_or(whole).trim_end_matches('/').to_owned()
}

/// A URL for messages: without query, which may hold a secret.
fn shown(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.to_string()
}

/// The content type without parameters, lower case.
pub(super) fn content_type(response: &Response) -> String {
    let value = response.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A success must be git's own answer, not some page, and not compressed: nothing here inflates what a host chose to deflate.
fn check_content(wire: &Wire, request: &Request, response: &Response) -> Result<()> {
    let found = content_type(response);
    let (wanted, fault) = match request.post {
        true => ("application/x-git-upload-pack-result", Fault::Corrupt),
        false => ("application/x-git-upload-pack-advertisement", Fault::NotFound),
    };
    if found != wanted {
        let found = super::super::failure::printable(if found.is_empty() { "no content type" } else { &found }, 60);
        let message =
            format!("{} is no git repository that is served over smart HTTP: the host answers with {found}, not {wanted}", wire.url);
        return Err(StoreError::new(fault, message));
    }
    if response.headers().get(CONTENT_ENCODING).is_some_and(|v| v.as_bytes() != b"identity") {
        return Err(StoreError::new(Fault::Corrupt, format!("host {} sends compressed data, which was not asked for", wire.host)));
    }
    Ok(())
}
