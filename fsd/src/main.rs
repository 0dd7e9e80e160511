//! The `gitmount` binary: the command line of [`gitmount_fsd::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    gitmount_fsd::cli::main()
}
