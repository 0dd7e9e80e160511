//! A repository of the user's own: found, resolved as git resolves, watched, and left as it was.

use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::local::{LocalRepository, RefWatch};
use gitmount_tests::fixtures::{self, refs, shape, storage};
use gitmount_tests::git::Repo;

#[test]
fn revisions_resolve_as_in_git() -> Result<()> {
    let (_dir, repo) = fixtures::copy("mixed", storage::mixed)?;
    repo.run(["tag", "-m", "annotated", "v1.2", "main~1"])?;
    repo.run(["tag", "-m", "of a tag", "v1.2.1", "v1.2"])?;
    repo.point("refs/heads/feature/x", "main~2")?;
    repo.run(["pack-refs", "--all"])?;
    let local = LocalRepository::discover(repo.path())?;
    let short = repo.line(["rev-parse", "--short=8", "main~1"])?;
    let full = repo.id("main~2")?;
    for revision in
        ["HEAD", "main", "main~3", "main^", "v1.2", "v1.2.1", "v1.2^{commit}", "feature/x", ":/Round 1", "refs/heads/main", &short, &full]
    {
        let expected = repo.id(&format!("{revision}^{{commit}}")).or_else(|_| repo.id(revision))?;
        ensure!(local.resolve(revision)?.to_string() == expected, "{revision}");
    }
    Ok(())
}

#[test]
fn reflog_expressions_resolve() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let repo = Repo::init(dir.path().join("work"), &[])?;
    for n in 0..3 {
        repo.run(["commit", "-q", "--allow-empty", "-m", &format!("Commit {n}")])?;
    }
    let local = LocalRepository::discover(repo.path())?;
    for revision in ["HEAD@{1}", "main@{2}", "@{0}", "@"] {
        ensure!(local.resolve(revision)?.to_string() == repo.id(revision)?, "{revision}");
    }
    Ok(())
}

#[test]
fn a_branch_wins_and_what_is_no_commit_is_refused() -> Result<()> {
    let (_dir, repo) = fixtures::copy("refs", refs::refs)?;
    repo.point("refs/heads/twice", "main")?;
    repo.point("refs/tags/twice", "refs/tags/light")?;
    let local = LocalRepository::discover(repo.path())?;
    ensure!(local.resolve("twice")?.to_string() == repo.id("main")?);
    for (revision, reason) in [
        ("tag-of-blob", "leads to no commit"),
        ("main^{tree}", "leads to no commit"),
        ("absent", "does not exist"),
        ("main~1000", "does not exist"),
    ] {
        let error = local.resolve(revision).err().with_context(|| format!("{revision} resolves"))?;
        ensure!(error.fault() == Fault::NotFound && error.to_string().contains(reason) && error.to_string().contains(revision), "{error}");
    }
    let empty = LocalRepository::discover(fixtures::get("empty", shape::empty)?.path())?;
    let error = empty.resolve("HEAD").err().context("an empty repository has no commit")?;
    ensure!(error.fault() == Fault::NotFound && error.to_string().contains("no commit yet"), "{error}");
    Ok(())
}

#[test]
fn it_is_found_from_inside_and_from_linked_work_trees() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let repo = Repo::init(dir.path().join("work"), &[])?;
    std::fs::create_dir_all(repo.path().join("a/b"))?;
    std::fs::write(repo.path().join("a/b/file"), "content\n")?;
    repo.run(["add", "."])?;
    repo.run(["commit", "-q", "-m", "First"])?;
    let linked = dir.path().join("linked");
    repo.run(["worktree", "add", "-q", "-b", "side", &linked.to_string_lossy()])?;
    let linked_repo = Repo::at(&linked);
    linked_repo.run(["commit", "-q", "--allow-empty", "-m", "On the side"])?;

    let inside = LocalRepository::discover(&repo.path().join("a/b"))?;
    ensure!(inside.git_dir() == std::fs::canonicalize(repo.git_dir())?);
    let side = LocalRepository::discover(&linked)?;
    ensure!(side.resolve("HEAD")?.to_string() == repo.id("side")? && inside.resolve("HEAD")?.to_string() == repo.id("main")?);
    side.objects().commit(side.resolve("HEAD")?)?;

    let nowhere = LocalRepository::discover(Path::new("/proc")).err().context("there is no repository")?;
    ensure!(nowhere.fault() == Fault::NotFound && nowhere.to_string().contains("/proc"), "{nowhere}");
    Ok(())
}

#[test]
fn the_owner_does_not_matter_and_user_configuration_neither() -> Result<()> {
    let (_dir, repo) = fixtures::copy("mixed", storage::mixed)?;
    if nix::unistd::geteuid().is_root() {
        for entry in [repo.path().to_owned(), repo.path().join("config")] {
            std::os::unix::fs::chown(entry, Some(12345), Some(12345))?;
        }
    }
    ensure!(LocalRepository::discover(repo.path())?.resolve("main")?.to_string() == repo.id("main")?);
    Ok(())
}

/// Waits for a change of refs; whether one was seen within `limit`.
fn moved(watch: &mut RefWatch, limit: Duration) -> Result<bool> {
    let (reader, writer) = nix::unistd::pipe()?;
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| watch.wait(Some(reader.as_fd())));
        let started = Instant::now();
        while !waiting.is_finished() && started.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(5));
        }
        nix::unistd::write(&writer, b"x")?;
        Ok(waiting.join().expect("the thread does not panic")?)
    })
}

const LONG: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(150);

#[test]
fn moves_of_refs_are_seen_and_nothing_else() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let repo = Repo::init(dir.path().join("work"), &[])?;
    repo.run(["commit", "-q", "--allow-empty", "-m", "First"])?;
    repo.run(["commit", "-q", "--allow-empty", "-m", "Second"])?;
    let local = LocalRepository::discover(repo.path())?;
    let mut watch = local.watch()?;
    ensure!(!moved(&mut watch, SHORT)?, "nothing happened");

    std::fs::write(repo.path().join("file"), "content\n")?;
    repo.run(["add", "file"])?;
    std::fs::write(repo.git_dir().join("refs/heads/main.lock"), "")?;
    std::fs::remove_file(repo.git_dir().join("refs/heads/main.lock"))?;
    ensure!(!moved(&mut watch, SHORT)?, "the index and lock files are no refs");

    let steps: [(&str, &[&str]); 6] = [
        ("a commit", &["commit", "-q", "-m", "Third"]),
        ("a branch with slashes", &["branch", "feature/deep/down", "main~1"]),
        ("a move of that branch", &["branch", "-f", "feature/deep/down", "main"]),
        ("packed refs", &["pack-refs", "--all"]),
        ("HEAD", &["symbolic-ref", "HEAD", "refs/heads/feature/deep/down"]),
        ("a deletion", &["branch", "-D", "main"]),
    ];
    for (what, args) in steps {
        repo.run(args)?;
        ensure!(moved(&mut watch, LONG)?, "{what} was not seen");
        ensure!(!moved(&mut watch, SHORT)?, "{what} was seen twice");
    }
    Ok(())
}

#[test]
fn a_linked_work_tree_sees_refs_of_the_common_directory() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let repo = Repo::init(dir.path().join("work"), &[])?;
    repo.run(["commit", "-q", "--allow-empty", "-m", "First"])?;
    let linked = dir.path().join("linked");
    repo.run(["worktree", "add", "-q", "-b", "side", &linked.to_string_lossy()])?;
    let local = LocalRepository::discover(&linked)?;
    let mut watch = local.watch()?;
    repo.run(["branch", "new"])?;
    ensure!(moved(&mut watch, LONG)?);
    Repo::at(&linked).run(["switch", "-q", "--detach"])?;
    ensure!(moved(&mut watch, LONG)?, "HEAD of the linked work tree is its own");
    Ok(())
}

#[test]
fn nothing_is_written_into_it() -> Result<()> {
    let (_dir, repo) = fixtures::copy("mixed", storage::mixed)?;
    let state = || -> Result<Vec<String>> {
        let listing = gitmount_tests::run::run(gitmount_tests::run::command("find").arg(repo.path()).args(["-printf", "%p %s %T@ %C@\n"]))?
            .success()?;
        let mut lines: Vec<String> = listing.out().lines().map(str::to_owned).collect();
        lines.sort();
        Ok(lines)
    };
    let before = state()?;
    let local = LocalRepository::discover(repo.path())?;
    let _watch = local.watch()?;
    let tree = local.objects().commit(local.resolve("main~1")?)?.tree;
    for entry in local.objects().tree(tree)?.entries() {
        local.objects().contains(entry.id)?;
    }
    ensure!(state()? == before);
    Ok(())
}
