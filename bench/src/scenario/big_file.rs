//! The first read of a big file.

use std::time::Duration;

use anyhow::Result;
use gitmount_tests::mount::Account;

use crate::bench::Bench;
use crate::clock::{Samples, drop_caches, in_turns, time_shell};
use crate::report::{Limit, Row, Unit};
use crate::repos::{BIG_FILE, MAIN, check_out, write_big};

/// Caches dropped on both sides, in turns; then with the data in memory: the pack here, the file there.
pub(crate) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let repo = write_big(bench.served(), bench.options)?;
    let checkout = bench.fresh("big-checkout");
    check_out(&repo, MAIN, &checkout)?;
    let url = bench.daemon.url("big.git");
    let account = Account::new()?;
    account.mount(&url, &[])?.unmount()?;
    let read = format!("cat {BIG_FILE} | cat >/dev/null");
    let fresh_mount = |caches: bool| -> Result<Duration> {
        let mounted = account.mount(&url, &[])?;
        if !caches {
            drop_caches()?;
        }
        let took = time_shell(mounted.path(), &read)?;
        mounted.unmount()?;
        Ok(took)
    };
    let (plain, ours) = in_turns(
        bench.runs(),
        |_| {
            drop_caches()?;
            time_shell(&checkout, &read)
        },
        |_| fresh_mount(false),
    )?;
    let (mut plain_cached, mut ours_cached) = (Samples::default(), Samples::default());
    time_shell(&checkout, &read)?;
    fresh_mount(true)?;
    for _ in 0..bench.runs() {
        plain_cached.push(time_shell(&checkout, &read)?);
        ours_cached.push(fresh_mount(true)?);
    }
    bench.keep(account);
    let size = bench.options.big() >> 20;
    Ok(vec![
        Row::compared(&format!("{size} MiB file, first read, caches dropped"), Unit::Seconds, ours, "checkout", plain, Limit::Ratio(2.0)),
        Row::compared(
            &format!("{size} MiB file, first read, pack in memory"),
            Unit::Seconds,
            ours_cached,
            "checkout in memory",
            plain_cached,
            Limit::None,
        ),
    ])
}
