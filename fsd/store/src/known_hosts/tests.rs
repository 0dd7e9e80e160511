use proptest::prelude::*;

use super::*;

const ED: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINIidnBaAaSXkcauufUmJa5DAf/xcS3BdeMokQJ01zEo";
const EC: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBADSRN+72L5Gql1dKM8+BD3VTBNevddJmaVbLL3dr3rRrCX0Jq+cCw8QE4BXAZKEgLCHv1ReWZtp/I/uy7keBwk=";

/// `git.example.com` and `[git.example.com]:2222`, as `ssh-keygen -H` wrote them.
const HASHED: &str = "|1|Wy5rMwmJtDJJMUQiKDcW5Pe4uX8=|KgdVX14QVKY0kyE/oDqtihG+DB8=";
const HASHED_PORT: &str = "|1|6HOGcHYBAH3lq0jT4sRAUccm6IE=|n3kDyBKSt+gUTThn1oxnTc1htc8=";

fn key(text: &str) -> HostKey {
    let (algorithm, blob) = text.split_once(' ').unwrap();
    HostKey { algorithm: algorithm.into(), blob: STANDARD.decode(blob).unwrap() }
}

fn verdict(text: &str, host: &str, port: u16) -> Verdict {
    KnownHosts::parse(text).lookup(host, port).check(&key(ED).blob)
}

#[test]
fn names_are_matched_as_openssh_does() {
    use Verdict::{Changed, Match, Unknown};
    let cases: &[(&str, &str, u16, Verdict)] = &[
        ("a.example", "a.example", 22, Match),
        ("A.example", "a.EXAMPLE", 22, Match),
        ("a.example", "b.example", 22, Unknown),
        ("b.example,a.example,10.0.0.1", "10.0.0.1", 22, Match),
        ("[a.example]:2222", "a.example", 2222, Match),
        ("[a.example]:2222", "a.example", 22, Unknown),
        ("[a.example]:2222", "a.example", 2223, Unknown),
        ("a.example", "a.example", 2222, Match),
        ("::1", "::1", 22, Match),
        ("[::1]:2222", "::1", 2222, Match),
        ("*.example", "a.example", 22, Match),
        ("*.example", "example", 22, Unknown),
        ("*", "anything", 2222, Match),
        ("[*.example]:2222", "a.example", 2222, Match),
        ("a?.example", "ab.example", 22, Match),
        ("a?.example", "abc.example", 22, Unknown),
        ("*.example,!b.example", "a.example", 22, Match),
        ("*.example,!b.example", "b.example", 22, Unknown),
        ("!b.example,*.example", "b.example", 22, Unknown),
        ("!b.example", "a.example", 22, Unknown),
        (HASHED, "git.example.com", 22, Match),
        (HASHED, "GIT.example.com", 22, Match),
        (HASHED, "git.example.com", 2222, Match),
        (HASHED, "other.example.com", 22, Unknown),
        (HASHED_PORT, "git.example.com", 2222, Match),
        (HASHED_PORT, "git.example.com", 22, Unknown),
    ];
    for (names, host, port, expected) in cases {
        assert_eq!(verdict(&format!("{names} {ED}"), host, *port), *expected, "{names} for {host}:{port}");
        let other = if *expected == Match { Changed } else { *expected };
        assert_eq!(verdict(&format!("{names} {EC}"), host, *port), other, "{names} with another key, for {host}:{port}");
    }
}

#[test]
fn an_entry_with_the_port_hides_the_one_without() {
    let text = format!("a.example {ED}\n[a.example]:2222 {EC}\n");
    assert_eq!(verdict(&text, "a.example", 22), Verdict::Match);
    assert_eq!(verdict(&text, "a.example", 2222), Verdict::Changed);
    assert_eq!(verdict(&text, "a.example", 2223), Verdict::Match);
}

#[test]
fn several_keys_of_one_host_all_count_in_file_order() {
    let known = KnownHosts::parse(&format!("a {EC}\n{HASHED} {ED}\na {ED}")).lookup("a", 22);
    assert_eq!(known.keys, [key(EC), key(ED)]);
    assert_eq!(known.check(&key(ED).blob), Verdict::Match);
}

#[test]
fn a_revoked_key_is_refused_wherever_it_also_stands() {
    for text in [
        format!("a {ED}\n@revoked a {ED}"),
        format!("@revoked\t*\t{ED}\na {ED}"),
        format!("@revoked a {ED}\n[a]:2222 {ED}"),
        format!("@revoked [a]:2222 {ED}\na {ED}"),
    ] {
        assert_eq!(verdict(&text, "a", 2222), Verdict::Revoked, "{text}");
    }
    assert_eq!(verdict(&format!("@revoked b {ED}\na {ED}"), "a", 22), Verdict::Match);
}

#[test]
fn tabs_comments_and_line_ends_are_fine() {
    let text = format!("# comment\r\n\r\n \ta\t{}\tuser@host with words\r\n", ED.replace(' ', "\t"));
    let parsed = KnownHosts::parse(&text);
    assert_eq!(parsed.skipped(), 0);
    assert_eq!(parsed.lookup("a", 22).check(&key(ED).blob), Verdict::Match);
}

#[test]
fn a_line_that_cannot_be_read_is_skipped_and_hides_no_other() {
    let bad = [
        "a",
        "a ssh-ed25519",
        "a ssh-ed25519 !!!",
        "a ssh-ed25519 AAAA",
        "a ssh-rsa AAAAC3NzaC1lZDI1NTE5AAAAINIidnBaAaSXkcauufUmJa5DAf/xcS3BdeMokQJ01zEo",
        "a 1024 35 123456789",
        "a ssh-ed25519 /////w==",
        "|1|nosalt ssh-ed25519 AAAA",
        "|2|AAAA|AAAA ssh-ed25519 AAAA",
        "@unheard-of a ssh-ed25519 AAAA",
    ];
    let parsed = KnownHosts::parse(&format!("{}\na {ED}\n", bad.join("\n")));
    assert_eq!(parsed.skipped(), bad.len());
    assert_eq!(parsed.lookup("a", 22).keys, [key(ED)]);
    let authority = KnownHosts::parse(&format!("@cert-authority *.example {ED}"));
    assert_eq!((authority.skipped(), authority.lookup("a.example", 22)), (0, Known::default()));
}

#[test]
fn what_is_written_is_found_again() {
    for (host, port) in [("A.example", 22), ("a.example", 2222), ("::1", 22), ("::1", 2222)] {
        let line = entry(host, port, &key(ED));
        assert_eq!(verdict(&line, host, port), Verdict::Match, "{line}");
        assert_eq!(verdict(&line, host, 2223), if port == 22 { Verdict::Match } else { Verdict::Unknown }, "{line}");
    }
}

#[test]
fn a_hostile_pattern_takes_no_exponential_time() {
    let text = format!("{}b {ED}", "*a".repeat(200));
    assert_eq!(verdict(&text, &"a".repeat(250), 22), Verdict::Unknown);
}

proptest! {
    #[test]
    fn parse_and_lookup_never_panic(text in "\\PC*|(@revoked )?[|1a*?!,=\\[\\]: \t]{0,20} ssh-rsa [A-Za-z0-9+/=]{0,20}", host in "\\PC{0,10}", port: u16) {
        let known = KnownHosts::parse(&text).lookup(&host, port);
        prop_assert!(known.keys.is_empty() || !text.is_empty());
    }

    #[test]
    fn glob_agrees_with_a_plain_recursion(pattern in "[ab*?]{0,8}", text in "[ab]{0,8}") {
        fn plain(p: &[u8], t: &[u8]) -> bool {
            match (p.first(), t.first()) {
                (None, None) => true,
                (Some(b'*'), _) => plain(&p[1..], t) || !t.is_empty() && plain(p, &t[1..]),
                (Some(b'?'), Some(_)) => plain(&p[1..], &t[1..]),
                (Some(a), Some(b)) if a == b => plain(&p[1..], &t[1..]),
                _ => false,
            }
        }
        prop_assert_eq!(glob(pattern.as_bytes(), text.as_bytes()), plain(pattern.as_bytes(), text.as_bytes()));
    }
}
