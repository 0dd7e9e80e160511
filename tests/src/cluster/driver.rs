//! The driver as people install it: the chart in `deploy/chart`, rendered by the real helm, with the programs under test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::build::Component;
use super::image::{self, Image};
use super::process::until;
use super::{Alone, Cluster, Event, Namespace};
use crate::run::{command, run};
use crate::scratch;

/// The namespace that the driver is in.
pub const NAMESPACE: &str = "gitmount-system";
/// The chart's values that most tests want: the tests' servers may speak `http://`, and what fails is tried again soon.
pub const USUAL: [&str; 2] = ["hosts.allowHttp=true", "demandMinInterval=1s"];
const SETS: [&str; 2] = ["gitmount-hold", "gitmount-node"];
/// Its Deployment, unless the values leave it out.
const CONTROLLER: &str = "gitmount-controller";
const DEADLINE: Duration = Duration::from_secs(120);

/// A driver that is deployed. It stays when this is dropped, so that the next test need not start it.
#[derive(Debug)]
pub struct Driver<'a> {
    cluster: &'a Cluster,
    manifest: String,
}

impl Cluster {
    /// Deploys the driver, or changes the one that is there, and waits until it runs on every node, and its controller. `values` are
    /// the chart's, as `helm --set` takes them. Only for a test that has the cluster to itself: others would have their driver changed below them.
    pub fn deploy_driver(&self, _: &Alone, values: &[&str]) -> Result<Driver<'_>> {
        self.deployed(values)
    }

    /// The driver with the [`USUAL`] values, for a test that leaves it as it is and may share it with others. The test has its namespace
    /// already, so that none that has the cluster to itself changes the driver meanwhile.
    pub fn usual_driver(&self, _: &Namespace) -> Result<Driver<'_>> {
        self.deployed(&USUAL)
    }

    /// One at a time: of several tests that want the usual driver the first deploys it.
    fn deployed(&self, values: &[&str]) -> Result<Driver<'_>> {
        let _lock = scratch::exclusive(&format!("cluster{}-driver", self.layout.network().slot()))?;
        let mut driver = Driver { cluster: self, manifest: String::new() };
        driver.update(&image::gitmount()?, values)?;
        Ok(driver)
    }

    /// What helm makes of the chart with these values.
    pub fn render_chart(&self, image: &Image, values: &[&str]) -> Result<String> {
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate lies in the workspace")?.join("deploy/chart");
        let (repository, tag) = image.name().split_once(':').context("the name of an image has a tag")?;
        let mut helm = command(helm()?);
        helm.args(["template", "gitmount"]).arg(&chart).args(["--namespace", NAMESPACE, "--include-crds"]);
        helm.env("HOME", self.dir());
        let own = [format!("image.repository={repository}"), format!("image.tag={tag}"), "image.pullPolicy=Never".into()];
        for value in own.iter().map(String::as_str).chain(values.iter().copied()) {
            helm.args(["--set", value]);
        }
        Ok(run(&mut helm)?.success()?.out())
    }

    /// Waits until the pods of a DaemonSet are Ready on every node, and, unless they are replaced by hand only, of its newest form.
    ///
    /// # Errors
    /// After `deadline`, with the pods of the namespace and their events.
    pub fn wait_daemonset(&self, namespace: &str, name: &str, deadline: Duration) -> Result<()> {
        self.wait_rolled_out(namespace, ("daemonset", name), deadline, |set| {
            let wanted = number(set, "desiredNumberScheduled");
            let newest = set["spec"]["updateStrategy"]["type"] == "OnDelete" || number(set, "updatedNumberScheduled") == wanted;
            newest && wanted > 0 && number(set, "numberReady") == wanted
        })
    }

    /// Waits until a Deployment has as many pods as it wants, all of them Ready and of its newest form.
    ///
    /// # Errors
    /// The same.
    pub fn wait_deployment(&self, namespace: &str, name: &str, deadline: Duration) -> Result<()> {
        self.wait_rolled_out(namespace, ("deployment", name), deadline, |deployment| {
            let wanted = deployment["spec"]["replicas"].as_u64();
            ["replicas", "updatedReplicas", "readyReplicas"].iter().all(|field| Some(number(deployment, field)) == wanted)
        })
    }

    fn wait_rolled_out(
        &self,
        namespace: &str,
        (kind, name): (&str, &str),
        deadline: Duration,
        done: impl Fn(&Value) -> bool,
    ) -> Result<()> {
        let ready = until(&format!("the readiness of the {kind} {namespace}/{name}"), deadline, None, || {
            let object = self.kubectl.json(&["get", kind, name, "-n", namespace])?;
            let seen = object["status"]["observedGeneration"] == object["metadata"]["generation"];
            Ok((seen && done(&object)).then_some(()))
        });
        ready.map_err(|error| {
            let pods = self.kubectl.out(&["get", "pods", "-n", namespace, "-o", "wide"]).unwrap_or_default();
            let events = self.kubectl.json(&["get", "events", "-n", namespace]).unwrap_or_default();
            let events: Vec<Event> = events["items"].as_array().into_iter().flatten().map(Event::from).collect();
            anyhow::anyhow!("{error:#}; its namespace has the pods\n{pods}and the events {events:#?}")
        })
    }
}

impl Driver<'_> {
    /// Changes the image and the values, as an upgrade does.
    pub fn update(&mut self, image: &Image, values: &[&str]) -> Result<()> {
        self.manifest = self.cluster.render_chart(image, values)?;
        if self.is_deployed() {
            return Ok(());
        }
        if self.record().exists() {
            fs::remove_file(self.record())?;
        }
        self.cluster.load_image(image)?;
        let labels = json!({"pod-security.kubernetes.io/enforce": "privileged"});
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}});
        self.cluster.kubectl.apply_object(&namespace)?;
        self.cluster.kubectl.apply(&self.manifest)?;
        self.wait(DEADLINE)?;
        Ok(fs::write(self.record(), &self.manifest)?)
    }

    /// Waits until everything of the manifest runs.
    fn wait(&self, deadline: Duration) -> Result<()> {
        for set in SETS {
            self.cluster.wait_daemonset(NAMESPACE, set, deadline)?;
        }
        if self.manifest.contains("kind: Deployment") {
            self.cluster.wait_deployment(NAMESPACE, CONTROLLER, deadline)?;
        }
        Ok(())
    }

    /// Whether exactly this runs already, so that there is nothing to wait for.
    fn is_deployed(&self) -> bool {
        let before = fs::read_to_string(self.record()).unwrap_or_default();
        before == self.manifest && self.wait(Duration::ZERO).is_ok()
    }

    /// The manifest that was deployed last.
    fn record(&self) -> PathBuf {
        self.cluster.dir().join("driver.yaml")
    }

    /// The name of its pod on a node (`node1`); `part` is `node` or `hold`.
    pub fn pod(&self, part: &str, node: &str) -> Result<String> {
        let selector = format!("spec.nodeName={node}");
        let pods = self.cluster.kubectl.json(&["get", "pods", "-n", NAMESPACE, "--field-selector", &selector])?;
        let prefix = format!("gitmount-{part}-");
        let names = pods["items"].as_array().into_iter().flatten().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let found = names.filter_map(|pod| pod["metadata"]["name"].as_str()).find(|name| name.starts_with(&prefix));
        Ok(found.with_context(|| format!("{node} has no pod {prefix}…"))?.to_owned())
    }

    /// The views of the daemon on a node that show something of `url`, as `gitmount status --output json` lists them.
    pub fn views(&self, node: &str, url: &str) -> Result<Vec<Value>> {
        let words = ["gitmount", "status", "--output", "json"];
        let out = self.cluster.kubectl.exec_in(NAMESPACE, &self.pod("node", node)?, "fsd", &words)?.success()?.out();
        let views: Vec<Value> = serde_json::from_str(&out).with_context(|| format!("gitmount status printed {out}"))?;
        Ok(views.into_iter().filter(|view| view["url"] == url).collect())
    }

    /// The metrics of a container (`fsd`, `csi`) on a node.
    pub fn metrics(&self, node: &str, container: &str) -> Result<String> {
        let pod = self.cluster.kubectl.json(&["get", "pod", &self.pod("node", node)?, "-n", NAMESPACE])?;
        let address = pod["status"]["podIP"].as_str().context("the node's pod has an address")?;
        let port = if container == "fsd" { 9808 } else { 9809 };
        let mut curl = command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "10", &format!("http://{address}:{port}/metrics")]);
        Ok(run(&mut curl)?.success()?.out())
    }

    /// `git_csi_volume_abnormal` of a volume; `None` when it has no series.
    pub fn abnormal(&self, node: &str, namespace: &str, volume: &str) -> Result<Option<u64>> {
        let text = self.metrics(node, "csi")?;
        let series = format!("git_csi_volume_abnormal{{namespace=\"{namespace}\",volume=\"{volume}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&series)).map(|value| Ok(value.trim().parse()?)).transpose()
    }

    /// Takes it away, with its namespace.
    pub fn remove(self) -> Result<()> {
        let mut delete = self.cluster.kubectl.command(&["delete", "--ignore-not-found", "--timeout=100s", "-f", "-"]);
        crate::run::run_with(&mut delete, self.manifest.as_bytes(), DEADLINE)?.success()?;
        self.cluster.kubectl.delete(&["namespace", NAMESPACE])
    }
}

/// A number of an object's status; where it is zero it is left out.
fn number(object: &Value, field: &str) -> u64 {
    object["status"][field].as_u64().unwrap_or(0)
}

/// The built helm.
pub fn helm() -> Result<PathBuf> {
    Ok(Component::Helm.programs()?.join("helm"))
}
