//! The repositories that are served: the tree with its later commits, and one with a single big file.

use std::path::Path;

use anyhow::{Context, Result};
use gitmount_tests::git::Repo;
use gitmount_tests::import::{Import, Mode};
use gitmount_tests::run::{self, run_with};

use crate::clock::{LONG, say};
use crate::content::{Endless, edited};
use crate::options::Options;
use crate::tree::{self, File};

/// The branch with the whole tree.
pub(crate) const MAIN: &str = "main";
/// The tree with one changed file.
pub(crate) const ONE: &str = "one-changed";
/// The tree with a fifth of its files changed.
pub(crate) const MANY: &str = "many-changed";
/// The one file of the second repository.
pub(crate) const BIG_FILE: &str = "big.bin";

/// What is served.
#[derive(Debug)]
pub(crate) struct Repos {
    /// The tree.
    pub(crate) tree: Repo,
    /// The file that [`ONE`] and every [`other`] changes.
    pub(crate) changed_file: String,
}

/// The branch that the `n`th second mount shows; each has one changed file of its own.
pub(crate) fn other(n: usize) -> String {
    format!("other-{n}")
}

impl Repos {
    /// Writes `tree.git` and `big.git` below `root`.
    pub(crate) fn write(root: &Path, options: &Options) -> Result<Self> {
        let shape = options.shape();
        say(&format!("writing {} files of {} MB in {} directories", shape.files, shape.bytes / 1_000_000, shape.directories));
        let files = tree::plan(&shape);
        let tree = Repo::init_bare(root.join("tree.git"))?;
        let mut import = Import::into(&tree)?;
        import.commit(&branch(MAIN), "The whole tree")?;
        for file in &files {
            let mode = if file.executable { Mode::Executable } else { Mode::File };
            import.entry(mode, file.path.as_bytes(), &file.content())?;
        }
        let changed = &files[shape.files / 2];
        change(&mut import, ONE, std::slice::from_ref(changed), 1)?;
        // Every fifth file, so that the changes are spread over the whole tree.
        let many: Vec<File> = files.iter().step_by(5).take(options.many()).cloned().collect();
        change(&mut import, MANY, &many, 2)?;
        for n in 0..options.runs() {
            change(&mut import, &other(n), std::slice::from_ref(changed), 100 + n as u64)?;
        }
        import.finish()?;
        // Hosts serve packs that were repacked with deltas and have bitmaps.
        pack(&tree)?;
        Ok(Repos { tree, changed_file: changed.path.clone() })
    }
}

/// Writes `big.git` below `root`: one file of [`Options::big`] bytes.
pub(crate) fn write_big(root: &Path, options: &Options) -> Result<Repo> {
    let size = options.big();
    say(&format!("writing a file of {} MiB", size >> 20));
    let big = Repo::init_bare(root.join("big.git"))?;
    let mut import = Import::into(&big)?;
    import.commit(&branch(MAIN), "A big file")?;
    import.entry_from(Mode::File, BIG_FILE.as_bytes(), size, &mut Endless::new(options.shape().seed))?;
    import.finish()?;
    Ok(big)
}

/// Checks `revision` out into a new directory that has no `.git`.
pub(crate) fn check_out(repo: &Repo, revision: &str, target: &Path) -> Result<()> {
    std::fs::create_dir(target)?;
    let index = target.with_extension("index");
    let mut command = repo.command(["--work-tree"]);
    command.arg(target).args(["checkout", "--quiet", "--force", revision, "--", "."]).env("GIT_INDEX_FILE", &index);
    run_with(&mut command, &[], LONG)?.success().context("the checkout to compare with could not be made")?;
    Ok(())
}

fn branch(name: &str) -> String {
    format!("refs/heads/{name}")
}

fn change(import: &mut Import, name: &str, files: &[File], version: u64) -> Result<()> {
    import.commit_from(&branch(name), "Changes", &branch(MAIN))?;
    for file in files {
        let mode = if file.executable { Mode::Executable } else { Mode::File };
        import.entry(mode, file.path.as_bytes(), &edited(file.content(), version))?;
    }
    Ok(())
}

fn pack(repo: &Repo) -> Result<()> {
    say("packing");
    let mut command = repo.command(["repack", "-a", "-d", "--quiet", "--write-bitmap-index"]);
    run_with(&mut command, &[], LONG)?.success()?;
    run::run(&mut repo.command(["pack-refs", "--all"]))?.success()?;
    Ok(())
}
