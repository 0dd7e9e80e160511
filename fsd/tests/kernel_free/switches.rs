//! The file system's answers across switches.

use bstr::BString;
use gitmount_fsd::fs::FsError;
use gitmount_fsd::inode::NodeId;
use gitmount_store::objects::EntryKind;

use crate::fixture::{Fixture, Recorder, commit};

#[test]
fn a_changed_file_is_a_new_node_and_the_old_one_keeps_its_bytes() {
    let fixture = Fixture::new(&[("a/f", "old"), ("a/same", "same"), ("b/other", "other")]);
    let (dir, old, same) = (fixture.get("a"), fixture.get("a/f"), fixture.get("a/same"));
    let told = fixture.switch(&[("a/f", "newer")], &[]);
    let new = fixture.get("a/f");
    assert_ne!(new.node, old.node);
    assert!(new.time > old.time);
    assert_eq!(fixture.read(new.node), b"newer");
    assert_eq!(fixture.read(old.node), b"old");
    assert_eq!(fixture.fs.attr(old.node).expect("still known").nlink, 0);
    assert_eq!(fixture.get("a").node, dir.node, "a directory keeps its node");
    assert_eq!(fixture.get("a/same"), same, "an unchanged file keeps node and mtime");
    assert_eq!(*told.expired.lock().expect("no panic"), [(dir.node, BString::from("f"))]);
    assert!(told.invalidated.lock().expect("no panic").contains(&dir.node));
    fixture.fs.forget(old.node, 1);
    assert!(matches!(fixture.fs.attr(old.node), Err(FsError::Stale)));
}

#[test]
fn unknown_directories_are_neither_read_nor_told() {
    let fixture = Fixture::new(&[("seen/f", "1"), ("unseen/f", "1")]);
    fixture.get("seen/f");
    let told = fixture.switch(&[("unseen/f", "2")], &[]);
    assert!(told.expired.lock().expect("no panic").is_empty());
    assert_eq!(fixture.read(fixture.get("unseen/f").node), b"2");
}

#[test]
fn added_names_are_told_since_their_absence_may_be_cached() {
    let fixture = Fixture::new(&[("a/f", "1")]);
    assert!(fixture.walk("a/new").expect("no error").is_none());
    let told = fixture.switch(&[("a/new", "2")], &[]);
    let dir = fixture.get("a").node;
    assert_eq!(*told.expired.lock().expect("no panic"), [(dir, BString::from("new"))]);
    assert_eq!(fixture.read(fixture.get("a/new").node), b"2");
}

#[test]
fn a_removed_directory_is_dead_also_when_its_path_comes_back() {
    let fixture = Fixture::new(&[("a/b/f", "1"), ("keep", "")]);
    let (outer, inner, file) = (fixture.get("a"), fixture.get("a/b"), fixture.get("a/b/f"));
    fixture.switch(&[], &["a"]);
    assert!(fixture.walk("a").expect("no error").is_none());
    for dir in [outer.node, inner.node] {
        assert!(matches!(fixture.fs.lookup(dir, "f".into()), Err(FsError::NotFound)));
        assert!(matches!(fixture.fs.list(dir, 0, true, &mut |_| true), Err(FsError::NotFound)));
        assert_eq!(fixture.fs.attr(dir).expect("known").nlink, 0);
    }
    assert_eq!(fixture.read(file.node), b"1");
    fixture.switch(&[("a/b/f", "1")], &[]);
    assert_ne!(fixture.get("a").node, outer.node);
    assert_ne!(fixture.get("a/b/f").node, file.node);
    assert!(matches!(fixture.fs.lookup(inner.node, "f".into()), Err(FsError::NotFound)));
}

#[test]
fn what_was_cached_of_a_removed_directory_is_told() {
    let fixture = Fixture::new(&[("a/b/f", "1"), ("a/g", "2"), ("keep", "")]);
    let (outer, inner) = (fixture.get("a").node, fixture.get("a/b").node);
    fixture.get("a/b/f");
    let told = fixture.switch(&[], &["a"]);
    let expired = told.expired.lock().expect("no panic");
    for (dir, name) in [(NodeId::ROOT, "a"), (outer, "b"), (inner, "f")] {
        assert!(expired.contains(&(dir, BString::from(name))), "{name}: {expired:?}");
    }
    let invalidated = told.invalidated.lock().expect("no panic");
    assert!(invalidated.contains(&outer) && invalidated.contains(&inner), "{invalidated:?}");
}

#[test]
fn no_two_contents_of_a_path_share_a_second_and_a_size() {
    let fixture = Fixture::new(&[("d/f", "0000"), ("keep", "")]);
    let mut seen = vec![(fixture.get("d/f").time, "0000".to_owned())];
    for round in 1..20 {
        let content = format!("{round:04}");
        match round % 4 {
            3 => drop(fixture.switch(&[], &["d"])),
            1 => drop(fixture.switch(&[], &["d/f"])),
            _ => drop(fixture.switch(&[("d/f", &content)], &[])),
        }
        if fixture.walk("d").expect("no error").is_some_and(|d| d.kind == EntryKind::Directory)
            && let Some(file) = fixture.walk("d/f").expect("no error")
        {
            seen.push((file.time, String::from_utf8(fixture.read(file.node)).expect("digits")));
        }
    }
    for (earlier, later) in seen.iter().zip(&seen[1..]) {
        assert!(later.0.0 / 1_000_000_000 > earlier.0.0 / 1_000_000_000, "{earlier:?} {later:?}");
    }
    assert!(seen.len() > 9);
}

#[test]
fn a_listing_that_is_too_old_is_an_error_and_leaves_nothing_out() {
    let fixture = Fixture::new(&[("d/a", ""), ("d/b", ""), ("d/z", "")]);
    let dir = fixture.get("d").node;
    let mut cookie = 0;
    let first = fixture.fs.list(dir, 0, true, &mut |line| {
        let room = cookie == 0;
        cookie = if room { line.cookie } else { cookie };
        room
    });
    first.expect("lists");
    for round in 0..40 {
        fixture.switch(&[("d/b", &round.to_string())], &[]);
    }
    assert!(matches!(fixture.fs.list(dir, cookie, true, &mut |_| true), Err(FsError::Stale)));
    assert_eq!(fixture.names(dir), ["a", "b", "z"]);
}

#[test]
fn trees_nested_in_themselves_a_billion_times_are_counted_at_once() {
    let fixture = Fixture::new(&[("f", "ten bytes!")]);
    let git = |args: &[&str], input: &str| {
        let mut command = std::process::Command::new("git");
        command.args(args).current_dir(fixture.dir.path()).env("GIT_CONFIG_GLOBAL", "/dev/null");
        command.envs(["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "a")));
        let mut child = command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().expect("git runs");
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), input.as_bytes()).expect("takes it");
        String::from_utf8(child.wait_with_output().expect("ends").stdout).expect("an id").trim().to_owned()
    };
    let mut tree = git(&["rev-parse", "HEAD^{tree}"], "");
    for _ in 0..9 {
        let lines: String = (0..10).map(|n| format!("040000 tree {tree}\t{n}\n")).collect();
        tree = git(&["mktree"], &lines);
    }
    let commit = git(&["commit-tree", "-m", "nested", &tree], "");
    let id = fixture.repository.resolve(&commit).expect("a commit");
    fixture.view().switch_to(id, &Recorder::default()).expect("switches");
    let usage = fixture.fs.usage().expect("counts");
    assert_eq!(usage.bytes, 10 * 1_000_000_000);
}

#[test]
fn types_change_and_change_back() {
    let fixture = Fixture::new(&[("x", "file")]);
    let first = fixture.get("x");
    fixture.switch(&[("x/inner", "dir")], &["x"]);
    let dir = fixture.get("x");
    assert_eq!((dir.kind, dir.nlink), (EntryKind::Directory, 1));
    assert_eq!(fixture.read(fixture.get("x/inner").node), b"dir");
    fixture.switch(&[("x", "file")], &["x"]);
    let back = fixture.get("x");
    assert_eq!(back.kind, EntryKind::File);
    assert!(back.time > first.time && ![first.node, dir.node].contains(&back.node));
}

#[test]
fn a_half_read_listing_goes_on_where_it_was() {
    let fixture = Fixture::new(&[("d/a", ""), ("d/b", ""), ("d/c", ""), ("d/e", "")]);
    let dir = fixture.get("d").node;
    let (mut names, mut cookie) = (vec![], 0);
    let mut take = |after: u64, count: usize, names: &mut Vec<String>| {
        let mut left = count;
        let listed = fixture.fs.list(dir, after, true, &mut |line| {
            if left == 0 {
                return false;
            }
            left -= 1;
            names.push(line.name.to_string());
            cookie = line.cookie;
            true
        });
        listed.expect("lists");
        cookie
    };
    let half = take(0, 4, &mut names);
    fixture.switch(&[("d/aa", ""), ("d/d", "")], &["d/a", "d/c"]);
    take(half, usize::MAX, &mut names);
    assert_eq!(names, [".", "..", "a", "b", "c", "e"]);
    assert_eq!(fixture.names(dir), ["aa", "b", "d", "e"]);
}

#[test]
fn a_view_of_a_sub_directory_follows_it_and_refuses_a_commit_without_it() {
    let fixture = Fixture::at(&[("sub/f", "1"), ("else", "x")], "sub");
    assert_eq!(fixture.names(NodeId::ROOT), ["f"]);
    fixture.switch(&[("sub/f", "2")], &[]);
    assert_eq!(fixture.read(fixture.get("f").node), b"2");
    commit(fixture.dir.path(), &[], &["sub"]);
    let head = fixture.repository.resolve("HEAD").expect("a commit");
    let error = fixture.view().switch_to(head, &Recorder::default()).expect_err("there is no such directory");
    assert!(error.to_string().contains("sub"), "{error}");
    assert_eq!(fixture.read(fixture.get("f").node), b"2", "the old commit is served on");
}

#[test]
fn a_commit_with_the_same_tree_changes_the_commit_only() {
    let fixture = Fixture::new(&[("f", "1")]);
    let before = fixture.get("f");
    let old = fixture.view().current().commit;
    let told = fixture.switch(&[], &[]);
    assert_ne!(fixture.view().current().commit, old);
    assert!(told.invalidated.lock().expect("no panic").is_empty());
    assert_eq!(fixture.get("f"), before);
    let commit = fixture.fs.xattr(NodeId::ROOT, "user.git.commit".into()).expect("an attribute");
    assert_eq!(commit, fixture.view().current().commit.to_string());
}

#[test]
fn what_a_slow_reply_gives_the_kernel_after_the_plan_was_made_is_told() {
    let fixture = Fixture::new(&[("d/known", "1"), ("d/unknown", "1"), ("e/f", "1"), ("e/deep/f", "1")]);
    let dir = fixture.get("d").node;
    commit(fixture.dir.path(), &[("d/known", "2"), ("d/unknown", "2"), ("e/f", "2"), ("e/deep/f", "2")], &[]);
    let head = fixture.repository.resolve("HEAD").expect("a commit");
    fixture.get("d/known");
    let kernel = Recorder::default();
    let (late, deep) = std::thread::scope(|scope| {
        // A handler that entered before the mark: what it replies may be cached for ever.
        let slow = fixture.view().gate().enter();
        let switch = scope.spawn(|| fixture.view().switch_to(head, &kernel));
        while !fixture.view().gate().enter().pending {
            std::thread::yield_now();
        }
        fixture.get("d/unknown");
        let late = fixture.get("e/f");
        let deep = fixture.get("e/deep/f");
        drop(slow);
        let switched = switch.join().expect("no panic").expect("switches");
        assert_eq!(switched.changed, 4);
        (late, deep)
    });
    assert_eq!(fixture.read(late.node), b"1");
    assert_eq!(fixture.read(deep.node), b"1");
    let told = kernel.expired.into_inner().expect("no panic");
    for (dir, name) in [(dir, "known"), (dir, "unknown"), (fixture.get("e").node, "f"), (fixture.get("e/deep").node, "f")] {
        assert!(told.contains(&(dir, name.into())), "{name} in {dir:?}: {told:?}");
    }
    assert_eq!(fixture.read(fixture.get("e/deep/f").node), b"2");
}
