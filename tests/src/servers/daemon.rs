//! `git daemon` on loopback.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};

use super::Process;
use crate::git::git;

/// A running `git daemon` that exports everything below one directory.
#[derive(Debug)]
pub struct GitDaemon {
    _process: Process,
    port: u16,
}

impl GitDaemon {
    /// Serves the repositories below `root`.
    pub fn serve(root: &Path) -> Result<Self> {
        ensure!(Path::new("/usr/lib/git-core/git-daemon").exists(), "these tests need `git daemon`: install the package git");
        let (process, port) = Process::listening(|port| {
            let mut command = git();
            command
                .args(["daemon", "--export-all", "--reuseaddr", "--listen=127.0.0.1"])
                .arg(format!("--port={port}"))
                .arg(format!("--base-path={}", root.display()))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            Ok(command)
        })?;
        Ok(GitDaemon { _process: process, port })
    }

    /// The URL of the repository `name` below the root.
    pub fn url(&self, name: &str) -> String {
        format!("git://127.0.0.1:{}/{name}", self.port)
    }
}
