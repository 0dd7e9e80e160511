//! The units in `deploy/systemd`: systemd takes them, and every option they give is one that gitmount has.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gitmount_tests::mount::gitmount;
use gitmount_tests::run;
use gitmount_tests::scratch;

fn units() -> Result<Vec<PathBuf>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate lies in the workspace")?.join("deploy/systemd");
    let mut units: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    units.sort();
    Ok(units)
}

#[test]
fn systemd_takes_the_units() -> Result<()> {
    run::require("systemd-analyze", "systemd")?;
    let dir = scratch::dir()?;
    let program = gitmount()?;
    let mut copies = vec![];
    for unit in units()? {
        // The program must exist where a unit says, which it does here in another place.
        let text = fs::read_to_string(&unit)?.replace("/usr/bin/gitmount", &program.to_string_lossy());
        let copy = dir.path().join(unit.file_name().context("a unit has a name")?);
        fs::write(&copy, text)?;
        copies.push(copy);
    }
    let finished = run::run(run::command("systemd-analyze").args(["verify", "--man=no", "--generators=no"]).args(&copies))?;
    let about_ours: Vec<String> = finished.err().lines().filter(|line| line.contains("gitmount")).map(str::to_owned).collect();
    ensure!(about_ours.is_empty(), "{about_ours:?}");
    Ok(())
}

#[test]
fn the_units_give_options_that_there_are() -> Result<()> {
    let units = units()?;
    ensure!(units.len() == 2, "{units:?}");
    for unit in units {
        let text = fs::read_to_string(&unit)?;
        // Without it a stop removes the directory, with the sockets of root's other mounts in it.
        ensure!(text.contains("\nRuntimeDirectoryPreserve=yes\n"), "{} gives its directory up", unit.display());
        // Without it five ends within ten seconds are the last ones, and readers wait for ever.
        ensure!(text.contains("\nStartLimitIntervalSec=0\n"), "{} is not always started again", unit.display());
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/gitmount ")).context("it starts gitmount")?;
        let command = line.split(' ').next().context("a command")?;
        let help = run::run(run::command(gitmount()?).args([command, "--help"]))?.success()?.out();
        for option in line.split(' ').filter(|word| word.starts_with("--")) {
            ensure!(help.contains(option), "`gitmount {command}` has no {option}");
        }
    }
    Ok(())
}
