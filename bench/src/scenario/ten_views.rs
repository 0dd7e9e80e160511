//! Ten views of one remote repository on a node that never saw it, until all can be read, against ten shallow clones at once.

use std::path::Path;
use std::time::Instant;

use anyhow::Result;
use gitmount_tests::daemon::{Client, Daemon, view};

use crate::bench::{Bench, clone_command, list};
use crate::clock::Samples;
use crate::process::{cpu, usage};
use crate::report::{Limit, Row, Unit};

const VIEWS: usize = 10;

/// Time, and CPU time but for the host's. Once: ten clones take ten times the disk.
pub(crate) fn measure(bench: &Bench<'_>) -> Result<Vec<Row>> {
    let (mut ours, mut our_cpu, mut plain, mut plain_cpu) = <(Samples, Samples, Samples, Samples)>::default();
    let mut all = std::process::Command::new("sh");
    let mut script = String::new();
    for _ in 0..VIEWS {
        let clone = clone_command(&bench.url(), &bench.fresh("clone"));
        let words = clone.get_args().map(|word| format!("'{}'", word.to_string_lossy()));
        script.push_str(&format!("git {} & all=\"$all $!\"\n", words.collect::<Vec<_>>().join(" ")));
        all.envs(clone.get_envs().filter_map(|(name, value)| Some((name, value?))));
    }
    all.arg("-c").arg(script + "for one in $all; do wait $one || exit 1; done");
    let needed = usage(&all)?;
    plain.push_value(needed.wall);
    plain_cpu.push_value(needed.cpu);

    let daemon = Daemon::start(&[])?;
    let before = cpu(&[daemon.pid()?])?;
    let began = Instant::now();
    let (url, socket) = (bench.url(), daemon.socket());
    let targets: Vec<_> = (0..VIEWS).map(|n| daemon.target(&format!("t{n}"))).collect();
    let show = |target: &Path| -> Result<()> {
        Client::connect(&socket)?.publish(target, view(&url), None)?;
        list(target).map(drop)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = targets.iter().map(|target| scope.spawn(|| show(target))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a publish panicked"))?)
    })?;
    ours.push_value(began.elapsed().as_secs_f64());
    our_cpu.push_value(cpu(&[daemon.pid()?])? - before);
    let clones = "ten `git clone --depth 1` at once";
    Ok(vec![
        Row::compared("ten views of one repository, cold", Unit::Seconds, ours, clones, plain, Limit::Ratio(0.05)),
        Row::compared("the same, CPU", Unit::Seconds, our_cpu, clones, plain_cpu, Limit::Ratio(0.05)),
    ])
}
