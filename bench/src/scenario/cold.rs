//! Reading a tree for the first time: a fresh mount of objects that are already on the disk.

use std::time::Duration;

use anyhow::Result;
use gitmount_tests::daemon::{Daemon, view};
use gitmount_tests::mount::Account;

use crate::bench::Bench;
use crate::clock::{Samples, drop_caches, in_turns, time_shell};
use crate::report::{Limit, Row, Unit};

const READ_ALL: &str = "tar -cf - . | cat >/dev/null";

/// Cold `tar`, in turns with a checkout whose caches were dropped as well; then of mounts of a daemon with a holder, as in a cluster.
pub(crate) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let account = Account::new()?;
    account.mount(&bench.url(), &[])?.unmount()?;
    let fresh_mount = |caches: bool| -> Result<Duration> {
        let mounted = account.mount(&bench.url(), &[])?;
        if !caches {
            drop_caches()?;
        }
        let took = time_shell(mounted.path(), READ_ALL)?;
        mounted.unmount()?;
        Ok(took)
    };
    let (plain, ours) = in_turns(
        bench.runs(),
        |_| {
            drop_caches()?;
            time_shell(&bench.checkout, READ_ALL)
        },
        |_| fresh_mount(false),
    )?;
    // The objects were just fetched, as after most first mounts: they are in the page cache, the tree was never read.
    let mut fetched = Samples::default();
    fresh_mount(true)?;
    for _ in 0..bench.runs() {
        fetched.push(fresh_mount(true)?);
    }
    bench.keep(account);
    let held = held(bench)?;
    Ok(vec![
        Row::compared("cold `tar c`, caches dropped", Unit::Seconds, ours, "checkout", plain.clone(), Limit::Ratio(1.0)),
        Row::compared("the same, of a daemon with a holder", Unit::Seconds, held, "checkout", plain.clone(), Limit::Ratio(1.0)),
        Row::compared("cold `tar c`, objects just fetched", Unit::Seconds, fetched, "checkout, caches dropped", plain, Limit::None),
    ])
}

/// A view is made anew for each run: the last unpublish ends it.
fn held(bench: &Bench<'_>) -> Result<Samples> {
    let daemon = Daemon::held(&[])?;
    let mut client = daemon.client()?;
    let target = daemon.target("t");
    let mut samples = Samples::default();
    for _ in 0..bench.runs() {
        client.publish(&target, view(&bench.url()), None)?;
        nix::unistd::sync();
        drop_caches()?;
        samples.push(time_shell(&target, READ_ALL)?);
        client.unpublish(&target)?;
    }
    Ok(samples)
}
