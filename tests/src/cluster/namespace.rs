//! A namespace of a test's own.

use anyhow::Result;
use serde_json::{Value, json};

use super::{Cluster, pki};

/// A namespace that is deleted, with everything in it, when this is dropped.
#[derive(Debug)]
pub struct Namespace {
    cluster: &'static Cluster,
    name: String,
}

impl Namespace {
    /// One whose name begins with `prefix`, in which every pod is allowed.
    pub fn new(cluster: &'static Cluster, prefix: &str) -> Result<Self> {
        Self::labelled(cluster, prefix, &json!({"pod-security.kubernetes.io/enforce": "privileged"}))
    }

    /// One in which pods must be restricted.
    pub fn restricted(cluster: &'static Cluster, prefix: &str) -> Result<Self> {
        Self::labelled(cluster, prefix, &json!({"pod-security.kubernetes.io/enforce": "restricted"}))
    }

    fn labelled(cluster: &'static Cluster, prefix: &str, labels: &Value) -> Result<Self> {
        let name = format!("{prefix}-{}", &pki::random()?[..8]);
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        cluster.kubectl.apply_object(&object)?;
        let namespace = Namespace { cluster, name };
        // Pods are refused before their namespace has its service account.
        let account = format!("the service account of {}", namespace.name);
        super::process::until(&account, crate::run::DEADLINE, None, || {
            cluster.kubectl.out(&["get", "serviceaccount", "default", "-n", &namespace.name]).map(Some)
        })?;
        Ok(namespace)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let shown = self.cluster.kubectl.out(&["get", "pods,events", "-o", "wide", "-n", &self.name]);
            eprintln!("in the namespace {}:\n{}", self.name, shown.unwrap_or_default());
        }
        // Not waited for a graceful end: what a test left running is of no use any more.
        let pods = ["delete", "pods", "--all", "-n", &self.name, "--grace-period=1", "--timeout=60s"];
        let namespace = ["delete", "namespace", &self.name, "--timeout=60s"];
        for words in [&pods[..], &namespace[..]] {
            if let Err(error) = self.cluster.kubectl.out(words) {
                eprintln!("the namespace {} is not deleted: {error:#}", self.name);
            }
        }
    }
}
