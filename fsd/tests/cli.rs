//! The command as scripts see it: what is printed where, and with which exit code. Nothing here mounts or talks to a host.

mod cli {
    mod bench;
    mod completions;
    mod help;
    mod mounts;
    mod sources;
    mod usage;
}
