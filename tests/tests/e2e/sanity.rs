//! csi-sanity, the CSI project's own test suite, against the node plugin with a daemon on this machine. Its volumes are a repository
//! that is fetched and mounted. What it skips is listed here.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::build::Component;
use gitmount_tests::csi::{Front, Plugin};
use gitmount_tests::daemon::Daemon;
use gitmount_tests::fixtures;
use gitmount_tests::run::{DEADLINE, command, run_with};
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use serde_json::Value;

/// Tests that are skipped: words of their full names, how many they are, and why. Those of the first part would fail, since they ask for
/// what the driver does not offer; the suite skips those of the second part itself, by the driver's capabilities.
const LEFT_OUT: [(&str, usize, &str); 1] =
    [("[Controller Server]", 67, "no controller of the driver's makes volumes: they are repositories that exist")];
const SKIPPED: [(&str, usize, &str); 6] = [
    ("[GroupController Server]", 1, "there are no groups of volumes"),
    ("[GroupController VolumeGroupSnapshots]", 5, "there are no snapshots: a tag is one"),
    ("with single node multi writer capability", 1, "nobody writes"),
    ("NodeExpandVolume", 4, "a repository has the size that it has"),
    ("NodeGetVolumeHealth", 2, "the condition of a volume is in its statistics"),
    ("NodeGetStorageHealth", 1, "a node has no storage of the driver's"),
];

#[test]
fn what_the_driver_offers_passes_whole() -> Result<()> {
    let program: PathBuf = Component::Etcd.programs()?.join("csi-sanity");
    let daemon = Daemon::held(&[])?;
    let plugin = Plugin::start(&daemon)?;
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "one\n")])?;
    let server = HttpServer::plain(dir.path())?;
    let front = Front::start(&plugin, &[("url", &server.url("r.git")), ("ref", "main")])?;
    let report = dir.path().join("report.json");
    let mut sanity = command(program);
    sanity.arg("-csi.endpoint").arg(front.socket()).arg("-csi.mountdir").arg(dir.path().join("targets"));
    sanity.arg("-csi.stagingdir").arg(dir.path().join("stages")).args(["-ginkgo.no-color", "-ginkgo.json-report"]).arg(&report);
    for (skipped, ..) in LEFT_OUT {
        sanity.arg("-ginkgo.skip").arg(skipped.replace('[', "\\[").replace(']', "\\]"));
    }
    let finished = run_with(&mut sanity, &[], DEADLINE)?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&report).context("csi-sanity wrote no report")?)?;
    let known = || LEFT_OUT.iter().chain(&SKIPPED);
    let mut skipped = vec![0; known().count()];
    let (mut passed, mut wrong) = (0, vec![]);
    for test in report[0]["SpecReports"].as_array().into_iter().flatten().filter(|test| test["LeafNodeType"] == "It") {
        let containers = test["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let words: Vec<&str> = containers.chain([&test["LeafNodeText"]]).filter_map(Value::as_str).collect();
        let name = words.join(" ");
        match (test["State"].as_str(), known().position(|(words, ..)| name.contains(words))) {
            (Some("passed"), None) => passed += 1,
            (Some("skipped" | "pending"), Some(place)) => skipped[place] += 1,
            (state, _) => wrong.push(format!("{name}: {state:?} {}", test["Failure"]["Message"])),
        }
    }
    ensure!(wrong.is_empty(), "these failed, or are skipped for no reason that is known: {wrong:#?}\n{}", finished.out());
    for ((words, expected, why), counted) in known().zip(skipped) {
        println!("{counted} tests of {words:?} are skipped: {why}");
        ensure!(counted == *expected, "{counted} tests of {words:?} are skipped, not {expected}");
    }
    let fetched = server.requests().iter().filter(|asked| asked.fetch && asked.status == 200).count();
    ensure!(fetched > 0, "no volume was a repository");
    ensure!(daemon.client()?.status()?.views.is_empty(), "a volume is left behind");
    ensure!(finished.status.success() && passed == 22, "{passed} tests passed: {}", finished.out());
    Ok(())
}
