//! The table: what was measured, what it is compared with, and what it must not exceed.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::clock::Samples;
use crate::options::Options;

/// What the samples of a row are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Unit {
    /// Seconds.
    Seconds,
    /// Seconds as well, shown in milliseconds.
    #[serde(rename = "seconds")]
    Milliseconds,
    /// Bytes, shown in MiB.
    Bytes,
    /// A number of things.
    Count,
}

/// What a median must not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Limit {
    /// This many times what it is compared with.
    Ratio(f64),
    /// This value, in the row's unit.
    Value(f64),
    /// Nothing; the row is there to be known.
    None,
}

/// One line of the table.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Row {
    work: String,
    unit: Unit,
    gitmount: Side,
    plain: Option<Side>,
    ratio: Option<f64>,
    limit: Limit,
    holds: Option<bool>,
}

/// The samples of one side.
#[derive(Debug, Clone, Serialize)]
struct Side {
    what: String,
    median: f64,
    samples: Samples,
}

impl Side {
    fn new(what: &str, samples: Samples) -> Self {
        Side { what: what.to_owned(), median: samples.median(), samples }
    }
}

impl Row {
    /// A figure of gitmount beside the same of something else, from the same run.
    pub(crate) fn compared(work: &str, unit: Unit, gitmount: Samples, what: &str, plain: Samples, limit: Limit) -> Self {
        Self::new(work, unit, Side::new("gitmount", gitmount), Some(Side::new(what, plain)), limit)
    }

    /// A figure with nothing to compare it with.
    pub(crate) fn alone(work: &str, unit: Unit, gitmount: Samples, limit: Limit) -> Self {
        Self::new(work, unit, Side::new("gitmount", gitmount), None, limit)
    }

    fn new(work: &str, unit: Unit, gitmount: Side, plain: Option<Side>, limit: Limit) -> Self {
        let ratio = plain.as_ref().map(|plain| gitmount.median / plain.median);
        let holds = match limit {
            Limit::Ratio(most) => ratio.map(|ratio| ratio <= most),
            Limit::Value(most) => Some(gitmount.median <= most),
            Limit::None => None,
        };
        Row { work: work.to_owned(), unit, gitmount, plain, ratio, limit, holds }
    }

    fn markdown(&self) -> String {
        let unit = self.unit;
        let (other, what) = self.plain.as_ref().map_or((String::new(), ""), |plain| (unit.show(plain.median), plain.what.as_str()));
        let ratio = self.ratio.map_or(String::new(), |ratio| if ratio < 0.01 { "below 0.01".to_owned() } else { format!("{ratio:.2}") });
        let limit = match self.limit {
            Limit::Ratio(most) => format!("{most:.2}"),
            Limit::Value(most) => unit.show(most),
            Limit::None => String::new(),
        };
        let verdict = match self.holds {
            Some(true) => "ok",
            Some(false) => "**over**",
            None => "",
        };
        let own = unit.show(self.gitmount.median);
        format!("| {} | {own} | {other} | {what} | {ratio} | {limit} | {verdict} |", self.work)
    }
}

impl Unit {
    fn show(self, value: f64) -> String {
        match self {
            Unit::Seconds => format!("{value:.3} s"),
            Unit::Milliseconds => format!("{:.1} ms", value * 1e3),
            Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
            Unit::Count => format!("{value:.1}"),
        }
    }
}

/// All rows, and where they come from.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    version: &'static str,
    kernel: String,
    cpus: usize,
    files: usize,
    directories: usize,
    bytes: u64,
    runs: usize,
    rows: Vec<Row>,
}

impl Report {
    /// The report of a run on this machine.
    pub(crate) fn new(options: &Options, rows: Vec<Row>) -> Self {
        let shape = options.shape();
        Report {
            version: env!("CARGO_PKG_VERSION"),
            kernel: fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            files: shape.files,
            directories: shape.directories,
            bytes: shape.bytes,
            runs: options.runs(),
            rows,
        }
    }

    /// The table.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!(
            "Medians of {} runs; {} files in {} directories, {} MB; Linux {}, {} CPUs.\n\n",
            self.runs,
            self.files,
            self.directories,
            self.bytes / 1_000_000,
            self.kernel,
            self.cpus
        );
        text.push_str("| work | gitmount | compared | with | ratio | at most | |\n|---|--:|--:|---|--:|--:|---|\n");
        for row in &self.rows {
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{}", row.markdown());
        }
        text
    }

    /// Writes all samples into a new file in `dir` and gives its path.
    pub(crate) fn write_json(&self, dir: &Path) -> Result<PathBuf> {
        fs::create_dir_all(dir).with_context(|| format!("{} could not be made", dir.display()))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_secs();
        let path = dir.join(format!("{now}.json"));
        fs::write(&path, serde_json::to_vec_pretty(self)?).with_context(|| format!("{} could not be written", path.display()))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        values.iter().for_each(|&value| samples.push_value(value));
        samples
    }

    #[test]
    fn a_ratio_is_judged_by_the_medians() {
        let row = Row::compared("w", Unit::Seconds, samples(&[1.0, 2.0, 9.0]), "checkout", samples(&[2.0]), Limit::Ratio(1.0));
        assert_eq!(row.markdown(), "| w | 2.000 s | 2.000 s | checkout | 1.00 | 1.00 | ok |");
        let row = Row::compared("w", Unit::Seconds, samples(&[2.2]), "checkout", samples(&[2.0]), Limit::Ratio(1.05));
        assert_eq!(row.markdown(), "| w | 2.200 s | 2.000 s | checkout | 1.10 | 1.05 | **over** |");
    }

    #[test]
    fn a_value_is_judged_in_its_unit() {
        let row = Row::alone("w", Unit::Milliseconds, samples(&[0.012]), Limit::Value(0.010));
        assert_eq!(row.markdown(), "| w | 12.0 ms |  |  |  | 10.0 ms | **over** |");
        let row = Row::alone("w", Unit::Bytes, samples(&[1048576.0]), Limit::Value(2097152.0));
        assert_eq!(row.markdown(), "| w | 1.0 MiB |  |  |  | 2.0 MiB | ok |");
        let row = Row::alone("w", Unit::Count, samples(&[1.0]), Limit::None);
        assert_eq!(row.markdown(), "| w | 1.0 |  |  |  |  |  |");
    }
}
