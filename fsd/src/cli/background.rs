//! Mounting in the background, as sshfs does: the command starts itself again, waits until the tree is served or refused, and ends.
//!
//! The child keeps the terminal (for progress, prompts and Ctrl-C) until it is ready. Its standard output is a pipe to the parent, over which
//! it sends one line: the outcome. No credential is on its command line.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use serde::{Deserialize, Serialize};

use super::exit::{CliError, Result};
use super::signals;

/// What makes the child one. It is no option of the command, so that neither help nor completions show it.
const CHILD_FLAG: &str = "--background-child";

/// The command line without the flag, and whether it was there: right after the command's name, where only [`start`] puts it.
pub fn take_flag(arguments: impl Iterator<Item = OsString>) -> (Vec<OsString>, bool) {
    let mut arguments: Vec<OsString> = arguments.collect();
    let child = arguments.get(2).is_some_and(|a| a == CHILD_FLAG);
    if child {
        arguments.remove(2);
    }
    (arguments, child)
}

/// What the child says to its parent, as one line of JSON.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Outcome {
    Ready,
    Failed(CliError),
}

/// Runs this command again in the background and waits for its outcome.
pub fn start() -> Result<()> {
    let failed = |e: std::io::Error| CliError::other(format!("the process in the background cannot be started ({e})"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(failed)?;
    let mut ending = {
        let _context = runtime.enter();
        signals::ending().map_err(failed)?
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut arguments = std::env::args_os().skip(1);
    let command = arguments.next();
    let mut child = Command::new(program)
        .arg0("gitmount")
        .args(command)
        .arg(CHILD_FLAG)
        .args(arguments)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    // The child cleans up and reports; this process only passes on what it is told.
    let pid = Pid::from_raw(i32::try_from(child.id()).expect("process ids fit their type"));
    runtime.spawn(async move {
        loop {
            signals::next(&mut ending).await;
            // Gone already is as good as stopped.
            let _ = kill(pid, Signal::SIGTERM);
        }
    });
    let mut line = String::new();
    let pipe = child.stdout.take().expect("its standard output was piped above");
    BufReader::new(pipe).read_line(&mut line).map_err(failed)?;
    match serde_json::from_str(&line) {
        Ok(Outcome::Ready) => Ok(()),
        Ok(Outcome::Failed(error)) => {
            // Until it has ended something of it may still be there.
            let _ = child.wait();
            Err(error)
        }
        Err(_) => {
            let status = child.wait().map_err(failed)?;
            if status.code() == Some(130) {
                return Err(CliError { code: 130, message: "interrupted, nothing was mounted".into() });
            }
            Err(CliError::other(format!("the process in the background ended before it was ready ({status})")))
        }
    }
}

/// The child: the tree is served. Lets go of the terminal, then tells the parent; gives whether it still waits.
pub fn ready() -> Result<bool> {
    let failed = |e: std::io::Error| CliError::other(format!("the process cannot go to the background ({e})"));
    let stdout = std::io::stdout();
    let mut parent = std::fs::File::from(stdout.as_fd().try_clone_to_owned().map_err(failed)?);
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").map_err(failed)?;
    setsid().map_err(|e| failed(e.into()))?;
    chdir("/").map_err(|e| failed(e.into()))?;
    dup2_stdin(&null).map_err(|e| failed(e.into()))?;
    dup2_stdout(&null).map_err(|e| failed(e.into()))?;
    dup2_stderr(&null).map_err(|e| failed(e.into()))?;
    Ok(send(&mut parent, &Outcome::Ready))
}

/// The child: it failed, its parent says why.
pub fn failed(error: CliError) {
    send(&mut std::io::stdout(), &Outcome::Failed(error));
}

fn send(parent: &mut dyn Write, outcome: &Outcome) -> bool {
    let mut line = serde_json::to_string(outcome).expect("the outcome is made of strings and numbers");
    line.push('\n');
    parent.write_all(line.as_bytes()).and_then(|()| parent.flush()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_counts_in_its_place_only() {
        let take = |line: &str| {
            let (rest, child) = take_flag(line.split(' ').map(OsString::from));
            (rest.join(std::ffi::OsStr::new(" ")).into_string().unwrap(), child)
        };
        assert_eq!(take("gitmount mount --background-child -- a b"), ("gitmount mount -- a b".into(), true));
        assert_eq!(take("gitmount mount a --background-child"), ("gitmount mount a --background-child".into(), false));
        assert_eq!(take("gitmount"), ("gitmount".into(), false));
    }

    #[test]
    fn an_outcome_is_one_line_and_comes_back_as_it_was() {
        for outcome in [Outcome::Ready, Outcome::Failed(CliError { code: 5, message: "host \"x\"\ndoes not answer".into() })] {
            let mut line = Vec::new();
            assert!(send(&mut line, &outcome));
            assert_eq!(line.iter().filter(|b| **b == b'\n').count(), 1);
            assert_eq!(serde_json::from_slice::<Outcome>(&line).unwrap(), outcome);
        }
    }
}
