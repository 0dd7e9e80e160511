//! `--store-limit`: repositories that no view needs go when the store is over it, the least recently used first; used ones stay.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::fixtures::{self, content};
use gitmount_tests::git::Repo;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;

const DEADLINE: Duration = Duration::from_secs(30);

fn noise(seed: &str) -> String {
    let bytes: String = content::noise(300 << 10).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{seed}{bytes}")
}

/// The URLs of the repositories in a daemon's store.
fn stored(daemon: &Daemon) -> Result<Vec<String>> {
    let mut urls = vec![];
    for repository in fs::read_dir(daemon.account().store().join("repos"))? {
        let config = fs::read_to_string(repository?.path().join("config")).unwrap_or_default();
        urls.extend(config.lines().filter_map(|line| line.trim().strip_prefix("url = ")).map(str::to_owned));
    }
    urls.sort();
    Ok(urls)
}

#[test]
fn unused_repositories_go_and_used_ones_stay() -> Result<()> {
    let dir = scratch::dir()?;
    let repos: Vec<Repo> = (0..4)
        .map(|n| fixtures::small(&dir.path().join(format!("r{n}.git")), &[("a", "one\n"), ("noise", &noise(&n.to_string()))]))
        .collect::<Result<_>>()?;
    let server = GitDaemon::serve(dir.path())?;
    let url = |n: usize| server.url(&format!("r{n}.git"));
    // Each takes more than 300 KiB: three of them are too many.
    let mut daemon = Daemon::held(&["--store-limit", "1M"])?;
    let mut client = daemon.client()?;
    for (n, repo) in repos.iter().enumerate() {
        client.publish(&daemon.target(&format!("t{n}")), view(&url(n)), None)?;
        fixtures::commit(repo, "news", &[("a", "two\n")])?;
        client.pull(&daemon.target(&format!("t{n}")))?;
    }
    ensure!(stored(&daemon)?.len() == 4, "all are used: {:?}", stored(&daemon)?);
    let said = || daemon.log().ok().filter(|log| log.contains("raise --store-limit"));
    wait_for("a word about what is used", DEADLINE, said)?;

    client.unpublish(&daemon.target("t1"))?;
    client.unpublish(&daemon.target("t3"))?;
    // The store is looked at after fetches with news.
    let new = fixtures::commit(&repos[0], "news", &[("a", "three\n")])?;
    client.pull(&daemon.target("t0"))?;
    wait_for("the unused ones to go", DEADLINE, || {
        let stored = stored(&daemon).ok()?;
        (!stored.contains(&url(1)) && !stored.contains(&url(3))).then_some(())
    })
    .with_context(|| format!("there are {:?}", stored(&daemon)))?;
    ensure!(stored(&daemon)? == [url(0), url(2)], "{:?}", stored(&daemon)?);
    says_removed(&daemon, &url(1))?;
    compare::against_both(&daemon.target("t0"), &repos[0], &new)?;
    compare::against_both(&daemon.target("t2"), &repos[2], "main")?;

    // A restart looks at it before anything is fetched, and knows what is used.
    drop(client);
    daemon.kill()?;
    daemon.restart()?;
    compare::against_both(&daemon.target("t2"), &repos[2], "main")?;
    ensure!(stored(&daemon)? == [url(0), url(2)], "{:?}", stored(&daemon)?);
    // What went comes back when it is wanted.
    let commit = daemon.publish("t1", view(&url(1)))?.commit;
    compare::against_both(&daemon.target("t1"), &repos[1], &commit)
}

fn says_removed(daemon: &Daemon, url: &str) -> Result<()> {
    let told = |line: &str| line.contains("repositories that nobody uses were removed") && line.contains(url);
    wait_for("a word about what was removed", DEADLINE, || daemon.log().ok()?.lines().any(told).then_some(()))
}
