//! What tests ask of the API server, through the real kubectl as the cluster's administrator.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::layout::Layout;
use super::process::until;
use crate::run::{DEADLINE, Finished, command, run_with};

/// An event about an object, with the occurrences that the API server counted together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// `GitVolumeRefused`.
    pub reason: String,
    /// `Normal` or `Warning`.
    pub kind: String,
    /// Its text.
    pub message: String,
    /// How often it was seen.
    pub count: u64,
    /// Who says it.
    pub component: String,
}

impl Event {
    pub(super) fn from(item: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let component = [&item["source"]["component"], &item["reportingComponent"]].into_iter().map(text).find(|text| !text.is_empty());
        let count = item["series"]["count"].as_u64().or_else(|| item["count"].as_u64());
        Event {
            reason: text(&item["reason"]),
            kind: text(&item["type"]),
            message: text(&item["message"]),
            count: count.unwrap_or(1),
            component: component.unwrap_or_default(),
        }
    }
}

/// A kubectl of the administrator.
#[derive(Debug, Clone)]
pub struct Kubectl {
    program: PathBuf,
    config: PathBuf,
    cache: PathBuf,
}

impl Kubectl {
    pub(super) fn new(layout: &Layout) -> Self {
        Kubectl { program: layout.program("kubectl"), config: layout.pki().join("admin.conf"), cache: layout.dir.join("kubectl-cache") }
    }

    /// A command line of it.
    pub fn command(&self, words: &[&str]) -> std::process::Command {
        let mut kubectl = command(&self.program);
        kubectl.env("KUBECONFIG", &self.config).env("HOME", &self.cache).args(words);
        kubectl
    }

    /// Runs it. A failing exit code is no error.
    pub fn run(&self, words: &[&str]) -> Result<Finished> {
        run_with(&mut self.command(words), &[], DEADLINE)
    }

    /// Runs it and gives what it printed.
    ///
    /// # Errors
    /// When it fails, with what it said.
    pub fn out(&self, words: &[&str]) -> Result<String> {
        Ok(self.run(words)?.success()?.out())
    }

    /// The same with `--output json`, parsed.
    pub fn json(&self, words: &[&str]) -> Result<Value> {
        let out = self.out(&[words, &["--output", "json"]].concat())?;
        serde_json::from_str(&out).with_context(|| format!("kubectl printed no JSON: {out}"))
    }

    /// Creates or changes objects: one or more documents of YAML or JSON.
    pub fn apply(&self, manifest: &str) -> Result<()> {
        let finished =
            run_with(&mut self.command(&["apply", "--server-side", "--force-conflicts", "-f", "-"]), manifest.as_bytes(), DEADLINE)?;
        finished.success().with_context(|| format!("these could not be applied:\n{:.2000}", manifest))?;
        Ok(())
    }

    /// The same for one object.
    pub fn apply_object(&self, object: &Value) -> Result<()> {
        self.apply(&object.to_string())
    }

    /// Deletes objects (`["pod", "p", "-n", "ns"]`) and waits until they are gone; one that is not there is no error.
    pub fn delete(&self, words: &[&str]) -> Result<()> {
        self.out(&[&["delete", "--ignore-not-found", "--wait=true", "--timeout=100s"], words].concat())?;
        Ok(())
    }

    /// Waits until a pod is Ready, and gives it.
    ///
    /// # Errors
    /// After `deadline`, with the pod's state and its events.
    pub fn wait_pod_ready(&self, namespace: &str, pod: &str, deadline: Duration) -> Result<Value> {
        let ready = until(&format!("the readiness of the pod {namespace}/{pod}"), deadline, None, || {
            let pod = self.json(&["get", "pod", pod, "-n", namespace])?;
            Ok((condition(&pod, "Ready") == Some("True")).then_some(pod))
        });
        ready.map_err(|error| {
            let status = self.out(&["get", "pod", pod, "-n", namespace, "-o", "jsonpath={.status}"]).unwrap_or_default();
            let events = self.pod_events(namespace, pod).unwrap_or_default();
            anyhow::anyhow!("{error:#}; its status is {status}; its events are {events:#?}")
        })
    }

    /// Runs a command in a pod's first container. A failing exit code is no error.
    pub fn exec(&self, namespace: &str, pod: &str, words: &[&str]) -> Result<Finished> {
        self.run(&[&["exec", "-n", namespace, pod, "--"], words].concat())
    }

    /// Waits, in the pod, until a file has this text.
    pub fn wait_text(&self, namespace: &str, pod: &str, file: &str, text: &str, deadline: Duration) -> Result<()> {
        let script = "until [ \"$(cat \"$1\" 2>&1)\" = \"$2\" ]; do usleep 100000; done";
        let limit = deadline.as_secs().to_string();
        let waited = self.exec(namespace, pod, &["timeout", &limit, "sh", "-c", script, "sh", file, text])?;
        if waited.code() != 0 {
            let now = self.exec(namespace, pod, &["timeout", "10", "cat", file])?;
            bail!("{file} in the pod {namespace}/{pod} is not {text:?} after {deadline:?}, but {:?} {}", now.out(), now.err());
        }
        Ok(())
    }

    /// Runs a command in one container of a pod.
    pub fn exec_in(&self, namespace: &str, pod: &str, container: &str, words: &[&str]) -> Result<Finished> {
        self.run(&[&["exec", "-n", namespace, pod, "-c", container, "--"], words].concat())
    }

    /// What a container logged; `previous` asks for the run before this one.
    pub fn logs(&self, namespace: &str, pod: &str, container: &str, previous: bool) -> Result<String> {
        let previous = format!("--previous={previous}");
        self.out(&["logs", "-n", namespace, pod, "-c", container, &previous])
    }

    /// The events of a pod.
    pub fn pod_events(&self, namespace: &str, pod: &str) -> Result<Vec<Event>> {
        self.events(namespace, "Pod", pod)
    }

    /// The events of a claim.
    pub fn claim_events(&self, namespace: &str, claim: &str) -> Result<Vec<Event>> {
        self.events(namespace, "PersistentVolumeClaim", claim)
    }

    /// The events of an object, oldest first.
    pub fn events(&self, namespace: &str, kind: &str, name: &str) -> Result<Vec<Event>> {
        let selector = format!("involvedObject.kind={kind},involvedObject.name={name}");
        let list =
            self.json(&["get", "events", "-n", namespace, "--sort-by=.metadata.creationTimestamp", "--field-selector", &selector])?;
        Ok(list["items"].as_array().into_iter().flatten().map(Event::from).collect())
    }

    /// Waits for an event that `wanted` takes.
    pub fn wait_event(
        &self,
        (namespace, kind, name): (&str, &str, &str),
        deadline: Duration,
        wanted: impl Fn(&Event) -> bool,
    ) -> Result<Event> {
        until(&format!("the event of {kind} {namespace}/{name}"), deadline, None, || {
            Ok(self.events(namespace, kind, name)?.into_iter().find(&wanted))
        })
        .map_err(|error| anyhow::anyhow!("{error:#}; its events are {:#?}", self.events(namespace, kind, name).unwrap_or_default()))
    }
}

/// The state (`True`, `False`, `Unknown`) of a condition of an object.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a str> {
    let conditions = object["status"]["conditions"].as_array()?;
    conditions.iter().find(|condition| condition["type"] == kind)?["status"].as_str()
}
