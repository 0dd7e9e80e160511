//! The Go that builds the programs: the one on `PATH` when it is new enough, else one fetched from the Go module proxy and kept.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::build::cache;
use crate::run::{command, run, run_with};

/// The oldest that builds every module.
const OLDEST: (u32, u32, u32) = (1, 26, 2);
/// What is fetched where there is none, and the SHA-256 of that archive.
const FETCHED: &str = "1.26.8";
const ARCHIVE: &str = "30c2b1bf7dcc88d3eb0a1364e47ddd9128edb3110a30e8a0ef61cd5856b31de7";

/// A Go installation.
#[derive(Debug)]
pub(super) struct Go {
    program: PathBuf,
}

impl Go {
    pub(super) fn find() -> Result<Self> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let dirs = std::env::split_paths(&path).chain([PathBuf::from("/usr/local/go/bin")]);
        for program in dirs.map(|dir| dir.join("go")).filter(|program| program.is_file()) {
            let go = Go { program };
            if go.version().is_some_and(|version| version >= OLDEST) {
                return Ok(go);
            }
        }
        fetch()
    }

    /// A `go` command line in an environment that holds what Go itself looks at, and nothing else of the caller's.
    pub(super) fn command(&self) -> Command {
        let mut go = command(&self.program);
        for (name, value) in std::env::vars_os() {
            let Some(text) = name.to_str() else { continue };
            let network = ["http_proxy", "https_proxy", "no_proxy"].contains(&text.to_lowercase().as_str());
            if network || ["HOME", "XDG_CACHE_HOME", "SSL_CERT_FILE", "SSL_CERT_DIR"].contains(&text) || text.starts_with("GO") {
                go.env(name, value);
            }
        }
        // Of the checkout's state nothing may get into a program, and nothing of the modules may change.
        go.env("GOFLAGS", "-mod=readonly -buildvcs=false").env("GOTOOLCHAIN", "local").env("GOWORK", "off");
        go.env_remove("GOOS").env_remove("GOARCH").env_remove("GOROOT");
        go
    }

    fn version(&self) -> Option<(u32, u32, u32)> {
        let said = run(self.command().args(["env", "GOVERSION"])).ok()?.success().ok()?.out();
        let mut parts = said.trim().strip_prefix("go")?.split(|c: char| !c.is_ascii_digit()).map(|part| part.parse().unwrap_or(0));
        Some((parts.next()?, parts.next()?, parts.next().unwrap_or(0)))
    }
}

fn fetch() -> Result<Go> {
    let dir = cache()?.join(format!("go-{FETCHED}"));
    let go = Go { program: dir.join("bin/go") };
    if go.program.is_file() {
        return Ok(go);
    }
    let (major, minor, patch) = OLDEST;
    let wanted = format!("install Go {major}.{minor}.{patch} or later");
    ensure!(std::env::consts::ARCH == "x86_64", "there is no Go, and it is fetched for x86_64 only: {wanted}");
    let proxies = std::env::var("GOPROXY").unwrap_or_default();
    let proxy = proxies.split([',', '|']).find(|proxy| proxy.starts_with("http")).unwrap_or("https://proxy.golang.org");
    let name = format!("golang.org/toolchain@v0.0.1-go{FETCHED}.linux-amd64");
    let url = format!("{}/golang.org/toolchain/@v/v0.0.1-go{FETCHED}.linux-amd64.zip", proxy.trim_end_matches('/'));
    eprintln!("there is no Go of {major}.{minor}.{patch} or later: fetching {url}");
    let unfinished = dir.with_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished)?;
    }
    fs::create_dir_all(&unfinished)?;
    let archive = unfinished.join("go.zip");
    let mut curl = Go { program: "curl".into() }.command();
    curl.args(["--fail", "--silent", "--show-error", "--location", "--retry", "3", "--output"]).arg(&archive).arg(&url);
    run_with(&mut curl, &[], Duration::from_secs(900))?
        .success()
        .with_context(|| format!("there is no Go, and {url} could not be fetched: {wanted}"))?;
    let found = super::hex(&Sha256::digest(fs::read(&archive)?));
    if found != ARCHIVE {
        bail!("{url} has the SHA-256 {found} instead of {ARCHIVE}: {wanted}");
    }
    run_with(command("python3").args(["-m", "zipfile", "-e"]).arg(&archive).arg(&unfinished), &[], Duration::from_secs(300))?.success()?;
    let unpacked = unfinished.join(name);
    // Archives of modules have no modes.
    for programs in ["bin", "pkg/tool/linux_amd64"] {
        executable(&unpacked.join(programs))?;
    }
    fs::rename(&unpacked, &dir)?;
    fs::remove_dir_all(&unfinished)?;
    Ok(go)
}

fn executable(dir: &Path) -> Result<()> {
    // Newer toolchains build most of their tools when they are used.
    for entry in fs::read_dir(dir).with_context(|| format!("{} is missing in the archive of Go", dir.display()))? {
        fs::set_permissions(entry?.path(), fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}
