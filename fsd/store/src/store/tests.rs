//! The directory of repositories.

use super::*;
use crate::url::UrlPolicy;

fn url(text: &str) -> RepoUrl {
    RepoUrl::parse(text, &UrlPolicy::default()).expect("a URL")
}

#[test]
fn one_repository_for_one_normalized_url() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(StoreOptions::new(dir.path().join("deep/store"))).expect("a store");
    let first = store.repository(&url("https://example.com/a/b.git")).expect("a repository");
    let same = store.repository(&url("https://EXAMPLE.com:443/a/b.git/")).expect("the same");
    assert!(Arc::ptr_eq(&first, &same));
    let other = store.repository(&url("https://example.com/a/c.git")).expect("another");
    assert_ne!(first.git_dir(), other.git_dir());
    let listed = store.list().expect("a list");
    let urls: Vec<&str> = listed.iter().map(|(url, _)| url.as_str()).collect();
    assert_eq!(urls, ["https://example.com/a/b.git", "https://example.com/a/c.git"]);

    // What was opened before is opened again, also by another process.
    let again = Store::open(StoreOptions::new(dir.path().join("deep/store"))).expect("the store again");
    assert_eq!(again.list().expect("a list"), listed);
    assert_eq!(again.repository(&url("https://example.com/a/b.git")).expect("opened").git_dir(), first.git_dir());
}

#[test]
fn nobody_else_can_look_into_it() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(StoreOptions::new(dir.path().join("store"))).expect("a store");
    for path in [store.root().to_owned(), store.spool_dir()] {
        let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o700, "{}", path.display());
    }
}

#[test]
fn many_threads_make_one_repository() {
    let dir = tempfile::tempdir().expect("a directory");
    let stores: Vec<_> = (0..4).map(|_| Store::open(StoreOptions::new(dir.path())).expect("a store")).collect();
    std::thread::scope(|scope| {
        for store in &stores {
            scope.spawn(|| store.repository(&url("https://example.com/a.git")).expect("a repository"));
        }
    });
    let entries: Vec<_> = std::fs::read_dir(dir.path().join("repos")).expect("a directory").flatten().map(|e| e.file_name()).collect();
    assert_eq!(entries.len(), 1, "{entries:?}");
}
