//! How often a view pulls, and what it does when its host does not answer at the start.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use gitmount_store::{Fault, StoreError};

/// How often a view pulls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pull {
    /// Every so often, with jitter; a local repository is watched instead.
    Every(Duration),
    /// Once, when the mount begins, once after a restart of the daemon, and on demand.
    OnDemand,
    /// Once, when the mount begins, and on demand.
    Never,
}

impl Default for Pull {
    fn default() -> Self {
        Pull::Every(Duration::from_secs(300))
    }
}

/// The shortest interval and the longest (which keeps all arithmetic on times far from overflow).
const RANGE: std::ops::RangeInclusive<u64> = 1..=365 * 24 * 3600;

impl FromStr for Pull {
    type Err = StoreError;

    fn from_str(text: &str) -> Result<Self, StoreError> {
        if text == "never" {
            return Ok(Pull::Never);
        }
        if text == "on-demand" {
            return Ok(Pull::OnDemand);
        }
        let refuse = |why: &str| {
            StoreError::new(
                Fault::Usage,
                format!("pull interval {text:?} {why}: give a duration such as \"30s\", \"5m\" or \"1h30m\", \"never\" or \"on-demand\""),
            )
        };
        let seconds = seconds(text).ok_or_else(|| refuse("is no duration"))?;
        if RANGE.contains(&seconds) {
            Ok(Pull::Every(Duration::from_secs(seconds)))
        } else {
            Err(refuse("is not between one second and one year"))
        }
    }
}

/// Reads a duration such as `30s`, `5m` or `1h30m`, between a second and a year; `None` for anything else.
pub fn duration(text: &str) -> Option<Duration> {
    seconds(text).filter(|seconds| RANGE.contains(seconds)).map(Duration::from_secs)
}

/// Reads a size such as `500M` or `20G` (powers of 1024; a number alone is bytes); `None` for anything else.
pub fn size(text: &str) -> Option<u64> {
    let (number, factor) = match text.char_indices().last()? {
        (at, unit) if !unit.is_ascii_digit() => (&text[..at], 1u64 << (10 * ("KMGT".find(unit)? + 1))),
        _ => (text, 1),
    };
    number.bytes().all(|b| b.is_ascii_digit()).then(|| number.parse::<u64>().ok()?.checked_mul(factor))?
}

/// Reads `1h30m`: numbers with units, each unit at most once, from big to small.
fn seconds(text: &str) -> Option<u64> {
    let mut rest = text;
    let mut total = 0u64;
    let mut any = false;
    for (unit, factor) in [('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)] {
        let Some(at) = rest.find(|c: char| !c.is_ascii_digit()) else { break };
        if rest[at..].starts_with(unit) {
            total = total.checked_add(rest[..at].parse::<u64>().ok()?.checked_mul(factor)?)?;
            rest = &rest[at + 1..];
            any = true;
        }
    }
    (any && rest.is_empty()).then_some(total)
}

impl fmt::Display for Pull {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let every = match self {
            Pull::Every(every) => every,
            Pull::OnDemand => return f.write_str("on-demand"),
            Pull::Never => return f.write_str("never"),
        };
        let mut rest = every.as_secs();
        for (unit, factor) in [("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)] {
            if rest / factor > 0 {
                write!(f, "{}{unit}", rest / factor)?;
                rest %= factor;
            }
        }
        Ok(())
    }
}

/// What happens when the host does not answer as the mount begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offline {
    /// The mount is refused.
    #[default]
    Refuse,
    /// The last known commit is served; only for a host that does not answer, never for one that refuses.
    AllowStale,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_printed() {
        for (text, seconds) in [("30s", 30), ("5m", 300), ("1h30m", 5400), ("1d", 86_400), ("1h1s", 3601), ("90m", 5400)] {
            assert_eq!(text.parse::<Pull>().unwrap(), Pull::Every(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!("never".parse::<Pull>().unwrap(), Pull::Never);
        assert_eq!(Pull::Every(Duration::from_secs(5400)).to_string(), "1h30m");
        assert_eq!(Pull::default().to_string(), "5m");
        for (pull, text) in [(Pull::Never, "never"), (Pull::OnDemand, "on-demand")] {
            assert_eq!((pull.to_string().as_str(), text.parse::<Pull>().unwrap()), (text, pull));
        }
    }

    #[test]
    fn no_duration_is_too_long_to_be_added_to_a_time() {
        for text in ["", "0s", "366d", "99999999999h", "18446744073709551615s"] {
            assert_eq!(duration(text), None, "{text}");
        }
        assert_eq!(duration("365d"), Some(Duration::from_secs(365 * 24 * 3600)));
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [("0", 0), ("17", 17), ("1K", 1024), ("500M", 500 << 20), ("20G", 20 << 30), ("2T", 2 << 40)] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for bad in ["", "G", "1.5G", "-1", "+1", "1 G", "1g", "1GB", "99999999999T", "1é"] {
            assert_eq!(size(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused_with_an_example() {
        for text in ["", "5", "m", "5 m", "5x", "30s5m", "5m5m", "-5m", "0s", "99999999999999999999s", "9999999999h", "400d", "Never", "5µ"]
        {
            let error = text.parse::<Pull>().unwrap_err();
            assert_eq!(error.fault(), Fault::Usage, "{text}");
            assert!(error.to_string().contains("\"1h30m\""), "{error}");
        }
    }
}
