//! The dashboard, the alerts and the guides name metrics that there are.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_csi::controller::metrics::Metrics as ControllerMetrics;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::deploy::checkout;
use gitmount_tests::fixtures;
use gitmount_tests::mount::gitmount_csi;
use gitmount_tests::run::wait_for;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::{free_port, http_get};

const DEADLINE: Duration = Duration::from_secs(30);

/// Killed at the end.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What is served, once it is.
fn metrics(address: &str) -> Option<String> {
    http_get(address, "/metrics").ok().filter(|answer| answer.contains("# EOF"))
}

/// Every name that can stand in a query, from the types that are told.
fn served(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let Some((name, kind)) = line.split_once(' ') else { continue };
        match kind {
            "counter" => names.extend([format!("{name}_total")]),
            "histogram" => names.extend(["", "_bucket", "_sum", "_count"].map(|end| format!("{name}{end}"))),
            _ => names.extend([name.to_owned()]),
        }
    }
    names
}

/// Every word of `text` that is a metric of ours by its beginning. What is cut short by `_` stands for several.
fn named(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let ours = |word: &&str| {
        let rest = word.strip_prefix("git_csi_").or_else(|| word.strip_prefix("gitmount_"));
        rest.is_some_and(|rest| rest.contains('_')) && !word.ends_with('_')
    };
    words.filter(ours).map(str::to_owned).collect()
}

#[test]
fn what_is_named_is_served() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let ports = [free_port()?, free_port()?];
    let [of_daemon, of_plugin] = ports.map(|port| format!("127.0.0.1:{port}"));
    let daemon = Daemon::start(&["--store-limit", "1G", "--metrics", &of_daemon])?;
    daemon.publish("t", view(&server.url("r.git")))?;
    let mut plugin = Command::new(gitmount_csi()?);
    plugin.args(["node", "--node-name", "n", "--listen", &of_plugin, "--daemon"]).arg(daemon.socket());
    plugin.arg("--endpoint").arg(dir.path().join("csi.sock")).stdout(Stdio::null()).stderr(Stdio::null());
    let _plugin = Running(plugin.spawn().context("gitmount-csi")?);

    let mut there = served(&wait_for("the daemon's metrics", DEADLINE, || metrics(&of_daemon))?);
    there.extend(served(&wait_for("the plugin's metrics", DEADLINE, || metrics(&of_plugin))?));
    // The controller needs an API server to start; its metrics do not.
    there.extend(served(&ControllerMetrics::default().render()?));
    ensure!(there.contains("gitmount_store_limit_bytes") && there.contains("git_csi_daemon_up"), "{there:?}");
    for path in [
        "deploy/grafana/gitmount.json",
        "deploy/prometheus/rules.yaml",
        "docs/daemon.md",
        "docs/kubernetes.md",
        "docs/troubleshooting.md",
        "docs/webhooks.md",
    ] {
        let names = named(&fs::read_to_string(checkout(path)?)?);
        ensure!(!names.is_empty(), "{path} names no metric");
        let unknown: Vec<&String> = names.difference(&there).collect();
        ensure!(unknown.is_empty(), "{path} names {unknown:?}, which nobody serves; there are {there:?}");
    }
    let (dashboard, alerts) =
        (fs::read_to_string(checkout("deploy/grafana/gitmount.json")?)?, fs::read_to_string(checkout("deploy/prometheus/rules.yaml")?)?);
    for metric in ["git_csi_webhook_requests_total", "git_csi_webhook_marked_total", "git_csi_demanded_pulls_total"] {
        ensure!(named(&dashboard).contains(metric), "the dashboard does not show {metric}");
    }
    for result in ["refused", "malformed", "limited", "failed"] {
        let told = alerts.lines().any(|line| line.contains("git_csi_webhook_requests_total") && line.contains(result));
        ensure!(told, "no alert tells of webhooks that are {result}");
    }
    Ok(())
}
