//! The command as scripts see it: what is printed where, and with which exit code. Nothing here mounts or talks to a host.
#![allow(clippy::unwrap_used)] // All of it is test code, the helpers too.

mod cli {
    mod bench;
    mod completions;
    mod help;
    mod mounts;
    mod sources;
    mod usage;
}
