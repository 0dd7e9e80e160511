//! A repository on a server whose branch moves, and mounts that follow it.

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::compare;
use crate::git::Repo;
use crate::import::Import;
use crate::mount::Mounted;
use crate::scratch;
use crate::servers::daemon::GitDaemon;

/// The branch that moves.
pub const MAIN: &str = "refs/heads/main";

/// A repository on a server, to which commits are added.
#[derive(Debug)]
pub struct Upstream {
    _dir: TempDir,
    /// The repository itself.
    pub repo: Repo,
    server: GitDaemon,
}

impl Upstream {
    /// A new repository with one commit.
    pub fn new(fill: impl FnOnce(&mut Import) -> Result<()>) -> Result<Self> {
        let dir = scratch::dir()?;
        let repo = Repo::init_bare(dir.path().join("r.git"))?;
        let server = GitDaemon::serve(dir.path())?;
        let upstream = Upstream { _dir: dir, repo, server };
        upstream.commit(fill)?;
        Ok(upstream)
    }

    /// Adds a commit and gives its id.
    pub fn commit(&self, change: impl FnOnce(&mut Import) -> Result<()>) -> Result<String> {
        let mut import = Import::into(&self.repo)?;
        import.commit(MAIN, "A change")?;
        change(&mut import)?;
        import.finish()?;
        self.repo.id(MAIN)
    }

    /// Commits and pulls, and gives the id.
    pub fn move_on(&self, mounted: &Mounted<'_>, change: impl FnOnce(&mut Import) -> Result<()>) -> Result<String> {
        let old = self.repo.id(MAIN)?;
        let new = self.commit(change)?;
        let said = mounted.pull()?;
        ensure!(said.contains(&old[..7]) && said.contains(&new[..7]), "pull said {said:?} of {old} and {new}");
        ensure!(mounted.commit()? == new);
        Ok(new)
    }

    /// Commits, pulls, and checks that all of the mount is the new commit.
    pub fn switch(&self, mounted: &Mounted<'_>, change: impl FnOnce(&mut Import) -> Result<()>) -> Result<String> {
        let new = self.move_on(mounted, change)?;
        compare::against_both(mounted.path(), &self.repo, &new)?;
        Ok(new)
    }

    /// Its URL.
    pub fn url(&self) -> String {
        self.server.url("r.git")
    }
}

/// Writes files.
pub fn put(import: &mut Import, files: &[(&str, &str)]) -> Result<()> {
    for (path, content) in files {
        import.file(path.as_bytes(), content)?;
    }
    Ok(())
}
