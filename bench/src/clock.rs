//! Timing: commands in turns, medians, and the kernel's caches.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::run::{self, run_with};
use gitmount_tests::scratch;

/// How long one command of a bench may take.
pub(crate) const LONG: Duration = Duration::from_secs(1800);

/// Tells on standard error what happens; the table alone goes to standard output.
pub(crate) fn say(what: &str) {
    eprintln!("bench: {what}");
}

/// Runs a command to its end, which must be success, and gives its time.
pub(crate) fn time(command: &mut Command) -> Result<Duration> {
    Ok(run_with(command, &[], LONG)?.success()?.took)
}

/// The time of a shell command in `dir`, whatever its exit code: `grep` ends with 1 when it finds nothing.
pub(crate) fn time_shell(dir: &Path, script: &str) -> Result<Duration> {
    let mut command = run::command("sh");
    let finished = run_with(command.args(["-c", script]).current_dir(dir), &[], LONG)?;
    ensure!(finished.code() <= 1 && finished.stderr.is_empty(), "`{script}` ended with {}: {}", finished.code(), finished.err());
    Ok(finished.took)
}

/// The times of two sides, measured in turns so that whatever else the machine does falls on both.
pub(crate) fn in_turns(
    runs: usize,
    mut plain: impl FnMut(usize) -> Result<Duration>,
    mut gitmount: impl FnMut(usize) -> Result<Duration>,
) -> Result<(Samples, Samples)> {
    let (mut left, mut right) = (Samples::default(), Samples::default());
    // What one side has written is on the disk before the other is timed: a sync of its own would wait for all of it.
    let clean = |samples: &mut Samples, side: &mut dyn FnMut(usize) -> Result<Duration>, n| -> Result<()> {
        nix::unistd::sync();
        samples.push(side(n)?);
        Ok(())
    };
    for n in 0..runs {
        // Who goes first takes turns, too.
        if n % 2 == 0 {
            clean(&mut left, &mut plain, n)?;
            clean(&mut right, &mut gitmount, n)?;
        } else {
            clean(&mut right, &mut gitmount, n)?;
            clean(&mut left, &mut plain, n)?;
        }
    }
    Ok((left, right))
}

/// Forgets what the kernel has cached: pages, dentries and inodes.
pub(crate) fn drop_caches() -> Result<()> {
    scratch::drop_caches(true).context("a cold run needs root")
}

/// Samples of one figure, in its unit.
#[derive(Debug, Clone, Default, serde::Serialize)]
#[serde(transparent)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// One sample only.
    pub(crate) fn one(value: f64) -> Self {
        Samples(vec![value])
    }

    /// Adds a time, in seconds.
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took.as_secs_f64());
    }

    /// Adds a value.
    pub(crate) fn push_value(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The median; of an even number of samples the mean of the middle two.
    pub(crate) fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => f64::NAN,
            n if n % 2 == 1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_one() {
        assert_eq!(Samples(vec![3.0, 1.0, 100.0]).median(), 3.0);
        assert_eq!(Samples(vec![4.0, 1.0, 2.0, 100.0]).median(), 3.0);
        assert!(Samples::default().median().is_nan());
    }

    #[test]
    fn both_sides_run_as_often_and_take_turns_at_going_first() {
        let order = std::cell::RefCell::new(String::new());
        let note = |side: char| {
            order.borrow_mut().push(side);
            Ok(Duration::from_secs(1))
        };
        let (left, right) = in_turns(3, |_| note('p'), |_| note('g')).unwrap();
        assert_eq!((left.0.len(), right.0.len()), (3, 3));
        assert_eq!(order.into_inner(), "pggppg");
    }
}
