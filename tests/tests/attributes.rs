//! What is said about entries: extended attributes, statfs, link counts, inode numbers, modes, owners, sizes.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures::{self, content, shape};
use gitmount_tests::mount::Account;
use gitmount_tests::run::{command, run};
use gitmount_tests::scratch;

/// The inode number of everything below `dir`, by path.
fn inodes(dir: &Path) -> Result<HashMap<PathBuf, u64>> {
    let mut all = HashMap::from([(dir.to_owned(), dir.metadata()?.ino())]);
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir)? {
            let entry = entry?;
            let status = entry.path().symlink_metadata()?;
            ensure!(std::os::unix::fs::DirEntryExt::ino(&entry) == status.ino(), "d_ino and st_ino of {entry:?} differ");
            if status.is_dir() {
                left.push(entry.path());
            }
            all.insert(entry.path(), status.ino());
        }
    }
    Ok(all)
}

#[test]
fn extended_attributes_say_what_is_served() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &["--ref", "main"])?;
    ensure!(mounted.attribute("", "user.git.commit")? == repo.id("main")?);
    ensure!(mounted.attribute("", "user.git.ref")? == "main");
    ensure!(mounted.attribute("", "user.git.oid")? == repo.id("main^{tree}")?);
    for path in ["one byte", "run.sh", "sizes", "sizes/4096", "modules"] {
        ensure!(mounted.attribute(path, "user.git.oid")? == repo.id(&format!("main:{path}"))?, "{path}");
    }
    ensure!(mounted.attribute("modules/sub", "user.git.oid")? == content::SUBMODULE_COMMIT, "a submodule says its commit");

    let names = |path: PathBuf| -> Result<Vec<String>> { Ok(xattr::list(path)?.map(|n| n.to_string_lossy().into_owned()).collect()) };
    let mut of_root = names(mounted.path().to_owned())?;
    of_root.sort();
    ensure!(of_root == ["user.git.commit", "user.git.oid", "user.git.ref"], "{of_root:?}");
    ensure!(names(mounted.join("one byte"))?.contains(&"user.git.oid".to_owned()));
    for absent in ["user.other", "security.capability", "system.posix_acl_access", "trusted.x"] {
        ensure!(matches!(xattr::get(mounted.join("one byte"), absent), Ok(None)) || absent.starts_with("system"), "{absent} is there");
    }
    Ok(())
}

#[test]
fn a_path_mount_has_the_attributes_of_its_root() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &["--path", "sizes"])?;
    ensure!(mounted.attribute("", "user.git.commit")? == repo.id("HEAD")?);
    ensure!(mounted.attribute("", "user.git.oid")? == repo.id("HEAD:sizes")?);
    ensure!(mounted.status()?.path == "sizes");
    Ok(())
}

#[test]
fn statfs_is_that_of_a_full_file_system() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let status = nix::sys::statvfs::statvfs(mounted.path())?;
    ensure!(status.blocks_available() == 0 && status.blocks_free() == 0, "there is space to write");
    ensure!(status.name_max() == 255 && status.block_size() > 0);
    ensure!(status.flags().contains(nix::sys::statvfs::FsFlags::ST_RDONLY));
    Ok(())
}

#[test]
fn links_are_not_counted_for_directories() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    // One for directories too: with a count of sub-directories `find` would ask for the file system's type before it relies on it.
    for path in ["", "one byte", "links/dangling", "sizes", "modules", "modules/sub"] {
        let found = mounted.join(path).symlink_metadata()?.nlink();
        ensure!(found == 1, "{path} has {found} links");
    }
    Ok(())
}

#[test]
fn modes_owners_and_blocks() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    for (path, executable) in [("one byte", false), ("run.sh", true), ("sizes", true), ("modules/sub", true)] {
        let status = mounted.join(path).metadata()?;
        let mode = status.permissions().mode() & 0o7777;
        ensure!(mode & 0o444 == 0o444 && mode & 0o7000 == 0, "{path} has the mode {mode:o}");
        ensure!((mode & 0o111 == 0o111) == executable && (mode & 0o111 == 0) != executable, "{path} has the mode {mode:o}");
        ensure!(status.uid() == nix::unistd::geteuid().as_raw() && status.gid() == nix::unistd::getegid().as_raw(), "{path}");
    }
    for size in [0, 1, 4096, 4097, 131_073_u64] {
        let path = match size {
            0 => "empty".to_owned(),
            1 => "one byte".to_owned(),
            size => format!("sizes/{size}"),
        };
        let status = mounted.join(&path).metadata()?;
        ensure!(status.len() == size && status.blocks() >= size.div_ceil(512), "{path} of {size} bytes takes {} blocks", status.blocks());
    }
    Ok(())
}

#[test]
fn inode_numbers_are_unique_and_stable() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let before = inodes(mounted.path())?;
    let mut seen: HashMap<u64, &PathBuf> = HashMap::new();
    for (path, inode) in &before {
        if let Some(other) = seen.insert(*inode, path) {
            anyhow::bail!("{} and {} have the inode number {inode}", path.display(), other.display());
        }
    }
    let _lock = scratch::exclusive("kernel-caches")?;
    for _ in 0..2 {
        scratch::drop_caches(false)?;
        let after = inodes(mounted.path())?;
        let moved = before.iter().find(|(path, inode)| after.get(*path) != Some(inode));
        ensure!(moved.is_none(), "{moved:?} has another inode number once the kernel has forgotten it");
    }
    Ok(())
}

#[test]
fn equal_files_are_two_files() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = fixtures::small(&dir.path().join("r.git"), &[("a", "same"), ("b", "same"), ("d/a", "same"), ("e/a", "same")])?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let mut all: Vec<u64> = inodes(mounted.path())?.into_values().collect();
    all.sort_unstable();
    all.dedup();
    ensure!(all.len() == 7, "six entries and the root share inode numbers: tar and rsync would take them for hard links");
    Ok(())
}

#[test]
fn a_listing_is_whole_while_it_is_read_in_parts() -> Result<()> {
    let repo = fixtures::get("wide", shape::wide)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    // Two readers at their own pace.
    let mut other = fs::read_dir(mounted.join("wide"))?;
    let mut names = std::collections::HashSet::new();
    for entry in fs::read_dir(mounted.join("wide"))? {
        ensure!(names.insert(entry?.file_name()), "an entry is listed twice");
        if names.len() % 3 == 0 {
            other.next().context("the other listing ended early")??;
        }
    }
    ensure!(other.count() + names.len() / 3 == shape::WIDE, "the other listing ended early");
    ensure!(names.len() == shape::WIDE, "{} names", names.len());
    Ok(())
}

#[test]
fn every_directory_lists_itself_and_its_parent() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    for _ in 0..2 {
        let listed = run(command("ls").args(["-a", "-i", "-1"]).arg(mounted.join("modules")))?.success()?.out();
        let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
        let inode = |path: &str| -> Result<String> { Ok(mounted.join(path).metadata()?.ino().to_string()) };
        let expected = [(inode("modules")?, "."), (inode(".")?, ".."), (inode("modules/sub")?, "sub")];
        ensure!(lines.len() == 3 && lines.iter().zip(&expected).all(|(l, (ino, name))| l[0] == ino && l[1] == *name), "{listed}");
    }
    Ok(())
}
