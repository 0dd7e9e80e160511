//! A pull that finds news switches the mount in one step: files, directories, links, modes; what was open stays what it was.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::git::Repo;
use gitmount_tests::import::Mode;
use gitmount_tests::mount::Account;
use gitmount_tests::run::{command, start};
use gitmount_tests::scratch;
use gitmount_tests::upstream::{MAIN, Upstream, put};

#[test]
fn a_pull_without_news_says_so_and_changes_nothing() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let before = mounted.join("a").metadata()?;
    let said = mounted.pull()?;
    ensure!(said.contains(&upstream.repo.id(MAIN)?[..7]) && said.trim_end().lines().count() == 1, "{said}");
    let after = mounted.join("a").metadata()?;
    ensure!(before.ino() == after.ino() && before.mtime_nsec() == after.mtime_nsec() && before.mtime() == after.mtime());
    Ok(())
}

#[test]
fn every_kind_of_change() -> Result<()> {
    let upstream = Upstream::new(|import| {
        put(import, &[("changed", "1"), ("removed", "1"), ("same", "1"), ("dir/file", "1"), ("dir/sub/deep", "1"), ("Case", "1")])?;
        put(import, &[("to-dir", "file"), ("to-link", "file"), ("gone/only", "1"), ("grows", "short"), ("moved", "1")])?;
        import.entry(Mode::Symlink, b"link", b"same")?.entry(Mode::Symlink, b"link-to-file", b"same")?;
        import.file(b"becomes-executable", "#!/bin/sh\n")?.entry(Mode::Executable, b"stops-to-be-executable", b"#!/bin/sh\n")?;
        Ok(())
    })?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    // Makes the kernel know everything, and that `new` and `removed-dir` are not there.
    compare::against_both(mounted.path(), &upstream.repo, MAIN)?;
    ensure!(!mounted.join("new").exists() && !mounted.join("case").exists() && !mounted.join("new-dir/sub/file").exists());

    upstream.switch(&mounted, |import| {
        put(import, &[("changed", "2"), ("dir/file", "2"), ("dir/sub/deep", "2"), ("new", "1"), ("new-dir/sub/file", "1")])?;
        import.delete(b"removed")?.delete(b"gone")?.delete(b"to-dir")?.file(b"to-dir/inside", "1")?;
        import.entry(Mode::Symlink, b"to-link", b"changed")?.entry(Mode::Symlink, b"link", b"changed")?;
        import.delete(b"link-to-file")?.file(b"link-to-file", "a file now")?;
        import.entry(Mode::Executable, b"becomes-executable", b"#!/bin/sh\n")?.file(b"stops-to-be-executable", "#!/bin/sh\n")?;
        import.rename(b"Case", b"case")?.rename(b"moved", b"dir/moved")?;
        import.file(b"grows", "long ".repeat(100_000))?;
        Ok(())
    })?;
    ensure!(mounted.text("link")? == "2" && mounted.text("to-link")? == "2" && mounted.text("case")? == "1");
    ensure!(!mounted.join("Case").exists() && !mounted.join("removed").exists() && !mounted.join("gone/only").exists());
    ensure!(mounted.join("becomes-executable").metadata()?.permissions().mode() & 0o111 == 0o111);
    ensure!(mounted.join("stops-to-be-executable").metadata()?.permissions().mode() & 0o111 == 0);

    upstream.switch(&mounted, |import| {
        import.delete(b"to-dir")?.file(b"to-dir", "a file again")?;
        import.delete(b"new-dir")?.delete(b"dir")?.file(b"removed", "back")?;
        Ok(())
    })?;
    Ok(())
}

#[test]
fn back_and_forth_between_two_commits() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1"), ("d/a", "1"), ("e/f/g", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let first = upstream.repo.id(MAIN)?;
    let second = upstream.switch(&mounted, |import| put(import, &[("a", "2"), ("d/b", "2"), ("e/f/g", "2")]))?;
    for commit in [&first, &second, &first, &second, &first] {
        // A force-push is a move like any other.
        upstream.repo.point(MAIN, commit)?;
        mounted.pull()?;
        ensure!(mounted.commit()? == *commit);
        compare::against_both(mounted.path(), &upstream.repo, commit)?;
    }
    Ok(())
}

#[test]
fn an_open_file_keeps_its_bytes() -> Result<()> {
    let old = "old bytes\n".repeat(50_000);
    let upstream = Upstream::new(|import| put(import, &[("changed", &old), ("removed", &old), ("dir/removed", &old)]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let mut open: Vec<File> =
        ["changed", "removed", "dir/removed"].iter().map(|path| File::open(mounted.join(path))).collect::<Result<_, _>>()?;
    // One is half read, the others not at all.
    open[0].read_exact(&mut [0; 1000])?;
    upstream.switch(&mounted, |import| {
        import.file(b"changed", "new")?.delete(b"removed")?.delete(b"dir")?;
        Ok(())
    })?;
    for file in &mut open {
        ensure!(file.metadata()?.len() == old.len() as u64, "the size of an open file changed");
        file.rewind()?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        ensure!(text == old, "an open file changed");
        let mut tail = [0; 6];
        file.read_exact_at(&mut tail, old.len() as u64 - 6)?;
        ensure!(&tail == b"bytes\n");
    }
    ensure!(mounted.text("changed")? == "new");
    Ok(())
}

#[test]
fn a_working_directory_follows_and_a_removed_one_is_dead() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("follows/file", "1"), ("dies/file", "1"), ("dies/sub/file", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let shell = |dir: &str| -> Result<std::process::Child> {
        // Waits for a line, then looks around.
        let mut shell = command("sh");
        shell.args(["-c", "read go; cat file; ls; cat sub/file"]).current_dir(mounted.join(dir));
        start(shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let (follows, dies) = (shell("follows")?, shell("dies")?);
    upstream.switch(&mounted, |import| {
        import.file(b"follows/file", "2\n")?.file(b"follows/sub/file", "new\n")?.delete(b"dies")?;
        Ok(())
    })?;
    let end = |mut shell: std::process::Child| -> Result<(String, String)> {
        drop(shell.stdin.take());
        let output = shell.wait_with_output()?;
        Ok((String::from_utf8(output.stdout)?, String::from_utf8(output.stderr)?))
    };
    let (said, failed) = end(follows)?;
    ensure!(said == "2\nfile\nsub\nnew\n" && failed.is_empty(), "{said:?} {failed:?}");
    let (said, failed) = end(dies)?;
    ensure!(said.is_empty() && failed.matches("No such file or directory").count() >= 2, "{said:?} {failed:?}");

    upstream.switch(&mounted, |import| put(import, &[("dies/file", "born again")]))?;
    ensure!(mounted.text("dies/file")? == "born again");
    Ok(())
}

#[test]
fn directories_keep_their_inodes_and_changed_files_get_new_ones() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("d/changed", "1"), ("d/same", "1"), ("other/file", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let inode = |path: &str| -> Result<u64> { Ok(mounted.join(path).metadata()?.ino()) };
    let before = ["d", "d/same", "d/changed", "other", "other/file"].map(inode);
    upstream.switch(&mounted, |import| put(import, &[("d/changed", "2"), ("d/new", "1")]))?;
    let after = ["d", "d/same", "d/changed", "other", "other/file"].map(inode);
    let kept: Vec<bool> = before.into_iter().zip(after).map(|(b, a)| Ok(b? == a?)).collect::<Result<_>>()?;
    ensure!(kept == [true, true, false, true, true], "{kept:?}");
    Ok(())
}

#[test]
fn times_tell_new_content_from_old() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("changed", "1"), ("same", "1"), ("d/changed", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let time = |path: &str| -> Result<std::time::SystemTime> { Ok(mounted.join(path).metadata()?.modified()?) };
    let born: i64 = upstream.repo.line(["log", "-1", "--format=%ct", MAIN])?.parse()?;
    for path in ["changed", "same", "d/changed"] {
        let status = mounted.join(path).metadata()?;
        ensure!(status.mtime() == born && status.mtime_nsec() == 0, "{path} has the time {}", status.mtime());
    }
    let (changed, same) = (time("changed")?, time("same")?);
    let start = std::time::SystemTime::now() - std::time::Duration::from_secs(1);
    upstream.switch(&mounted, |import| put(import, &[("changed", "2"), ("d/changed", "2")]))?;
    ensure!(time("same")? == same, "the time of an unchanged file changed");
    let second = time("changed")?;
    ensure!(second > changed && second >= start, "a changed file has the time of the switch");

    // Back to the first content: it is as new as any other.
    upstream.switch(&mounted, |import| put(import, &[("changed", "1")]))?;
    ensure!(time("changed")? > second, "the same bytes again are another change");
    Ok(())
}

#[test]
fn replicas_that_start_on_one_commit_agree_on_times() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1"), ("d/b", "1")]))?;
    let (one, two) = (Account::new()?, Account::new()?);
    let (one, two) = (one.mount(&upstream.url(), &[])?, two.mount(&upstream.url(), &[])?);
    for path in ["a", "d/b", "d"] {
        ensure!(one.join(path).metadata()?.modified()? == two.join(path).metadata()?.modified()?, "{path}");
    }
    Ok(())
}

#[test]
fn ten_thousand_changed_files() -> Result<()> {
    let file = |n: usize| format!("dir-{}/file-{n}", n % 100);
    let upstream = Upstream::new(|import| (0..10_000).try_for_each(|n| import.file(file(n).as_bytes(), format!("{n}")).map(drop)))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    compare::against_both(mounted.path(), &upstream.repo, MAIN)?;
    upstream.switch(&mounted, |import| (0..10_000).try_for_each(|n| import.file(file(n).as_bytes(), format!("new {n}")).map(drop)))?;
    Ok(())
}

#[test]
fn a_path_that_a_commit_removes_keeps_the_last_commit_that_had_it() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("docs/a", "1"), ("other", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &["--path", "docs"])?;
    let had = upstream.repo.id(MAIN)?;
    upstream.commit(|import| import.delete(b"docs").map(drop))?;
    account.refused(["pull".as_ref(), mounted.path().as_os_str()], 3, &["docs"])?;
    ensure!(mounted.text("a")? == "1" && mounted.commit()? == had);
    upstream.commit(|import| put(import, &[("docs/b", "2")]))?;
    mounted.pull()?;
    ensure!(mounted.names("")? == ["b"]);
    Ok(())
}

#[test]
fn a_ref_that_disappears_keeps_its_last_commit_and_resumes() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1")]))?;
    upstream.repo.run(["branch", "side", "main"])?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &["--ref", "side"])?;
    upstream.repo.run(["branch", "-D", "--quiet", "side"])?;
    account.refused(["pull".as_ref(), mounted.path().as_os_str()], 3, &["side"])?;
    let status = mounted.status()?;
    ensure!(mounted.text("a")? == "1" && status.state == "gone" && status.error.is_some_and(|e| e.contains("side")), "{}", status.state);
    let new = upstream.commit(|import| put(import, &[("a", "2")]))?;
    upstream.repo.run(["branch", "side", "main"])?;
    mounted.pull()?;
    ensure!(mounted.commit()? == new && mounted.text("a")? == "2" && mounted.status()?.state == "ok");
    Ok(())
}

#[test]
fn what_is_mounted_below_stays() -> Result<()> {
    scratch::require_root()?;
    let upstream = Upstream::new(|import| put(import, &[("d/changed", "1"), ("d/here/placeholder", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let below = scratch::dir()?;
    fs::write(below.path().join("mine"), "mine")?;
    let bind = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(below.path()), &mounted.join("d/here"), None::<&str>, bind, None::<&str>)?;
    upstream.commit(|import| put(import, &[("d/changed", "2"), ("d/here/placeholder", "2"), ("new", "1")]))?;
    let pulled = mounted.pull().and_then(|_| Ok((mounted.text("d/changed")?, mounted.text("d/here/mine")?)));
    nix::mount::umount2(&mounted.join("d/here"), nix::mount::MntFlags::MNT_DETACH)?;
    ensure!(pulled? == ("2".to_owned(), "mine".to_owned()));
    Ok(())
}

#[test]
fn a_scheduled_pull_finds_news_by_itself() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("a", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &["--pull", "1s"])?;
    let never = account.mount(&upstream.url(), &["--pull", "never", "--ref", "main"])?;
    let old = never.commit()?;
    let new = upstream.commit(|import| put(import, &[("a", "2")]))?;
    mounted.wait_for_commit(&new, std::time::Duration::from_secs(10))?;
    ensure!(never.commit()? == old, "`--pull never` does not pull by itself");
    Ok(())
}

#[test]
fn a_history_is_fetched_in_small_steps() -> Result<()> {
    let upstream = Upstream::new(|import| (0..500).try_for_each(|n| import.file(format!("f{n}").as_bytes(), format!("{n}")).map(drop)))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    for n in 0..10 {
        upstream.switch(&mounted, |import| put(import, &[("f0", &format!("new {n}"))]))?;
    }
    let stored = fs::read_dir(account.store().join("repos"))?.next().context("one repository is stored")??.path();
    let stored = Repo::at(stored);
    let count: usize =
        stored.line(["count-objects", "-v"])?.lines().filter_map(|line| line.strip_prefix("in-pack: ")?.parse::<usize>().ok()).sum();
    ensure!(count < 600, "ten small changes left {count} objects of 502 in the store");
    let boundaries = fs::read_to_string(stored.path().join("shallow")).unwrap_or_default();
    // The commits that are readable: the current one and three before it; and one that is on its way out.
    ensure!(boundaries.lines().count() <= 5, "old boundaries pile up in `shallow`: {boundaries}");
    Ok(())
}
