//! What `ssh_config(5)` files say about a host, as far as reading a repository needs it. No program is run for it.
//!
//! As in OpenSSH the first value found for an option wins, except for `IdentityFile`, of which all are taken; the user's file comes before
//! the system's. `Match` blocks apply when all their criteria are `all`, `host`, `originalhost`, `user` or `localuser`; any other criterion
//! makes the block apply never.

use std::path::{Path, PathBuf};

/// Include files deeper than this are ignored, as OpenSSH does.
const MAX_INCLUDES: usize = 16;

/// Larger files are no configuration.
const MAX_FILE: u64 = 1 << 20;

/// What a host's entries say. Paths may still hold `~` and `%` tokens, see [`Tokens`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// `HostName`.
    pub host_name: Option<String>,
    /// `User`.
    pub user: Option<String>,
    /// `Port`.
    pub port: Option<u16>,
    /// `IdentityFile`, all of them in order.
    pub identity_files: Vec<String>,
    /// `IdentitiesOnly`.
    pub identities_only: Option<bool>,
    /// `IdentityAgent`.
    pub identity_agent: Option<String>,
    /// `UserKnownHostsFile`.
    pub user_known_hosts: Option<Vec<String>>,
    /// `GlobalKnownHostsFile`.
    pub global_known_hosts: Option<Vec<String>>,
    /// `ProxyJump` or `ProxyCommand` that would be needed to get there: which of them.
    pub proxy: Option<&'static str>,
}

/// Who asks for which host.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// The host as the URL names it.
    pub host: &'a str,
    /// The user as the URL names it.
    pub user: Option<&'a str>,
    /// The login name of this user.
    pub local_user: &'a str,
    /// This user's home directory.
    pub home: &'a Path,
}

/// Reads the user's file and the system's.
pub fn load(query: Query<'_>) -> HostConfig {
    let mut config = HostConfig::default();
    let user_dir = query.home.join(".ssh");
    for (file, dir) in [(user_dir.join("config"), user_dir.as_path()), (PathBuf::from("/etc/ssh/ssh_config"), Path::new("/etc/ssh"))] {
        Reader { query, include_dir: dir, config: &mut config }.file(&file, true, 0);
    }
    config
}

/// What `text` says, when it was the only file; `include_dir` is where relative `Include`s are looked for.
pub fn parse(text: &str, query: Query<'_>, include_dir: &Path) -> HostConfig {
    let mut config = HostConfig::default();
    Reader { query, include_dir, config: &mut config }.text(text, true, 0);
    config
}

struct Reader<'a> {
    query: Query<'a>,
    include_dir: &'a Path,
    config: &'a mut HostConfig,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, applies: bool, depth: usize) {
        // A file that is not there, or that is no text, says nothing.
        if std::fs::metadata(path).is_ok_and(|m| m.is_file() && m.len() <= MAX_FILE)
            && let Ok(bytes) = std::fs::read(path)
        {
            self.text(&String::from_utf8_lossy(&bytes), applies, depth);
        }
    }

    /// `outer` is whether the block that includes this text applies.
    fn text(&mut self, text: &str, outer: bool, depth: usize) {
        let mut applies = outer;
        for line in text.lines() {
            let Some((keyword, arguments)) = split(line) else { continue };
            match keyword.as_str() {
                "host" => applies = outer && matches(&arguments, self.query.host),
                "match" => applies = outer && self.matches_all(&arguments),
                "include" if depth < MAX_INCLUDES => {
                    for pattern in &arguments {
                        for file in self.included(pattern) {
                            self.file(&file, applies, depth + 1);
                        }
                    }
                }
                _ if applies => self.option(&keyword, arguments),
                _ => {}
            }
        }
    }

    fn option(&mut self, keyword: &str, arguments: Vec<String>) {
        let config = &mut *self.config;
        let Some(first) = arguments.first().cloned() else { return };
        match keyword {
            "hostname" => set(&mut config.host_name, Some(first)),
            "user" => set(&mut config.user, Some(first)),
            "port" => set(&mut config.port, first.parse().ok().filter(|p| *p != 0)),
            "identityfile" if !config.identity_files.contains(&first) => config.identity_files.push(first),
            "identitiesonly" => set(&mut config.identities_only, yes(&first)),
            "identityagent" => set(&mut config.identity_agent, Some(first)),
            "userknownhostsfile" => set(&mut config.user_known_hosts, Some(arguments)),
            "globalknownhostsfile" => set(&mut config.global_known_hosts, Some(arguments)),
            "proxyjump" if first != "none" => set(&mut config.proxy, Some("ProxyJump")),
            "proxycommand" if first != "none" => set(&mut config.proxy, Some("ProxyCommand")),
            _ => {}
        }
    }

    /// The criteria of a `Match` line; pairs but for `all`.
    fn matches_all(&self, criteria: &[String]) -> bool {
        let mut rest = criteria.iter();
        let mut any = false;
        while let Some(criterion) = rest.next() {
            any = true;
            let (negated, name) = criterion.strip_prefix('!').map_or((false, criterion.as_str()), |name| (true, name));
            let name = name.to_ascii_lowercase();
            if name == "all" {
                if negated {
                    return false;
                }
                continue;
            }
            let Some(patterns) = rest.next() else { return false };
            let subject = match name.as_str() {
                "host" => self.config.host_name.as_deref().unwrap_or(self.query.host),
                "originalhost" => self.query.host,
                "user" => self.query.user.or(self.config.user.as_deref()).unwrap_or(self.query.local_user),
                "localuser" => self.query.local_user,
                _ => return false,
            };
            let patterns: Vec<String> = patterns.split(',').map(str::to_owned).collect();
            if matches(&patterns, subject) == negated {
                return false;
            }
        }
        any
    }

    /// The files that an `Include` names; only its last segment may have wildcards.
    fn included(&self, pattern: &str) -> Vec<PathBuf> {
        let path = home_relative(pattern, self.query.home);
        let path = if path.is_absolute() { path } else { self.include_dir.join(path) };
        let (Some(dir), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str())) else { return vec![] };
        if !name.contains(['*', '?']) {
            return vec![path];
        }
        let Ok(entries) = std::fs::read_dir(dir) else { return vec![] };
        let mut found: Vec<PathBuf> = entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(|n| !n.starts_with('.') && wildcard(name, n)))
            .collect();
        found.sort();
        found
    }
}

fn set<T>(slot: &mut Option<T>, value: Option<T>) {
    if slot.is_none() {
        *slot = value;
    }
}

fn yes(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "yes" | "true" => Some(true),
        "no" | "false" => Some(false),
        _ => None,
    }
}

/// Splits a line into its lower-case keyword and arguments. Quotes hold words together; `#` begins a comment; `=` may follow the keyword.
fn split(line: &str) -> Option<(String, Vec<String>)> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end = line.find(|c: char| c.is_whitespace() || c == '=').unwrap_or(line.len());
    let rest = line[end..].trim_start();
    let rest = rest.strip_prefix('=').unwrap_or(rest);
    Some((line[..end].to_ascii_lowercase(), words(rest)))
}

fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut chars = text.chars().peekable();
    loop {
        while chars.next_if(|c| c.is_whitespace()).is_some() {}
        let Some(&first) = chars.peek() else { return words };
        if first == '#' {
            return words;
        }
        let mut word = String::new();
        let mut quote = None;
        while let Some(&c) = chars.peek() {
            if quote.is_none() && c.is_whitespace() {
                break;
            }
            chars.next();
            match (quote, c) {
                (None, '"' | '\'') => quote = Some(c),
                (Some(q), c) if q == c => quote = None,
                (_, '\\') if chars.peek().is_some_and(|n| matches!(n, '"' | '\'' | '\\')) => word.extend(chars.next()),
                (_, c) => word.push(c),
            }
        }
        words.push(word);
    }
}

/// Whether a list of patterns takes `subject`: one matches, and no negated one does.
fn matches(patterns: &[String], subject: &str) -> bool {
    let subject = subject.to_ascii_lowercase();
    let mut taken = false;
    for pattern in patterns {
        let pattern = pattern.to_ascii_lowercase();
        match pattern.strip_prefix('!') {
            Some(negated) if wildcard(negated, &subject) => return false,
            Some(_) => {}
            None => taken |= wildcard(&pattern, &subject),
        }
    }
    taken
}

/// `*` stands for any characters and `?` for one.
fn wildcard(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    // Where to go on after a mismatch: behind the last star, one character further.
    let mut retry = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p + 1, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((after, from)) = retry else { return false };
                retry = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

fn home_relative(text: &str, home: &Path) -> PathBuf {
    match text.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None if text == "~" => home.to_owned(),
        None => PathBuf::from(text),
    }
}

/// What `%` tokens stand for in a value.
#[derive(Debug, Clone, Copy)]
pub struct Tokens<'a> {
    /// `%d` and `~`.
    pub home: &'a Path,
    /// `%h`: the host that is connected to.
    pub host: &'a str,
    /// `%n`: the host as the URL names it.
    pub original: &'a str,
    /// `%r`: the user at the host.
    pub user: &'a str,
    /// `%u`: the user here.
    pub local_user: &'a str,
    /// `%p`.
    pub port: u16,
}

impl Tokens<'_> {
    /// The value of a path option.
    pub fn path(&self, text: &str) -> PathBuf {
        home_relative(&self.expand(text), self.home)
    }

    /// The value of an option; unknown tokens stay as they are.
    pub fn expand(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('%') {
            out.push_str(&rest[..at]);
            let token = rest[at + 1..].chars().next();
            match token {
                Some('%') => out.push('%'),
                Some('d') => out.push_str(&self.home.to_string_lossy()),
                Some('h') => out.push_str(self.host),
                Some('n') => out.push_str(self.original),
                Some('r') => out.push_str(self.user),
                Some('u') => out.push_str(self.local_user),
                Some('p') => out.push_str(&self.port.to_string()),
                Some(other) => out.extend(['%', other]),
                None => out.push('%'),
            }
            rest = &rest[at + 1 + token.map_or(0, char::len_utf8)..];
        }
        out.push_str(rest);
        out
    }
}

#[cfg(test)]
mod tests;
