use proptest::prelude::*;

use super::*;

const SHA1: &str = "0123456789abcdef0123456789abcdef01234567";
const SHA256: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[test]
fn forms_are_told_apart() {
    let name = |n: &str| RefSpec::Name(n.into());
    let full = |n: &str| RefSpec::Full(n.into());
    let commit = |id: &str| RefSpec::Commit(CommitId::parse(id).unwrap());
    let cases = [
        ("HEAD", RefSpec::Head),
        ("main", name("main")),
        ("feature/x", name("feature/x")),
        ("v1.2", name("v1.2")),
        ("head", name("head")),
        ("ünï", name("ünï")),
        ("a@b", name("a@b")),
        ("refs/heads/HEAD", full("refs/heads/HEAD")),
        ("refs/pull/7/head", full("refs/pull/7/head")),
        ("refs", name("refs")),
        (SHA1, commit(SHA1)),
        (SHA256, commit(SHA256)),
        (&SHA1[..39], name(&SHA1[..39])),
        (&SHA256[..41], name(&SHA256[..41])),
    ];
    for (text, expected) in cases {
        let spec = RefSpec::parse(text).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(spec, expected, "{text}");
        assert_eq!(spec.to_string(), text);
    }
    assert_eq!(RefSpec::parse(&SHA1.to_uppercase()).unwrap(), commit(SHA1));
}

#[test]
fn a_branch_comes_before_a_tag() {
    let candidates = |text: &str| RefSpec::parse(text).unwrap().candidates();
    assert_eq!(candidates("v1"), ["refs/heads/v1", "refs/tags/v1"]);
    assert_eq!(candidates("tags/v1"), ["refs/heads/tags/v1", "refs/tags/tags/v1", "refs/tags/v1"]);
    assert_eq!(candidates("HEAD"), ["HEAD"]);
    assert_eq!(candidates("refs/heads/HEAD"), ["refs/heads/HEAD"]);
    assert!(candidates(SHA1).is_empty());
}

#[test]
fn refusals_say_what_is_wrong_and_show_what_is_right() {
    let long = "a".repeat(1025);
    let cases = [
        ("", "is empty"),
        (long.as_str(), "is longer than 1024 bytes"),
        ("a\0b", "contains a NUL"),
        ("a\nb", "contains a newline"),
        ("a\u{7f}", "contains a control character"),
        ("a b", "contains a space"),
        ("a~1", "contains one of ~ ^"),
        ("a^", "contains one of"),
        ("a:b", "contains one of"),
        ("a?", "contains one of"),
        ("refs/heads/*", "contains one of"),
        ("a[", "contains one of"),
        ("a\\b", "contains one of"),
        ("-d", "starts with a dash"),
        ("@", "is \"@\""),
        ("main@{1}", "contains \"@{\""),
        ("a..b", "contains \"..\""),
        ("a.", "ends with a dot"),
        ("/a", "starts or ends with a slash"),
        ("a/", "starts or ends with a slash"),
        ("a//b", "two in a row"),
        ("refs/", "starts or ends with a slash"),
        (".a", "has a part that starts with a dot"),
        ("a/.b", "has a part that starts with a dot"),
        ("a.lock/b", "has a part that ends with \".lock\""),
    ];
    for (text, expected) in cases {
        let error = RefSpec::parse(text).expect_err(text);
        let message = error.to_string();
        assert_eq!(error.fault(), Fault::Usage);
        assert!(message.starts_with("ref ") && message.contains(expected) && message.contains("\"main\""), "{text:?}: {message}");
        assert!(!message.chars().any(char::is_control) && message.len() < 400, "{message:?}");
    }
}

proptest! {
    #[test]
    fn parse_never_panics_and_display_parses_to_the_same(text in "\\PC*|[a-z/.@{~-]{0,12}|(refs/)?[a-z]{1,5}(/[a-zA-Z.]{1,5}){0,3}") {
        if let Ok(spec) = RefSpec::parse(&text) {
            prop_assert_eq!(spec.to_string(), text.clone());
            prop_assert_eq!(RefSpec::parse(&spec.to_string()).expect("what was printed is a ref"), spec);
        }
    }
}
