//! A file of 1 GiB: any part of it is right, memory stays small, and nothing is left on the disk.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, big, content};
use gitmount_tests::mount::Account;

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
