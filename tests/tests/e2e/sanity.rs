//! csi-sanity, the CSI project's own test suite, against the node plugin with a daemon on this machine. What it skips is listed here.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::build::Component;
use gitmount_tests::csi::Plugin;
use gitmount_tests::daemon::Daemon;
use gitmount_tests::run::{DEADLINE, command, run_with};
use gitmount_tests::scratch;
use serde_json::Value;

/// Tests that are skipped: words of their full names, how many they are, and why. Those of the first part would fail, since they ask for
/// what the driver does not offer; the suite skips those of the second part itself, by the driver's capabilities.
const LEFT_OUT: [(&str, usize, &str); 4] = [
    ("[Controller Server]", 67, "no controller makes volumes: they are repositories that exist, so there is no service to call"),
    ("NodeUnpublishVolume should remove target path", 1, "its volume is made by CreateVolume and published for writing"),
    ("NodeStageVolume should fail when no volume capability is provided", 1, "its volume is made by CreateVolume"),
    ("NodeGetVolumeStats should fail when volume does not exist on the specified path", 1, "its volume is made by CreateVolume"),
];
const SKIPPED: [(&str, usize, &str); 8] = [
    ("[GroupController Server]", 1, "there are no groups of volumes"),
    ("[GroupController VolumeGroupSnapshots]", 5, "there are no snapshots: a tag is one"),
    ("with single node multi writer capability", 1, "nobody writes"),
    ("NodeExpandVolume", 4, "a repository has the size that it has"),
    ("NodeGetVolumeHealth", 2, "the condition of a volume is in its statistics"),
    ("NodeGetStorageHealth", 1, "a node has no storage of the driver's"),
    ("Node Service should work", 1, "its volume is made by CreateVolume and published for writing"),
    ("Node Service should be idempotent", 1, "its volume is made by CreateVolume and published for writing"),
];

#[test]
fn what_the_driver_offers_passes_whole() -> Result<()> {
    let program: PathBuf = Component::Etcd.programs()?.join("csi-sanity");
    let daemon = Daemon::held(&[])?;
    let plugin = Plugin::start(&daemon)?;
    let dir = scratch::dir()?;
    let report = dir.path().join("report.json");
    let mut sanity = command(program);
    sanity.arg("-csi.endpoint").arg(plugin.socket()).arg("-csi.mountdir").arg(dir.path().join("targets"));
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
    ensure!(finished.status.success() && passed == 17, "{passed} tests passed: {}", finished.out());
    Ok(())
}
