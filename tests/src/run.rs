//! A command with a deadline, in an environment that inherits nothing from the person who runs the tests.

use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// How long a command may take unless a caller says otherwise.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// What a command left behind.
#[derive(Debug, Clone)]
pub struct Finished {
    /// The command line, for messages.
    pub command: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// Its standard error.
    pub stderr: Vec<u8>,
    /// From the start until its outputs were closed.
    pub took: Duration,
}

impl Finished {
    /// The exit code; 128 and the signal's number when a signal ended it, as shells say it.
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| 128 + self.status.signal().unwrap_or_default())
    }

    /// Standard output as text.
    pub fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Standard error as text.
    pub fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// The same, or an error that shows what the command said.
    pub fn success(self) -> Result<Self> {
        if !self.status.success() {
            bail!("`{}` ended with {}: {}{}", self.command, self.status, self.err(), self.out());
        }
        Ok(self)
    }
}

/// A command whose environment is empty but for `PATH` and a neutral locale.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C.UTF-8");
    command
}

/// Runs `command` to its end with no input.
///
/// # Errors
/// When it cannot be started or is not done within [`DEADLINE`] (its process group is killed then). A failing exit code is no error.
pub fn run(command: &mut Command) -> Result<Finished> {
    run_with(command, &[], DEADLINE)
}

/// Runs `command` with `input` on its standard input, for at most `deadline`. It is done when it has ended *and* nobody holds its
/// standard output and error any more, as in a shell's pipe.
pub fn run_with(command: &mut Command, input: &[u8], deadline: Duration) -> Result<Finished> {
    let shown = show(command);
    let started = Instant::now();
    let mut child = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let mut stdin = child.stdin.take().context("stdin was asked for")?;
    let stdout = child.stdout.take().context("stdout was asked for")?;
    let stderr = child.stderr.take().context("stderr was asked for")?;
    let pid = child.id();
    std::thread::scope(|scope| {
        // A command that ends without reading its input is judged by its exit code.
        scope.spawn(move || drop(stdin.write_all(input)));
        let (done, closed) = std::sync::mpsc::channel();
        let out = scope.spawn(read_all(stdout, done.clone()));
        let err = scope.spawn(read_all(stderr, done));
        let mut late = false;
        for _ in 0..2 {
            late |= closed.recv_timeout(deadline.saturating_sub(started.elapsed())).is_err();
        }
        if late {
            kill_group(pid);
        }
        let status = child.wait()?;
        let stdout = out.join().map_err(|_| anyhow::anyhow!("reading the output of `{shown}` panicked"))?;
        let stderr = err.join().map_err(|_| anyhow::anyhow!("reading the errors of `{shown}` panicked"))?;
        if late {
            let said = String::from_utf8_lossy(&stderr).into_owned();
            bail!("`{shown}` was not done after {deadline:?} (or left its output open); it said: {said}");
        }
        Ok(Finished { command: shown.clone(), status, stdout, stderr, took: started.elapsed() })
    })
}

/// Starts `command` in a process group of its own, so that [`kill_group`] gets what it forks, too.
pub fn start(command: &mut Command) -> Result<Child> {
    let shown = show(command);
    command.process_group(0).spawn().with_context(|| format!("`{shown}` could not be started"))
}

/// Kills the process group that [`start`] made.
pub fn kill_group(pid: u32) {
    let group = nix::unistd::Pid::from_raw(pid.cast_signed());
    // It may have ended already.
    let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
}

/// Asks `probe` every few milliseconds until it gives something.
///
/// # Errors
/// After `deadline`, saying that `what` did not happen.
pub fn wait_for<T>(what: &str, deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> Result<T> {
    let started = Instant::now();
    loop {
        if let Some(found) = probe() {
            return Ok(found);
        }
        if started.elapsed() > deadline {
            bail!("{what} did not happen within {deadline:?}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Whether `program` is installed; the tests need it, so its absence is an error with the package that has it.
pub fn require(program: &str, package: &str) -> Result<()> {
    let found = "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".split(':').any(|dir| Path::new(dir).join(program).exists());
    if !found {
        bail!("these tests need `{program}`: install the package {package}");
    }
    Ok(())
}

fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

fn read_all(mut from: impl Read, done: std::sync::mpsc::Sender<()>) -> impl FnOnce() -> Vec<u8> {
    move || {
        let mut bytes = Vec::new();
        // What was read before an error is what there is.
        let _ = from.read_to_end(&mut bytes);
        let _ = done.send(());
        bytes
    }
}
