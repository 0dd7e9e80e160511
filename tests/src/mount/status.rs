//! What `gitmount status --output json` says of a mount.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Messages by their kind (`lookup`, `read`, …).
pub type Requests = BTreeMap<String, u64>;

/// One mount.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// Where the repository is.
    pub url: String,
    /// The ref that is followed.
    #[serde(rename = "ref")]
    pub reference: String,
    /// The sub-directory that is the root.
    pub path: String,
    /// The commit that is served.
    pub commit: String,
    /// Whether all is well.
    pub state: String,
    /// When the host was asked last.
    pub last_attempt: serde_json::Value,
    /// When the host answered last.
    pub last_success: serde_json::Value,
    /// What went wrong last.
    pub error: Option<String>,
    /// Where it is mounted.
    pub mounts: Vec<String>,
    /// The messages of the kernel so far.
    pub requests: Requests,
}

/// The messages that were counted between two counts.
pub fn since(before: &Requests, after: &Requests) -> Requests {
    let more = after.iter().map(|(name, count)| (name.clone(), count - before.get(name).copied().unwrap_or(0)));
    more.filter(|(_, count)| *count > 0).collect()
}
