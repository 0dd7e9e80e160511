//! Repository URLs: parsed once, normalized, printed without credentials.
//!
//! The forms are git's own (`https://`, `ssh://`, `user@host:path`, `git://`, and by policy `http://` and `file://`), read strictly: what
//! another parser further down could read differently (a backslash, a second host, a leading dash) is refused here.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::Ipv6Addr;
use std::sync::Arc;

use crate::error::{Fault, Result, StoreError};

#[cfg(test)]
mod tests;

/// Longest URL that is taken, in bytes.
const MAX_LENGTH: usize = 4096;

/// What a right URL looks like, for messages.
const EXAMPLE: &str = "give something like \"https://git.example.com/team/repo.git\" or \"git@git.example.com:team/repo.git\"";

/// Which schemes and hosts are allowed beyond `https`, `ssh`, the scp form and `git`.
#[derive(Debug, Clone, Default)]
pub struct UrlPolicy {
    /// Allow `http://`.
    pub allow_http: bool,
    /// Allow `file://`.
    pub allow_file: bool,
    /// When not empty, only these hosts (exact names, lower case).
    pub hosts: Vec<String>,
}

/// How a repository is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// `https://`
    Https,
    /// `http://`
    Http,
    /// `ssh://` and `user@host:path`
    Ssh,
    /// `git://`
    Git,
    /// `file://`
    File,
}

impl Scheme {
    fn from_name(name: &str) -> Option<Self> {
        [Scheme::Https, Scheme::Http, Scheme::Ssh, Scheme::Git, Scheme::File].into_iter().find(|s| s.name().eq_ignore_ascii_case(name))
    }

    /// The scheme as it stands before `://`, lower case.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Https => "https",
            Scheme::Http => "http",
            Scheme::Ssh => "ssh",
            Scheme::Git => "git",
            Scheme::File => "file",
        }
    }

    /// The port where a URL names none; 0 for `file`.
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Https => 443,
            Scheme::Http => 80,
            Scheme::Ssh => 22,
            Scheme::Git => 9418,
            Scheme::File => 0,
        }
    }
}

/// A checked URL. Its `Display` is the text it was parsed from and never shows a credential (none can be in it).
#[derive(Debug, Clone)]
pub struct RepoUrl {
    text: String,
    scheme: Scheme,
    user: Option<String>,
    host: String,
    port: Option<u16>,
    path: String,
    allowed: Arc<[String]>,
}

impl RepoUrl {
    /// Parses and checks a URL.
    ///
    /// # Errors
    /// [`crate::Fault::Usage`]; the message says what is wrong and shows a right form, and never repeats a password.
    pub fn parse(text: &str, policy: &UrlPolicy) -> Result<Self> {
        let shown = redact(text);
        let refuse = |what: &str| Err(StoreError::new(Fault::Usage, format!("url {shown:?} {what}")));
        match check_text(text).and_then(|()| if text.contains("://") { parse_url(text) } else { parse_scp(text) }) {
            Err(what) => refuse(&what),
            Ok(mut url) => match check_policy(&url, policy) {
                Err(what) => refuse(&what),
                Ok(()) => {
                    url.allowed = policy.hosts.iter().map(|h| h.to_ascii_lowercase()).collect();
                    Ok(url)
                }
            },
        }
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The user, where the URL names one (SSH).
    pub fn user(&self) -> Option<&str> {
        self.user.as_deref()
    }

    /// The host, lower case, IPv6 without brackets; empty for `file`.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port, where it is not the scheme's default.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// The path as the host is to see it: percent-escapes decoded for `ssh`, `git` and `file`, as git does. It has its leading slash but
    /// for `~user/…` (`ssh`, `git`) and for the scp form's paths that are relative to the home directory.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Whether a host (lower case) may be contacted for this URL: redirects are held to the same list as the URL itself.
    pub(crate) fn allows_host(&self, host: &str) -> bool {
        self.allowed.is_empty() || self.allowed.iter().any(|h| h == host)
    }

    /// The host with brackets where it is an IPv6 address, and with the port where it is not the default.
    pub(crate) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match self.port {
            Some(port) => format!("{host}:{port}"),
            None => host,
        }
    }

    /// The normalized text: one per repository at one host by one scheme. Scheme and host are lower case; the default port, trailing
    /// slashes and one trailing `.git` are gone (not for `file`, where `a` and `a.git` may both exist); the scp form is `ssh://`. It is what
    /// names a repository's directory; what is fetched from is the `Display` text.
    pub fn normalized(&self) -> String {
        let mut path = self.path.trim_end_matches('/');
        if self.scheme != Scheme::File
            && let Some(stem) = path.strip_suffix(".git")
            && !stem.is_empty()
            && !stem.ends_with('/')
        {
            path = stem;
        }
        let user = self.user.as_ref().map(|u| format!("{u}@")).unwrap_or_default();
        // A path below the home directory is no path below the root, so the two must not meet in one repository.
        let home = match path.as_bytes().first() {
            Some(b'/') | None => "",
            Some(b'~') => "/",
            Some(_) => "/~/",
        };
        format!("{}://{user}{}{home}{path}", self.scheme.name(), self.authority())
    }
}

impl fmt::Display for RepoUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl RepoUrl {
    fn parts(&self) -> (Scheme, Option<&str>, &str, Option<u16>, &str) {
        (self.scheme, self.user.as_deref(), &self.host, self.port, &self.path)
    }
}

/// Two URLs are equal when they reach the same path at the same host in the same way, however they were written.
impl PartialEq for RepoUrl {
    fn eq(&self, other: &Self) -> bool {
        self.parts() == other.parts()
    }
}

impl Eq for RepoUrl {}

impl Hash for RepoUrl {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

type Parsed<T> = std::result::Result<T, String>;

/// What holds for every form: size, characters, and forms that would run a program.
fn check_text(text: &str) -> Parsed<()> {
    if text.is_empty() {
        return Err(format!("is empty: {EXAMPLE}"));
    }
    if text.len() > MAX_LENGTH {
        return Err(format!("is longer than {MAX_LENGTH} bytes: {EXAMPLE}"));
    }
    if text.contains('\0') {
        return Err(format!("contains a NUL: {EXAMPLE}"));
    }
    if text.contains(['\n', '\r']) {
        return Err(format!("contains a newline: {EXAMPLE}"));
    }
    if text.chars().any(char::is_control) {
        return Err(format!("contains a control character: {EXAMPLE}"));
    }
    if text.trim() != text {
        return Err(format!("starts or ends with a space: {EXAMPLE}"));
    }
    if text.starts_with('-') {
        return Err(format!("starts with a dash and could be taken for an option: {EXAMPLE}"));
    }
    let name_end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"+.-_".contains(c)).unwrap_or(text.len());
    if name_end > 0 && text[name_end..].starts_with("::") {
        return Err(format!("has the form \"transport::address\", which runs a program: {EXAMPLE}"));
    }
    Ok(())
}

/// `scheme://[user@]host[:port]/path`.
fn parse_url(text: &str) -> Parsed<RepoUrl> {
    let (name, rest) = text.split_once("://").unwrap_or((text, ""));
    let Some(scheme) = Scheme::from_name(name) else {
        return Err(match name.to_ascii_lowercase().as_str() {
            "git+ssh" | "ssh+git" => "has a scheme that is an old name of ssh: write \"ssh://\"".into(),
            _ => format!("has an unknown scheme: use https, ssh or git, {EXAMPLE}"),
        });
    };
    let slash = rest.find('/').unwrap_or(rest.len());
    let (authority, raw_path) = rest.split_at(slash);
    if authority.contains('\\') || raw_path.contains('\\') && matches!(scheme, Scheme::Https | Scheme::Http) {
        return Err(format!("contains a backslash: {EXAMPLE}"));
    }
    if authority.contains(['?', '#']) || raw_path.contains(['?', '#']) {
        return Err(format!("has a query or a fragment (\"?\" or \"#\"), which no repository needs: {EXAMPLE}"));
    }
    if scheme == Scheme::File {
        return parse_file(text, authority, raw_path);
    }
    let (userinfo, host_port) = authority.rsplit_once('@').map_or((None, authority), |(u, h)| (Some(u), h));
    let user = userinfo.map(|info| check_userinfo(scheme, info)).transpose()?;
    let (host, port) = split_port(host_port)?;
    let host = check_host(host)?;
    let path = if matches!(scheme, Scheme::Ssh | Scheme::Git) { decode_path(raw_path)? } else { raw_path.to_owned() };
    if path.trim_matches('/').is_empty() {
        return Err(format!("names no repository behind the host: {EXAMPLE}"));
    }
    // As git does: "/~user/x" is a path below that user's home directory.
    let path = if matches!(scheme, Scheme::Ssh | Scheme::Git) && path.starts_with("/~") { path[1..].to_owned() } else { path };
    let port = port.filter(|p| *p != scheme.default_port());
    Ok(RepoUrl { text: text.into(), scheme, user, host, port, path, allowed: [].into() })
}

fn parse_file(text: &str, authority: &str, raw_path: &str) -> Parsed<RepoUrl> {
    let example = "give something like \"file:///srv/git/repo.git\"";
    if !authority.is_empty() && !authority.eq_ignore_ascii_case("localhost") {
        return Err(format!("names a host, or a path that is not absolute, after \"file://\": {example}"));
    }
    let path = decode_path(raw_path)?;
    if path.trim_matches('/').is_empty() {
        return Err(format!("names no repository: {example}"));
    }
    Ok(RepoUrl { text: text.into(), scheme: Scheme::File, user: None, host: String::new(), port: None, path, allowed: [].into() })
}

/// `[user@]host:path`, where the colon comes before the first slash.
fn parse_scp(text: &str) -> Parsed<RepoUrl> {
    let no_scheme = || format!("has no scheme: {EXAMPLE}");
    let (userinfo, rest) = match text.find(['@', '/', ':', '[']) {
        Some(at) if text.as_bytes()[at] == b'@' => (Some(&text[..at]), &text[at + 1..]),
        _ => (None, text),
    };
    let (host, port, path) = if let Some(inner) = rest.strip_prefix('[') {
        let (inside, path) = inner.split_once("]:").ok_or_else(no_scheme)?;
        match inside.parse::<Ipv6Addr>() {
            Ok(_) => (inside, None, path),
            Err(_) => {
                let (host, port) = split_port(inside)?;
                (host, port, path)
            }
        }
    } else {
        let colon = rest.find(':').ok_or_else(no_scheme)?;
        if rest.find('/').is_some_and(|slash| slash < colon) {
            return Err(no_scheme());
        }
        (&rest[..colon], None, &rest[colon + 1..])
    };
    if userinfo.is_none() && path.split('/').next().is_some_and(|first| first.contains('@')) {
        return Err(format!("seems to hold a password: leave it out and give the credential apart from the url, {EXAMPLE}"));
    }
    if host.is_empty() {
        return Err(format!("has no host: {EXAMPLE}"));
    }
    // A host may well be called "git", and hardly "https".
    if path.starts_with('/') && userinfo.is_none() && Scheme::from_name(host).is_some_and(|scheme| scheme != Scheme::Git) {
        return Err(format!("has a scheme that is not followed by \"://\": {EXAMPLE}"));
    }
    let user = userinfo.map(|info| check_userinfo(Scheme::Ssh, info)).transpose()?;
    let host = check_host(host)?;
    if path.starts_with('-') {
        return Err(format!("has a path that starts with a dash and could be taken for an option: write \"./-…\" for it, or {EXAMPLE}"));
    }
    if path.trim_matches('/').is_empty() {
        return Err(format!("names no repository behind the host: {EXAMPLE}"));
    }
    let port = port.filter(|p| *p != Scheme::Ssh.default_port());
    Ok(RepoUrl { text: text.into(), scheme: Scheme::Ssh, user, host, port, path: path.into(), allowed: [].into() })
}

fn check_userinfo(scheme: Scheme, info: &str) -> Parsed<String> {
    if info.contains(':') {
        return Err(format!("holds a password: leave it out, hand the credential over apart from the url, and {EXAMPLE}"));
    }
    if scheme != Scheme::Ssh {
        return Err("names a user, which may be a token: leave it out and give the login apart from the url, \
             for example \"https://git.example.com/team/repo.git\""
            .into());
    }
    if info.starts_with('-') {
        return Err(format!("has a user that starts with a dash and could be taken for an option: {EXAMPLE}"));
    }
    if info.is_empty() || info.chars().any(|c| !c.is_alphanumeric() && !"._-+".contains(c)) {
        return Err(format!("has a user that is empty or holds other characters than letters, digits and \"._-+\": {EXAMPLE}"));
    }
    Ok(info.to_owned())
}

fn split_port(host_port: &str) -> Parsed<(&str, Option<u16>)> {
    let bad = || "has a bad port: write a number from 1 to 65535, for example \"ssh://git@git.example.com:2222/team/repo.git\"".to_owned();
    let (host, port) = if let Some(inner) = host_port.strip_prefix('[') {
        let (host, after) = inner.split_once(']').ok_or_else(|| format!("has a bracket that is not closed: {EXAMPLE}"))?;
        match after.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if after.is_empty() => (host, None),
            None => return Err(bad()),
        }
    } else {
        match host_port.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (host_port, None),
        }
    };
    match port {
        None => Ok((host, None)),
        Some(digits) if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) => {
            let number = digits.parse::<u16>().ok().filter(|n| *n != 0).ok_or_else(bad)?;
            Ok((host, Some(number)))
        }
        Some(_) => Err(bad()),
    }
}

fn check_host(host: &str) -> Parsed<String> {
    if host.is_empty() {
        return Err(format!("has no host: {EXAMPLE}"));
    }
    if host.starts_with('-') {
        return Err(format!("has a host that starts with a dash and could be taken for an option: {EXAMPLE}"));
    }
    if host.contains(':') {
        let address = host.parse::<Ipv6Addr>().map_err(|_| format!("has a host that is no IPv6 address in brackets: {EXAMPLE}"))?;
        return Ok(address.to_string());
    }
    if host.len() > 253 || !host.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) || host.starts_with('.') {
        return Err(format!("has a host with other characters than ASCII letters, digits, dots and dashes: {EXAMPLE}"));
    }
    Ok(host.to_ascii_lowercase())
}

/// Decodes percent-escapes, and refuses what they could smuggle in.
fn decode_path(raw: &str) -> Parsed<String> {
    let mut bytes = Vec::with_capacity(raw.len());
    let mut rest = raw.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|d| std::str::from_utf8(d).ok()).filter(|d| d.bytes().all(|b| b.is_ascii_hexdigit()));
        match digits.and_then(|d| u8::from_str_radix(d, 16).ok()) {
            Some(byte) if first == b'%' => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    let path = String::from_utf8(bytes).map_err(|_| format!("has percent-escapes that are no UTF-8: {EXAMPLE}"))?;
    if path.chars().any(char::is_control) {
        return Err(format!("has a percent-escaped control character: {EXAMPLE}"));
    }
    Ok(path)
}

fn check_policy(url: &RepoUrl, policy: &UrlPolicy) -> Parsed<()> {
    if url.scheme == Scheme::Http && !policy.allow_http {
        return Err("uses http, which is not encrypted and not allowed here: use https, or have http allowed".into());
    }
    if url.scheme == Scheme::File && !policy.allow_file {
        return Err("uses file, which is not allowed here: give a url with https or ssh".into());
    }
    let listed = policy.hosts.iter().any(|h| h.eq_ignore_ascii_case(&url.host));
    if !policy.hosts.is_empty() && url.scheme != Scheme::File && !listed {
        return Err(format!("has a host that is not in the allow-list: use one of {}", policy.hosts.join(", ")));
    }
    Ok(())
}

/// The text for a message: without what may be a credential, also where it is too malformed to be parsed.
fn redact(text: &str) -> String {
    let end = text.char_indices().nth(200).map_or(text.len(), |(at, _)| at);
    let cut = text.find(['?', '#']).map_or(text, |at| &text[..at]);
    let marked = if cut.len() < text.len() { "?…" } else { "" };
    let start = cut.find("://").map_or(0, |at| at + 3);
    let shown = match cut.rfind('@') {
        Some(at) if at >= start && &cut[start..at] != "git" => format!("{}…{}{marked}", &cut[..start], &cut[at..]),
        _ => format!("{cut}{marked}"),
    };
    if end < text.len() { shown.chars().take(200).chain(['…']).collect() } else { shown }
}
