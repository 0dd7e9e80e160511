//! Readers under switches without pause: nobody sees a mix of two commits, nor an older one after a newer one.
//!
//! In CI a short run; `make torture` runs the long one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use gitmount_tests::git::Repo;
use gitmount_tests::mount::{Account, Mounted};
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::torture::epochs::Epochs;
use gitmount_tests::torture::history::{History, Random};
use gitmount_tests::torture::readers::Readers;

const READERS: usize = 8;

fn long() -> bool {
    std::env::var_os("GITMOUNT_TORTURE").is_some()
}

#[test]
fn readers_see_one_commit_at_a_time() -> Result<()> {
    let switches = if long() { 10_000 } else { 300 };
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    let history = Arc::new(History::write(&repo, 50, 1)?);
    repo.run(["repack", "-adq"])?;
    let served = repo.git_dir().join("refs/heads/served");
    let point = |number: usize| -> Result<()> {
        // A ref moves in one step, as git moves it.
        let next = served.with_extension("lock");
        std::fs::write(&next, format!("{}\n", history.ids[number]))?;
        Ok(std::fs::rename(&next, &served)?)
    };
    point(0)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &["--ref", "refs/heads/served"])?;
    let epochs = Arc::new(Epochs::new(0));
    let readers = Readers::start(READERS, mounted.path(), &history, &epochs)?;
    let (mut random, began) = (Random(99), Instant::now());
    let (mut now, mut slowest) = (0, Duration::ZERO);
    for _ in 0..switches {
        let next = (now + 1 + random.below(history.ids.len() - 1)) % history.ids.len();
        let (epoch, asked) = (epochs.begin(next), Instant::now());
        point(next)?;
        served_now(&mounted, &history.ids[next])?;
        epochs.finish(epoch);
        slowest = slowest.max(asked.elapsed());
        now = next;
        if !readers.tally().violations().is_empty() {
            break;
        }
    }
    let tally = readers.finish()?;
    let (operations, trees) =
        (tally.operations.load(std::sync::atomic::Ordering::Relaxed), tally.trees.load(std::sync::atomic::Ordering::Relaxed));
    eprintln!(
        "{} switches in {:?} (slowest {slowest:?}), {operations} operations, {trees} whole trees, the longest operation {:?}",
        epochs.count(),
        began.elapsed(),
        tally.longest()
    );
    ensure!(trees > 0, "no tree was read");
    Ok(())
}

fn served_now(mounted: &Mounted<'_>, id: &str) -> Result<()> {
    wait_for("the switch", Duration::from_secs(20), || mounted.commit().is_ok_and(|now| now == *id).then_some(()))
}
