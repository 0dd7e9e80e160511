//! `.gitmount/commit/<full id>/`: the tree of a commit that was served, standing still while the mount moves on.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::import::Mode;
use gitmount_tests::mount::{Account, Mounted};
use gitmount_tests::run::{command, run, start};
use gitmount_tests::scratch;
use gitmount_tests::upstream::{MAIN, Upstream, put};

fn snapshot(commit: &str) -> String {
    format!(".gitmount/commit/{commit}")
}

fn is_missing(mounted: &Mounted<'_>, path: &str) -> bool {
    mounted.join(path).symlink_metadata().is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound)
}

#[test]
fn a_reader_stays_at_the_commit_it_began_with() -> Result<()> {
    let upstream = Upstream::new(|import| {
        put(import, &[("dags/a.py", "import b\n"), ("dags/b.py", "B = 0\n"), ("dir/sub/deep", "0"), ("run", "0")])?;
        import.entry(Mode::Symlink, b"link", b"dags/a.py")?.entry(Mode::Executable, b"tool", b"#!/bin/sh\n")?;
        Ok(())
    })?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    // As a script does it.
    let first = mounted.attribute("", "user.git.commit")?;
    let path = snapshot(&first);
    let root = mounted.join(&path);
    compare::against_both(&root, &upstream.repo, &first)?;
    ensure!(mounted.attribute(&path, "user.git.commit")? == first);
    let born: i64 = upstream.repo.line(["log", "-1", "--format=%ct", MAIN])?.parse()?;
    let inode = root.join("dags/b.py").metadata()?.ino();
    let mut open = File::open(root.join("dags/b.py"))?;
    let mut shell = command("sh");
    shell.args(["-c", "read go; cat b.py; read go; ls; cat b.py a.py new.py"]).current_dir(root.join("dags"));
    let mut shell = start(shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let mut go = shell.stdin.take().context("stdin was asked for")?;

    for n in 1..=3 {
        let now = upstream.switch(&mounted, |import| put(import, &[("dags/b.py", &format!("B = {n}\n")), ("dags/new.py", "")]))?;
        compare::against_both(&root, &upstream.repo, &first)?;
        compare::against_both(&mounted.join(snapshot(&now)), &upstream.repo, &now)?;
        ensure!(root.join("dags/b.py").metadata()?.ino() == inode && root.join("dir/sub/deep").metadata()?.mtime() == born);
    }
    ensure!(mounted.names(".gitmount/commit")?.len() == 4 && mounted.names(".gitmount/commit")?.contains(&first));
    std::io::Write::write_all(&mut go, b"go\n")?;
    let mut said = [0; 6];
    shell.stdout.as_mut().context("stdout was asked for")?.read_exact(&mut said)?;
    ensure!(&said == b"B = 0\n", "the working directory moved");

    upstream.move_on(&mounted, |import| put(import, &[("dags/b.py", "B = 4\n")]))?;
    for gone in ["", "/dags", "/dags/b.py", "/dir/sub/deep", "/run", "/link"] {
        ensure!(is_missing(&mounted, &format!("{path}{gone}")), "{path}{gone} is still there");
    }
    ensure!(!mounted.names(".gitmount/commit")?.contains(&first) && mounted.names(".gitmount/commit")?.len() == 4);
    drop(go);
    let rest = shell.wait_with_output()?;
    let (out, err) = (String::from_utf8_lossy(&rest.stdout).into_owned(), String::from_utf8_lossy(&rest.stderr).into_owned());
    ensure!(out.is_empty() && err.matches("No such file or directory").count() == 3, "{out:?} {err:?}");
    let mut text = String::new();
    open.read_to_string(&mut text)?;
    ensure!(text == "B = 0\n", "an open file of it changed");
    Ok(())
}

#[test]
fn walks_of_the_tree_do_not_find_it() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1"), ("d/b", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let commit = mounted.commit()?;
    for _ in 0..2 {
        let found = run(command("find").arg(mounted.path()))?.success()?.out();
        ensure!(found.lines().count() == 4 && !found.contains(".gitmount"), "{found}");
        let listed = run(command("ls").arg("-a").arg(mounted.path()))?.success()?.out();
        ensure!(listed == ".\n..\na\nd\n", "{listed}");
        compare::against_both(mounted.path(), &upstream.repo, MAIN)?;
        // Once it is known to the kernel.
        ensure!(mounted.text(&format!("{}/d/b", snapshot(&commit)))? == "1");
        ensure!(mounted.names(".gitmount")? == ["commit"] && mounted.names(".gitmount/commit")? == [commit.clone()]);
    }
    ensure!(File::create(mounted.join(".gitmount/x")).is_err_and(|e| e.raw_os_error() == Some(nix::errno::Errno::EROFS as i32)));
    Ok(())
}

#[test]
fn a_commit_that_was_not_there_is_found_once_it_is_served() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    ensure!(mounted.names(".gitmount/commit")?.len() == 1);
    let next = upstream.commit(|import| put(import, &[("a", "2")]))?;
    ensure!(is_missing(&mounted, &snapshot(&next)) && is_missing(&mounted, &snapshot(&next[..10])));
    mounted.pull()?;
    ensure!(mounted.text(&format!("{}/a", snapshot(&next)))? == "2");
    ensure!(mounted.names(".gitmount/commit")?.len() == 2, "the listing is the new one");
    Ok(())
}

#[test]
fn as_many_are_kept_as_was_said() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "0")]))?;
    let account = Account::new()?;
    let none = account.mount(&upstream.url(), &["--keep-snapshots", "0", "--pull", "never"])?;
    let many = account.mount(&upstream.url(), &["--keep-snapshots", "6", "--pull", "never"])?;
    let mut commits = vec![none.commit()?];
    for n in 1..=7 {
        let before = commits.last().context("one is served")?.clone();
        ensure!(none.text(&format!("{}/a", snapshot(&before)))? == (n - 1).to_string());
        commits.push(upstream.move_on(&many, |import| put(import, &[("a", &n.to_string())]))?);
        none.pull()?;
        ensure!(is_missing(&none, &snapshot(&before)));
    }
    for (n, commit) in commits.iter().enumerate() {
        if n == 0 {
            ensure!(is_missing(&many, &snapshot(commit)));
        } else {
            ensure!(many.text(&format!("{}/a", snapshot(commit)))? == n.to_string());
        }
    }
    // What is kept stays in the store.
    account.run(["gc"])?.success()?;
    let _lock = scratch::exclusive("kernel-caches")?;
    scratch::drop_caches(true)?;
    for (n, commit) in commits.iter().enumerate().skip(1) {
        ensure!(many.text(&format!("{}/a", snapshot(commit)))? == n.to_string());
    }
    account.refused(["mount", "--keep-snapshots", "-1", &upstream.url(), "/nonexistent"], 2, &["keep-snapshots", "0 to 1000"])?;
    Ok(())
}

#[test]
fn a_tree_that_has_the_name_itself_keeps_it() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let first = mounted.commit()?;
    ensure!(mounted.text(&format!("{}/a", snapshot(&first)))? == "1");
    let second = upstream.switch(&mounted, |import| put(import, &[(".gitmount/mine", "own")]))?;
    ensure!(mounted.text(".gitmount/mine")? == "own" && is_missing(&mounted, &snapshot(&first)));
    let dir = account.mount_point()?;
    let said = account.run(["mount", &upstream.url(), &dir.to_string_lossy()])?.success()?.err();
    ensure!(said.lines().count() == 1 && said.contains("warning") && said.contains(".gitmount"), "{said}");
    upstream.switch(&mounted, |import| import.delete(b".gitmount").map(drop))?;
    ensure!(mounted.text(&format!("{}/.gitmount/mine", snapshot(&second)))? == "own");
    ensure!(mounted.text(&format!("{}/a", snapshot(&first)))? == "1");
    Ok(())
}
