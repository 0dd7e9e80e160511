//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::tree::Shape;

/// Compares gitmount with a checkout, `git clone --depth 1` and `git worktree add`, in one run on this machine.
///
/// Needs root (it drops the kernel's caches), git, and about 20 GB below TMPDIR for the default tree. Prints a table in markdown and
/// writes all samples as JSON.
#[derive(Debug, Parser)]
#[command(name = "gitmount-bench", args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    /// A small tree and two runs: shows that the bench works, says little about speed
    #[arg(long)]
    pub(crate) small: bool,
    /// Runs per figure; the median is reported [default: 5, with --small 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    runs: Option<u32>,
    /// Measure only these scenarios (repeatable): warm, cold, first-mount, second-mount, big-file, switch, poll, ten-views
    #[arg(long, value_name = "SCENARIO")]
    only: Vec<String>,
    /// Files of the tree [default: 50000, with --small 2000]
    #[arg(long)]
    files: Option<usize>,
    /// Directories of the tree [default: 6500, with --small 260]
    #[arg(long)]
    directories: Option<usize>,
    /// Bytes of all files together [default: 900000000, with --small 36000000]
    #[arg(long)]
    bytes: Option<u64>,
    /// Another seed gives another tree of the same shape
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Directory for the JSON file
    #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/out"))]
    pub(crate) out: PathBuf,
    #[command(subcommand)]
    pub(crate) task: Option<Task>,
}

/// What else the bench does.
#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Run a command and print its peak memory and CPU time as JSON
    #[command(hide = true)]
    Usage {
        /// The command line
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<std::ffi::OsString>,
    },
    /// Simulate when many nodes fetch after a push and after an outage of the host; print the figures and plot fetches per second
    Storm {
        /// Nodes that hold the repository
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        nodes: u32,
        /// Volumes of the repository on each node, all marked by a push
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
        volumes: u32,
        /// Seconds over which the nodes spread a push in the second scenario
        #[arg(long, default_value_t = 60, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=3600))]
        demand_spread: u64,
        /// Another seed gives other random times
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Directory for the plots
        #[arg(long, value_name = "DIR", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/out"))]
        out: PathBuf,
    },
}

impl Options {
    /// How often each figure is measured.
    pub(crate) fn runs(&self) -> usize {
        self.runs.map_or(if self.small { 2 } else { 5 }, |n| n as usize)
    }

    /// The tree that is measured.
    pub(crate) fn shape(&self) -> Shape {
        let (files, directories, bytes) = if self.small { (2_000, 260, 36_000_000) } else { (50_000, 6_500, 900_000_000) };
        Shape {
            files: self.files.unwrap_or(files),
            directories: self.directories.unwrap_or(directories),
            bytes: self.bytes.unwrap_or(bytes),
            seed: self.seed,
        }
    }

    /// How many files the big switch changes: a fifth, 10,000 of 50,000.
    pub(crate) fn many(&self) -> usize {
        self.shape().files / 5
    }

    /// Size of the big file in bytes.
    pub(crate) fn big(&self) -> u64 {
        if self.small { 64 << 20 } else { 1 << 30 }
    }

    /// Whether a scenario was asked for.
    pub(crate) fn runs_scenario(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| only == name)
    }
}
