//! The `gitmount` binary: the command line of [`gitmount_fsd::cli`].

use std::process::ExitCode;

fn main() -> ExitCode {
    gitmount_fsd::sys::set_up_memory();
    gitmount_fsd::cli::main()
}
