//! A daemon is killed at any moment of a call that changes its state: the next one starts, what was acknowledged is as it was said, what was
//! not is so or as before and can be asked again, every tree is whole, and the next fetch works.
//!
//! Some moments in CI; `make torture` takes fifty.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_tests::compare;
use gitmount_tests::daemon::{Client, Daemon, view};
use gitmount_tests::fixtures;
use gitmount_tests::git::Repo;
use gitmount_tests::mount::{is_mounted, mounts_below};
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::torture::history::Random;
use tempfile::TempDir;

/// The longest time from a request to the kill, in microseconds: longer than most calls take.
const LATEST: usize = 40_000;
const TARGETS: usize = 4;

fn moments() -> usize {
    if std::env::var_os("GITMOUNT_TORTURE").is_some() { 50 } else { 8 }
}

/// What a call is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// Show a path at a target.
    Publish(usize, &'static str),
    Unpublish(usize),
    /// Fetch and switch; with one snapshot kept beside the current one, each switch drops one.
    Pull(usize),
}

struct Stage {
    _dir: TempDir,
    _server: GitDaemon,
    repo: Repo,
    url: String,
    daemon: Daemon,
    /// What is shown where, as far as it was acknowledged.
    shown: BTreeMap<usize, &'static str>,
    commits: usize,
}

impl Stage {
    fn new(held: bool) -> Result<Self> {
        let dir = scratch::dir()?;
        let repo = fixtures::small(&dir.path().join("r.git"), &[("docs/a", "0\n"), ("docs/deep/b", "0\n"), ("src/c", "0\n")])?;
        let server = GitDaemon::serve(dir.path())?;
        let options = ["--keep-snapshots", "1"];
        let daemon = if held { Daemon::held(&options)? } else { Daemon::start(&options)? };
        let url = server.url("r.git");
        Ok(Stage { _dir: dir, _server: server, repo, url, daemon, shown: BTreeMap::new(), commits: 0 })
    }

    fn target(&self, number: usize) -> PathBuf {
        self.daemon.target(&format!("t{number}"))
    }

    /// Upstream moves.
    fn commit(&mut self) -> Result<String> {
        self.commits += 1;
        let text = format!("{}\n", self.commits);
        let new = format!("docs/new-{}", self.commits % 5);
        fixtures::commit(&self.repo, "next", &[("docs/a", &text), ("docs/deep/b", &text), ("src/c", &text), (&new, &text)])
    }

    fn call(&self, client: &mut Client, call: Call) -> Result<()> {
        match call {
            Call::Publish(number, path) => {
                let spec = proto::ViewSpec { path: path.as_bytes().to_vec(), ..view(&self.url) };
                client.publish(&self.target(number), spec, None).map(drop)
            }
            Call::Unpublish(number) => client.unpublish(&self.target(number)),
            Call::Pull(number) => client.pull(&self.target(number)).map(drop),
        }
    }

    fn acknowledge(&mut self, call: Call) {
        match call {
            Call::Publish(number, path) => drop(self.shown.insert(number, path)),
            Call::Unpublish(number) => drop(self.shown.remove(&number)),
            Call::Pull(_) => {}
        }
    }

    /// Any call that can work.
    fn choose(&self, random: &mut Random) -> Call {
        let number = random.below(TARGETS);
        match (self.shown.get(&number), random.below(3)) {
            (None, choice) => Call::Publish(number, ["", "docs", "docs"][choice]),
            (Some(_), 0) => Call::Unpublish(number),
            (Some(_), _) => Call::Pull(number),
        }
    }

    /// The tree at a target is `commit`'s as a whole.
    fn whole(&self, number: usize, path: &str, commit: &str) -> Result<()> {
        let revision = if path.is_empty() { commit.to_owned() } else { format!("{commit}:{path}") };
        compare::against_archive(&self.target(number), &self.repo, &revision)
    }

    /// Starts a call, kills the daemon while it works on it or just after, starts the next one and looks at everything.
    fn moment(&mut self, random: &mut Random, delay: Duration) -> Result<bool> {
        let call = self.choose(random);
        let old = self.repo.id("refs/heads/main")?;
        let new = self.commit()?;
        let mut client = self.daemon.client()?;
        let answer = std::thread::scope(|scope| {
            let stage = &*self;
            let asking = scope.spawn(move || stage.call(&mut client, call));
            std::thread::sleep(delay);
            stage.daemon.signal(nix::sys::signal::Signal::SIGKILL)?;
            asking.join().map_err(|_| anyhow::anyhow!("the caller panicked"))
        })?;
        self.daemon.ended()?;
        self.daemon.restart().with_context(|| format!("after {call:?}"))?;
        let answered = answer.is_ok();
        if answered {
            self.acknowledge(call);
        }
        self.look(call, answered, [&old, &new]).with_context(|| format!("after {call:?}, answered {answer:?}"))?;

        // Asked again, it is done.
        let mut client = self.daemon.client()?;
        self.call(&mut client, call).with_context(|| format!("{call:?} again"))?;
        self.acknowledge(call);
        let newest = self.commit()?;
        for (&number, path) in &self.shown {
            let pulled = client.pull(&self.target(number))?;
            ensure!(pulled.new == newest, "a pull of {number} gave {pulled:?} and not {newest}");
            self.whole(number, path, &newest)?;
        }
        self.nothing_else()?;
        Ok(answered)
    }

    /// After the restart: every target that was acknowledged shows one commit as a whole, and the one that was being changed is before or after.
    fn look(&self, call: Call, answered: bool, either: [&str; 2]) -> Result<()> {
        for number in 0..TARGETS {
            let target = self.target(number);
            let shows = self.daemon.view(&target).ok();
            ensure!(shows.is_some() == is_mounted(&target)?, "target {number} is in one of status and mounts: {shows:?}");
            let undecided = !answered && matches!(call, Call::Publish(n, _) | Call::Unpublish(n) if n == number);
            let path = match (self.shown.get(&number), call, shows.is_some()) {
                (Some(path), _, true) => path,
                (None, Call::Publish(_, path), true) if undecided => path,
                (None, _, false) => continue,
                (Some(_), _, false) if undecided => continue,
                (said, _, shows) => bail!("target {number} was said to be {said:?}, and is shown: {shows}"),
            };
            let commit = self.whole_at(number, path)?;
            // A view that was not pulled lately may be at an older commit than this call's; the next daemon may have caught up with the newest.
            let known = self.repo.attempt(["merge-base", "--is-ancestor", &commit, either[1]], &[])?.status.success();
            ensure!(known, "target {number} shows {commit}");
            if matches!(call, Call::Pull(n) if n == number && answered) {
                ensure!(commit == either[1], "the pull said {}, and {commit} is shown; before it was {}", either[1], either[0]);
            }
        }
        Ok(())
    }

    /// Checks that a target shows one commit as a whole, and gives it. The daemon catches up after its start: that may come in between.
    fn whole_at(&self, number: usize, path: &str) -> Result<String> {
        let target = self.target(number);
        let shown =
            || -> Result<String> { Ok(String::from_utf8(xattr::get(&target, "user.git.commit")?.context("a root has its commit")?)?) };
        for _ in 0..5 {
            let before = shown()?;
            let compared = self.whole(number, path, &before);
            if shown()? == before {
                return compared.map(|()| before);
            }
        }
        bail!("target {number} moves without end")
    }

    /// The state directory has what is shown, and nothing more.
    fn nothing_else(&self) -> Result<()> {
        let state = self.daemon.state();
        let views = self.daemon.client()?.status()?.views.len();
        let written = fs::read_dir(state.join("views"))?.count();
        let mounted = mounts_below(&state)?.len();
        let points = fs::read_dir(state.join("mounts"))?.count();
        ensure!([written, mounted, points] == [views; 3], "{views} views, {written} written down, {mounted} mounted at {points} places");
        ensure!(self.daemon.account().leftovers()?.is_empty());
        Ok(())
    }
}

fn killed(held: bool, seed: u64) -> Result<()> {
    let mut stage = Stage::new(held)?;
    let mut random = Random(seed);
    let (moments, mut answered) = (moments(), 0);
    for number in 0..moments {
        // From at once to after the call, and not evenly: most of what is written is written early.
        let part = (number * LATEST / moments + random.below(LATEST / moments)) as f64 / LATEST as f64;
        let delay = Duration::from_micros((part * part * LATEST as f64) as u64);
        answered += usize::from(stage.moment(&mut random, delay).with_context(|| format!("moment {number}, {delay:?} after the request"))?);
    }
    eprintln!("{moments} kills, {answered} of them after the answer");
    for number in stage.shown.keys().copied().collect::<Vec<_>>() {
        stage.daemon.client()?.unpublish(&stage.target(number))?;
    }
    stage.shown.clear();
    stage.nothing_else()
}

#[test]
fn killed_at_any_moment_with_a_holder() -> Result<()> {
    killed(true, 3)
}

#[test]
fn killed_at_any_moment_without_a_holder() -> Result<()> {
    killed(false, 5)
}
