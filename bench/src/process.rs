//! Memory and CPU time of processes, from `/proc` and from `getrusage`.

use std::ffi::OsString;
use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, bail};
use gitmount_tests::run::run_with;
use nix::sys::resource::{UsageWho, getrusage};
use serde::{Deserialize, Serialize};

use crate::clock::LONG;

/// What a command and its descendants needed.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// The biggest resident size any of its processes had, bytes.
    pub(crate) peak: f64,
    /// CPU time of all of them, user and system, seconds.
    pub(crate) cpu: f64,
    /// From start to end, seconds.
    pub(crate) wall: f64,
}

/// Runs `command` and tells what it needed. Each command is run by a process of its own (this program again), since the kernel tells
/// the peak of all children a process ever had, not of one.
///
/// # Errors
/// When the command fails.
pub(crate) fn usage(command: &Command) -> Result<Usage> {
    let mut observed = Command::new(std::env::current_exe()?);
    observed.arg("usage").arg("--").arg(command.get_program()).args(command.get_args()).env_clear();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            observed.env(name, value);
        }
    }
    if let Some(dir) = command.get_current_dir() {
        observed.current_dir(dir);
    }
    let finished = run_with(&mut observed, &[], LONG)?.success()?;
    serde_json::from_slice(&finished.stdout).with_context(|| format!("`{}` printed {}", finished.command, finished.out()))
}

/// The other side of [`usage`]: runs `command` with its output on standard error and prints what it needed.
pub(crate) fn run_and_report(command: &[OsString]) -> Result<ExitCode> {
    let Some((program, args)) = command.split_first() else { bail!("there is no command") };
    let started = std::time::Instant::now();
    let status = Command::new(program).args(args).stdout(std::io::stderr()).status()?;
    let wall = started.elapsed().as_secs_f64();
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    let report = Usage { peak: usage.max_rss() as f64 * 1024.0, cpu: seconds(usage.user_time()) + seconds(usage.system_time()), wall };
    println!("{}", serde_json::to_string(&report)?);
    Ok(if status.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A line of `/proc/PID/status` in bytes, summed over `processes`: `VmHWM` (peak resident size), `RssAnon` (anonymous memory).
pub(crate) fn memory(processes: &[i32], field: &str) -> Result<f64> {
    processes.iter().map(|id| parse_memory(&fs::read_to_string(format!("/proc/{id}/status"))?, field)).sum()
}

fn parse_memory(status: &str, field: &str) -> Result<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kilobytes = line.and_then(|rest| rest.trim().strip_suffix("kB")?.trim().parse::<f64>().ok());
    Ok(kilobytes.with_context(|| format!("/proc/PID/status has no {field}"))? * 1024.0)
}

/// CPU time so far of `processes` together, user and system, seconds. The kernel tells it in ticks of 10 ms.
pub(crate) fn cpu(processes: &[i32]) -> Result<f64> {
    processes.iter().map(|id| Ok(parse_ticks(&fs::read_to_string(format!("/proc/{id}/stat"))?)? as f64 / TICKS_PER_SECOND)).sum()
}

/// `USER_HZ`, the same on every architecture that is supported here.
const TICKS_PER_SECOND: f64 = 100.0;

fn parse_ticks(stat: &str) -> Result<u64> {
    // The name in parentheses may hold spaces and parentheses; the fields after it are numbers.
    let (_, fields) = stat.rsplit_once(')').context("/proc/PID/stat has no name")?;
    let times: Vec<u64> = fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(times.iter().sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_ticks_are_found_among_the_other_fields() {
        let status = "Name:\tgitmount\nVmHWM:\t    2048 kB\nRssAnon:\t     512 kB\n";
        assert_eq!(parse_memory(status, "VmHWM").unwrap(), 2048.0 * 1024.0);
        assert_eq!(parse_memory(status, "RssAnon").unwrap(), 512.0 * 1024.0);
        assert!(parse_memory(status, "Rss").is_err());
        assert_eq!(parse_ticks("12 (a) b) S 1 1 1 0 -1 4194560 100 0 0 0 31 11 7 7 20 0 1 0 5 0 0").unwrap(), 42);
    }

    #[test]
    fn this_process_has_memory_and_time() {
        let own = [std::process::id().cast_signed()];
        assert!(memory(&own, "VmHWM").unwrap() > 100_000.0);
        assert!(cpu(&own).unwrap() >= 0.0);
    }
}
