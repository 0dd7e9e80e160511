//! Another ref of a repository whose objects are mostly here, against `git worktree add`.

use anyhow::{Result, ensure};
use gitmount_tests::git::{Repo, git};
use gitmount_tests::mount::Account;
use gitmount_tests::run;

use crate::bench::{Bench, list};
use crate::clock::{Samples, in_turns, time};
use crate::report::{Limit, Row, Unit};
use crate::repos::other;

/// Every run mounts a branch that was never asked for: one commit and one file are fetched.
pub(crate) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let account = Account::new()?;
    let first = account.mount(&bench.url(), &[])?;
    list(first.path())?;
    let mirror = bench.fresh("mirror");
    run::run(git().args(["clone", "--quiet", "--bare"]).arg(bench.repos.tree.path()).arg(&mirror))?.success()?;
    let mirror = Repo::at(mirror);
    let limit = Limit::Value(0.050);
    let mut again = Samples::default();
    let (plain, ours) = in_turns(
        bench.runs(),
        |n| {
            let mut command = mirror.command(["worktree", "add", "--quiet", "--detach"]);
            time(command.arg(bench.fresh("worktree")).arg(other(n)))
        },
        |n| {
            let target = account.mount_point()?;
            let branch = other(n);
            let mount = || account.command(["mount".as_ref(), "--ref".as_ref(), branch.as_ref(), bench.url().as_ref(), target.as_os_str()]);
            let unmount = || account.run(["unmount".as_ref(), target.as_os_str()])?.success();
            let took = time(&mut mount())? + list(&target)?;
            let served = xattr::get(&target, "user.git.commit")?.unwrap_or_default();
            ensure!(served == bench.repos.tree.id(&branch)?.as_bytes(), "{branch} is not what is served");
            unmount()?;
            again.push(time(&mut mount())? + list(&target)?);
            unmount()?;
            Ok(took)
        },
    )?;
    first.unmount()?;
    bench.keep(account);
    Ok(vec![
        Row::compared("second mount, another ref of a fetched repository", Unit::Milliseconds, ours, "`git worktree add`", plain, limit),
        Row::alone("the same ref mounted again", Unit::Milliseconds, again, limit),
    ])
}
