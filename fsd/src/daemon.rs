//! From URL to FUSE: fetch, follow, report; for one mount, or for the many views of a daemon.
//!
//! Both:
//! - [`policy`]: how often to pull, and what to do when the host does not answer.
//! - [`schedule`]: when fetches are due; time and randomness are passed in.
//! - [`health`]: what is known of the fetches so far.
//!
//! One mount, `gitmount mount`:
//! - [`upstream`]: where commits come from: a repository at a host, or one on the local disk.
//! - [`follow`]: the thread that fetches, pins and switches; [`serving`]: all of it together.
//!
//! Many views, `gitmount daemon`:
//! - [`engine`]: publish, unpublish, and all other calls; [`context`]: what its views share.
//! - [`spec`], [`credential`]: what callers ask for, checked.
//! - [`shown`]: one view; [`fetches`]: the fetches of all of them; [`bind`]: where they are shown; [`standing`]: what is mounted there.
//! - [`state`], [`record`]: what is written down; [`events`], [`metrics`]: what is told; `measure`: what a tree holds.
//! - [`upkeep`]: the store after fetches.
//!
//! A commit is pinned before it is served, and the pin of the one before is dropped after the switch. A fetch that fails changes
//! nothing of what is served.

pub mod bind;
pub mod context;
pub mod credential;
pub mod engine;
pub mod events;
pub mod fetches;
pub mod follow;
pub mod health;
mod measure;
pub mod metrics;
pub mod policy;
pub mod record;
pub mod schedule;
pub mod serving;
pub mod shown;
pub mod spec;
pub mod standing;
pub mod state;
pub mod upkeep;
pub mod upstream;
