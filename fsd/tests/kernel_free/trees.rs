//! Decoded trees: what is asked for in turns stays decoded.

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use gitmount_fsd::view::trees::Trees;
use gitmount_store::ids::ObjectId;
use gitmount_store::local::LocalRepository;

fn git(dir: &std::path::Path, args: &[&str], input: &str) -> String {
    let mut command = Command::new("git");
    command.args(args).current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("git runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("git reads");
    let output = child.wait_with_output().expect("git ends");
    assert!(output.status.success(), "git {args:?}");
    String::from_utf8(output.stdout).expect("an id").trim().to_owned()
}

#[test]
fn a_big_directory_and_its_parent_do_not_push_each_other_out() {
    let dir = tempfile::tempdir().expect("a directory");
    git(dir.path(), &["init", "-q", "-b", "main"], "");
    let blob = git(dir.path(), &["hash-object", "-w", "--stdin"], "");
    let mut lines = String::new();
    for n in 0..60_000 {
        writeln!(lines, "100644 blob {blob}\t{n:0200}").expect("a string grows");
    }
    // Bigger than everything that is kept together.
    let big = git(dir.path(), &["mktree"], &lines);
    let root = git(dir.path(), &["mktree"], &format!("040000 tree {big}\tbig\n"));
    let trees = Trees::new(LocalRepository::discover(dir.path()).expect("a repository").objects(), Arc::default());
    let get = |id: &str| trees.get(ObjectId::from_hex(id.as_bytes()).expect("an id")).expect("a tree");
    let (first_root, first_big) = (get(&root), get(&big));
    for _ in 0..3 {
        assert!(Arc::ptr_eq(&first_root, &get(&root)) && Arc::ptr_eq(&first_big, &get(&big)));
    }
}
