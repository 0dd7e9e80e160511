//! What the tests across components share: git repositories, git servers, mounts, and comparisons. One copy of each helper lives here;
//! the tests are in `tests/`, one file per behaviour.
//!
//! - [`run`]: a command with a deadline, in an environment that inherits nothing from the person who runs the tests.
//! - [`scratch`]: temporary directories, the directory that is shared by all test binaries, and locks between them.
//! - [`git`]: the git command line, isolated and with fixed dates; [`import`] writes commits of any bytes by `git fast-import`.
//! - [`fixtures`]: the repositories that are mounted.
//! - [`servers`]: `git http-backend` behind HTTP(S) with faults, `git daemon`, OpenSSH's `sshd`.
//! - [`upstream`]: a repository whose branch moves.
//! - [`mount`]: the `gitmount` command, run for an account of the test's own.
//! - [`torture`]: readers that check that they see one commit at a time.
//! - [`daemon`]: a `gitmount daemon` of a test's own, and a client of its socket.
//! - [`csi`]: a `gitmount-csi` of a test's own, called as a kubelet calls it.
//! - [`deploy`]: the examples and other files below `deploy/`.
//! - [`compare`]: a directory against what git says of a commit.
//! - [`cluster`]: a real Kubernetes with two nodes.

pub mod cluster;
pub mod compare;
pub mod csi;
pub mod daemon;
pub mod deploy;
pub mod fixtures;
pub mod git;
pub mod import;
pub mod mount;
pub mod run;
pub mod scratch;
pub mod servers;
pub mod torture;
pub mod upstream;
