//! Processes that outlive the one that starts them: with a log file, a record of their id and start time, so that a reused id is never
//! taken for them, and a cgroup, so that what they fork can be found.

use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::cgroup::Cgroup;
use crate::run;

/// A place for one process: its record and its log.
#[derive(Debug, Clone)]
pub struct Daemon {
    name: String,
    dir: PathBuf,
}

impl Daemon {
    /// The process called `name`, whose files are in `dir`.
    pub(super) fn new(dir: &Path, name: &str) -> Self {
        Daemon { name: name.to_owned(), dir: dir.to_owned() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its log file.
    pub fn log_file(&self) -> PathBuf {
        self.dir.join(format!("{}.log", self.name))
    }

    fn record(&self) -> PathBuf {
        self.dir.join(format!("{}.process", self.name))
    }

    /// The last lines of its log, for messages.
    pub fn tail(&self) -> String {
        let read = || -> Result<String> {
            let mut file = File::open(self.log_file())?;
            let size = file.metadata()?.len();
            file.seek(SeekFrom::Start(size.saturating_sub(4000)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            Ok(lines[lines.len().saturating_sub(15)..].join("\n"))
        };
        read().unwrap_or_default()
    }

    /// Its id, while it runs.
    pub fn pid(&self) -> Option<i32> {
        let record = fs::read_to_string(self.record()).ok()?;
        let (pid, started) = record.trim().split_once(' ')?;
        let pid = pid.parse().ok()?;
        (started_at(pid)? == started.parse::<u64>().ok()?).then_some(pid)
    }

    /// Starts it in a session of its own; its output is appended to its log.
    pub(super) fn start(&self, program: &[&std::ffi::OsStr], path: &std::ffi::OsStr, cgroup: &Cgroup) -> Result<i32> {
        fs::create_dir_all(&self.dir)?;
        let log = File::options().create(true).append(true).open(self.log_file())?;
        // Not the leader of a group, so that setsid need not fork and the id stays.
        let mut command = Command::new("setsid");
        command.args(program).env_clear().env("PATH", path).env("LC_ALL", "C.UTF-8").env("HOME", &self.dir).current_dir("/");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("{} could not be started", self.name))?;
        let pid = child.id().cast_signed();
        cgroup.add(pid)?;
        let started = started_at(pid).with_context(|| format!("{} ended at once: {}", self.name, self.tail()))?;
        fs::write(self.record(), format!("{pid} {started}\n"))?;
        // Waits for it as long as this process lives, so that it never stays as a zombie.
        std::thread::spawn(move || {
            let mut child = child;
            let _ = child.wait();
        });
        Ok(pid)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.pid().with_context(|| format!("{} does not run", self.name))?;
        kill(Pid::from_raw(pid), signal).with_context(|| format!("{} could not be sent {signal}", self.name))
    }

    /// Ends it and waits until it is gone.
    pub(super) fn end(&self, signal: Signal) -> Result<()> {
        if self.pid().is_none() {
            return Ok(());
        }
        // It may be gone meanwhile.
        let _ = self.signal(signal);
        run::wait_for(&format!("the end of {}", self.name), Duration::from_secs(30), || self.pid().is_none().then_some(()))
    }
}

/// Asks `probe` several times a second until it gives something; its last error is in the message when it does not, and the last lines
/// of the log of `daemon`. A `daemon` that ends meanwhile ends the wait.
pub(super) fn until<T>(what: &str, deadline: Duration, daemon: Option<&Daemon>, mut probe: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    let started = Instant::now();
    let said = |daemon: Option<&Daemon>| match daemon {
        Some(daemon) => format!("; the last lines of {}:\n{}", daemon.log_file().display(), daemon.tail()),
        None => String::new(),
    };
    loop {
        let running = daemon.is_none_or(|daemon| daemon.pid().is_some());
        let error = match probe() {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => String::new(),
            Err(error) => format!(" ({error:#})"),
        };
        if !running {
            bail!("{what} did not happen, since {} ended{}", daemon.map_or("it", Daemon::name), said(daemon));
        }
        if started.elapsed() > deadline {
            bail!("{what} did not happen within {deadline:?}{error}{}", said(daemon));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// When the process was started, in the kernel's ticks; `None` for one that is gone or only waits for its parent.
pub(super) fn started_at(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, so fields are counted from its end.
    let fields: Vec<_> = stat[stat.rfind(')')? + 1..].split_whitespace().collect();
    let (state, threads) = (fields.first()?, fields.get(17)?.parse::<u32>().ok()?);
    // Its first thread may have ended before the others, which keep its files and sockets open.
    let ended = ["Z", "X"].contains(state) && threads <= 1;
    (!ended).then(|| fields.get(19)?.parse().ok()).flatten()
}
