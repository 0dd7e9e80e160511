//! Which files are put into the page cache before they are asked for, and that they are the right ones.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use gitmount_fsd::fs::prefetch::PageCache;
use gitmount_fsd::inode::NodeId;

use crate::fixture::Fixture;

/// Remembers what was stored.
#[derive(Default)]
struct Pages(Mutex<BTreeMap<NodeId, Vec<u8>>>);

impl PageCache for Pages {
    fn store(&self, node: NodeId, data: &[u8]) -> bool {
        self.0.lock().expect("no panic").insert(node, data.to_vec());
        true
    }
}

impl Pages {
    fn nodes(&self) -> Vec<NodeId> {
        self.0.lock().expect("no panic").keys().copied().collect()
    }

    /// Waits until `count` files are stored.
    fn wait(&self, count: usize) {
        let end = Instant::now() + Duration::from_secs(20);
        while self.nodes().len() < count {
            assert!(Instant::now() < end, "{} of {count} files were stored", self.nodes().len());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Two directories of five files and an empty one, listed as the kernel does: to the end, then once more for the end.
fn listed() -> (Fixture, Arc<Pages>, [Vec<NodeId>; 2]) {
    let names: Vec<_> = ["a", "b"].iter().flat_map(|dir| (0..5).map(move |n| format!("{dir}/{n}"))).collect();
    let mut files: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
    files.push(("a/empty", ""));
    let fixture = Fixture::new(&files);
    let pages = Arc::new(Pages::default());
    fixture.fs.prefetch_into(pages.clone());
    let nodes = ["a", "b"].map(|dir| list(&fixture, dir));
    (fixture, pages, nodes)
}

fn list(fixture: &Fixture, dir: &str) -> Vec<NodeId> {
    let dir = fixture.get(dir).node;
    let (mut nodes, mut last) = (vec![], 0);
    loop {
        let before = last;
        let page = fixture.fs.list(dir, last, true, &mut |line| {
            last = line.cookie;
            nodes.extend(line.attr.map(|attr| attr.node));
            true
        });
        page.expect("lists");
        if last == before {
            return nodes;
        }
    }
}

#[test]
fn the_first_file_in_order_brings_the_others_and_those_of_the_next_listing() {
    let (fixture, pages, [a, b]) = listed();
    assert!(pages.nodes().is_empty(), "listing alone stores nothing");
    assert_eq!(fixture.read(a[0]), b"a/0");
    pages.wait(4);
    assert_eq!(pages.nodes(), a[1..5], "neither the file that was asked for nor the empty one");
    list(&fixture, "b");
    pages.wait(9);
    for (dir, nodes) in [("a", &a[1..5]), ("b", &b[..])] {
        for node in nodes {
            let data = pages.0.lock().expect("no panic")[node].clone();
            assert_eq!(data, fixture.read(*node), "{dir}");
        }
    }
}

#[test]
fn an_empty_first_file_does_not_hide_the_order() {
    let fixture = Fixture::new(&[("a/0", ""), ("a/1", "1"), ("a/2", "2")]);
    let pages = Arc::new(Pages::default());
    fixture.fs.prefetch_into(pages.clone());
    let nodes = list(&fixture, "a");
    assert_eq!(fixture.read(nodes[1]), b"1");
    pages.wait(1);
    assert_eq!(pages.nodes(), [nodes[2]]);
}

#[test]
fn a_reader_that_reads_while_he_lists_gets_the_rest_too() {
    let fixture = Fixture::new(&[("a/0", "0"), ("a/1", "1"), ("a/2", "2")]);
    let pages = Arc::new(Pages::default());
    fixture.fs.prefetch_into(pages.clone());
    // All names came, and the end was not asked for.
    let mut nodes = vec![];
    let page = fixture.fs.list(fixture.get("a").node, 0, true, &mut |line| {
        nodes.extend(line.attr.map(|attr| attr.node));
        true
    });
    page.expect("lists");
    assert_eq!(fixture.read(nodes[0]), b"0");
    pages.wait(2);
    assert_eq!(pages.nodes(), nodes[1..]);
}

#[test]
fn files_that_the_kernel_dropped_are_stored_again_for_who_reads_them_in_order_again() {
    let (fixture, pages, [a, _]) = listed();
    assert_eq!(fixture.read(a[0]), b"a/0");
    pages.wait(4);
    let drop = || pages.0.lock().expect("no panic").clear();
    drop();
    // It may be that the first reader has only overtaken the prefetcher.
    fixture.read(a[0]);
    std::thread::sleep(Duration::from_millis(50));
    assert!(pages.nodes().is_empty());
    std::thread::sleep(Duration::from_millis(1000));
    fixture.read(a[3]);
    std::thread::sleep(Duration::from_millis(50));
    assert!(pages.nodes().is_empty(), "that is no order");
    fixture.read(a[0]);
    pages.wait(4);
    assert_eq!(pages.nodes(), a[1..5]);
    // Also when the listing was dropped as well.
    drop();
    std::thread::sleep(Duration::from_millis(1100));
    list(&fixture, "a");
    fixture.read(a[0]);
    pages.wait(4);
    assert_eq!(pages.nodes(), a[1..5]);
}

#[test]
fn files_of_the_next_directories_are_inflated_before_they_are_listed_and_given_back_after() {
    let names: Vec<_> = ["a", "a/x", "b", "c"].iter().flat_map(|dir| (0..5).map(move |n| format!("{dir}/{n}"))).collect();
    let files: Vec<_> = names.iter().map(|name| (name.as_str(), name.as_str())).collect();
    let fixture = Fixture::new(&files);
    fixture.fs.prefetch_into(Arc::new(Pages::default()));
    let kept = |bytes: u64| {
        let end = Instant::now() + Duration::from_secs(20);
        while fixture.view().options().caches.blobs().bytes() != bytes {
            assert!(Instant::now() < end, "{} bytes are kept", fixture.view().options().caches.blobs().bytes());
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let nodes = list(&fixture, "a");
    assert_eq!(fixture.read(nodes[0]), b"a/0");
    kept(5 * (5 + 3 + 3));
    // The walk goes no further.
    kept(0);
    assert_eq!(fixture.read(list(&fixture, "b")[0]), b"b/0");
    kept(5 * 3);
}

#[test]
fn a_reader_in_no_order_gets_nothing_ahead() {
    let (fixture, pages, [a, b]) = listed();
    for node in [a[3], b[4], a[2], b[1]] {
        fixture.read(node);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(pages.nodes().is_empty());
}

#[test]
fn files_of_a_directory_that_was_not_listed_bring_nothing() {
    let (fixture, pages, _) = listed();
    let fixture_without_listing = Fixture::new(&[("c/0", "0"), ("c/1", "1")]);
    fixture_without_listing.fs.prefetch_into(pages.clone());
    fixture_without_listing.read(fixture_without_listing.get("c/0").node);
    std::thread::sleep(Duration::from_millis(50));
    assert!(pages.nodes().is_empty());
    drop(fixture);
}

#[test]
fn many_readers_of_one_blob_share_it() {
    let content = "0123456789".repeat(40_000);
    let fixture = Fixture::new(&[("big", &content)]);
    let node = fixture.get("big").node;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..20 {
                    assert_eq!(fixture.read(node), content.as_bytes());
                }
            });
        }
    });
}
