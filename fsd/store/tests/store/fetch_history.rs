//! How much history comes: what `depth` asks for, deepened and completed when more is asked for later, and only what is new.

use anyhow::{Result, ensure};
use gitmount_tests::fixtures::{self, storage};
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::servers::daemon::GitDaemon;

use crate::support::{TestStore, fetch, file_url, fsck, history, packs, same_files, shallow};

/// A source of `commits` commits on `main`, and ways to reach it.
fn source(commits: usize) -> Result<(tempfile::TempDir, Repo, GitDaemon, Vec<String>)> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = Repo::init_bare(dir.path().join("source.git"))?;
    add(&source, "refs/heads/main", 0..commits)?;
    let daemon = GitDaemon::serve(dir.path())?;
    let urls = vec![daemon.url("source.git"), file_url(&source)];
    Ok((dir, source, daemon, urls))
}

fn add(source: &Repo, branch: &str, commits: std::ops::Range<usize>) -> Result<()> {
    let mut import = Import::into(source)?;
    for n in commits {
        import.commit(branch, &format!("Commit {n}"))?.file(b"counter", format!("{n}\n"))?.file(format!("dir/{n}").as_bytes(), "new\n")?;
    }
    import.finish()
}

#[test]
fn depth_is_deepened_and_completed_later() -> Result<()> {
    let (_dir, source, _daemon, urls) = source(12)?;
    for url in urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        for (depth, commits) in [(1, 1), (1, 1), (3, 3), (2, 3), (8, 8), (0, 12), (1, 12)] {
            let fetched = fetch(&repository, "main", depth)?;
            ensure!(
                history(&repository, fetched.commit)? == commits,
                "{url}: depth {depth} gave {}",
                history(&repository, fetched.commit)?
            );
            fsck(&repository)?;
        }
        ensure!(shallow(&repository)?.is_empty());
        same_files(&repository, &source, "main")?;
    }
    Ok(())
}

#[test]
fn depth_is_kept_where_the_host_speaks_only_v0() -> Result<()> {
    let (dir, source, _daemon, _urls) = source(6)?;
    let http = gitmount_tests::servers::http::HttpServer::plain(dir.path())?;
    http.speak_only_v0();
    let store = TestStore::new()?;
    let repository = store.repository(&http.url("source.git"))?;
    for (depth, commits) in [(1, 1), (3, 3), (0, 6)] {
        let fetched = fetch(&repository, "main", depth)?;
        ensure!(history(&repository, fetched.commit)? == commits, "depth {depth} gave {}", history(&repository, fetched.commit)?);
        fsck(&repository)?;
    }
    add(&source, "refs/heads/main", 50..52)?;
    ensure!(fetch(&repository, "main", 1)?.received);
    same_files(&repository, &source, "main")?;
    fsck(&repository)
}

#[test]
fn later_fetches_bring_only_what_is_new() -> Result<()> {
    let (_dir, source, _daemon, urls) = source(3)?;
    let base: String = (0..2000).map(|n| format!("a line of a big file {n}\n")).collect();
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "Big")?.file(b"big", base.repeat(20))?;
    import.finish()?;
    let repositories: Vec<_> = urls.iter().map(|url| TestStore::new().map(|store| (store, url))).collect::<Result<_>>()?;
    let size = |repository: &gitmount_store::repository::Repository| -> Result<u64> {
        packs(repository, "pack")?.iter().map(|path| Ok(path.metadata()?.len())).sum()
    };
    for (store, url) in &repositories {
        for depth in [1, 0] {
            fetch(&*store.repository(url)?, "main", depth)?;
        }
    }
    add(&source, "refs/heads/main", 100..103)?;
    for (store, url) in &repositories {
        let repository = store.repository(url)?;
        let before = size(&repository)?;
        let fetched = fetch(&repository, "main", 0)?;
        ensure!(fetched.received && history(&repository, fetched.commit)? == 7, "{url}");
        ensure!(size(&repository)? - before < 5000, "{url}: {} bytes came for three small commits", size(&repository)? - before);
        fsck(&repository)?;
    }
    Ok(())
}

#[test]
fn force_pushes_are_followed_and_boundaries_do_not_pile_up() -> Result<()> {
    let (_dir, source, _daemon, urls) = source(4)?;
    for url in urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        for round in 0..5 {
            if round == 2 {
                source.point("refs/heads/main", "main~2")?;
            }
            add(&source, "refs/heads/main", 1000 + round * 10..1001 + round * 10)?;
            let fetched = fetch(&repository, "main", 1)?;
            ensure!(fetched.commit.to_string() == source.id("main")? && fetched.received);
            ensure!(shallow(&repository)? == [source.id("main")?], "{:?}", shallow(&repository)?);
            same_files(&repository, &source, "main")?;
        }
        fsck(&repository)?;
    }
    Ok(())
}

#[test]
fn another_ref_is_one_commit_whether_its_parents_are_here_or_not() -> Result<()> {
    let (_dir, source, _daemon, urls) = source(4)?;
    for branch in ["child", "grandchild", "unrelated"] {
        source.point(&format!("refs/heads/{branch}"), "main")?;
    }
    add(&source, "refs/heads/child", 20..21)?;
    add(&source, "refs/heads/grandchild", 30..33)?;
    let orphan = source.line(["commit-tree", "-m", "Orphan", &source.id("main^{tree}")?])?;
    source.point("refs/heads/unrelated", &orphan)?;
    source.point("refs/heads/parent", "grandchild~1")?;
    for url in urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        fetch(&repository, "HEAD", 1)?;
        for (spec, received) in [("child", true), ("grandchild", true), ("unrelated", true), ("parent", !url.starts_with("git"))] {
            let fetched = fetch(&repository, spec, 1)?;
            ensure!(fetched.received == received && fetched.commit.to_string() == source.id(spec)?, "{url} {spec}: {fetched:?}");
            ensure!(history(&repository, fetched.commit)? == 1, "{url}: {spec} has {} commits", history(&repository, fetched.commit)?);
            same_files(&repository, &source, spec)?;
            fsck(&repository)?;
        }
        ensure!(shallow(&repository)?.contains(&source.id("child")?), "{url}: {:?}", shallow(&repository)?);
    }
    Ok(())
}

#[test]
fn a_commit_fetched_before_by_another_ref_is_not_fetched_again() -> Result<()> {
    let (_dir, source, _daemon, urls) = source(5)?;
    source.point("refs/heads/old", "main~3")?;
    for url in urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        fetch(&repository, "main", 0)?;
        let old = fetch(&repository, "old", 1)?;
        ensure!(!old.received && old.commit.to_string() == source.id("old")?, "{url}: {old:?}");
        ensure!(!fetch(&repository, &source.id("main~1")?, 1)?.received);
        fsck(&repository)?;
    }
    Ok(())
}

#[test]
fn merges_and_several_branches_share_history() -> Result<()> {
    let (_dir, source, _daemon, urls) = source(4)?;
    source.point("refs/heads/side", "main~2")?;
    add(&source, "refs/heads/side", 50..53)?;
    let tree = source.id("main^{tree}")?;
    let merge = source.line(["commit-tree", "-p", "main", "-p", "side", "-m", "Merge", &tree])?;
    source.point("refs/heads/merged", &merge)?;
    for url in urls {
        let store = TestStore::new()?;
        let repository = store.repository(&url)?;
        for (spec, depth) in [("side", 1), ("main", 2), ("merged", 2), ("merged", 3), ("side", 0), ("merged", 0)] {
            let fetched = fetch(&repository, spec, depth)?;
            fsck(&repository)?;
            same_files(&repository, &source, fetched.commit)?;
        }
        ensure!(history(&repository, &merge)? == source.line(["rev-list", "--count", "merged"])?.parse::<usize>()?);
    }
    Ok(())
}

#[test]
fn thin_packs_with_long_chains_are_completed() -> Result<()> {
    let (dir, source) = fixtures::copy("deltas", storage::deltas)?;
    let daemon = GitDaemon::serve(dir.path())?;
    let store = TestStore::new()?;
    let repository = store.repository(&daemon.url("deltas.git"))?;
    fetch(&repository, "main", 1)?;
    same_files(&repository, &source, "main")?;
    // A small change to a big file comes as a delta against a blob that is not in the pack.
    let mut text = source.run(["cat-file", "blob", "main:versions/050"])?;
    text.extend_from_slice(b"one more line\n");
    let mut import = Import::into(&source)?;
    import.commit("refs/heads/main", "Again")?.file(b"versions/051", &text)?;
    import.finish()?;
    source.run(["repack", "-a", "-d", "-f", "--quiet", "--depth=60", "--window=80"])?;
    ensure!(fetch(&repository, "main", 1)?.received);
    same_files(&repository, &source, "main")?;
    fsck(&repository)
}
