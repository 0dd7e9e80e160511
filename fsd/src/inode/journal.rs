//! The node journal: what the kernel may rely on, in a file, so that the next process answers as this one did.
//!
//! A line of text (name, version, boot, number of resumes), then records: length and CRC-32 of the payload, each a little-endian 32-bit number, then the payload
//! (see `record`). Promises:
//!
//! - A record is written, with one `write`, before the reply or the switch that relies on it. So a process that is killed at any moment has
//!   written a prefix, and a prefix is a state that the kernel agrees with: more may be written than was told, never less.
//! - Nothing waits for the disk itself: after a crash of the machine there is no mount that could need a journal, which the boot's id tells.
//! - A reader stops at the first record that is torn or makes no sense.
//! - When the disk is full, serving goes on. The file is then written whole again until that works.
//! - The file is rewritten, beside the old one and in its place at once, when it is over twice as long as after the last time, and some more.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use super::record::{Record, Writer};
use super::{Inner, NodeId};

/// The version of the format. The reader takes this one and the one before.
pub(super) const VERSION: u32 = 1;
const NAME: &str = "gitmount-nodes";
/// Digits of the number of resumes, so that it can be written over.
const RESUMES: usize = 10;
/// The longest first line.
const LONGEST_HEADER: usize = 200;
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Length and checksum.
const FRAME: usize = 8;
/// The log may be this much longer than twice the last whole state before it is rewritten.
const SLACK: u64 = 1 << 20;
/// How often a full disk is tried again.
const AGAIN: Duration = Duration::from_millis(500);
/// Forgotten orphans that are remembered before a record of them is written.
const FORGOTTEN: usize = 512;

/// Why there is no state to resume.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The file cannot be read.
    #[error("the node journal {} cannot be read: {error}", .path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        error: io::Error,
    },
    /// It is of another format.
    #[error("the node journal {} has version {found}, this release reads version {VERSION}: the mount has to be made anew", .path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        found: u64,
    },
    /// It is of an earlier boot of the machine, whose mounts are gone.
    #[error("the node journal {} is of an earlier boot of this machine: its mount is gone", .0.display())]
    Boot(PathBuf),
    /// It says nothing that can be used.
    #[error("the node journal {} is damaged from the start: the mount has to be made anew", .0.display())]
    Damaged(PathBuf),
}

#[derive(Debug)]
struct State {
    file: Option<File>,
    length: u64,
    /// Its length when it was last written whole.
    whole: u64,
    /// While it is rewritten: what the new file does not have yet.
    beside: Option<Vec<u8>>,
    forgotten: Vec<NodeId>,
    error: Option<String>,
    writing: bool,
}

/// The journal of one table. It is appended to under the table's write lock.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    state: Mutex<State>,
    /// The table, for writing it whole.
    table: Weak<RwLock<Inner>>,
}

impl Journal {
    /// Writes a new journal of `table` at `path`, in place of what is there.
    pub(super) fn create(path: &Path, table: &Arc<RwLock<Inner>>) -> Arc<Self> {
        let state = State { file: None, length: 0, whole: 0, beside: None, forgotten: vec![], error: None, writing: false };
        let journal = Arc::new(Journal { path: path.to_owned(), state: Mutex::new(state), table: Arc::downgrade(table) });
        if let Err(error) = journal.write_whole() {
            let mut state = journal.state.lock();
            journal.failed(&mut state, &error);
        }
        journal
    }

    /// What is wrong with writing it, while something is.
    pub(super) fn error(&self) -> Option<String> {
        self.state.lock().error.clone()
    }

    /// Appends a record. Called under the table's write lock.
    pub(super) fn append(self: &Arc<Self>, record: &Record) {
        let mut state = self.state.lock();
        let mut frames = Vec::new();
        if !state.forgotten.is_empty() {
            frame(&mut frames, &Record::Forgotten(std::mem::take(&mut state.forgotten)));
        }
        frame(&mut frames, record);
        self.write(&mut state, &frames);
    }

    /// Remembers that an orphan was forgotten; that may be lost, which only leaks it. Called under the table's write lock.
    pub(super) fn forget(self: &Arc<Self>, node: NodeId) {
        let mut state = self.state.lock();
        state.forgotten.push(node);
        if state.forgotten.len() >= FORGOTTEN {
            let mut frames = Vec::new();
            frame(&mut frames, &Record::Forgotten(std::mem::take(&mut state.forgotten)));
            self.write(&mut state, &frames);
        }
    }

    fn write(self: &Arc<Self>, state: &mut State, frames: &[u8]) {
        if let Some(beside) = &mut state.beside {
            beside.extend_from_slice(frames);
        }
        // Without a file it waits to be written whole, with this in it.
        let Some(file) = &mut state.file else { return };
        match file.write_all(frames) {
            Ok(()) => {
                state.length += frames.len() as u64;
                if state.length > 2 * state.whole + SLACK {
                    self.start_writing(state);
                }
            }
            Err(error) => {
                // What was written of it is no record, and nothing may come after it.
                let _ = file.set_len(state.length);
                self.failed(state, &error);
            }
        }
    }

    fn failed(self: &Arc<Self>, state: &mut State, error: &io::Error) {
        state.file = None;
        let message = format!(
            "the node journal {} cannot be written ({error}): the mount goes on, but would not outlive its process before the disk has space again",
            self.path.display()
        );
        if state.error.is_none() {
            tracing::warn!("{message}");
        }
        state.error = Some(message);
        self.start_writing(state);
    }

    /// Writes it whole in a thread of its own, again and again until that works or the table is gone.
    fn start_writing(self: &Arc<Self>, state: &mut State) {
        if std::mem::replace(&mut state.writing, true) {
            return;
        }
        let journal = Arc::downgrade(self);
        let run = move || {
            while let Some(journal) = journal.upgrade() {
                let written = journal.write_whole();
                let mut state = journal.state.lock();
                match written {
                    Err(error) if state.file.is_some() => {
                        // The old file is as good as ever, only long: it is tried again when it is twice as long.
                        tracing::debug!(%error, "the node journal cannot be compacted");
                        (state.whole, state.writing) = (state.length, false);
                        return;
                    }
                    Ok(()) if state.file.is_some() => {
                        state.writing = false;
                        return;
                    }
                    _ => {}
                }
                drop(state);
                drop(journal);
                thread::sleep(AGAIN);
            }
        };
        if thread::Builder::new().name("journal".into()).spawn(run).is_err() {
            state.writing = false;
        }
    }

    /// Writes the whole table into a new file and puts that in the place of the old one. What is appended meanwhile goes to both.
    fn write_whole(&self) -> io::Result<()> {
        let Some(table) = self.table.upgrade() else { return Ok(()) };
        let mut frames = header();
        {
            // Nothing is appended while this is held.
            let inner = table.read();
            self.state.lock().beside = Some(Vec::new());
            inner.describe(|record| frame(&mut frames, record));
        }
        let new = self.path.with_extension("new");
        let written = (|| {
            let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&new)?;
            file.write_all(&frames)?;
            let mut state = self.state.lock();
            let beside = state.beside.take().unwrap_or_default();
            file.write_all(&beside)?;
            fs::rename(&new, &self.path)?;
            state.length = (frames.len() + beside.len()) as u64;
            state.whole = state.length;
            state.file = Some(file);
            if state.error.take().is_some() {
                tracing::info!(path = %self.path.display(), "the node journal is written again");
            }
            Ok(())
        })();
        if written.is_err() {
            self.state.lock().beside = None;
            // It may be what filled the disk.
            let _ = fs::remove_file(&new);
        }
        written
    }
}

/// Adds a record with its length and checksum.
fn frame(frames: &mut Vec<u8>, record: &Record) {
    let start = frames.len();
    frames.extend_from_slice(&[0; FRAME]);
    let mut writer = Writer(std::mem::take(frames));
    writer.record(record);
    *frames = writer.0;
    let payload = &frames[start + FRAME..];
    let (length, sum) = ((payload.len() as u32).to_le_bytes(), crc32fast::hash(payload).to_le_bytes());
    frames[start..start + 4].copy_from_slice(&length);
    frames[start + 4..start + FRAME].copy_from_slice(&sum);
}

fn boot() -> String {
    fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned()
}

fn header() -> Vec<u8> {
    format!("{NAME} {VERSION} {} {:0RESUMES$}\n", boot(), 0).into_bytes()
}

/// What was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Outcome {
    /// Good records.
    pub(super) records: usize,
    /// Whether that was everything.
    pub(super) whole: bool,
    /// How often this very file was resumed, now included: more than once when it could not be written whole the last time.
    pub(super) resumes: u32,
}

/// Reads a journal, gives its records to `apply` until one is torn or `apply` cannot use it, and counts this resume in it.
pub(super) fn read(path: &Path, mut apply: impl FnMut(Record) -> Option<()>) -> Result<Outcome, JournalError> {
    let mut bytes = Vec::new();
    let opened = File::open(path).and_then(|mut file| file.read_to_end(&mut bytes));
    opened.map_err(|error| JournalError::Unreadable { path: path.to_owned(), error })?;
    let damaged = || JournalError::Damaged(path.to_owned());
    let end = bytes.iter().take(LONGEST_HEADER).position(|b| *b == b'\n').ok_or_else(damaged)?;
    let line = str::from_utf8(&bytes[..end]).map_err(|_| damaged())?;
    let mut words = line.split(' ');
    let (name, version, boot_id) = (words.next(), words.next(), words.next());
    let found: u64 = version.and_then(|v| v.parse().ok()).filter(|_| name == Some(NAME)).ok_or_else(damaged)?;
    if found != u64::from(VERSION) {
        return Err(JournalError::Version { path: path.to_owned(), found });
    }
    if boot_id != Some(boot().as_str()) {
        return Err(JournalError::Boot(path.to_owned()));
    }
    let (mut rest, mut good) = (&bytes[end + 1..], 0);
    while let Some((record, after)) = next(rest)
        && apply(record).is_some()
    {
        (rest, good) = (after, good + 1);
    }
    if good == 0 {
        return Err(damaged());
    }
    let resumes = words.next().and_then(|n| n.parse().ok()).and_then(|n: u32| n.checked_add(1)).ok_or_else(damaged)?;
    let at = end.checked_sub(RESUMES).ok_or_else(damaged)?;
    // Needs no space. Should it fail all the same, the new file, which is written next, does not need it.
    let counted =
        OpenOptions::new().write(true).open(path).and_then(|file| file.write_all_at(format!("{resumes:0RESUMES$}").as_bytes(), at as u64));
    if let Err(error) = counted {
        tracing::warn!(path = %path.display(), %error, "the node journal cannot be written");
    }
    Ok(Outcome { records: good, whole: rest.is_empty(), resumes })
}

/// The first record of `bytes` and what comes after it.
fn next(bytes: &[u8]) -> Option<(Record, &[u8])> {
    let (head, rest) = bytes.split_at_checked(FRAME)?;
    let length = u32::from_le_bytes(head[..4].try_into().ok()?);
    let sum = u32::from_le_bytes(head[4..].try_into().ok()?);
    let (payload, rest) = rest.split_at_checked(length as usize)?;
    (crc32fast::hash(payload) == sum).then_some(())?;
    Some((super::record::decode(payload)?, rest))
}

#[cfg(test)]
mod tests;
