//! Whether a secret got anywhere it has no business to be: logs, events, command lines, the driver's files.

use std::fs;

use anyhow::Result;

use super::{Cluster, Driver, NAMESPACE};
use crate::scratch;

impl Driver<'_> {
    /// The places where one of these texts is: container logs of the driver, events, `/proc/*/cmdline` and environments of the driver's
    /// processes, the state directory, the sockets' directories, and the kubelet's directory of plugins, on every node.
    pub fn leaks(&self, cluster: &Cluster, secrets: &[&str]) -> Result<Vec<String>> {
        let mut found = vec![];
        let mut look = |place: &str, text: &str| {
            let has = secrets.iter().any(|secret| text.contains(secret));
            has.then(|| found.push(place.to_owned()));
        };
        for node in cluster.nodes() {
            for (part, containers) in [("node", &["fsd", "csi"][..]), ("hold", &["hold"])] {
                let pod = self.pod(part, &node.name())?;
                for container in containers {
                    let log = cluster.kubectl.logs(NAMESPACE, &pod, container, false)?;
                    look(&format!("the log of {container} on {}", node.name()), &log);
                    let environment = fs::read(format!("/proc/{}/environ", cluster.pid_of(NAMESPACE, &pod, container)?))?;
                    look(&format!("the environment of {container} on {}", node.name()), &String::from_utf8_lossy(&environment));
                }
            }
        }
        look("an event", &cluster.kubectl.out(&["get", "events", "--all-namespaces", "-o", "json"])?);
        for process in fs::read_dir("/proc")?.flatten() {
            // It may have ended.
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            look(&format!("the command line {line}"), &line);
        }
        for node in cluster.nodes() {
            for dir in
                ["/var/lib/gitmount", "/run/gitmount", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry", "/var/log/pods"]
            {
                for secret in secrets {
                    let files = scratch::files_with(&node.path(dir)?, secret)?;
                    found.extend(files.into_iter().map(|file| format!("{} on {}", file.display(), node.name())));
                }
            }
        }
        Ok(found)
    }
}
