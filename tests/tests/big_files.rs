//! A file of 1 GiB: any part of it is right, memory stays small, and nothing is left on the disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, big, content};
use gitmount_tests::mount::Account;
use gitmount_tests::servers::daemon::GitDaemon;

const MIB: u64 = 1 << 20;

/// Anonymous memory of a process in bytes: what it cannot give back, unlike mapped packs.
fn anonymous(id: i32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{id}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("RssAnon is in /proc")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

#[test]
fn parts_from_the_end_the_start_and_the_middle() -> Result<()> {
    let repo = fixtures::get("big", big::big)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let file = File::open(mounted.join("big"))?;
    ensure!(file.metadata()?.len() == big::BIG);
    for offset in [big::BIG - 10_000, 0, big::BIG / 2 - 5000, 123_456_789, 7] {
        let mut bytes = vec![0; 10_000];
        file.read_exact_at(&mut bytes, offset)?;
        ensure!(bytes == big::bytes(offset, 10_000), "wrong bytes at {offset}");
    }
    ensure!(file.read_at(&mut [0; 10], big::BIG)? == 0 && file.read_at(&mut [0; 10], big::BIG - 4)? == 4);
    Ok(())
}

#[test]
fn memory_stays_small() -> Result<()> {
    let repo = fixtures::get("big", big::big)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let id = *account.processes().first().context("a process serves the mount")?;
    let mut peak = 0;
    let file = File::open(mounted.join("big"))?;
    let mut buffer = vec![0; 16 << 20];
    for offset in (0..big::BIG).step_by(buffer.len()) {
        file.read_exact_at(&mut buffer, offset)?;
        peak = peak.max(anonymous(id)?);
    }
    ensure!(peak < 64 * MIB, "reading 1 GiB took {} MiB of anonymous memory", peak / MIB);
    Ok(())
}

#[test]
fn a_fetched_one_is_read_in_parts_in_any_order_and_in_little_memory() -> Result<()> {
    let repo = fixtures::get("big", big::big)?;
    let served = repo.path().parent().context("a fixture is in a directory")?;
    let name = repo.path().file_name().and_then(|name| name.to_str()).context("a fixture has a name")?;
    let daemon = GitDaemon::serve(served)?;
    let account = Account::new()?;
    let check = |file: &File, offset: u64| -> Result<()> {
        let mut bytes = vec![0; 300_000];
        file.read_exact_at(&mut bytes, offset)?;
        ensure!(bytes == big::bytes(offset, bytes.len()), "wrong bytes at {offset}");
        Ok(())
    };
    for _ in 0..2 {
        let mounted = account.mount(&daemon.url(name), &[])?;
        let points = points(account.store())?;
        ensure!(points.len() == 1, "{points:?}");
        let file = File::open(mounted.join("big"))?;
        for n in (1..40_u64).rev() {
            check(&file, n * 26_214_007)?;
        }
        let id = *account.processes().first().context("a process serves the mount")?;
        for offset in (0..big::BIG - 300_000).step_by(8 << 20) {
            check(&file, offset)?;
            let memory = anonymous(id)?;
            ensure!(memory < 64 * MIB, "reading 1 GiB takes {} MiB of anonymous memory", memory / MIB);
        }
        drop(file);
        mounted.unmount()?;
        account.wait_until_idle()?;
        // As the fetch left them, and then broken.
        for path in points {
            fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644))?;
            File::options().write(true).open(&path)?.set_len(1_000_000)?;
        }
    }
    Ok(())
}

/// The files with access points in a store.
fn points(store: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![store.join("repos")];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir)? {
            let path = entry?.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "points") {
                found.push(path);
            }
        }
    }
    Ok(found)
}

#[test]
fn what_is_spooled_has_no_name_and_goes_with_the_mount() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let name = "sizes/just-over-the-spool-threshold";
    let (size, _) = compare::digest(File::open(mounted.join(name))?)?;
    ensure!(size == content::OVER_THRESHOLD as u64);
    let mut left = vec![account.store().to_owned(), account.runtime()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten() {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                left.push(entry.path());
            } else {
                ensure!(entry.metadata()?.len() < MIB, "{} would stay after a crash", entry.path().display());
            }
        }
    }
    mounted.unmount()?;
    account.wait_until_idle()
}

#[test]
fn many_readers_of_one_big_file() -> Result<()> {
    let repo = fixtures::get("big", big::big)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..8_u64)
            .map(|n| {
                let path = mounted.join("big");
                scope.spawn(move || -> Result<()> {
                    let file = File::open(path)?;
                    for step in 0..8 {
                        let offset = (n * 131 + step * 977) % 1024 * MIB;
                        let mut bytes = vec![0; 200_000];
                        file.read_exact_at(&mut bytes, offset)?;
                        ensure!(bytes == big::bytes(offset, bytes.len()), "wrong bytes at {offset}");
                    }
                    Ok(())
                })
            })
            .collect();
        readers.into_iter().try_for_each(|reader| reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))?)
    })
}
