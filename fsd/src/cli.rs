//! The `gitmount` command.
//!
//! - [`args`]: options and help; [`exit`]: one sentence and a code for every error.
//! - [`mount`]: the process that serves; [`plan`] checks its options, [`background`] starts it, [`signals`] end it.
//! - [`daemon`]: the process that serves many; [`through`]: the same commands by way of it; [`systemd`]: what it tells its supervisor.
//! - [`logging`]: what goes to stderr of a process that stays.
//! - [`unmount`], [`status`], [`log`], [`store_commands`]: the other commands; [`mounts`] finds who serves what, [`mount_table`] asks the kernel.
//! - [`login`], [`git_config`], [`ssh`], [`ssh_config`]: what git users have already; [`progress`]: the bar.

pub mod args;
pub mod background;
pub mod daemon;
pub mod exit;
pub mod git_config;
pub mod log;
pub mod logging;
pub mod login;
pub mod mount;
pub mod mount_table;
pub mod mounts;
pub mod plan;
pub mod progress;
pub mod signals;
pub mod ssh;
pub mod ssh_config;
pub mod status;
pub mod store_commands;
pub mod systemd;
pub mod through;
pub mod unmount;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use crate::handover;
use args::{Cli, Command};

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let (arguments, child) = background::take_flag(std::env::args_os());
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help and version; a pipe that is closed early is no failure.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&exit::from_clap(&error)),
    };
    let result = match &cli.command {
        Command::Mount(args) => match mount::run(args, child) {
            // The parent of a background process says it.
            Err(error) if child => return ExitCode::from(error.code),
            result => result,
        },
        Command::Unmount(args) => unmount::unmount(args),
        Command::Pull(args) => unmount::pull(args),
        Command::Status(args) => status::run(args),
        Command::Log(args) => log::run(args),
        Command::Daemon(args) => daemon::run(args),
        Command::Verify(args) => store_commands::verify(args),
        Command::Gc(args) => store_commands::gc(args),
        Command::Hold(args) => handover::hold::serve(&args.socket).map_err(|error| exit::CliError::other(error.to_string())),
        Command::Completions(args) => {
            clap_complete::generate(args.shell, &mut Cli::command(), "gitmount", &mut std::io::stdout());
            Ok(())
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

fn fail(error: &exit::CliError) -> ExitCode {
    eprintln!("{}", error.line());
    ExitCode::from(error.code)
}
