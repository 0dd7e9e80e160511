use proptest::prelude::*;

use super::*;

fn all() -> UrlPolicy {
    UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] }
}

fn parse(text: &str) -> RepoUrl {
    RepoUrl::parse(text, &all()).unwrap_or_else(|e| panic!("{text}: {e}"))
}

fn refusal(text: &str, policy: &UrlPolicy) -> String {
    let error = RepoUrl::parse(text, policy).expect_err(text);
    assert_eq!(error.fault(), Fault::Usage, "{text}");
    error.to_string()
}

#[test]
fn forms_are_taken_apart() {
    type Case = (&'static str, Scheme, Option<&'static str>, &'static str, Option<u16>, &'static str);
    let cases: &[Case] = &[
        ("https://example.com/a/b.git", Scheme::Https, None, "example.com", None, "/a/b.git"),
        ("HTTPS://Example.COM:443/a", Scheme::Https, None, "example.com", None, "/a"),
        ("https://example.com:8443/a", Scheme::Https, None, "example.com", Some(8443), "/a"),
        ("https://example.com/a%20b", Scheme::Https, None, "example.com", None, "/a%20b"),
        ("http://127.0.0.1:8080/a", Scheme::Http, None, "127.0.0.1", Some(8080), "/a"),
        ("https://[::1]:8443/a", Scheme::Https, None, "::1", Some(8443), "/a"),
        ("https://[2001:DB8::0:1]/a", Scheme::Https, None, "2001:db8::1", None, "/a"),
        ("ssh://git@example.com/a/b", Scheme::Ssh, Some("git"), "example.com", None, "/a/b"),
        ("ssh://git@example.com:2222/a/b", Scheme::Ssh, Some("git"), "example.com", Some(2222), "/a/b"),
        ("ssh://example.com:22/a%20b", Scheme::Ssh, None, "example.com", None, "/a b"),
        ("ssh://example.com/~/a", Scheme::Ssh, None, "example.com", None, "~/a"),
        ("ssh://example.com/~alice/a", Scheme::Ssh, None, "example.com", None, "~alice/a"),
        ("git@example.com:a/b.git", Scheme::Ssh, Some("git"), "example.com", None, "a/b.git"),
        ("example.com:a", Scheme::Ssh, None, "example.com", None, "a"),
        ("git@example.com:/a/b.git", Scheme::Ssh, Some("git"), "example.com", None, "/a/b.git"),
        ("git@example.com:~alice/a", Scheme::Ssh, Some("git"), "example.com", None, "~alice/a"),
        ("git@example.com:a/x@y", Scheme::Ssh, Some("git"), "example.com", None, "a/x@y"),
        ("git:/a", Scheme::Ssh, None, "git", None, "/a"),
        ("git@[::1]:a", Scheme::Ssh, Some("git"), "::1", None, "a"),
        ("git@[example.com:2222]:a", Scheme::Ssh, Some("git"), "example.com", Some(2222), "a"),
        ("git://example.com/a", Scheme::Git, None, "example.com", None, "/a"),
        ("git://example.com:9419/~alice/a", Scheme::Git, None, "example.com", Some(9419), "~alice/a"),
        ("file:///srv/git/a.git", Scheme::File, None, "", None, "/srv/git/a.git"),
        ("file://localhost/srv/a%2Fb%zz", Scheme::File, None, "", None, "/srv/a/b%zz"),
    ];
    for (text, scheme, user, host, port, path) in cases {
        let url = parse(text);
        assert_eq!((url.scheme(), url.user(), url.host(), url.port(), url.path()), (*scheme, *user, *host, *port, *path), "{text}");
        assert_eq!(url.to_string(), *text);
    }
}

#[test]
fn one_repository_has_one_normalized_text() {
    let cases = [
        ("HTTPS://Example.com:443/A/b.git/", "https://example.com/A/b"),
        ("https://example.com/A/b//", "https://example.com/A/b"),
        ("https://example.com/b.git.git", "https://example.com/b.git"),
        ("https://example.com/b/.git", "https://example.com/b/.git"),
        ("https://[::1]:8443/a.git", "https://[::1]:8443/a"),
        ("git@Example.com:a/b.git", "ssh://git@example.com/~/a/b"),
        ("ssh://git@example.com/~/a/b", "ssh://git@example.com/~/a/b"),
        ("git@example.com:~alice/b", "ssh://git@example.com/~alice/b"),
        ("git@example.com:/a/b.git", "ssh://git@example.com/a/b"),
        ("ssh://git@example.com:22/a/b/", "ssh://git@example.com/a/b"),
        ("git://example.com:9418/a.git", "git://example.com/a"),
        ("file:///srv/a.git/", "file:///srv/a.git"),
    ];
    for (text, normalized) in cases {
        assert_eq!(parse(text).normalized(), normalized, "{text}");
    }
    assert_ne!(parse("git@h:a").normalized(), parse("git@h:/a").normalized(), "a path below home is not one below the root");
    assert_ne!(parse("alice@h:a").normalized(), parse("bob@h:a").normalized());
}

#[test]
fn refusals_say_what_is_wrong_and_show_what_is_right() {
    let cases = [
        ("", "is empty"),
        ("https:///a", "has no host"),
        ("https://:8080/a", "has no host"),
        ("ssh://git@/a", "has no host"),
        (":a/b", "has no host"),
        ("ftp://example.com/a", "has an unknown scheme"),
        ("git+ssh://example.com/a", "write \"ssh://\""),
        ("https:/example.com/a", "has a scheme that is not followed by \"://\""),
        ("./a", "has no scheme"),
        ("/srv/a", "has no scheme"),
        ("name", "has no scheme"),
        ("ext::sh -c id", "\"transport::address\", which runs a program"),
        ("fd::7", "\"transport::address\""),
        ("--upload-pack=x", "starts with a dash"),
        ("https://-oProxyCommand=x/a", "has a host that starts with a dash"),
        ("ssh://-oProxyCommand=x/a", "has a host that starts with a dash"),
        ("ssh://-l@example.com/a", "has a user that starts with a dash"),
        ("git@-oProxyCommand=x:a", "has a host that starts with a dash"),
        ("git@example.com:-a", "has a path that starts with a dash"),
        ("https://example.com/a\0b", "contains a NUL"),
        ("https://example.com/a\nb", "contains a newline"),
        ("https://example.com/a\u{7}b", "contains a control character"),
        ("ssh://example.com/a%00b", "percent-escaped control character"),
        ("ssh://example.com/a%0Ab", "percent-escaped control character"),
        ("ssh://example.com/%ff", "percent-escapes that are no UTF-8"),
        (" https://example.com/a", "starts or ends with a space"),
        ("https://example.com", "names no repository"),
        ("https://example.com//", "names no repository"),
        ("git@example.com:", "names no repository"),
        ("file:///", "names no repository"),
        ("file://srv/a", "names a host, or a path that is not absolute"),
        ("https://example.com:0/a", "has a bad port"),
        ("https://example.com:65536/a", "has a bad port"),
        ("https://example.com:/a", "has a bad port"),
        ("https://example.com:+80/a", "has a bad port"),
        ("https://[::1]x/a", "has a bad port"),
        ("https://[::1/a", "has a bracket that is not closed"),
        ("https://[::g]/a", "no IPv6 address"),
        ("https://exa mple.com/a", "has a host with other characters"),
        ("https://exämple.com/a", "has a host with other characters"),
        ("https://example.com\\@evil.com/a", "contains a backslash"),
        ("https://example.com/a?token=x", "has a query or a fragment"),
        ("https://example.com#a/b", "has a query or a fragment"),
        ("https://alice@example.com/a", "names a user, which may be a token"),
    ];
    for (text, expected) in cases {
        let message = refusal(text, &all());
        assert!(message.starts_with("url ") && message.contains(expected), "{text:?}: {message}");
        let shows = ["\"https://git.example.com", "\"ssh://", "\"file:///"].iter().any(|right| message.contains(right));
        assert!(shows, "{text:?} shows nothing right: {message}");
        assert!(!message.chars().any(char::is_control), "{text:?}: {message:?}");
    }
    assert!(refusal(&format!("https://example.com/{}", "a".repeat(5000)), &all()).contains("longer than 4096 bytes"));
}

#[test]
fn a_password_is_refused_and_never_repeated() {
    for text in [
        "https://alice:hunter2@example.com/a",
        "https://hunter2@example.com/a",
        "ssh://alice:hunter2@example.com/a",
        "alice:hunter2@example.com:a",
        "https:/alice:hunter2@example.com/a",
        "ftp://alice:hunter2@example.com/a",
        "https://alice:hunter2@",
        "https://alice:hun@ter2@example.com/a\n",
        "https://example.com/a?private_token=hunter2",
        "ext::https://alice:hunter2@example.com/a",
    ] {
        let message = refusal(text, &all());
        assert!(!message.contains("hunter2") && !message.contains("ter2"), "{message}");
    }
    assert!(refusal("https://alice:pw@example.com/a", &all()).contains("holds a password"));
    assert!(refusal("alice:pw@example.com:a", &all()).contains("seems to hold a password"));
}

#[test]
fn policy_decides_about_schemes_and_hosts() {
    let strict = UrlPolicy::default();
    assert!(refusal("http://example.com/a", &strict).contains("not encrypted"));
    assert!(refusal("file:///a", &strict).contains("uses file"));
    let hosts = UrlPolicy { hosts: vec!["git.example.com".into()], ..all() };
    assert!(RepoUrl::parse("https://GIT.example.com/a", &hosts).is_ok());
    assert!(RepoUrl::parse("git@git.example.com:a", &hosts).is_ok());
    let message = refusal("https://evil.example.com/a", &hosts);
    assert!(message.contains("not in the allow-list: use one of git.example.com"), "{message}");
    let url = RepoUrl::parse("https://git.example.com/a", &hosts).unwrap();
    assert!(url.allows_host("git.example.com") && !url.allows_host("evil.example.com"));
    assert!(parse("https://git.example.com/a").allows_host("anything"));
}

proptest! {
    #[test]
    fn parse_never_panics(text in "\\PC*|[a-z+:/@\\[\\].%0-9~-]{0,40}") {
        let _ = RepoUrl::parse(&text, &all());
    }

    #[test]
    fn display_parses_to_the_same(
        scheme in "https://|http://|ssh://git@|git://|git@",
        host in "[a-z][a-z0-9.-]{0,20}|\\[::[0-9a-f]{1,4}\\]",
        path in "[a-zA-Z0-9._~ %@-]{1,20}(/[a-z]{1,5}){0,3}",
    ) {
        let separator = if scheme == "git@" { ':' } else { '/' };
        if let Ok(url) = RepoUrl::parse(&format!("{scheme}{host}{separator}{path}"), &all()) {
            let again = RepoUrl::parse(&url.to_string(), &all()).expect("what was printed is a URL");
            prop_assert_eq!(&again, &url);
            prop_assert_eq!(again.to_string(), url.to_string());
            prop_assert_eq!(again.normalized(), url.normalized());
        }
    }

    #[test]
    fn normalizing_is_idempotent(path in "[a-zA-Z0-9_~-]{1,8}(/[a-z]{1,5}){0,3}(\\.git)?/{0,2}", scheme in "https://|ssh://git@|git://|git@") {
        let separator = if scheme == "git@" { ':' } else { '/' };
        if let Ok(url) = RepoUrl::parse(&format!("{scheme}h.example{separator}{path}"), &all()) {
            let again = RepoUrl::parse(&url.normalized(), &all()).expect("a normalized URL is a URL");
            prop_assert_eq!(again.normalized(), url.normalized());
        }
    }
}
