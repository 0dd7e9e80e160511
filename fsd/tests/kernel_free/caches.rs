//! What many views of one process keep in memory together.

use std::sync::Arc;

use gitmount_fsd::fs::FileSystem;
use gitmount_fsd::inode::NodeId;
use gitmount_fsd::view::caches::Caches;
use gitmount_fsd::view::{View, ViewOptions};

use crate::fixture::Fixture;

/// Another view of the fixture's repository, on caches that it shares.
fn view(fixture: &Fixture, caches: &Arc<Caches>) -> FileSystem {
    let head = fixture.repository.resolve("HEAD").expect("a commit");
    let mut options = ViewOptions::new("main", fixture.dir.path().join("spool"));
    options.caches = caches.clone();
    FileSystem::new(View::new(fixture.repository.objects(), head, options).expect("a view"))
}

/// Lists everything and reads the beginning of every file, which keeps the rest.
fn read_all(fs: &FileSystem) -> usize {
    let (mut files, mut work) = (0, vec![NodeId::ROOT]);
    while let Some(dir) = work.pop() {
        let mut found = vec![];
        fs.list(dir, 0, true, &mut |line| {
            found.extend(line.attr);
            true
        })
        .expect("lists");
        for attr in found {
            if attr.is_dir() {
                work.push(attr.node);
            } else {
                fs.read(attr.node, 0, 1, |data| assert_eq!(data.expect("reads").len(), 1));
                files += 1;
            }
        }
    }
    files
}

/// Twenty directories of five files of 1000 bytes.
fn fixture(salt: &str) -> Fixture {
    let names: Vec<_> = (0..100).map(|n| format!("d{}/file {}", n % 20, n / 20)).collect();
    let contents: Vec<_> = names.iter().map(|name| format!("{name} {salt} {}", "x".repeat(1000))).collect();
    let files: Vec<_> = names.iter().zip(&contents).map(|(name, content)| (name.as_str(), content.as_str())).collect();
    Fixture::new(&files)
}

#[test]
fn a_hundred_views_keep_no_more_than_the_bound() {
    let fixtures = ["one", "two"].map(fixture);
    let caches = Arc::new(Caches::new(12_000, 30_000));
    let views: Vec<_> = (0..100).map(|n| view(&fixtures[n % 2], &caches)).collect();
    std::thread::scope(|scope| {
        for some in views.chunks(25) {
            let caches = &caches;
            scope.spawn(move || {
                for fs in some {
                    assert_eq!(read_all(fs), 100);
                    assert!(caches.trees().bytes() <= 12_000, "{} bytes of trees", caches.trees().bytes());
                    assert!(caches.blobs().bytes() <= 30_000, "{} bytes of blobs", caches.blobs().bytes());
                }
            });
        }
    });
    assert!(caches.trees().bytes() > 6_000 && caches.blobs().bytes() > 15_000, "the caches are used");
}

#[test]
fn views_of_one_repository_keep_things_once_and_those_of_another_apart() {
    let (one, same, other) = (fixture("one"), fixture("one"), fixture("other"));
    let caches = Arc::default();
    read_all(&view(&one, &caches));
    let (trees, blobs) = (caches.trees().bytes(), caches.blobs().bytes());
    assert!(trees > 0 && blobs > 100_000);
    read_all(&view(&one, &caches));
    assert_eq!((caches.trees().bytes(), caches.blobs().bytes()), (trees, blobs));
    // The same objects in another repository are kept for it alone.
    read_all(&view(&same, &caches));
    assert_eq!((caches.trees().bytes(), caches.blobs().bytes()), (2 * trees, 2 * blobs));
    read_all(&view(&other, &caches));
    assert!(caches.blobs().bytes() > 2 * blobs);
}
