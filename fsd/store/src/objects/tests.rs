//! Trees from any bytes: what is accepted is sorted, unique and showable, and nothing panics.

use proptest::prelude::*;

use super::*;

const HASH: gix::hash::Kind = gix::hash::Kind::Sha1;

fn raw(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut data = Vec::new();
    for (mode, name) in entries {
        data.extend_from_slice(mode.as_bytes());
        data.push(b' ');
        data.extend_from_slice(name);
        data.push(0);
        data.extend_from_slice(&[0x11; 20]);
    }
    data
}

#[test]
fn entries_are_sorted_by_plain_bytes() {
    // Git's own order: the directory "a" sorts as "a/", behind "a.b".
    let tree = Tree::decode(&raw(&[("100644", b"a.b"), ("40000", b"a"), ("120000", b"a0")]), HASH).expect("a good tree");
    let names: Vec<&[u8]> = tree.entries().iter().map(|entry| entry.name.as_slice()).collect();
    assert_eq!(names, [&b"a"[..], b"a.b", b"a0"]);
    assert_eq!(tree.find(b"a.b".into()), Some(1));
    assert_eq!(tree.find(b"b".into()), None);
}

#[test]
fn modes_are_read_as_git_reads_them() {
    let modes = [
        ("100644", EntryKind::File),
        ("100664", EntryKind::File),
        ("100755", EntryKind::Executable),
        ("120000", EntryKind::Symlink),
        ("40000", EntryKind::Directory),
        ("040000", EntryKind::Directory),
        ("160000", EntryKind::Submodule),
    ];
    for (mode, kind) in modes {
        assert_eq!(Tree::decode(&raw(&[(mode, b"x")]), HASH).expect("a known mode").entries()[0].kind, kind, "{mode}");
    }
    for mode in ["", "10a644", "177777", "000000", "60000", "1006440000"] {
        let error = Tree::decode(&raw(&[(mode, b"x")]), HASH).expect_err("an unknown mode");
        assert_eq!(error.fault(), Fault::Corrupt, "{mode}");
    }
}

#[test]
fn hostile_names_are_refused_and_named() {
    let long = [b'x'; 256];
    for name in [&b""[..], b".", b"..", b"a/b", b"/", &long] {
        let error = Tree::decode(&raw(&[("100644", b"good"), ("100644", name)]), HASH).expect_err("a hostile name");
        assert!(error.fault() == Fault::Corrupt && error.to_string().contains("named"), "{error}");
    }
    assert_eq!(Tree::decode(&raw(&[("100644", &long[..255])]), HASH).expect("255 bytes are fine").entries().len(), 1);
}

#[test]
fn a_repository_inside_the_tree_is_left_out() {
    for name in [&b".git"[..], b".GIT", b".Git"] {
        let tree = Tree::decode(&raw(&[("100644", name), ("100644", b".gitignore"), ("100644", b"x")]), HASH).expect("a tree");
        let names: Vec<_> = tree.entries().iter().map(|e| e.name.as_slice()).collect();
        assert_eq!(names, [&b".gitignore"[..], b"x"]);
    }
}

#[test]
fn duplicates_are_refused_wherever_they_are() {
    for entries in [
        vec![("100644", &b"a"[..]), ("100644", b"a")],
        vec![("100644", b"a"), ("40000", b"a")],
        vec![("100644", b"a"), ("100644", b"a.b"), ("40000", b"a")],
    ] {
        let error = Tree::decode(&raw(&entries), HASH).expect_err("a duplicate");
        assert!(error.to_string().contains("two entries named \"a\""), "{error}");
    }
}

#[test]
fn a_tree_that_ends_early_is_refused() {
    let whole = raw(&[("100644", b"first"), ("100644", b"second")]);
    let one = whole.len() / 2;
    for cut in 1..whole.len() {
        let decoded = Tree::decode(&whole[..cut], HASH);
        assert_eq!(decoded.is_ok(), cut == raw(&[("100644", b"first")]).len(), "cut at {cut}, half is {one}");
    }
    assert!(Tree::decode(&[], HASH).expect("the empty tree").entries().is_empty());
}

#[test]
fn sha256_ids_have_32_bytes() {
    let mut data = b"100644 a\0".to_vec();
    data.extend_from_slice(&[7; 32]);
    let tree = Tree::decode(&data, gix::hash::Kind::Sha256).expect("a good tree");
    assert_eq!(tree.entries()[0].id.kind(), gix::hash::Kind::Sha256);
    assert!(Tree::decode(&data, HASH).is_err());
}

proptest! {
    #[test]
    fn any_bytes_decode_to_a_showable_tree_or_an_error(data in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(tree) = Tree::decode(&data, HASH) {
            check(&tree);
        }
    }

    #[test]
    fn any_names_decode_to_a_showable_tree_or_an_error(names in proptest::collection::vec("[a-c./]{0,3}", 0..6)) {
        let entries: Vec<(&str, &[u8])> = names.iter().map(|name| ("100644", name.as_bytes())).collect();
        if let Ok(tree) = Tree::decode(&raw(&entries), HASH) {
            prop_assert_eq!(tree.entries().len(), names.len());
            check(&tree);
        }
    }
}

fn check(tree: &Tree) {
    for entry in tree.entries() {
        let name = entry.name.as_slice();
        assert!(!name.is_empty() && name.len() <= MAX_NAME && !name.contains(&0) && !name.contains(&b'/') && name != b"." && name != b"..");
    }
    assert!(tree.entries().windows(2).all(|pair| pair[0].name < pair[1].name));
}
