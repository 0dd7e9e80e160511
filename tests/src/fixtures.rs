//! The repositories that are mounted. Each is a function that builds one, deterministic to the commit id; [`get`] builds it once
//! for all test binaries and hands out the same directory, which no test may change. Tests that move refs or damage objects take
//! [`copy`].
//!
//! - [`names`]: file names of every kind git allows.
//! - [`shape`]: wide, deep, empty.
//! - [`content`]: what can be in an entry: links, modes, submodules, attributes.
//! - [`big`]: a file of 1 GiB.
//! - [`refs`]: what a ref can be.
//! - [`storage`]: how objects can lie on the disk.
//! - [`hostile`]: trees that git itself would not write.
//! - [`real`]: repositories that were not made for a test.

pub mod big;
pub mod content;
pub mod hostile;
pub mod names;
pub mod real;
pub mod refs;
pub mod shape;
pub mod storage;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use tempfile::TempDir;

use crate::git::Repo;
use crate::{run, scratch};

/// One fixture: builds itself at a path that does not exist yet.
pub type Build = fn(&Path) -> Result<()>;

/// Everything the shared fixtures are made from: they are built anew when it changes.
const SOURCES: [&str; 11] = [
    include_str!("fixtures.rs"),
    include_str!("fixtures/big.rs"),
    include_str!("fixtures/content.rs"),
    include_str!("fixtures/hostile.rs"),
    include_str!("fixtures/names.rs"),
    include_str!("fixtures/real.rs"),
    include_str!("fixtures/refs.rs"),
    include_str!("fixtures/shape.rs"),
    include_str!("fixtures/storage.rs"),
    include_str!("git.rs"),
    include_str!("import.rs"),
];

/// The shared fixture `name`, built by `build` when no test binary has done so before. Read-only by convention.
pub fn get(name: &str, build: Build) -> Result<Repo> {
    let mut hash = Sha256::new();
    SOURCES.iter().for_each(|source| hash.update(source));
    let version: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let shared = scratch::shared_dir()?;
    let all = shared.join(format!("fixtures-{version}"));
    let done = all.join(name);
    let _lock = scratch::exclusive(&format!("fixture-{name}"))?;
    if !done.exists() {
        forget_other_versions(&shared, &all)?;
        fs::create_dir_all(&all)?;
        // Built in place, since alternates hold absolute paths; the marker says that it is whole.
        let _ = fs::remove_dir_all(all.join(format!("{name}.git")));
        build(&all.join(format!("{name}.git"))).with_context(|| format!("the fixture {name} could not be built"))?;
        fs::write(&done, "")?;
    }
    Ok(Repo::at(all.join(format!("{name}.git"))))
}

/// A private copy of a fixture, with all its refs, for a test that changes it.
pub fn copy(name: &str, build: Build) -> Result<(TempDir, Repo)> {
    let original = get(name, build)?;
    let dir = scratch::dir()?;
    let repo = Repo::at(dir.path().join(format!("{name}.git")));
    run::run(run::command("cp").arg("-a").arg("--reflink=auto").arg(original.path()).arg(repo.path()))?.success()?;
    Ok((dir, repo))
}

/// A new bare repository with `files` in one commit on `main`.
pub fn small(path: &Path, files: &[(&str, &str)]) -> Result<Repo> {
    let repo = Repo::init_bare(path)?;
    commit(&repo, "first", files)?;
    Ok(repo)
}

/// Adds a commit to `main` that gives `files` these contents.
pub fn commit(repo: &Repo, message: &str, files: &[(&str, &str)]) -> Result<String> {
    let mut import = crate::import::Import::into(repo)?;
    import.commit("refs/heads/main", message)?;
    for (path, content) in files {
        import.file(path.as_bytes(), content)?;
    }
    import.finish()?;
    repo.id("refs/heads/main")
}

/// Fixtures of earlier versions of this code only take space; another binary that is just using one would be an older build.
fn forget_other_versions(shared: &Path, keep: &Path) -> Result<()> {
    for entry in fs::read_dir(shared)? {
        let path = entry?.path();
        let is_fixtures = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("fixtures-"));
        if is_fixtures && path != keep {
            let _ = fs::remove_dir_all(path);
        }
    }
    Ok(())
}
