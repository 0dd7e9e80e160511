//! The first mount of a remote repository, until `ls` answers, against a shallow clone.

use std::time::Duration;

use anyhow::Result;
use gitmount_tests::mount::Account;

use crate::bench::{Bench, clone_command, list, memory};
use crate::clock::{Samples, in_turns};
use crate::process::usage;
use crate::report::{Limit, Row, Unit};

/// Time and peak memory, each run with a store, a home and directories of its own.
pub(crate) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let (mut git_peak, mut our_peak) = (Samples::default(), Samples::default());
    let (plain, ours) = in_turns(
        bench.runs(),
        |_| {
            let target = bench.fresh("clone");
            let needed = usage(&clone_command(&bench.url(), &target))?;
            git_peak.push_value(needed.peak);
            Ok(Duration::from_secs_f64(needed.wall) + list(&target)?)
        },
        |_| {
            let account = Account::new()?;
            let target = account.mount_point()?;
            let command = account.command(["mount".as_ref(), bench.url().as_ref(), target.as_os_str()]);
            let needed = usage(&command)?;
            let took = Duration::from_secs_f64(needed.wall) + list(&target)?;
            // The command may have fetched itself or left it to the process that stays.
            our_peak.push_value(needed.peak.max(memory(&account, "VmHWM")?));
            account.run(["unmount".as_ref(), target.as_os_str()])?.success()?;
            bench.keep(account);
            Ok(took)
        },
    )?;
    Ok(vec![
        Row::compared("first mount until `ls` answers", Unit::Seconds, ours, "`git clone --depth 1`", plain, Limit::Ratio(0.6)),
        Row::compared("peak memory of the first fetch", Unit::Bytes, our_peak, "`git clone --depth 1`", git_peak, Limit::Ratio(1.0)),
    ])
}
