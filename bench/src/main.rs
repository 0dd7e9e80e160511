//! `gitmount-bench`: what a mount costs, as ratios to a checkout, `git clone` and `git worktree add` measured in the same run.
//!
//! - [`options`]: the command line.
//! - [`tree`], [`content`], [`random`]: a deterministic tree of realistic shape; [`repos`] writes it into repositories.
//! - [`clock`]: timing commands in turns, medians, the kernel's caches; [`process`]: memory and CPU time of processes.
//! - [`mod@bench`]: what the scenarios share: servers, the checkout, directories that stay until the end.
//! - [`scenario`]: one file per kind of work.
//! - [`storm`]: a thousand nodes after a push and after an outage, on a simulated clock; [`plot`] draws it.
//! - [`report`]: the table, as markdown and as JSON, with what each figure must not exceed.
//!
//! Directories are never deleted while something is still measured: ext4 creates files several times slower for minutes after a
//! tree was deleted, which would fall on whoever is measured next.

mod bench;
mod clock;
mod content;
mod options;
mod plot;
mod process;
mod random;
mod report;
mod repos;
mod scenario;
mod storm;
mod tree;

use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use bench::Bench;
use options::{Options, Task};
use storm::Fleet;

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    match &options.task {
        Some(Task::Usage { command }) => return process::run_and_report(command),
        Some(Task::Storm { nodes, volumes, demand_spread, seed, out }) => {
            storm::run(&Fleet { nodes: *nodes, volumes: *volumes, seed: *seed }, Duration::from_secs(*demand_spread), out)?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    if std::env::var_os(PROGRAM).is_none() {
        return again_with_program();
    }
    let bench = Bench::prepare(&options)?;
    let mut rows = Vec::new();
    for (name, scenario) in scenario::ALL {
        if options.runs_scenario(name) {
            clock::say(&format!("measuring: {name}"));
            rows.extend(scenario(&bench)?);
        }
    }
    let report = report::Report::new(&options, rows);
    print!("{}", report.markdown());
    let path = report.write_json(&options.out)?;
    clock::say(&format!("written: {}", path.display()));
    clock::say("removing the directories of all runs");
    drop(bench);
    Ok(ExitCode::SUCCESS)
}

/// Where the helpers look for the program that is measured.
const PROGRAM: &str = "GITMOUNT_BIN";

/// Starts this program once more, and says that the program to measure is the one beside it.
fn again_with_program() -> Result<ExitCode> {
    let own = std::env::current_exe()?;
    let program = own.with_file_name("gitmount");
    ensure!(program.is_file(), "{} is missing: `make bench` builds it", program.display());
    let error = Command::new(&own).args(std::env::args_os().skip(1)).env(PROGRAM, program).exec();
    Err(error).with_context(|| format!("{} could not be started again", own.display()))
}
