//! A local path is served from that repository's own objects: any revision that git takes, followed when it moves, nothing written.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures;
use gitmount_tests::git::Repo;
use gitmount_tests::mount::Account;
use gitmount_tests::run::run;
use gitmount_tests::scratch;

const SOON: Duration = Duration::from_secs(1);

/// A work tree with three commits, whose file `n` counts them, and a tag on the first.
fn work_tree(path: &Path) -> Result<Repo> {
    let repo = Repo::init(path, &[])?;
    for n in 1..=3 {
        commit(&repo, n)?;
        if n == 1 {
            repo.run(["tag", "-a", "-m", "first", "v1"])?;
        }
    }
    Ok(repo)
}

fn commit(repo: &Repo, n: u32) -> Result<String> {
    fs::write(repo.path().join("n"), format!("{n}\n"))?;
    fs::create_dir_all(repo.path().join("dir"))?;
    fs::write(repo.path().join("dir/file"), format!("{n}\n"))?;
    repo.run(["add", "."])?;
    let date = format!("{} +0000", gitmount_tests::git::FIRST_COMMIT_TIME + i64::from(n) * 3600);
    let mut command = repo.command(["commit", "--quiet", "-m", &format!("commit {n}")]);
    run(command.env("GIT_COMMITTER_DATE", &date).env("GIT_AUTHOR_DATE", &date))?.success()?;
    repo.id("HEAD")
}

/// Everything about a directory that a writer would change. Not the access times, which a reader may.
fn listing(dir: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let mut all = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        let status = path.symlink_metadata()?;
        let about = format!(
            "{:o} {}:{} {} {} bytes, inode {}, changed {}.{} {}.{}",
            status.mode(),
            status.uid(),
            status.gid(),
            status.nlink(),
            status.size(),
            status.ino(),
            status.mtime(),
            status.mtime_nsec(),
            status.ctime(),
            status.ctime_nsec(),
        );
        if status.is_dir() {
            for entry in fs::read_dir(&path)? {
                left.push(entry?.path());
            }
        }
        all.insert(path, about);
    }
    Ok(all)
}

#[test]
fn any_revision_that_git_takes() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = work_tree(&dir.path().join("repo"))?;
    let account = Account::new()?;
    let second = repo.id("main~1")?;
    let revisions = [
        "HEAD",
        "main",
        "main~1",
        "main^",
        "HEAD~2",
        "v1",
        "v1^{commit}",
        "v1^0",
        "main@{1}",
        "HEAD@{2}",
        "@",
        "@~1",
        ":/commit 2",
        "main^{/commit 1}",
        "refs/heads/main",
        "heads/main",
        &second,
        &second[..9],
    ];
    for revision in revisions {
        let mounted = account.mount(&repo.arg(), &["--ref", revision]).with_context(|| format!("--ref {revision}"))?;
        let expected = repo.id(&format!("{}^{{commit}}", repo.id(revision)?))?;
        ensure!(mounted.commit()? == expected, "{revision} is {} to gitmount and {expected} to git", mounted.commit()?);
        mounted.unmount()?;
    }
    Ok(())
}

#[test]
fn a_work_tree_its_git_directory_a_directory_in_it_and_a_linked_work_tree() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = work_tree(&dir.path().join("repo"))?;
    let linked = dir.path().join("linked");
    repo.run(["worktree", "add", "--quiet", "--detach", &linked.to_string_lossy(), "main~1"])?;
    let account = Account::new()?;
    for (path, revision) in [("repo", "main"), ("repo/.git", "main"), ("repo/dir", "main"), ("linked", "main~1"), ("linked/dir", "main~1")]
    {
        let mounted = account.mount(&dir.path().join(path).to_string_lossy(), &[]).context(path)?;
        ensure!(mounted.commit()? == repo.id(revision)?, "{path}");
        ensure!(mounted.names("")? == ["dir", "n"], "{path} is served as {:?}", mounted.names("")?);
    }
    Ok(())
}

#[test]
fn a_relative_path_is_one_of_where_the_command_runs() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = work_tree(&dir.path().join("repo"))?;
    let account = Account::new()?;
    for (source, cwd) in [(".", "repo"), ("./repo", ""), ("..", "repo/dir")] {
        let mount_point = account.mount_point()?;
        let mut command = account.command(["mount", source]);
        run(command.arg(&mount_point).current_dir(dir.path().join(cwd)))?.success()?;
        ensure!(fs::read_to_string(mount_point.join("n"))? == "3\n");
        let shown = account.status()?.into_iter().next().context("one mount is served")?;
        ensure!(Path::new(&shown.url).is_absolute() && shown.commit == repo.id("HEAD")?, "{shown:?}");
        account.run(["unmount".as_ref(), mount_point.as_os_str()])?.success()?;
    }
    Ok(())
}

#[test]
fn a_commit_is_served_within_a_second() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = work_tree(&dir.path().join("repo"))?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    for n in 4..8 {
        let new = commit(&repo, n)?;
        mounted.wait_for_commit(&new, SOON)?;
        ensure!(mounted.text("n")? == format!("{n}\n") && mounted.text("dir/file")? == format!("{n}\n"));
    }
    Ok(())
}

#[test]
fn every_way_in_which_a_ref_moves_is_seen() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = work_tree(&dir.path().join("repo"))?;
    repo.run(["branch", "other", "main~1"])?;
    let account = Account::new()?;
    let head = account.mount(&repo.arg(), &[])?;
    let main = account.mount(&repo.arg(), &["--ref", "main"])?;
    let before = account.mount(&repo.arg(), &["--ref", "HEAD~1"])?;

    // Packing moves nothing, and what moves afterwards is still seen.
    repo.run(["pack-refs", "--all"])?;
    repo.run(["checkout", "--quiet", "other"])?;
    head.wait_for_commit(&repo.id("other")?, SOON)?;
    before.wait_for_commit(&repo.id("other~1")?, SOON)?;
    ensure!(main.commit()? == repo.id("main")?, "another branch was checked out");

    repo.run(["checkout", "--quiet", "--detach", "main"])?;
    head.wait_for_commit(&repo.id("main")?, SOON)?;
    repo.run(["update-ref", "refs/heads/main", "main~2"])?;
    main.wait_for_commit(&repo.id("main")?, SOON)?;
    ensure!(head.commit()? != main.commit()?, "a detached HEAD does not follow");

    repo.run(["branch", "-D", "--quiet", "main"])?;
    std::thread::sleep(SOON / 4);
    ensure!(main.text("n")? == "1\n", "a ref that is gone keeps its last commit");
    repo.run(["branch", "main", "other"])?;
    main.wait_for_commit(&repo.id("other")?, SOON)?;
    repo.run(["gc", "--quiet", "--prune=now"])?;
    repo.run(["update-ref", "refs/heads/main", "v1^0"])?;
    main.wait_for_commit(&repo.id("v1^0")?, SOON)
}

#[test]
fn nothing_is_written_into_the_repository() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = work_tree(&dir.path().join("repo"))?;
    repo.run(["gc", "--quiet"])?;
    let before = listing(dir.path())?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &["--ref", "main~1"])?;
    gitmount_tests::compare::against_both(mounted.path(), &repo, "main~1")?;
    mounted.pull()?;
    mounted.unmount()?;
    account.wait_until_idle()?;
    let after = listing(dir.path())?;
    for (path, about) in &after {
        ensure!(before.get(path) == Some(about), "{} was {:?} and is {about}", path.display(), before.get(path));
    }
    ensure!(before.len() == after.len(), "something was removed");
    Ok(())
}

#[test]
fn nothing_is_copied() -> Result<()> {
    let repo = fixtures::get("big", fixtures::big::big)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    ensure!(mounted.text("small")? == "beside a big one\n");
    let stored: u64 =
        listing(account.store()).unwrap_or_default().keys().filter_map(|path| path.metadata().ok()).map(|s| s.blocks() * 512).sum();
    ensure!(stored < 1 << 20, "the store holds {stored} bytes for a repository on the same disk");
    Ok(())
}

#[test]
fn a_read_only_repository_is_served() -> Result<()> {
    let repo = fixtures::get("refs", fixtures::refs::refs)?;
    let dir = scratch::dir()?;
    scratch::require_root()?;
    // Not even root can write through a read-only bind mount.
    let flags = nix::mount::MsFlags::MS_BIND;
    nix::mount::mount(Some(repo.path()), dir.path(), None::<&str>, flags, None::<&str>)?;
    let read_only = flags | nix::mount::MsFlags::MS_REMOUNT | nix::mount::MsFlags::MS_RDONLY;
    let served =
        nix::mount::mount(None::<&str>, dir.path(), None::<&str>, read_only, None::<&str>).map_err(anyhow::Error::from).and_then(|()| {
            let account = Account::new()?;
            let mounted = account.mount(&dir.path().to_string_lossy(), &["--ref", "main"])?;
            ensure!(mounted.text("which")? == "main\n");
            mounted.unmount()
        });
    nix::mount::umount2(dir.path(), nix::mount::MntFlags::MNT_DETACH)?;
    served
}
