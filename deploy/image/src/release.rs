//! The image of gitmount itself: the programs, the certificates that hosts are checked against, and the licences. It has no shell and no
//! C library, so the programs must be static.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::image::Image;

/// The programs in the image.
pub const PROGRAMS: &[&str] = &["gitmount", "gitmount-csi"];

/// Where programs look for the certificates of authorities.
pub const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// What the image is made of.
#[derive(Debug, Clone)]
pub struct Sources {
    /// The directory with the built programs.
    pub programs: PathBuf,
    /// The directory with the licences: the checkout's root.
    pub licences: PathBuf,
    /// Certificates of authorities, as PEM.
    pub authorities: PathBuf,
    /// The commit that it was built from, when it is known.
    pub revision: Option<String>,
}

/// Puts the image together.
///
/// # Errors
/// When a file is missing, or a program is not static.
pub fn image(sources: &Sources) -> Result<Image> {
    let mut architecture = None;
    let mut files = Vec::new();
    for program in PROGRAMS {
        let path = sources.programs.join(program);
        let bytes = read(&path).context("build the programs first: `make image` does")?;
        let built_for = static_for(&bytes).with_context(|| format!("{} cannot be put into the image", path.display()))?;
        ensure!(*architecture.get_or_insert(built_for) == built_for, "{} is for another processor than the others", path.display());
        files.push((format!("/usr/bin/{program}"), 0o755, bytes));
    }
    let authorities =
        read(&sources.authorities).context("the certificates of authorities are those of Debian's package ca-certificates")?;
    files.push((AUTHORITIES.to_owned(), 0o644, authorities));
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        files.push((format!("/usr/share/doc/gitmount/{licence}"), 0o644, read(&sources.licences.join(licence))?));
    }
    files.push(("/etc/passwd".to_owned(), 0o644, b"root:x:0:0:root:/:/usr/bin/gitmount\n".to_vec()));
    files.push(("/etc/group".to_owned(), 0o644, b"root:x:0:\n".to_vec()));

    let mut image = Image::new(architecture.context("no program")?)
        .env("PATH", "/usr/bin")
        .entrypoint(&["/usr/bin/gitmount"])
        .label("org.opencontainers.image.title", "gitmount")
        .label("org.opencontainers.image.description", "Git repositories as read-only file systems and volumes")
        .label("org.opencontainers.image.version", env!("CARGO_PKG_VERSION"))
        .label("org.opencontainers.image.licenses", env!("CARGO_PKG_LICENSE"))
        .directory("/tmp", 0o1777);
    // A root file system that is read-only has places for what is mounted there.
    for place in ["/dev", "/proc", "/sys", "/run", "/var/lib"] {
        image = image.directory(place, 0o755);
    }
    if let Some(revision) = &sources.revision {
        image = image.label("org.opencontainers.image.revision", revision);
    }
    Ok(files.into_iter().fold(image, |image, (path, mode, bytes)| image.file(&path, mode, bytes)))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// The processor that an ELF program is for, as OCI names it.
///
/// # Errors
/// When it is none, or wants a dynamic linker, which the image does not have.
fn static_for(program: &[u8]) -> Result<&'static str> {
    const INTERPRETER: u32 = 3;
    let number = |at: usize, size: usize| -> Option<u64> {
        let bytes = program.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    ensure!(program.starts_with(b"\x7fELF\x02\x01"), "it is no 64-bit ELF program");
    let headers = || -> Option<(u64, usize, usize, usize)> {
        Some((number(18, 2)?, number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize))
    };
    let (machine, start, size, count) = headers().context("its header is cut off")?;
    for header in 0..count {
        let kind = number(start + header * size, 4).context("its program headers are cut off")?;
        ensure!(kind != u64::from(INTERPRETER), "it needs a dynamic linker: build it for a musl target, such as x86_64-unknown-linux-musl");
    }
    match machine {
        62 => Ok("amd64"),
        183 => Ok("arm64"),
        other => bail!("it is for an unknown processor ({other})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_needs_a_linker_is_refused() {
        let error = static_for(&fs::read(std::env::current_exe().unwrap()).unwrap()).unwrap_err().to_string();
        assert!(error.contains("build it for a musl target"), "{error}");
        assert!(static_for(b"#!/bin/sh\n").is_err());
        assert!(static_for(b"\x7fELF\x02\x01").is_err());
    }
}
