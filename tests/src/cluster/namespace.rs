//! A namespace of a test's own.

use std::ops::Deref;

use anyhow::Result;
use serde_json::json;

use super::{Cluster, pki, pods};
use crate::scratch;

/// The namespace of a test that has the cluster to itself, and so may change or end what all share.
#[derive(Debug)]
pub struct Alone(Namespace);

impl Deref for Alone {
    type Target = Namespace;

    fn deref(&self) -> &Namespace {
        &self.0
    }
}

/// A namespace that is deleted, with everything in it, when this is dropped.
///
/// Tests run side by side on the cluster. One that disturbs the others, by ending a kubelet or the driver, has the cluster to itself:
/// it makes its first namespace by [`Namespace::alone`].
#[derive(Debug)]
pub struct Namespace {
    cluster: &'static Cluster,
    name: String,
    _lock: Option<scratch::Lock>,
}

impl Namespace {
    /// One whose name begins with `prefix`, in which every pod is allowed.
    pub fn new(cluster: &'static Cluster, prefix: &str) -> Result<Self> {
        Self::make(cluster, prefix, "privileged", Some(scratch::shared(&lock(cluster))?))
    }

    /// One in which pods must be restricted.
    pub fn restricted(cluster: &'static Cluster, prefix: &str) -> Result<Self> {
        Self::make(cluster, prefix, "restricted", Some(scratch::shared(&lock(cluster))?))
    }

    /// One of a test that has the cluster to itself, until this is dropped.
    pub fn alone(cluster: &'static Cluster, prefix: &str) -> Result<Alone> {
        Ok(Alone(Self::make(cluster, prefix, "privileged", Some(scratch::exclusive(&lock(cluster))?))?))
    }

    /// Another one of the same test, to be dropped before this.
    pub fn another(&self, prefix: &str) -> Result<Self> {
        Self::make(self.cluster, prefix, "privileged", None)
    }

    fn make(cluster: &'static Cluster, prefix: &str, security: &str, lock: Option<scratch::Lock>) -> Result<Self> {
        let name = format!("{prefix}-{}", &pki::random()?[..8]);
        let labels = json!({"pod-security.kubernetes.io/enforce": security});
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        cluster.kubectl.apply_object(&object)?;
        let namespace = Namespace { cluster, name, _lock: lock };
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
        let all_pods = ["delete", "pods", "--all", "-n", &self.name, "--grace-period=1", "--timeout=60s"];
        let namespace = ["delete", "namespace", &self.name, "--timeout=60s"];
        let of = format!("{}={}", pods::OF, self.name);
        let volumes = ["delete", "persistentvolumes", "--selector", &of, "--timeout=60s"];
        for words in [&all_pods[..], &namespace[..], &volumes[..]] {
            if let Err(error) = self.cluster.kubectl.out(words) {
                eprintln!("the namespace {} is not deleted: {error:#}", self.name);
            }
        }
    }
}

fn lock(cluster: &Cluster) -> String {
    format!("cluster{}-tests", cluster.layout.network().slot())
}
