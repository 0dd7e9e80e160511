//! What `gitmount mount` says of repositories that it cannot mount, without any host.

use super::bench::{Bench, git};

#[test]
fn a_path_that_does_not_exist_is_not_found() {
    let bench = Bench::new();
    for path in ["./nowhere", "/no/such/path", "../nowhere"] {
        bench.refused(&[path]).says(3, &[path, "give a directory in a git repository, or a URL"]);
    }
}

#[test]
fn a_directory_without_a_repository_is_not_found() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("plain")).unwrap();
    bench.refused(&["./plain"]).says(3, &["plain"]);
}

#[test]
fn a_revision_that_does_not_exist_is_not_found() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("repo")).unwrap();
    git(&bench.path("repo"), &["init", "-q"]);
    git(&bench.path("repo"), &["commit", "-q", "--allow-empty", "-m", "one"]);
    bench.refused(&["repo", "--ref", "no-such-branch"]).says(3, &["no-such-branch"]);
    bench.refused(&["repo", "--path", "no/such/dir"]).says(3, &["no/such/dir"]);
}

#[test]
fn urls_that_are_wrong_or_not_allowed_are_usage_errors() {
    let bench = Bench::new();
    for (url, what) in [
        ("ext::sh -c true", "ext"),
        ("ftp://example.com/a.git", "ftp"),
        ("http://example.com/a.git", "--allow-http"),
        ("file:///srv/a.git", "--allow-file"),
        ("https://", "https://"),
        ("https://example.com/a\nb.git", "newline"),
    ] {
        bench.refused(&[url]).says(2, &[what]);
    }
    let ended = bench.refused(&["https://user:hunter2@example.com/a.git"]);
    ended.says(2, &["password"]);
    assert!(!ended.err.contains("hunter2"), "{ended:?}");
    bench.refused(&["--", "-oProxyCommand=true"]).says(2, &["-oProxyCommand"]);
}

#[test]
fn refs_that_cannot_be_are_usage_errors() {
    let bench = Bench::new();
    for reference in ["a..b", "a b", "a\nb", "refs/heads/x.lock", "/x", "x^{commit}"] {
        bench.refused(&["https://example.com/a.git", "--ref", reference]).says(2, &["ref"]);
    }
}

#[test]
fn a_host_that_does_not_answer_is_said_to_be_unreachable() {
    // Port 1 of the loopback refuses at once.
    let bench = Bench::new();
    for url in ["http://127.0.0.1:1/a.git", "git://127.0.0.1:1/a.git", "ssh://git@127.0.0.1:1/a.git"] {
        bench.refused(&["--allow-http", url]).says(5, &["127.0.0.1"]);
        // That it was tried leaves nothing that could be well.
        bench.run(["verify", url]).says(3, &[url, "nothing was ever fetched from it"]);
    }
}
