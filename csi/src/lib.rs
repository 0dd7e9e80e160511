//! The CSI driver `git.liken.sh`: git repositories as read-only volumes of pods. It speaks to the kubelet on one side and to `gitmount
//! daemon` on the other, and holds nothing that a restart could lose.
//!
//! - [`volume`]: what is asked for, parsed: attributes, Secrets, paths.
//! - [`node`]: the node service: stage, publish, and their opposites; statistics.
//! - [`identity`], [`registration`]: who the driver is, told to the kubelet.
//! - [`daemon`]: the client of the daemon's control socket, with a time limit on every call.
//! - [`health`]: what the daemon said last of all views.
//! - [`events`]: events on pods and claims; [`watch`]: those that the daemon tells of; [`claims`]: which claim a volume is bound to.
//! - [`demands`]: pulls that an annotation on a PersistentVolume demands.
//! - [`controller`]: the webhook controller, which writes that annotation.
//! - [`metrics`]: the node plugin's `/metrics`, `/healthz` and `/readyz`.
//! - [`server`]: gRPC servers on unix sockets; [`http`]: HTTP servers.
//!
//! What it promises: a publish onto a live target always succeeds, since a kubelet may remove the directory after one that fails; every call
//! may be repeated; no call waits for a lock that another call holds; no Secret is in a log, an event, an error, or on the disk.

pub mod claims;
pub mod controller;
pub mod daemon;
pub mod demands;
pub mod events;
pub mod health;
pub mod http;
pub mod identity;
pub mod metrics;
pub mod node;
pub mod registration;
pub mod server;
pub mod volume;
pub mod watch;

/// The driver's name.
pub const DRIVER: &str = "git.liken.sh";
