//! Writes a blob into its file in parts, by several threads. A part is seen by readers once it is there as a whole and was checked.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::thread;

use gitmount_store::objects::Parts;
use parking_lot::Mutex;

use super::{Spooled, no_spool};
use crate::fs::{FsError, Result, disk};

/// Most threads for one blob.
const MOST_THREADS: usize = 8;

/// Which parts are there.
#[derive(Debug)]
pub(super) struct PartsDone {
    /// Where each part ends.
    ends: Vec<u64>,
    taken: Vec<bool>,
    done: Vec<bool>,
}

impl PartsDone {
    fn new(ends: Vec<u64>) -> Self {
        PartsDone { taken: vec![false; ends.len()], done: vec![false; ends.len()], ends }
    }

    /// The parts that have bytes from `offset` to before `end`.
    fn covering(&self, offset: u64, end: u64) -> std::ops::Range<usize> {
        let first = self.ends.partition_point(|part| *part <= offset);
        let last = self.ends.partition_point(|part| *part < end);
        first..(last + 1).min(self.ends.len())
    }

    /// Whether all bytes from `offset` to before `end` are there.
    pub(super) fn has(&self, offset: u64, end: u64) -> bool {
        self.done[self.covering(offset, end)].iter().all(|done| *done)
    }

    /// The next to inflate: one that is among `wanted`, else the first.
    fn take(&mut self, wanted: impl Iterator<Item = (u64, u64)>) -> Option<usize> {
        let untaken = |number: &usize| !self.taken[*number];
        let number = wanted.flat_map(|(offset, end)| self.covering(offset, end)).find(untaken);
        let number = number.or_else(|| self.taken.iter().position(|taken| !taken))?;
        self.taken[number] = true;
        Some(number)
    }

    /// Notes that a part is there; up to where all are.
    fn finish(&mut self, number: usize) -> u64 {
        self.done[number] = true;
        let first_missing = self.done.iter().position(|done| !done).unwrap_or(self.done.len());
        first_missing.checked_sub(1).map_or(0, |last| self.ends[last])
    }
}

impl Spooled {
    /// Inflates all parts. After an error some of them are there all the same.
    pub(super) fn write_parts(&self, parts: &Parts) -> Result<()> {
        let ends: Vec<u64> = (0..parts.count()).filter_map(|number| parts.range(number)).map(|(offset, length)| offset + length).collect();
        self.progress.lock().parts = Some(PartsDone::new(ends));
        let failed = Mutex::new(None);
        let work = || {
            while failed.lock().is_none()
                && let Some(number) = self.take_part()
            {
                if let Err(error) = self.write_part(parts, number) {
                    *failed.lock() = Some(error);
                }
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS).min(parts.count());
        thread::scope(|scope| {
            for _ in 1..threads {
                // With fewer of them it takes longer.
                if thread::Builder::new().name("spool-part".into()).spawn_scoped(scope, work).is_err() {
                    break;
                }
            }
            work();
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn take_part(&self) -> Option<usize> {
        let mut progress = self.progress.lock();
        let super::Progress { parts, waiters, .. } = &mut *progress;
        let wanted = waiters.iter().map(|w| (w.offset, w.offset.saturating_add(u64::from(w.size)).min(self.size)));
        parts.as_mut()?.take(wanted)
    }

    fn write_part(&self, parts: &Parts, number: usize) -> Result<()> {
        let (offset, length) = parts.range(number).ok_or(FsError::Stale)?;
        let mut out = Section { file: &self.file, at: offset, end: offset + length, failed: None };
        match (parts.write(number, &mut out), out.failed) {
            (_, Some(error)) => Err(no_spool(&self.dir, error)),
            (Err(error), None) => Err(disk(error)),
            (Ok(()), None) => {
                self.progressed(|progress| {
                    let written = progress.parts.as_mut().map_or(0, |parts| parts.finish(number));
                    progress.written = progress.written.max(written);
                });
                Ok(())
            }
        }
    }
}

/// The place of one part in the file.
struct Section<'a> {
    file: &'a File,
    at: u64,
    end: u64,
    failed: Option<io::Error>,
}

impl Write for Section<'_> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.end - self.at < data.len() as u64 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Err(error) = self.file.write_all_at(data, self.at) {
            let kind = error.kind();
            self.failed = Some(error);
            return Err(kind.into());
        }
        self.at += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_waited_for_comes_first_and_gaps_are_no_part_of_the_start() {
        let mut parts = PartsDone::new(vec![10, 20, 30, 35]);
        assert_eq!(parts.covering(0, 10), 0..1);
        assert_eq!(parts.covering(9, 11), 0..2);
        assert_eq!(parts.covering(10, 35), 1..4);
        assert_eq!(parts.take([(21, 22)].into_iter()), Some(2));
        assert_eq!(parts.take([(21, 22)].into_iter()), Some(0));
        assert!(!parts.has(21, 22));
        assert_eq!(parts.finish(2), 0);
        assert!(parts.has(20, 30) && !parts.has(19, 30) && !parts.has(20, 31));
        assert_eq!(parts.finish(0), 10);
        assert_eq!(parts.take([(0, 35)].into_iter()), Some(1));
        assert_eq!(parts.finish(1), 30);
        assert_eq!(parts.take(std::iter::empty()), Some(3));
        assert_eq!(parts.take([(0, 35)].into_iter()), None);
        assert_eq!(parts.finish(3), 35);
        assert!(parts.has(0, 35) && parts.has(35, 35));
    }
}
