use super::*;
use crate::url::UrlPolicy;

fn url() -> RepoUrl {
    RepoUrl::parse("https://git.example.com/a", &UrlPolicy::default()).unwrap()
}

fn classified(error: &(dyn Error + 'static)) -> StoreError {
    classify(error, &Mutex::new(None), &url())
}

#[test]
fn the_first_failure_below_counts_more_than_what_gix_made_of_it() {
    let slot = Mutex::new(Some(StoreError::new(Fault::Refused, "host said no")));
    let error = classify(&io::Error::other("something else"), &slot, &url());
    assert_eq!((error.fault(), error.to_string().as_str()), (Fault::Refused, "host said no"));
}

#[test]
fn hosts_are_understood_by_their_words() {
    let cases = [
        ("access denied or repository not exported: /x", Some(Fault::NotFound)),
        ("ERROR: Repository not found.", Some(Fault::NotFound)),
        ("fatal: '/x' does not appear to be a git repository", Some(Fault::NotFound)),
        ("The project you were looking for could not be found or you don't have permission to view it.", Some(Fault::NotFound)),
        ("upload-pack: not our ref 0123", Some(Fault::NotFound)),
        ("ERROR: Permission to a/b.git denied to key", Some(Fault::Refused)),
        ("git@example.com: Permission denied (publickey).", Some(Fault::Refused)),
        ("fatal: detected dubious ownership in repository at '/x'", Some(Fault::Refused)),
        ("bash: line 1: git-upload-pack: command not found", Some(Fault::Refused)),
        ("hello", None),
    ];
    for (words, fault) in cases {
        assert_eq!(verdict(words), fault, "{words}");
        let wrapped = io::Error::other(io::Error::other(words));
        let error = classified(&wrapped);
        assert_eq!(error.fault(), fault.unwrap_or(Fault::Internal), "{words}");
        assert!(error.to_string().contains(&words[..words.len().min(20)]), "{error}");
    }
}

#[test]
fn kinds_of_io_errors_are_found_below_others() {
    let wrapped = |kind: io::ErrorKind| io::Error::other(io::Error::new(kind, "inner"));
    assert_eq!(classified(&wrapped(io::ErrorKind::StorageFull)).fault(), Fault::Disk);
    assert_eq!(classified(&wrapped(io::ErrorKind::UnexpectedEof)).fault(), Fault::Unreachable);
    assert_eq!(classified(&wrapped(io::ErrorKind::ConnectionReset)).fault(), Fault::Unreachable);
    assert_eq!(classified(&io::Error::other(gix::error::message("bad").corrupted())).fault(), Fault::Corrupt);
}

#[test]
fn foreign_text_becomes_one_harmless_line() {
    assert_eq!(printable("\u{1b}[31mred\u{1b}[0m\r\n  two\tthree\0\n", 100), "[31mred [0m two three");
    assert_eq!(printable("a\u{202e}b", 100), "ab");
    assert_eq!(printable(&"x".repeat(1000), 10), format!("{}…", "x".repeat(10)));
    assert_eq!(printable("", 10), "");
}
