//! What stages brought: the values of the stage's Secret, in memory only, from the stage of a volume to its unstage.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The values of a Secret. They do not print.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secrets(pub HashMap<String, String>);

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

#[derive(Debug, Default)]
struct All {
    staged: HashMap<String, Secrets>,
    /// Pods (with the volume) that were told that nobody brings the credential again.
    told: HashSet<(String, String)>,
}

/// The volumes that are staged, as far as this process knows.
#[derive(Debug, Default)]
pub struct Stages(Mutex<All>);

impl Stages {
    /// A volume is staged (again).
    pub fn stage(&self, volume: &str, secrets: HashMap<String, String>) {
        self.lock().staged.insert(volume.to_owned(), Secrets(secrets));
    }

    /// It is staged no more.
    pub fn unstage(&self, volume: &str) {
        let mut all = self.lock();
        all.staged.remove(volume);
        all.told.retain(|(of, _)| of != volume);
    }

    /// What the stage brought; `None` when this process has seen none.
    pub fn of(&self, volume: &str) -> Option<Secrets> {
        self.lock().staged.get(volume).cloned()
    }

    /// Whether a pod is to be told now that nobody brings the credential again: once for each stage and restart.
    pub fn tells(&self, volume: &str, pod: &str) -> bool {
        self.lock().told.insert((volume.to_owned(), pod.to_owned()))
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_lasts_until_its_unstage_and_each_pod_is_told_once() {
        let stages = Stages::default();
        assert!(stages.of("v").is_none());
        stages.stage("v", [("token".to_owned(), "s3cret".to_owned())].into());
        assert!(stages.tells("v", "a") && !stages.tells("v", "a") && stages.tells("v", "b"));
        assert!(!format!("{stages:?}").contains("s3cret"));
        stages.unstage("v");
        stages.unstage("v");
        assert!(stages.of("v").is_none() && stages.tells("v", "a"), "the next stage tells anew");
    }
}
