//! The Helm chart: its manifests are up to date, it refuses values that are not there, every value can be set, and every option that it gives is
//! one that the programs have.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::helm;
use gitmount_tests::deploy::{checkout, yaml};
use gitmount_tests::mount::{gitmount, gitmount_csi};
use gitmount_tests::run;
use serde_json::{Value, json};

/// `helm template` with these values.
fn rendered(values: &[&str]) -> Result<run::Finished> {
    let mut command = run::command(helm()?);
    command.args(["template", "gitmount"]).arg(checkout("deploy/chart")?).args(["--namespace", "gitmount-system"]);
    for value in values {
        command.args(["--set", value]);
    }
    run::run(&mut command)
}

fn objects(values: &[&str]) -> Result<Vec<Value>> {
    yaml(&rendered(values)?.success()?.out())
}

fn find<'o>(objects: &'o [Value], kind: &str, name: &str) -> Result<&'o Value> {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.with_context(|| format!("there is no {kind} {name}"))
}

/// A container of a DaemonSet or Deployment.
fn container<'o>(objects: &'o [Value], set: &str, name: &str) -> Result<&'o Value> {
    let set_of_pods = find(objects, "DaemonSet", set).or_else(|_| find(objects, "Deployment", set))?;
    let containers = set_of_pods["spec"]["template"]["spec"]["containers"].as_array().context("containers")?;
    containers.iter().find(|container| container["name"] == name).with_context(|| format!("{set} has no container {name}"))
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[test]
fn manifests_are_what_the_chart_gives() -> Result<()> {
    let path = checkout("deploy/manifests/gitmount.yaml")?;
    let now = rendered(&["namespace.create=true"])?.success()?.out();
    if std::env::var_os("GITMOUNT_WRITE").is_some() {
        fs::write(&path, &now)?;
    }
    ensure!(fs::read_to_string(&path)? == now, "{} is of another chart: `make manifests` writes it anew", path.display());
    Ok(())
}

#[test]
fn what_is_no_value_is_refused_by_name() -> Result<()> {
    for (value, named) in [
        ("kubeletroot=/x", "kubeletroot"),
        ("node.fsd.image=x", "image"),
        ("kubeletRoot=var/lib/kubelet", "/kubeletRoot"),
        ("storeLimit=20GB", "/storeLimit"),
        ("demandMinInterval=often", "/demandMinInterval"),
        ("demandSpread=10s", "/demandSpread"),
        ("demandSpread=-1", "/demandSpread"),
        ("controller.tolerations=none", "/controller/tolerations"),
        ("image.pullPolicy=Sometimes", "'IfNotPresent'"),
        ("image.digest=latest", "/image/digest"),
        ("node.maxUnavailable=0", "/node/maxUnavailable"),
        ("node.maxUnavailable=0%", "/node/maxUnavailable"),
        ("hosts.allowHttp=yes", "want boolean"),
        ("listenAddress=localhost", "/listenAddress"),
    ] {
        let finished = rendered(&[value])?;
        ensure!(finished.code() != 0 && finished.err().contains(named), "{value}: {}", finished.err());
    }
    Ok(())
}

#[test]
fn every_value_has_a_comment_or_speaks_for_itself_and_is_in_the_schema() -> Result<()> {
    let values = yaml(&fs::read_to_string(checkout("deploy/chart/values.yaml")?)?)?;
    let schema: Value = serde_json::from_slice(&fs::read(checkout("deploy/chart/values.schema.json")?)?)?;
    for (name, value) in values[0].as_object().context("values")? {
        let described = &schema["properties"][name];
        ensure!(described.is_object(), "{name} is not in the schema");
        let below = described["properties"].as_object();
        for (inner, _) in value.as_object().into_iter().flatten().filter(|_| below.is_some()) {
            ensure!(below.is_some_and(|below| below.contains_key(inner)), "{name}.{inner} is not in the schema");
        }
    }
    // And the other way round: what the schema allows can be found in values.yaml. `global` is Helm's.
    for name in schema["properties"].as_object().context("properties")?.keys().filter(|name| *name != "global") {
        ensure!(values[0].get(name).is_some(), "{name} is in the schema, but not in values.yaml");
    }
    Ok(())
}

#[test]
fn options_are_those_of_the_programs() -> Result<()> {
    let hostile = ["hosts.allowHttp=true", "hosts.allowFile=true", "hosts.allowed[0]=git.example.com", "node.kubeconfig=/etc/k"];
    let objects = objects(&hostile)?;
    for (set, name, program) in [
        ("gitmount-node", "fsd", gitmount()?),
        ("gitmount-node", "csi", gitmount_csi()?),
        ("gitmount-hold", "hold", gitmount()?),
        ("gitmount-controller", "controller", gitmount_csi()?),
    ] {
        let container = container(&objects, set, name)?;
        let command = texts(&container["command"]);
        let names = program.file_name().map(|name| name.to_string_lossy().into_owned());
        ensure!(names.as_deref() == command.first().copied(), "{name} runs {command:?}");
        let help = run::run(run::command(&program).args(&command[1..]).arg("--help"))?.success()?.out();
        for argument in texts(&container["args"]) {
            let option = argument.split('=').next().unwrap_or_default();
            ensure!(help.contains(option), "`{}` has no {option}", command.join(" "));
        }
    }
    Ok(())
}

#[test]
fn nobody_gets_more_rights_than_it_needs() -> Result<()> {
    let objects = objects(&[])?;
    for (set, name) in [("gitmount-node", "csi"), ("gitmount-hold", "hold")] {
        let context = &container(&objects, set, name)?["securityContext"];
        ensure!(context["capabilities"]["drop"][0] == "ALL" && context["readOnlyRootFilesystem"] == true, "{name}: {context}");
        ensure!(context["allowPrivilegeEscalation"] == false && context["privileged"] != true, "{name}: {context}");
    }
    for set in ["gitmount-node", "gitmount-hold"] {
        let pod = &find(&objects, "DaemonSet", set)?["spec"]["template"]["spec"];
        ensure!(pod["automountServiceAccountToken"] == false, "{set} mounts a token into every container");
        ensure!(pod["hostPID"].is_null() && pod["hostIPC"].is_null() && pod["hostNetwork"].is_null(), "{set}: {pod}");
    }
    let fsd = container(&objects, "gitmount-node", "fsd")?;
    let mounted = fsd["volumeMounts"].as_array().context("mounts")?;
    ensure!(mounted.iter().all(|mount| mount["name"] != "api"), "the privileged container has a token");
    let rules = find(&objects, "ClusterRole", "gitmount-node")?["rules"].clone();
    for rule in rules.as_array().context("rules")? {
        let (resources, verbs) = (texts(&rule["resources"]), texts(&rule["verbs"]));
        let allowed: &[&str] = match resources[..] {
            ["persistentvolumes"] => &["get", "list", "watch"],
            ["events"] => &["create", "patch"],
            _ => &[],
        };
        ensure!(verbs.iter().all(|verb| allowed.contains(verb)), "{rule}");
    }
    Ok(())
}

/// The pods' specification of a DaemonSet or Deployment.
fn pods<'o>(objects: &'o [Value], kind: &str, name: &str) -> Result<&'o Value> {
    Ok(&find(objects, kind, name)?["spec"]["template"]["spec"])
}

#[test]
fn the_controller_is_placed_by_its_own_values() -> Result<()> {
    let plain = objects(&[])?;
    for set in ["gitmount-node", "gitmount-hold"] {
        let pod = pods(&plain, "DaemonSet", set)?;
        ensure!(
            pod["tolerations"] == json!([{"operator": "Exists"}]) && pod["priorityClassName"] == "system-node-critical",
            "{set}: {pod}"
        );
        ensure!(pod["topologySpreadConstraints"].is_null(), "{set}: {pod}");
    }
    let pod = pods(&plain, "Deployment", "gitmount-controller")?;
    ensure!(pod["tolerations"].is_null() && pod["priorityClassName"].is_null(), "it runs where other pods do: {pod}");
    ensure!(pod["nodeSelector"]["kubernetes.io/os"] == "linux", "{pod}");
    let spread = pod["topologySpreadConstraints"].as_array().context("a constraint")?;
    ensure!(spread.len() == 1 && spread[0]["topologyKey"] == "kubernetes.io/hostname", "replicas share no node: {pod}");
    ensure!(spread[0]["whenUnsatisfiable"] == "ScheduleAnyway", "where there is but one node, they share it: {pod}");
    let labels = &find(&plain, "Deployment", "gitmount-controller")?["spec"]["template"]["metadata"]["labels"];
    for (name, value) in spread[0]["labelSelector"]["matchLabels"].as_object().context("labels")? {
        ensure!(labels[name] == *value, "{name} does not select {labels}");
    }

    for (value, own, others) in [
        ("controller.priorityClassName=mine", "mine", "system-node-critical"),
        ("priorityClassName=mine", "", "mine"),
        ("priorityClassName=", "", ""),
    ] {
        let objects = objects(&[value])?;
        let class = |kind, name| pods(&objects, kind, name).map(|pod| pod["priorityClassName"].as_str().unwrap_or_default());
        ensure!(class("Deployment", "gitmount-controller")? == own, "{value}");
        ensure!(class("DaemonSet", "gitmount-node")? == others && class("DaemonSet", "gitmount-hold")? == others, "{value}");
    }
    let zone = ["controller.tolerations[0].key=infra", "controller.topologySpreadConstraints[0].topologyKey=topology.kubernetes.io/zone"];
    let objects = objects(&zone)?;
    let pod = pods(&objects, "Deployment", "gitmount-controller")?;
    ensure!(pod["tolerations"] == json!([{"key": "infra"}]), "{pod}");
    ensure!(pod["topologySpreadConstraints"] == json!([{"topologyKey": "topology.kubernetes.io/zone"}]), "{pod}");
    ensure!(pods(&objects, "DaemonSet", "gitmount-node")?["tolerations"] == json!([{"operator": "Exists"}]));
    Ok(())
}

#[test]
fn the_controller_is_reached_from_other_pods_whatever_the_nodes_listen_on() -> Result<()> {
    for (listen, any) in [("", "0.0.0.0"), ("127.0.0.1", "0.0.0.0"), ("[::]", "[::]"), ("[::1]", "[::]")] {
        let objects = objects(&[&format!("listenAddress={listen}")])?;
        let arguments = texts(&container(&objects, "gitmount-controller", "controller")?["args"]);
        for wanted in [format!("--webhooks={any}:8080"), format!("--listen={any}:9810")] {
            ensure!(arguments.contains(&wanted.as_str()), "{listen}: {arguments:?}");
        }
    }
    Ok(())
}

#[test]
fn nothing_is_scraped_where_nothing_is_served() -> Result<()> {
    for (values, monitors) in [
        (&["node.fsd.port=0"][..], &["gitmount-controller", "gitmount-node"][..]),
        (&["node.fsd.port=0", "node.csi.port=0"], &["gitmount-controller"]),
        (&["node.fsd.port=0", "node.csi.port=0", "controller.enabled=false"], &[]),
    ] {
        let objects = objects(&[values, &["podMonitor.enabled=true"]].concat())?;
        let mut found: Vec<&str> = vec![];
        for monitor in objects.iter().filter(|object| object["kind"] == "PodMonitor") {
            ensure!(monitor["spec"]["podMetricsEndpoints"].as_array().is_some_and(|endpoints| !endpoints.is_empty()), "{monitor}");
            found.extend(monitor["metadata"]["name"].as_str());
        }
        found.sort_unstable();
        ensure!(found == monitors, "{values:?}: {found:?}");
    }
    Ok(())
}

#[test]
fn demands_are_spread_as_told() -> Result<()> {
    for (values, argument) in [(&[][..], "--demand-spread=0"), (&["demandSpread=90"], "--demand-spread=90")] {
        let objects = objects(values)?;
        let csi = container(&objects, "gitmount-node", "csi")?;
        ensure!(texts(&csi["args"]).contains(&argument), "{csi}");
    }
    Ok(())
}

#[test]
fn the_driver_is_announced_as_pods_need_it() -> Result<()> {
    let objects = objects(&[])?;
    let driver = find(&objects, "CSIDriver", "git.liken.sh")?;
    let spec = &driver["spec"];
    ensure!(texts(&spec["volumeLifecycleModes"]) == ["Persistent", "Ephemeral"], "{spec}");
    ensure!(spec["attachRequired"] == false && spec["podInfoOnMount"] == true && spec["requiresRepublish"] == true, "{spec}");
    ensure!(spec["fsGroupPolicy"] == "None" && spec["seLinuxMount"].is_null(), "{spec}");
    ensure!(driver["metadata"]["labels"]["security.kubernetes.io/csi-ephemeral-volume-profile"] == "restricted", "{driver}");
    Ok(())
}

#[test]
fn mounts_outlive_an_update() -> Result<()> {
    let objects = objects(&[])?;
    let (node, hold) = (find(&objects, "DaemonSet", "gitmount-node")?, find(&objects, "DaemonSet", "gitmount-hold")?);
    ensure!(hold["spec"]["updateStrategy"]["type"] == "OnDelete", "{hold}");
    ensure!(node["spec"]["updateStrategy"]["rollingUpdate"]["maxSurge"] == 0, "two daemons would meet on a node");
    // The health of the plugin must not hang on the daemon's: a stopped daemon must not take the plugin with it.
    let csi = container(&objects, "gitmount-node", "csi")?;
    ensure!(csi["livenessProbe"]["httpGet"]["path"] == "/healthz" && csi["livenessProbe"]["httpGet"]["port"] == 9809, "{csi}");
    let fsd = container(&objects, "gitmount-node", "fsd")?;
    ensure!(fsd["lifecycle"].is_null(), "a hook would delay the next daemon");
    for (mount, path) in [("kubelet", "/var/lib/kubelet"), ("state", "/var/lib/gitmount")] {
        let mounts = fsd["volumeMounts"].as_array().context("mounts")?;
        let found = mounts.iter().find(|found| found["name"] == mount).context("a mount")?;
        ensure!(found["mountPath"] == path && found["mountPropagation"] == "Bidirectional", "{found}");
    }
    Ok(())
}

#[test]
fn paths_of_the_node_are_the_same_inside_and_outside() -> Result<()> {
    let objects = objects(&["kubeletRoot=/data/kubelet", "stateDir=/data/git", "socketDir=/data/sockets"])?;
    let pod = &find(&objects, "DaemonSet", "gitmount-node")?["spec"]["template"]["spec"];
    let host = |name: &str| -> Option<PathBuf> {
        let volume = pod["volumes"].as_array()?.iter().find(|volume| volume["name"] == name)?;
        volume["hostPath"]["path"].as_str().map(PathBuf::from)
    };
    for name in ["fsd", "csi"] {
        for mount in container(&objects, "gitmount-node", name)?["volumeMounts"].as_array().context("mounts")? {
            let (volume, path) = (mount["name"].as_str().context("name")?, mount["mountPath"].as_str().context("path")?);
            if ["kubelet", "state", "sockets"].contains(&volume) {
                ensure!(host(volume) == Some(PathBuf::from(path)), "{name}: {mount}");
                ensure!(path.starts_with("/data/"), "{name}: {mount}");
            }
        }
    }
    let csi = container(&objects, "gitmount-node", "csi")?;
    ensure!(texts(&csi["args"]).contains(&"--kubelet-endpoint=/data/kubelet/plugins/git.liken.sh/csi.sock"), "{csi}");
    Ok(())
}

#[test]
fn rules_for_the_prometheus_operator_are_the_file_for_prometheus() -> Result<()> {
    let objects = objects(&["prometheusRule.enabled=true", "podMonitor.enabled=true"])?;
    let rules = yaml(&fs::read_to_string(checkout("deploy/prometheus/rules.yaml")?)?)?;
    ensure!(find(&objects, "PrometheusRule", "gitmount")?["spec"]["groups"] == rules[0]["groups"]);
    let monitor = find(&objects, "PodMonitor", "gitmount-node")?;
    ensure!(monitor["spec"]["podMetricsEndpoints"].as_array().is_some_and(|endpoints| endpoints.len() == 2), "{monitor}");
    let monitor = find(&objects, "PodMonitor", "gitmount-controller")?;
    let pod = &find(&objects, "Deployment", "gitmount-controller")?["spec"]["template"];
    for (name, value) in monitor["spec"]["selector"]["matchLabels"].as_object().context("matchLabels")? {
        ensure!(pod["metadata"]["labels"][name] == *value, "{monitor} does not select {pod}");
    }
    let port = &monitor["spec"]["podMetricsEndpoints"][0]["port"];
    let ports = pod["spec"]["containers"][0]["ports"].as_array().context("ports")?;
    ensure!(ports.iter().any(|other| other["name"] == *port), "{monitor} names no port of {pod}");
    Ok(())
}
