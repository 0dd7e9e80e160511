//! Manifests of small pods.

use serde_json::{Value, json};

/// A pod on a node whose container `c` runs `script` in a busybox.
pub(crate) fn busybox(name: &str, node: &str, script: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "c", "image": "local/test:1", "imagePullPolicy": "Never", "command": ["sh", "-c", script]}],
        },
    })
}

/// The pod in a namespace, with these fields of its `spec` instead.
pub(crate) fn with(mut pod: Value, namespace: &str, fields: &Value) -> Value {
    pod["metadata"]["namespace"] = namespace.into();
    for (name, value) in fields.as_object().into_iter().flatten() {
        pod["spec"][name] = value.clone();
    }
    pod
}
