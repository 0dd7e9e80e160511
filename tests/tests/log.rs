//! `gitmount log`: what happened to a mount, with and without a daemon.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures;
use gitmount_tests::mount::Account;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};
use serde::Deserialize;

const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Debug, Deserialize)]
struct Line {
    time: String,
    kind: String,
    message: String,
    commit: String,
}

fn log(account: &Account, dir: &str) -> Result<Vec<Line>> {
    Ok(serde_json::from_slice(&account.run(["log", "--output", "json", dir])?.success()?.stdout)?)
}

#[test]
fn a_mount_without_a_daemon_remembers_what_happened() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "one\n"), (".gitattributes", "*.bin filter=lfs\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let account = Account::new()?;
    let mounted = account.mount(&server.url("r.git"), &["--allow-http", "--pull", "never"])?;
    let at = mounted.path().to_string_lossy().into_owned();
    let first = mounted.commit()?;
    wait_for("the notice", DEADLINE, || log(&account, &at).ok()?.into_iter().find(|line| line.kind == "notice"))?;
    server.misbehave(Fault::status(500));
    for _ in 0..2 {
        account.refused(["pull", &at], 5, &["500"])?;
    }
    server.behave();
    let new = fixtures::commit(&repo, "second", &[("a", "two\n")])?;
    mounted.pull()?;

    let lines = log(&account, &at)?;
    let kinds: Vec<&str> = lines.iter().map(|line| line.kind.as_str()).collect();
    ensure!(kinds == ["published", "notice", "failed", "switched", "recovered"], "{lines:?}");
    ensure!(lines[0].message.contains(&server.url("r.git")) && lines[0].message.contains(&at) && lines[0].commit == first, "{lines:?}");
    ensure!(lines[1].message.contains("LFS") && lines[2].message.contains("500"), "{lines:?}");
    ensure!(lines[3].message.contains(&first) && lines[3].commit == new && lines[4].commit == new, "{lines:?}");
    ensure!(lines.iter().all(|line| line.time.ends_with('Z')));
    let table = account.run(["log", &at])?.success()?.out();
    ensure!(table.lines().count() == 5 && table.lines().all(|line| line.split_whitespace().count() > 3), "{table}");
    mounted.unmount()?;
    account.refused(["log", &at], 3, &["is no gitmount mount"])?;
    account.wait_until_idle()
}

#[test]
fn a_local_repository_is_remembered_too_and_only_the_last_hundred_events() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "0\n")])?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let at = mounted.path().to_string_lossy().into_owned();
    let mut newest = String::new();
    for n in 1..=104 {
        newest = fixtures::commit(&repo, "next", &[("a", &format!("{n}\n"))])?;
        mounted.wait_for_commit(&newest, DEADLINE)?;
    }
    let last = || log(&account, &at).ok()?.pop().filter(|line| line.commit == newest);
    wait_for("the last switch", DEADLINE, last)?;
    let lines = log(&account, &at)?;
    ensure!(lines.len() == 100 && lines.iter().all(|line| line.kind == "switched"), "{} lines, {:?}", lines.len(), lines.first());
    let last = lines.last().context("there are some")?;
    ensure!(last.message.contains(&repo.arg()), "{last:?}");
    Ok(())
}
