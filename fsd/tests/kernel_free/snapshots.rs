//! Kept snapshots: found by name, never changed, dead once they are kept no longer.

use bstr::BString;
use gitmount_fsd::fs::FsError;
use gitmount_fsd::inode::NodeId;
use gitmount_store::ids::CommitId;

use crate::fixture::{Fixture, Recorder};

fn current(fixture: &Fixture) -> CommitId {
    fixture.view().current().commit
}

fn at(commit: CommitId, path: &str) -> String {
    format!(".gitmount/commit/{commit}/{path}")
}

#[test]
fn a_snapshot_stands_still_and_ends_with_the_fourth_switch_after_it() {
    let fixture = Fixture::new(&[("d/f", "0"), ("d/same", "s")]);
    let first = current(&fixture);
    let file = fixture.get(&at(first, "d/f"));
    let root = fixture.get(&format!(".gitmount/commit/{first}"));
    assert_ne!(file.node, fixture.get("d/f").node);
    assert_eq!((root.time, file.time), (fixture.get("d/f").time, root.time), "everything in it has the commit's time");
    for round in 1..=3 {
        let told = fixture.switch(&[("d/f", &round.to_string())], &[]);
        assert_eq!(fixture.get(&at(first, "d/f")), file);
        assert_eq!(fixture.read(file.node), b"0");
        assert_eq!(fixture.read(fixture.get(&at(current(&fixture), "d/f")).node), round.to_string().as_bytes());
        assert!(told.invalidated.lock().expect("no panic").contains(&NodeId::COMMITS), "the list has changed");
    }
    assert_eq!(fixture.view().pinned().len(), 4);
    let dir = fixture.get(&at(first, "d"));
    let told = fixture.switch(&[("d/f", "4")], &[]);
    assert!(matches!(fixture.walk(&format!(".gitmount/commit/{first}")), Err(FsError::NotFound)));
    for dead in [root.node, dir.node] {
        assert!(matches!(fixture.fs.lookup(dead, "f".into()), Err(FsError::NotFound)));
        assert!(matches!(fixture.fs.list(dead, 0, true, &mut |_| true), Err(FsError::NotFound)));
        assert!(told.invalidated.lock().expect("no panic").contains(&dead));
    }
    assert_eq!(fixture.read(file.node), b"0", "who has it open reads on");
    let expired = told.expired.lock().expect("no panic");
    for (dir, name) in [(NodeId::COMMITS, first.to_string()), (root.node, "d".into()), (dir.node, "f".into())] {
        assert!(expired.contains(&(dir, BString::from(name.clone()))), "{name} {expired:?}");
    }
    assert!(!fixture.view().pinned().contains(&first));
}

#[test]
fn it_is_reached_by_name_and_not_listed() {
    let fixture = Fixture::new(&[("f", "1")]);
    assert_eq!(fixture.names(NodeId::ROOT), ["f"]);
    assert_eq!(fixture.names(fixture.get(".gitmount").node), ["commit"]);
    let commits = fixture.get(".gitmount/commit").node;
    assert_eq!(fixture.names(commits), [current(&fixture).to_string()]);
    fixture.switch(&[("f", "2")], &[]);
    let mut both: Vec<_> = fixture.view().pinned().iter().rev().map(ToString::to_string).collect();
    assert_eq!(fixture.names(commits), both);
    // One line a call, as with a small buffer.
    let (mut cookie, mut names) = (0, vec![]);
    loop {
        let mut one = None;
        let listed = fixture.fs.list(commits, cookie, true, &mut |line| {
            let room = one.is_none();
            one.get_or_insert((line.cookie, line.name.to_string()));
            room
        });
        listed.expect("lists");
        let Some((next, name)) = one else { break };
        names.push(name);
        cookie = next;
    }
    both.splice(0..0, [".".to_owned(), "..".to_owned()]);
    assert_eq!(names, both);
    assert!(fixture.walk(".gitmount/other").expect("no error").is_none());
}

#[test]
fn an_unknown_commit_is_no_cached_absence() {
    let fixture = Fixture::new(&[("f", "1")]);
    let commits = fixture.get(".gitmount/commit").node;
    let full = current(&fixture).to_string();
    for name in ["", "x", &full[..7], &full.to_uppercase(), &"0".repeat(40)] {
        let found = fixture.fs.lookup(commits, name.into());
        assert!(matches!(found, Err(FsError::NotFound)) || name == full, "{name} {found:?}");
    }
}

#[test]
fn attributes_say_which_commit_it_is() {
    let fixture = Fixture::new(&[("f", "1")]);
    let first = current(&fixture);
    let root = fixture.get(&format!(".gitmount/commit/{first}")).node;
    fixture.switch(&[("f", "2")], &[]);
    assert_eq!(fixture.fs.xattr(root, "user.git.commit".into()).expect("an attribute"), first.to_string());
    assert_eq!(fixture.fs.xattr_names(root), "user.git.oid\0user.git.commit\0");
    for hidden in [NodeId::HIDDEN, NodeId::COMMITS] {
        assert_eq!(fixture.fs.xattr_names(hidden), "");
        assert!(matches!(fixture.fs.xattr(hidden, "user.git.oid".into()), Err(FsError::NoAttribute)));
    }
}

#[test]
fn a_commit_that_comes_back_is_the_snapshot_it_was() {
    let fixture = Fixture::new(&[("f", "1")]);
    let first = current(&fixture);
    let file = fixture.get(&at(first, "f"));
    fixture.switch(&[("f", "2")], &[]);
    fixture.view().switch_to(first, &Recorder::default()).expect("switches");
    assert_eq!(fixture.get(&at(first, "f")), file);
    assert_eq!(fixture.view().pinned().len(), 2);
    assert_eq!(fixture.view().pinned()[0], first, "the one served last comes first");
    for round in 3..6 {
        fixture.switch(&[("f", &round.to_string())], &[]);
    }
    assert_eq!(fixture.get(&at(first, "f")), file, "its three switches began anew");
}

#[test]
fn a_commit_with_the_same_tree_is_a_snapshot_too() {
    let fixture = Fixture::new(&[("f", "1")]);
    let first = current(&fixture);
    fixture.switch(&[], &[]);
    assert_ne!(current(&fixture), first);
    for commit in [first, current(&fixture)] {
        assert_eq!(fixture.read(fixture.get(&at(commit, "f")).node), b"1");
    }
}

#[test]
fn a_view_of_a_sub_directory_keeps_that() {
    let fixture = Fixture::at(&[("sub/f", "1"), ("else", "x")], "sub");
    let first = current(&fixture);
    fixture.switch(&[("sub/f", "2")], &[]);
    assert_eq!(fixture.read(fixture.get(&at(first, "f")).node), b"1");
    assert_eq!(fixture.names(fixture.get(&format!(".gitmount/commit/{first}")).node), ["f"]);
}

#[test]
fn a_tree_with_an_entry_of_that_name_shows_its_own() {
    let fixture = Fixture::new(&[("f", "1")]);
    let hidden = fixture.get(".gitmount").node;
    assert_eq!(hidden, NodeId::HIDDEN);
    let told = fixture.switch(&[(".gitmount/mine", "own")], &[]);
    assert!(told.expired.lock().expect("no panic").contains(&(NodeId::ROOT, BString::from(".gitmount"))));
    assert!(!fixture.view().shows_snapshots());
    assert_eq!(fixture.names(NodeId::ROOT), [".gitmount", "f"]);
    assert_eq!(fixture.read(fixture.get(".gitmount/mine").node), b"own");
    assert!(fixture.walk(".gitmount/commit").expect("no error").is_none());
    let told = fixture.switch(&[], &[".gitmount"]);
    assert!(told.expired.lock().expect("no panic").contains(&(NodeId::ROOT, BString::from(".gitmount"))));
    assert_eq!(fixture.get(".gitmount").node, NodeId::HIDDEN);
    let own = fixture.view().pinned()[1];
    assert_eq!(fixture.read(fixture.get(&at(own, ".gitmount/mine")).node), b"own", "below a snapshot it is an entry like any other");
}
