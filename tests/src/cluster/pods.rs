//! Manifests: pods of one busybox container with git volumes, volumes with their claims, Secrets.
//!
//! A PersistentVolume belongs to no namespace; what is made here goes with the [`Namespace`](super::Namespace) of its claim.

use serde_json::{Map, Value, json};

/// The label of a PersistentVolume with the namespace of its claim.
pub(super) const OF: &str = "gitmount-tests/namespace";

/// A pod whose container `c` sleeps, unless it is given something to do.
#[derive(Debug, Clone)]
pub struct Pod(Value);

impl Pod {
    /// One on a node (`node1`).
    pub fn new(namespace: &str, name: &str, node: &str) -> Self {
        Pod(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": namespace},
            "spec": {
                "nodeName": node, "terminationGracePeriodSeconds": 1, "enableServiceLinks": false, "automountServiceAccountToken": false,
                "containers": [{
                    "name": "c", "image": "local/test:1", "imagePullPolicy": "Never", "command": ["sleep", "infinity"], "volumeMounts": [],
                }],
                "volumes": [],
            },
        }))
    }

    /// What the container's shell runs.
    pub fn script(mut self, script: &str) -> Self {
        self.0["spec"]["containers"][0]["command"] = json!(["sh", "-c", script]);
        self
    }

    /// A volume, with its source ([`inline`], [`claimed`], …), which the container has at `/<name>`.
    pub fn volume(mut self, name: &str, source: Value) -> Self {
        let mut volume = source;
        volume["name"] = name.into();
        let mount = json!({"name": name, "mountPath": format!("/{name}")});
        for (list, entry) in [("/spec/volumes", volume), ("/spec/containers/0/volumeMounts", mount)] {
            if let Some(list) = self.0.pointer_mut(list).and_then(Value::as_array_mut) {
                list.push(entry);
            }
        }
        self
    }

    /// Another field of its `spec`.
    pub fn with(mut self, field: &str, value: Value) -> Self {
        self.0["spec"][field] = value;
        self
    }

    /// Another field of its container.
    pub fn container(mut self, field: &str, value: Value) -> Self {
        self.0["spec"]["containers"][0][field] = value;
        self
    }

    /// Its manifest.
    pub fn object(&self) -> Value {
        self.0.clone()
    }
}

/// An inline git volume.
pub fn inline(attributes: &[(&str, &str)]) -> Value {
    json!({"csi": {"driver": "git.liken.sh", "readOnly": true, "volumeAttributes": pairs(attributes)}})
}

/// The same with a Secret.
pub fn inline_with(attributes: &[(&str, &str)], secret: &str) -> Value {
    let mut volume = inline(attributes);
    volume["csi"]["nodePublishSecretRef"] = json!({"name": secret});
    volume
}

/// A volume by a claim of the pod's namespace.
pub fn claimed(claim: &str) -> Value {
    json!({"persistentVolumeClaim": {"claimName": claim, "readOnly": true}})
}

/// A PersistentVolume and the claim that is bound to it.
#[derive(Debug, Clone)]
pub struct Claim {
    namespace: String,
    name: String,
    csi: Value,
    modes: Value,
}

impl Claim {
    /// A claim called `name` and its volume, `<namespace>-<name>`.
    pub fn new(namespace: &str, name: &str, attributes: &[(&str, &str)]) -> Self {
        let csi = json!({
            "driver": "git.liken.sh", "volumeHandle": format!("{namespace}-{name}"), "readOnly": true, "volumeAttributes": pairs(attributes),
        });
        Claim { namespace: namespace.into(), name: name.into(), csi, modes: json!(["ReadOnlyMany"]) }
    }

    /// The Secret of its stage.
    pub fn staged_with(mut self, secret: &str) -> Self {
        self.csi["nodeStageSecretRef"] = json!({"name": secret, "namespace": self.namespace});
        self
    }

    /// The Secret of its publishes.
    pub fn published_with(mut self, secret: &str) -> Self {
        self.csi["nodePublishSecretRef"] = json!({"name": secret, "namespace": self.namespace});
        self
    }

    /// Other access modes.
    pub fn modes(mut self, modes: &[&str]) -> Self {
        self.modes = json!(modes);
        self
    }

    /// The name of its PersistentVolume.
    pub fn volume(&self) -> String {
        format!("{}-{}", self.namespace, self.name)
    }

    /// Both manifests.
    pub fn object(&self) -> Value {
        let (volume, size) = (self.volume(), json!({"storage": "1Mi"}));
        list(&[
            json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": volume, "labels": {OF: self.namespace}},
                "spec": {
                    "accessModes": self.modes, "capacity": size, "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "",
                    "claimRef": {"namespace": self.namespace, "name": self.name}, "csi": self.csi,
                },
            }),
            json!({
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": self.name, "namespace": self.namespace},
                "spec": {"accessModes": self.modes, "storageClassName": "", "volumeName": volume, "resources": {"requests": size}},
            }),
        ])
    }
}

/// A Secret.
pub fn secret(namespace: &str, name: &str, values: &[(&str, &str)]) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "stringData": pairs(values)})
}

/// Several objects, or lists of them, that are applied together.
pub fn list(objects: &[Value]) -> Value {
    // kubectl takes no list in a list.
    let flat = objects.iter().flat_map(|object| object["items"].as_array().map_or(std::slice::from_ref(object), Vec::as_slice));
    json!({"apiVersion": "v1", "kind": "List", "items": flat.collect::<Vec<_>>()})
}

fn pairs(pairs: &[(&str, &str)]) -> Map<String, Value> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), Value::from(*value))).collect()
}
