//! HTTP statuses and network errors as [`StoreError`]s.

use std::error::Error;
use std::time::Duration;

use reqwest::header::RETRY_AFTER;
use reqwest::{Response, StatusCode};
use rustls::CertificateError;

use super::super::failure::{chain, printable, root_cause};
use super::super::wire::Wire;
use super::StoreError;
use super::session::content_type;
use crate::error::Fault;

/// How much of an error's body is read.
const MAX_BODY: usize = 4096;

/// The longest wait that a host is granted.
const MAX_WAIT: Duration = Duration::from_secs(3600);

/// The error for an answer that is no success (and neither 401 nor a redirect).
pub(super) fn failure(wire: &Wire, response: Response, logged_in: bool) -> StoreError {
    let code = response.status();
    let wait = retry_after(&response);
    let later = wait.map_or_else(|| "later".to_owned(), |wait| format!("in {} s", wait.as_secs()));
    let said = said(wire, response);
    let url = &wire.url;
    let number = code.as_u16();
    let (fault, what) = match code {
        StatusCode::FORBIDDEN if logged_in => (Fault::Refused, format!("the login may not read {url}: give one that may")),
        StatusCode::FORBIDDEN => (Fault::Refused, format!("host {} refuses access to {url}: give a login that may read it", wire.host)),
        StatusCode::NOT_FOUND | StatusCode::GONE if logged_in => {
            (Fault::NotFound, format!("repository {url} does not exist, or the login may not see it: check the path"))
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => {
            (Fault::NotFound, format!("repository {url} does not exist, or is private: check the path, or give a login"))
        }
        StatusCode::TOO_MANY_REQUESTS => (Fault::Unreachable, format!("host {} asks for fewer requests: try again {later}", wire.host)),
        StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            (Fault::Refused, "the proxy wants a login: put it into the proxy's url in the environment".to_owned())
        }
        StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_EARLY => {
            (Fault::Unreachable, format!("host {} is not ready: try again later", wire.host))
        }
        code if code.is_server_error() => (Fault::Unreachable, format!("host {} has a problem of its own: try again {later}", wire.host)),
        _ => (Fault::Refused, format!("host {} refuses the request for {url}", wire.host)),
    };
    StoreError::new(fault, format!("{what} (HTTP {number}{said})")).retry_after(wait)
}

/// What the host says in plain text, for the end of a message: empty, or `: …`.
pub(super) fn said(wire: &Wire, mut response: Response) -> String {
    let plain = content_type(&response) == "text/plain";
    let mut body = vec![];
    // Read to the end also where it is not shown, so that the connection can be used again.
    while body.len() < MAX_BODY
        && wire.heard(0).is_ok()
        && let Ok(Ok(Some(chunk))) = wire.wait(wire.idle.min(Duration::from_secs(5)), "send anything", response.chunk())
    {
        body.extend_from_slice(&chunk[..chunk.len().min(MAX_BODY)]);
    }
    let text = printable(&String::from_utf8_lossy(&body), 200);
    if plain && !text.is_empty() { format!(": {text}") } else { String::new() }
}

/// `Retry-After` as seconds or as a date.
fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(RETRY_AFTER)?.to_str().ok()?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).ok()?.as_secs();
    wait_of(value, now)
}

fn wait_of(value: &str, now: u64) -> Option<Duration> {
    let value = value.trim();
    let seconds = match value.parse::<u64>() {
        Ok(seconds) => seconds,
        Err(_) if !value.starts_with(|c: char| c.is_ascii_alphabetic()) => return None,
        // jiff, below gix, takes RFC 2822's zones but not the "GMT" that HTTP demands.
        Err(_) => {
            let time = gix::date::parse(&value.replace("GMT", "+0000"), None).ok()?;
            u64::try_from(time.seconds).ok()?.saturating_sub(now)
        }
    };
    Some(Duration::from_secs(seconds).min(MAX_WAIT))
}

/// The error for a request that got no answer, or half of one.
pub(super) fn network_error(wire: &Wire, error: reqwest::Error) -> StoreError {
    let error = error.without_url();
    if let Some(tls) = chain(&error).into_iter().find_map(<dyn Error>::downcast_ref::<rustls::Error>) {
        let (fault, hint) = match tls {
            rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
                (Fault::Refused, ": if the host has a private CA, give that CA's certificate")
            }
            rustls::Error::InvalidCertificate(_) | rustls::Error::NoCertificatesPresented => (Fault::Refused, ""),
            _ => (Fault::Unreachable, ""),
        };
        let message = format!("host {} cannot be trusted: {}{hint}", wire.host, printable(&tls.to_string(), 200));
        return StoreError::new(fault, message).caused_by(error);
    }
    let cause = root_cause(&error);
    if error.is_timeout() && error.is_connect() {
        let message = format!("host {} did not accept a connection within {} s", wire.host, wire.connect.as_secs_f32());
        return StoreError::new(Fault::Unreachable, message).caused_by(error);
    }
    if error.is_builder() {
        return StoreError::new(Fault::Internal, format!("the request to {} could not be made: {cause}", wire.host)).caused_by(error);
    }
    let what = if error.is_connect() { "cannot be reached" } else { "broke the connection" };
    StoreError::new(Fault::Unreachable, format!("host {} {what}: {cause}", wire.host)).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let seconds = |s| Some(Duration::from_secs(s));
        // Sun, 06 Nov 1994 08:49:37 GMT is the date of RFC 9110's examples.
        let now = 784_111_777 - 60;
        assert_eq!(wait_of("120", now), seconds(120));
        assert_eq!(wait_of(" 0 ", now), seconds(0));
        assert_eq!(wait_of("Sun, 06 Nov 1994 08:49:37 GMT", now), seconds(60));
        assert_eq!(wait_of("Sun, 06 Nov 1994 08:49:37 GMT", now + 3600), seconds(0), "a date in the past is no wait");
        assert_eq!(wait_of("999999999", now), Some(MAX_WAIT), "a host cannot ask for for ever");
        for bad in ["", "-1", "soon", "1.5", "Sun, 99 Nov 1994"] {
            assert_eq!(wait_of(bad, now), None, "{bad}");
        }
    }
}
