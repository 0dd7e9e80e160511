//! Where the programs under test are: `gitmount` named by `GITMOUNT_BIN`, or each beside the tests in cargo's target directory, built if need be.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use anyhow::{Context, Result, ensure};

use crate::scratch;

/// The program under test.
///
/// # Errors
/// When there is none and it cannot be built.
pub fn gitmount() -> Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| named_or_built().map_err(|e| format!("{e:#}")));
    found.clone().map_err(|e| anyhow::anyhow!("there is no gitmount to test: {e}"))
}

/// The driver's program.
///
/// # Errors
/// When it cannot be built.
pub fn gitmount_csi() -> Result<PathBuf> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| built("gitmount-csi", &["csi", "proto"]).map_err(|e| format!("{e:#}")));
    found.clone().map_err(|e| anyhow::anyhow!("there is no gitmount-csi to test: {e}"))
}

fn named_or_built() -> Result<PathBuf> {
    if let Some(named) = std::env::var_os("GITMOUNT_BIN") {
        let path = PathBuf::from(named);
        ensure!(path.is_file(), "GITMOUNT_BIN names {}, which is no file", path.display());
        return Ok(fs::canonicalize(path)?);
    }
    built("gitmount", &["fsd"])
}

/// The program `name`, whose sources are in these folders.
fn built(name: &str, sources: &[&str]) -> Result<PathBuf> {
    let program = scratch::profile_dir()?.join(name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("the crate lies in the workspace")?;
    let _lock = scratch::exclusive("build")?;
    let mut stale = false;
    for folder in sources {
        stale |= is_older_than_sources(&program, &root.join(folder))?;
    }
    if stale {
        // `cargo test -p gitmount-tests` does not build the programs of other packages. `--workspace` keeps the dependencies' features,
        // and so their one build, as they are for the tests.
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut build = Command::new(cargo);
        build.current_dir(root).args(["build", "--quiet", "--workspace", "--bin", name]);
        build.arg("--target-dir").arg(scratch::target_dir()?);
        // What cargo tells the tests of their own package; build scripts of dependencies take it for a change, and much is built again.
        for (variable, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"CARGO_PKG_")) {
            build.env_remove(variable);
        }
        build.env_remove("CARGO_MANIFEST_DIR");
        ensure!(build.status()?.success(), "`cargo build --workspace --bin {name}` failed");
    }
    ensure!(program.is_file(), "{} is missing: run `cargo build --workspace --bin {name}`", program.display());
    Ok(program)
}

fn is_older_than_sources(program: &Path, sources: &Path) -> Result<bool> {
    let Ok(built) = program.metadata().and_then(|status| status.modified()) else { return Ok(true) };
    let mut dirs = vec![sources.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default();
            if path.is_dir() {
                if !["target", "tests", "fuzz"].iter().any(|skip| name == *skip) {
                    dirs.push(path);
                }
            } else if path.extension().is_some_and(|e| e == "rs" || e == "toml")
                && name != "tests.rs"
                && path.metadata()?.modified().unwrap_or(SystemTime::UNIX_EPOCH) > built
            {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
