//! Asking the host for news when there is none, over HTTP, as a mount that follows a ref does all day.

use anyhow::{Result, ensure};
use gitmount_tests::git::Repo;
use gitmount_tests::mount::Account;
use gitmount_tests::run;

use crate::bench::{Bench, clone_command};
use crate::clock::Samples;
use crate::process::{cpu, usage};
use crate::report::{Limit, Row, Unit};

/// Polls per sample: the kernel tells CPU time in ticks of 10 ms.
const POLLS: usize = 20;

/// CPU time and requests of a poll, against `git fetch --depth 1`.
pub(crate) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let url = bench.http.url("tree.git");
    let clone = bench.fresh("poll-clone");
    run::run_with(&mut clone_command(&url, &clone), &[], crate::clock::LONG)?.success()?;
    let account = Account::new()?;
    let mounted = account.mount(&url, &["--allow-http"])?;
    // The first one may learn what the host speaks.
    mounted.pull()?;
    let (mut ours, mut plain, mut requests) = (Samples::default(), Samples::default(), Samples::default());
    for _ in 0..bench.runs() {
        let processes = account.processes();
        ensure!(!processes.is_empty(), "no process serves the mount");
        bench.http.take_requests();
        let before = cpu(&processes)?;
        for _ in 0..POLLS {
            mounted.pull()?;
        }
        ours.push_value((cpu(&processes)? - before) / POLLS as f64);
        requests.push_value(bench.http.take_requests().len() as f64 / POLLS as f64);
        plain.push_value(usage(&Repo::at(&clone).command(["fetch", "--quiet", "--depth", "1"]))?.cpu);
    }
    mounted.unmount()?;
    bench.keep(account);
    Ok(vec![
        Row::compared("a poll without news, CPU", Unit::Milliseconds, ours, "`git fetch --depth 1`", plain, Limit::Value(0.020)),
        Row::alone("a poll without news, requests", Unit::Count, requests, Limit::Value(1.0)),
    ])
}
