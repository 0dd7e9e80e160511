//! How many messages the kernel needs: none for a warm tree, and no more than one for each name and each 128 KiB for a cold one.
//! Counts, not seconds: no noise of the machine can break them.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, content, real, shape};
use gitmount_tests::mount::{Account, Mounted, Requests};
use gitmount_tests::run::{command, run};
use gitmount_tests::scratch;

/// Bytes that one read brings at least, where more are there.
const READ: u64 = 128 << 10;

/// Reads a tree.
type Program = fn(&Path) -> Result<()>;

const ALL: [(&str, Program); 3] = [("find", find), ("tar", tar), ("grep", grep)];

fn find(dir: &Path) -> Result<()> {
    run(command("find").arg(dir).args(["-type", "f"]))?.success().map(drop)
}

fn tar(dir: &Path) -> Result<()> {
    // Into a pipe: tar reads no file when its output is /dev/null.
    run(command("sh").args(["-c", "tar -C \"$0\" -cf - . | wc -c"]).arg(dir))?.success().map(drop)
}

fn grep(dir: &Path) -> Result<()> {
    // Exit code 1: nothing found.
    let finished = run(command("grep").args(["-r", "no such text in any file, we hope"]).arg(dir))?;
    ensure!(finished.code() == 1, "{}", finished.err());
    Ok(())
}

/// What a tree is made of: names (without the root), directories (with it), reads that its files take.
fn measure(dir: &Path) -> Result<(u64, u64, u64)> {
    let (mut names, mut dirs, mut reads) = (0, 0, 0);
    let mut left = vec![dir.to_owned()];
    while let Some(dir) = left.pop() {
        dirs += 1;
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            let status = path.symlink_metadata()?;
            names += 1;
            if status.is_dir() {
                left.push(path);
            } else if status.is_file() {
                reads += status.len().div_ceil(READ);
            }
        }
    }
    Ok((names, dirs, reads))
}

fn count(requests: &Requests, name: &str) -> u64 {
    requests.get(name).copied().unwrap_or(0)
}

/// Warms the tree by each of these programs and checks that each then sends nothing. The kernel may give memory back at any time, and
/// what it gave back must be asked for again; so one silent round of a few is enough, and a file system that is not silent has none.
fn warm_is_silent(mounted: &Mounted<'_>, programs: &[(&str, Program)]) -> Result<()> {
    let mut sent = Requests::new();
    for _ in 0..10 {
        for (_, program) in programs {
            program(mounted.path())?;
        }
        sent.clear();
        for (name, program) in programs {
            let mut messages = mounted.messages_of(|| program(mounted.path()))?;
            // Programs ask for the file system's type (`statfs`, which Linux never caches) before they sort a directory of over 10,000
            // entries.
            if mounted.path().join("wide").exists() && count(&messages, "statfs") == 1 {
                messages.remove("statfs");
            }
            sent.extend(messages.into_iter().map(|(kind, count)| (format!("{name}: {kind}"), count)));
        }
        if sent.is_empty() {
            return Ok(());
        }
    }
    anyhow::bail!("a warm tree was never silent; the last round sent {sent:?}")
}

#[test]
fn asking_for_the_status_sends_nothing() -> Result<()> {
    let _lock = scratch::exclusive("kernel-caches")?;
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let sent = mounted.messages_of(|| Ok(()))?;
    ensure!(sent.is_empty(), "{sent:?}");
    ensure!(!mounted.messages_of(|| find(mounted.path()))?.is_empty(), "nothing is counted");
    Ok(())
}

#[test]
fn a_warm_tree_of_every_content_sends_nothing() -> Result<()> {
    let _lock = scratch::exclusive("kernel-caches")?;
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    warm_is_silent(&mounted, &ALL)
}

#[test]
fn a_warm_wide_directory_sends_nothing() -> Result<()> {
    let _lock = scratch::exclusive("kernel-caches")?;
    let repo = fixtures::get("wide", shape::wide)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    warm_is_silent(&mounted, &[("find", find)])
}

#[test]
fn a_warm_large_real_tree_sends_nothing_and_a_cold_one_little() -> Result<()> {
    let _lock = scratch::exclusive("kernel-caches")?;
    let repo = fixtures::get("packages", real::packages)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let sent = mounted.messages_of(|| tar(mounted.path()))?;
    let (names, dirs, reads) = measure(mounted.path())?;
    let about = format!("{names} names in {dirs} directories, {reads} reads needed, sent: {sent:?}");
    ensure!(count(&sent, "lookup") + count(&sent, "getattr") <= names, "{about}");
    // One message lists what fits into it, and one more says that this was all.
    ensure!(count(&sent, "readdir") + count(&sent, "readdirplus") <= 2 * dirs + names / 16, "{about}");
    ensure!(count(&sent, "read") <= reads, "{about}");
    for open in ["open", "opendir", "flush", "release", "releasedir"] {
        ensure!(count(&sent, open) <= 1, "{about}");
    }
    warm_is_silent(&mounted, &ALL)
}

#[test]
fn a_cold_read_of_one_file_is_one_message() -> Result<()> {
    let _lock = scratch::exclusive("kernel-caches")?;
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    mounted.names("sizes")?;
    for size in [4095_u64, 4096, 4097, 131_071, 131_072, 131_073] {
        let sent = mounted.messages_of(|| {
            let (read, _) = compare::digest(fs::File::open(mounted.join(format!("sizes/{size}")))?)?;
            ensure!(read == size);
            Ok(())
        })?;
        ensure!(count(&sent, "read") <= size.div_ceil(READ), "{size} bytes took {sent:?}");
    }
    Ok(())
}

#[test]
fn a_path_that_is_not_there_is_asked_for_once() -> Result<()> {
    let _lock = scratch::exclusive("kernel-caches")?;
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    ensure!(!mounted.join("sizes/not there").exists());
    let sent = mounted.messages_of(|| {
        ensure!(!mounted.join("sizes/not there").exists());
        Ok(())
    })?;
    ensure!(sent.is_empty(), "{sent:?}");
    Ok(())
}

#[test]
fn a_pull_leaves_the_unchanged_part_warm() -> Result<()> {
    let _lock = scratch::exclusive("kernel-caches")?;
    let dir = scratch::dir()?;
    let path = dir.path().join("r.git");
    let names: Vec<String> = (0..1000).map(|n| format!("dir-{}/file-{n}", n % 20)).collect();
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "the same\n")).collect();
    let repo = fixtures::small(&path, &files)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    warm_is_silent(&mounted, &ALL)?;
    let new = fixtures::commit(&repo, "one change", &[("dir-7/file-7", "another\n")])?;
    mounted.wait_for_commit(&new, std::time::Duration::from_secs(5))?;
    let sent = mounted.messages_of(|| tar(mounted.path()))?;
    let all: u64 = sent.values().sum();
    ensure!(all <= 12, "one changed file of 1000 cost {sent:?}");
    let read = mounted.text("dir-7/file-7").context("the changed file")?;
    ensure!(read == "another\n");
    Ok(())
}
