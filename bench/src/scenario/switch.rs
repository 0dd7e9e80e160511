//! From "the fetch is done" to "the new tree is visible", against `git worktree add` of the new commit.
//!
//! The mount is served by this process, from the same library as the command: so the moment at which the fetch is done is known, and
//! nothing but the switch is measured.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use gitmount_fsd::fuse::{Mount, MountOptions};
use gitmount_fsd::view::{View, ViewOptions};
use gitmount_store::ids::CommitId;
use gitmount_store::local::LocalRepository;
use gitmount_tests::git::{Repo, git};
use gitmount_tests::run;

use crate::bench::Bench;
use crate::clock::{in_turns, time, time_shell};
use crate::report::{Limit, Row, Unit};
use crate::repos::{MAIN, MANY, ONE};

/// Reads everything, so that the kernel knows, and must forget, as much as it can.
const READ_ALL: &str = "tar -cf - . | cat >/dev/null";

/// One changed file, then a fifth of all files.
pub(crate) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let mirror = bench.fresh("mirror");
    run::run(git().args(["clone", "--quiet", "--bare"]).arg(bench.repos.tree.path()).arg(&mirror))?.success()?;
    let mirror = Repo::at(mirror);
    let served = Served::new(bench)?;
    let many = bench.options.many();
    let mut rows = Vec::new();
    for (branch, changed, limit) in [(ONE, 1, 0.010), (MANY, many, 0.200)] {
        let new = CommitId::parse(&mirror.id(branch)?)?;
        let (plain, ours) = in_turns(
            bench.runs(),
            |_| {
                let mut command = mirror.command(["worktree", "add", "--quiet", "--detach"]);
                time(command.arg(bench.fresh("worktree")).arg(branch))
            },
            |_| {
                time_shell(&served.target, READ_ALL)?;
                let took = served.switch(new)?;
                served.switch(served.first)?;
                Ok(took)
            },
        )?;
        let name = format!("{changed} of {} files changed: fetch done → tree visible", bench.options.shape().files);
        rows.push(Row::compared(&name, Unit::Milliseconds, ours, "`git worktree add`", plain, Limit::Value(limit)));
    }
    served.mount.unmount(false)?;
    Ok(rows)
}

/// A mount in this process.
struct Served {
    mount: Arc<Mount>,
    target: std::path::PathBuf,
    changed_file: std::path::PathBuf,
    first: CommitId,
}

impl Served {
    fn new(bench: &Bench<'_>) -> Result<Self> {
        let repository = LocalRepository::discover(bench.repos.tree.path())?;
        let first = CommitId::parse(&bench.repos.tree.id(MAIN)?)?;
        let (target, spool_dir) = (bench.fresh("switched"), bench.fresh("spool"));
        std::fs::create_dir(&target)?;
        std::fs::create_dir(&spool_dir)?;
        let view = View::new(repository.objects(), first, ViewOptions::new(MAIN, spool_dir))?;
        let options = MountOptions::new(target.clone(), "bench");
        let mount = Mount::new(view, &options).context("the tree to switch could not be mounted")?;
        let changed_file = target.join(&bench.repos.changed_file);
        Ok(Served { mount, target, changed_file, first })
    }

    /// Switches, and checks with the kernel's answers that the new tree is there.
    fn switch(&self, to: CommitId) -> Result<std::time::Duration> {
        let took = self.mount.switch(to)?.took;
        ensure!(attribute(&self.target, "user.git.commit")? == to.to_string(), "{to} is not what is served after the switch");
        let content = std::fs::read(&self.changed_file)?;
        let changed = content.windows(8).any(|bytes| bytes == b"changed ");
        ensure!(changed == (to != self.first), "{} is another commit's after the switch to {to}", self.changed_file.display());
        Ok(took)
    }
}

fn attribute(path: &Path, name: &str) -> Result<String> {
    let value = xattr::get(path, name)?.with_context(|| format!("{} has no attribute {name}", path.display()))?;
    Ok(String::from_utf8(value)?)
}
