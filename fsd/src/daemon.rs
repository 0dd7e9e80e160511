//! One served mount from URL to FUSE: fetch, follow, report.
//!
//! - [`policy`]: how often to pull, and what to do when the host does not answer.
//! - [`upstream`]: where commits come from: a repository at a host, or one on the local disk.
//! - [`schedule`]: when the next fetch is due; time and randomness are passed in.
//! - [`health`]: what is known of the fetches so far.
//! - [`follow`]: the thread that fetches, pins and switches.
//! - [`serving`]: all of it together, for one mount.
//!
//! A commit is pinned before it is served, and the pin of the one before is dropped after the switch. A fetch that fails changes
//! nothing of what is served.

pub mod follow;
pub mod health;
pub mod policy;
pub mod schedule;
pub mod serving;
pub mod upstream;
