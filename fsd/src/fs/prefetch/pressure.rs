//! Whether the machine is short of memory: reading ahead would then push out what somebody needs.

use std::time::{Duration, Instant};

/// A look at the machine is trusted this long.
const FRESH: Duration = Duration::from_secs(1);
/// Percent of the last ten seconds in which some task waited for memory.
const WAITING: f64 = 10.0;
/// Short is also when less than this part of the memory is available.
const PART: u64 = 16;

/// Looks at the machine once in a while.
#[derive(Debug, Default)]
pub(super) struct Pressure {
    looked: Option<Instant>,
    short: bool,
}

impl Pressure {
    /// Whether memory is short; cheap, since the machine is looked at once a second.
    pub(super) fn is_short(&mut self) -> bool {
        if self.looked.is_none_or(|at| at.elapsed() > FRESH) {
            let read = |path| std::fs::read_to_string(path).unwrap_or_default();
            self.short = short(&read("/proc/pressure/memory"), &read("/proc/meminfo"));
            self.looked = Some(Instant::now());
        }
        self.short
    }
}

/// Decides from the texts of both files; a file that is missing or says nothing (old kernels, switched off) is no reason.
fn short(pressure: &str, meminfo: &str) -> bool {
    waiting(pressure).is_some_and(|percent| percent >= WAITING) || available(meminfo).is_some_and(|(free, all)| free < all / PART)
}

/// `some avg10=` of a pressure file.
fn waiting(pressure: &str) -> Option<f64> {
    let some = pressure.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|field| field.strip_prefix("avg10="))?.parse().ok()
}

/// `MemAvailable` and `MemTotal`, in KiB.
fn available(meminfo: &str) -> Option<(u64, u64)> {
    let field = |name: &str| -> Option<u64> {
        let rest = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.trim().strip_suffix(" kB")?.parse().ok()
    };
    Some((field("MemAvailable")?, field("MemTotal")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pressure(avg10: &str) -> String {
        format!("some avg10={avg10} avg60=90.00 avg300=0.00 total=1\nfull avg10=80.00 avg60=0.00 avg300=0.00 total=1\n")
    }

    fn meminfo(available: u64) -> String {
        format!("MemTotal:        1600000 kB\nMemFree:            1 kB\nMemAvailable:   {available} kB\n")
    }

    #[test]
    fn the_fields_are_found() {
        assert_eq!(waiting(&pressure("1.25")), Some(1.25));
        assert_eq!(available(&meminfo(7)), Some((7, 1_600_000)));
    }

    #[test]
    fn tasks_that_wait_for_memory_mean_short() {
        assert!(!short(&pressure("9.99"), &meminfo(800_000)));
        assert!(short(&pressure("10.00"), &meminfo(800_000)));
    }

    #[test]
    fn little_available_memory_means_short() {
        assert!(!short(&pressure("0.00"), &meminfo(100_000)));
        assert!(short(&pressure("0.00"), &meminfo(99_999)));
    }

    #[test]
    fn what_is_not_said_is_no_reason() {
        for text in ["", "some", "some avg10=\n", "MemTotal: 1 kB", "MemAvailable: many kB\nMemTotal: 9 kB"] {
            assert!(!short(text, text), "{text:?}");
        }
        assert!(short("", &meminfo(0)) && short(&pressure("50.00"), ""));
    }
}
