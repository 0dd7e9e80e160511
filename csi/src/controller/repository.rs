//! Which pushes concern which volumes. Repositories compare by host and path, without scheme, user, port and a trailing `.git`; the case of
//! letters does not count, since forges do not tell names apart by it and a pull too many costs little.

use std::fmt;
use std::net::Ipv6Addr;

/// A repository, as far as it is compared.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Repository {
    host: String,
    path: String,
}

impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.host, self.path)
    }
}

impl Repository {
    /// Reads a URL, or the scp form `user@host:path`, also with `[host:port]` or `[address]` for the host; `None` for anything else.
    pub fn parse(url: &str) -> Option<Self> {
        let (authority, path) = match url.split_once("://") {
            Some((_, rest)) => rest.split_once('/')?,
            None => match url.find("]:").filter(|end| url[..*end].contains('[')) {
                Some(end) => (&url[..=end], &url[end + 2..]),
                None => url.split_once(':')?,
            },
        };
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        let host = host.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(host, |(inside, _)| inside);
        // The colon of an IPv6 address is no port's.
        let host = if host.parse::<Ipv6Addr>().is_ok() { host } else { host.split_once(':').map_or(host, |(host, _)| host) };
        let path = path.split(['?', '#']).next().unwrap_or_default().trim_matches('/');
        let path = path.strip_suffix(".git").unwrap_or(path).trim_end_matches('/');
        (!host.is_empty() && !host.contains('/') && !path.is_empty())
            .then(|| Repository { host: host.to_lowercase(), path: path.to_lowercase() })
    }
}

/// Whether a volume that follows `followed` (as in its attributes) follows what was pushed.
pub fn follows(followed: &str, pushed: &str, default_branch: Option<&str>) -> bool {
    if followed.is_empty() || followed == "HEAD" {
        // A forge that does not say which branch is the default one may mean any.
        return default_branch.is_none_or(|branch| pushed == branch || pushed.strip_prefix("refs/heads/") == Some(branch));
    }
    pushed == followed || ["refs/heads/", "refs/tags/"].iter().any(|kind| pushed.strip_prefix(kind) == Some(followed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_one_repository_are_equal() {
        let base = Repository::parse("https://code.example.com/data/franchises.git").unwrap();
        assert_eq!(base.to_string(), "code.example.com/data/franchises");
        for other in [
            "http://code.example.com:3000/data/franchises",
            "ssh://git@code.example.com:23022/data/franchises.git",
            "git@code.example.com:data/franchises.git",
            "git@code.example.com:/data/franchises",
            "git@[code.example.com:23022]:data/franchises.git",
            "[code.example.com]:data/franchises",
            "https://user:x@Code.Example.com/Data/franchises/",
            "git://code.example.com/data/franchises.git/",
        ] {
            assert_eq!(Repository::parse(other).as_ref(), Some(&base), "{other}");
        }
        for other in
            ["https://code.example.com/data/other.git", "https://example.com/data/franchises", "https://code.example.com/franchises"]
        {
            assert_ne!(Repository::parse(other), Some(base.clone()), "{other}");
        }
        for address in ["http://[::1]:3000/a/b", "ssh://git@[::1]/a/b.git", "git@[::1]:a/b.git", "[::1]:/a/b"] {
            assert_eq!(Repository::parse(address).unwrap().to_string(), "::1/a/b", "{address}");
        }
        for none in [
            "",
            "nonsense",
            "https://example.com",
            "https://example.com/",
            "/srv/git/a.git",
            ":x",
            "https://example.com/.git",
            "]:",
            "[",
            "[]:x",
            "a/[b]:c",
        ] {
            assert_eq!(Repository::parse(none), None, "{none}");
        }
    }

    #[test]
    fn refs_match_by_their_kind() {
        for (followed, pushed) in [
            ("main", "refs/heads/main"),
            ("v1", "refs/tags/v1"),
            ("refs/pull/7/head", "refs/pull/7/head"),
            ("a/b", "refs/heads/a/b"),
            ("", "refs/heads/trunk"),
            ("HEAD", "refs/heads/trunk"),
        ] {
            assert!(follows(followed, pushed, Some("trunk")), "{followed} {pushed}");
        }
        for (followed, pushed) in
            [("main", "refs/heads/maine"), ("main", "refs/notes/main"), ("b", "refs/heads/a/b"), ("HEAD", "refs/heads/main")]
        {
            assert!(!follows(followed, pushed, Some("trunk")), "{followed} {pushed}");
        }
        assert!(follows("HEAD", "refs/heads/any", None));
    }
}
