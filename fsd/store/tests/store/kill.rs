//! A process that fetches, collects or merges packs is killed at any moment: the store opens, what was served is there in full, the next
//! fetch works, and nothing temporary is left.
//!
//! Ten moments each; `make torture` takes fifty.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_store::ids::CommitId;
use gitmount_store::maintenance::maintain;
use gitmount_store::repository::Repository;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};
use gitmount_tests::fixtures::content::noise;
use gitmount_tests::git::Repo;
use gitmount_tests::import::Import;
use gitmount_tests::run::run;
use gitmount_tests::servers::daemon::GitDaemon;

use crate::support::{clean, fetch, fsck, gc, packs, same_files, verify};

/// What the victim does: this variable says it, with the store and the URL in the two others.
const WORK: &str = "GITMOUNT_TEST_VICTIM";
const STORE: &str = "GITMOUNT_TEST_STORE";
const URL: &str = "GITMOUNT_TEST_URL";

fn moments() -> u32 {
    if std::env::var_os("GITMOUNT_TORTURE").is_some() { 50 } else { 10 }
}

/// The process that is killed is this test alone, told by its environment what to do; otherwise it has nothing to do.
#[test]
fn victim() -> Result<()> {
    let Ok(work) = std::env::var(WORK) else { return Ok(()) };
    let repository = open(Path::new(&std::env::var(STORE)?), &std::env::var(URL)?)?;
    match work.as_str() {
        "fetch" => ensure!(fetch(&repository, "main", 1)?.received),
        "gc" => ensure!(gc(&repository)?.packs_after > 0),
        _ => ensure!(maintain(&repository, &AtomicBool::new(false))?.is_some(), "there is nothing to merge"),
    }
    Ok(())
}

fn open(root: &Path, url: &str) -> Result<Arc<Repository>> {
    Ok(Store::open(StoreOptions::new(root))?.repository(&RepoUrl::parse(url, &UrlPolicy::default())?)?)
}

struct Setting {
    dir: tempfile::TempDir,
    source: Repo,
    url: String,
    old: CommitId,
    _daemon: GitDaemon,
}

impl Setting {
    /// A store with `packs` packs, in which the first commit is served, and a source that has moved on.
    fn new(count: u32) -> Result<Self> {
        let dir = gitmount_tests::scratch::dir()?;
        let source = Repo::init_bare(dir.path().join("r.git"))?;
        let daemon = GitDaemon::serve(dir.path())?;
        let url = daemon.url("r.git");
        commit(&source, 0, 1 << 20)?;
        let repository = open(&dir.path().join("store"), &url)?;
        let old = fetch(&repository, "main", 1)?.commit;
        repository.pin_named("view", old)?;
        for round in 1..count {
            commit(&source, round, 20 << 10)?;
            fetch(&repository, "main", 1)?;
        }
        commit(&source, count, 2 << 20)?;
        Ok(Setting { dir, source, url, old, _daemon: daemon })
    }

    fn victim(&self, work: &str, store: &Path) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--exact", "kill::victim"]).stdout(Stdio::null()).stderr(Stdio::null());
        command.env(WORK, work).env(STORE, store).env(URL, &self.url);
        Ok(command)
    }

    /// A copy of the store, with its times.
    fn copy(&self, name: &str) -> Result<std::path::PathBuf> {
        let copy = self.dir.path().join(name);
        run(gitmount_tests::run::command("cp").arg("-a").arg(self.dir.path().join("store")).arg(&copy))?.success()?;
        Ok(copy)
    }

    /// Kills the victim at moments that are spread over the time it takes, and looks at what it leaves.
    fn kill(&self, work: &str) -> Result<()> {
        let whole = self.copy("whole")?;
        let started = Instant::now();
        ensure!(self.victim(work, &whole)?.status()?.success(), "the victim fails by itself");
        let takes = started.elapsed();
        let mut killed = 0;
        for moment in 0..moments() {
            let store = self.copy(&moment.to_string())?;
            let mut victim = self.victim(work, &store)?.spawn()?;
            std::thread::sleep(takes * (2 * moment + 1) / (2 * moments()));
            victim.kill()?;
            killed += u32::from(victim.wait()?.signal() == Some(9));
            self.check(&store).with_context(|| format!("{work}, killed at moment {moment} of {}, of {takes:?}", moments()))?;
            std::fs::remove_dir_all(&store)?;
        }
        ensure!(killed > 0, "the victim was always done");
        Ok(())
    }

    fn check(&self, store: &Path) -> Result<()> {
        let repository = open(store, &self.url)?;
        let report = verify(&repository)?;
        ensure!(report.problems.is_empty(), "{report:?}");
        ensure!(repository.named_pins()? == [("view".to_owned(), self.old)]);
        same_files(&repository, &self.source, self.old)?;
        let fetched = fetch(&repository, "main", 1).context("the next fetch")?;
        ensure!(fetched.commit.to_string() == self.source.id("main")?);
        clean(&repository)?;
        for commit in [self.old, fetched.commit] {
            same_files(&repository, &self.source, commit)?;
        }
        gc(&repository)?;
        ensure!(packs(&repository, "pack")?.len() == 1);
        clean(&repository)?;
        same_files(&repository, &self.source, self.old)?;
        fsck(&repository)
    }
}

/// One more commit, with a new file of `bytes` that does not compress.
fn commit(source: &Repo, round: u32, bytes: usize) -> Result<()> {
    let mut import = Import::into(source)?;
    import.commit("refs/heads/main", &format!("Round {round}"))?;
    let content: Vec<u8> = noise(bytes).iter().zip(0u32..).map(|(byte, at)| byte ^ (at.wrapping_mul(round + 1) >> 3) as u8).collect();
    import.file(b"noise", content)?.file(b"d/round", format!("{round}\n"))?;
    for n in 0..50 {
        import.file(format!("many/{n}").as_bytes(), format!("{n} in round {}\n", if n % 5 == 0 { round } else { 0 }))?;
    }
    import.finish()
}

#[test]
fn a_fetch_is_killed() -> Result<()> {
    Setting::new(2)?.kill("fetch")
}

#[test]
fn a_gc_is_killed() -> Result<()> {
    Setting::new(5)?.kill("gc")
}

#[test]
fn a_merge_of_packs_is_killed() -> Result<()> {
    Setting::new(34)?.kill("merge")
}

#[test]
fn victims_that_wait_for_each_other_are_killed() -> Result<()> {
    let setting = Setting::new(5)?;
    for moment in 0..moments() {
        let store = setting.copy(&format!("several-{moment}"))?;
        let mut victims = Vec::new();
        for work in ["fetch", "gc", "fetch", "gc"] {
            victims.push(setting.victim(work, &store)?.spawn()?);
        }
        std::thread::sleep(Duration::from_millis(u64::from(moment) * 400 / u64::from(moments())));
        for victim in &mut victims {
            victim.kill()?;
            victim.wait()?;
        }
        setting.check(&store).with_context(|| format!("moment {moment}"))?;
        std::fs::remove_dir_all(&store)?;
    }
    Ok(())
}
