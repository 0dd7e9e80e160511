//! Big blobs: inflated once into an unlinked file, read from there.
//!
//! A blob that has access points is inflated in parts by several threads, the parts that somebody waits for first.
//!
//! Promises: never a whole big blob in memory; the files together stay below the limit, the least recently used finished one goes first; a
//! read waits only until the blob is inflated that far, and does not hold a request thread meanwhile; a failed inflation (a full disk, a
//! broken object) fails the reads that waited for it, and the next read tries again.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Arc, Weak};
use std::thread;

use gitmount_store::ids::ObjectId;
use gitmount_store::objects::Objects;
use lru::LruCache;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use parking_lot::Mutex;

use super::{FsError, Result, disk};

/// Gets what was read.
pub type Done = Box<dyn FnOnce(Result<&[u8]>) + Send>;

mod parts;

use parts::PartsDone;

thread_local! {
    /// What a reply is made of: buffers of this size are mapped anew each time, which costs as much as reading into them.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The biggest buffer that a thread keeps: as much as the kernel asks for at once.
const BUFFERED: usize = 1 << 20;
/// Blobs inflated at the same time.
const WORKERS: usize = 2;
/// Bytes that go from inflating to writing at once, and how many of those may wait.
const PIECE: usize = 256 << 10;
const PIECES: usize = 4;

/// The spool of one file system.
#[derive(Debug)]
pub struct Spool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    objects: Objects,
    dir: Arc<Path>,
    limit: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    files: LruCache<ObjectId, Arc<Spooled>>,
    bytes: u64,
    queue: VecDeque<(ObjectId, Arc<Spooled>)>,
    workers: usize,
}

#[derive(Debug)]
struct Spooled {
    dir: Arc<Path>,
    file: File,
    size: u64,
    progress: Mutex<Progress>,
}

#[derive(Default)]
struct Progress {
    /// From the start on, without a gap.
    written: u64,
    parts: Option<PartsDone>,
    finished: bool,
    failed: Option<FailedKind>,
    waiters: Vec<Waiter>,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} written, {} waiting", self.written, self.waiters.len())
    }
}

struct Waiter {
    offset: u64,
    size: u32,
    done: Done,
}

#[derive(Debug, Clone)]
enum FailedKind {
    NoSpace,
    Broken(gitmount_store::Fault, String),
}

impl FailedKind {
    fn error(&self) -> FsError {
        match self {
            FailedKind::NoSpace => FsError::NoSpace,
            FailedKind::Broken(fault, message) => gitmount_store::StoreError::new(*fault, message.clone()).into(),
        }
    }
}

impl Spool {
    /// An empty spool in `dir`, which is created when first needed.
    pub fn new(objects: Objects, dir: PathBuf, limit: u64) -> Self {
        let state = State { files: LruCache::unbounded(), bytes: 0, queue: VecDeque::new(), workers: 0 };
        let shared = Arc::new(Shared { objects, dir: dir.into(), limit, state: Mutex::new(state) });
        let mut all = ALL.lock();
        all.retain(|spool| spool.strong_count() > 0);
        all.push(Arc::downgrade(&shared));
        drop(all);
        Spool { shared }
    }

    /// Reads `size` bytes at `offset` of blob `id`, which has `total` bytes. `done` is called once the bytes are there.
    pub fn read(&self, id: ObjectId, total: u64, offset: u64, size: u32, done: Done) {
        let file = match self.shared.file(id, total) {
            Ok(file) => file,
            Err(error) => return done(Err(error)),
        };
        let mut progress = file.progress.lock();
        if let Some(failed) = &progress.failed {
            let error = failed.error();
            drop(progress);
            return done(Err(error));
        }
        let end = offset.saturating_add(u64::from(size)).min(file.size);
        if !progress.has(offset, end) {
            progress.waiters.push(Waiter { offset, size, done });
            return;
        }
        drop(progress);
        file.answer(offset, size, done);
    }
}

impl Shared {
    /// The spooled file of `id`, queued for inflation when it is new.
    fn file(self: &Arc<Self>, id: ObjectId, size: u64) -> Result<Arc<Spooled>> {
        let mut state = self.state.lock();
        if let Some(file) = state.files.get(&id) {
            return Ok(file.clone());
        }
        state.make_room(size, self.limit)?;
        let made = std::fs::create_dir_all(&self.dir).and_then(|()| tempfile::tempfile_in(&self.dir));
        let file = made.map_err(|error| no_spool(&self.dir, error))?;
        let file = Arc::new(Spooled { dir: Arc::clone(&self.dir), file, size, progress: Mutex::default() });
        state.files.put(id, file.clone());
        state.bytes += size;
        state.queue.push_back((id, file.clone()));
        if state.workers < WORKERS {
            state.workers += 1;
            let shared = self.clone();
            let spawned = thread::Builder::new().name("spool".into()).spawn(move || shared.work());
            if let Err(error) = spawned {
                state.workers -= 1;
                state.queue.pop_back();
                state.forget(&id);
                return Err(no_spool(&self.dir, error));
            }
        }
        Ok(file)
    }

    fn work(&self) {
        loop {
            let (id, file) = {
                let mut state = self.state.lock();
                match state.queue.pop_front() {
                    Some(next) => next,
                    None => {
                        state.workers -= 1;
                        return;
                    }
                }
            };
            let failed = self.inflate(id, &file);
            if failed.is_some() {
                self.state.lock().forget(&id);
            }
            file.finish(failed);
        }
    }

    fn inflate(&self, id: ObjectId, file: &Spooled) -> Option<FailedKind> {
        while let Err(error) = file.reserve() {
            // What is spooled already may be what fills the disk.
            if !give_way(&self.dir) {
                tracing::warn!("big files cannot be spooled in {}: {error}", self.dir.display());
                return Some(FailedKind::NoSpace);
            }
        }
        match self.objects.parts(id) {
            Ok(Some(parts)) if parts.size() == file.size => match file.write_parts(&parts) {
                Ok(()) => return None,
                Err(FsError::NoSpace) => return Some(FailedKind::NoSpace),
                Err(error) => tracing::warn!(blob = %id, %error, "a big file cannot be inflated in parts, it is from its start"),
            },
            // What is wrong with it is told by the way that needs no points.
            Ok(_) | Err(_) => {}
        }
        self.inflate_all(id, file)
    }

    /// Inflates in this thread and writes in another, which also answers the reads that wait: one core each.
    fn inflate_all(&self, id: ObjectId, file: &Spooled) -> Option<FailedKind> {
        let (give, take) = mpsc::sync_channel(PIECES);
        let outcome = thread::scope(|scope| {
            let writer = thread::Builder::new().name("spool-write".into()).spawn_scoped(scope, move || file.write(take));
            let writer = match writer {
                Ok(writer) => writer,
                Err(error) => return Err(no_spool(&self.dir, error)),
            };
            let mut pieces = Pieces { give, piece: Vec::with_capacity(PIECE) };
            let inflated = self.objects.blob_to(id, &self.dir, &mut pieces).and_then(|size| {
                let ended = |error| gitmount_store::StoreError::new(gitmount_store::Fault::Disk, "the spool ended early").caused_by(error);
                pieces.flush().map(|()| size).map_err(ended)
            });
            drop(pieces);
            // A writer that failed is why the inflation ended early.
            match writer.join() {
                Ok(Err(error)) => Err(no_spool(&self.dir, error)),
                Ok(Ok(())) => inflated.map_err(disk),
                Err(_) => Err(no_spool(&self.dir, io::Error::other("the writer panicked"))),
            }
        });
        match outcome {
            Ok(written) if written == file.size => None,
            Ok(written) => {
                let message = format!("blob {id} has {written} bytes where its header says {}", file.size);
                Some(FailedKind::Broken(gitmount_store::Fault::Corrupt, message))
            }
            Err(FsError::NoSpace) => Some(FailedKind::NoSpace),
            Err(other) => {
                tracing::warn!(blob = %id, error = %other, "a big file cannot be inflated");
                Some(FailedKind::Broken(gitmount_store::Fault::Corrupt, other.to_string()))
            }
        }
    }
}

/// The spools of this process.
static ALL: Mutex<Vec<Weak<Shared>>> = Mutex::new(Vec::new());

/// Drops a finished file of any spool in `dir`: one that is read again is inflated again. False when there is none.
fn give_way(dir: &Path) -> bool {
    let all: Vec<_> = ALL.lock().iter().filter_map(Weak::upgrade).filter(|spool| *spool.dir == *dir).collect();
    all.iter().any(|spool| spool.state.lock().forget_oldest())
}

impl State {
    /// Drops the least recently used finished files until `size` more bytes fit.
    fn make_room(&mut self, size: u64, limit: u64) -> Result<()> {
        if size > limit {
            return Err(FsError::NoSpace);
        }
        while self.bytes + size > limit {
            if !self.forget_oldest() {
                return Err(FsError::NoSpace);
            }
        }
        Ok(())
    }

    /// Drops the least recently used finished file; false when there is none.
    fn forget_oldest(&mut self) -> bool {
        let oldest = self.files.iter().rev().find(|(_, f)| f.progress.lock().finished).map(|(id, _)| *id);
        if let Some(id) = &oldest {
            self.forget(id);
        }
        oldest.is_some()
    }

    fn forget(&mut self, id: &ObjectId) {
        if let Some(file) = self.files.pop(id) {
            self.bytes -= file.size;
        }
    }
}

impl Progress {
    fn has(&self, offset: u64, end: u64) -> bool {
        end <= self.written || self.parts.as_ref().is_some_and(|parts| parts.has(offset, end))
    }
}

impl Spooled {
    /// Takes the space on the disk that the whole file needs, if the disk's file system can do so: what has no room there fails before
    /// anything is inflated, for all reads alike.
    fn reserve(&self) -> nix::Result<()> {
        let size = i64::try_from(self.size).unwrap_or(i64::MAX);
        match fallocate(&self.file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, size) {
            Err(code @ (Errno::ENOSPC | Errno::EDQUOT)) => Err(code),
            _ => Ok(()),
        }
    }

    fn write(&self, pieces: Receiver<Vec<u8>>) -> io::Result<()> {
        let mut at = 0;
        for piece in pieces {
            if at + piece.len() as u64 > self.size {
                return Err(io::Error::other("the blob is longer than its header says"));
            }
            self.file.write_all_at(&piece, at)?;
            at += piece.len() as u64;
            self.advance(at);
        }
        Ok(())
    }

    fn answer(&self, offset: u64, size: u32, done: Done) {
        let wanted = self.size.saturating_sub(offset).min(u64::from(size)) as usize;
        BUFFER.with(|buffer| {
            // Whoever is called may read again in this thread; that read then gets a buffer of its own.
            let mut bytes = buffer.take();
            if bytes.len() < wanted {
                bytes.resize(wanted, 0);
            }
            match self.file.read_exact_at(&mut bytes[..wanted], offset) {
                Ok(()) => done(Ok(&bytes[..wanted])),
                Err(error) => done(Err(no_spool(&self.dir, error))),
            }
            if bytes.len() <= BUFFERED {
                buffer.replace(bytes);
            }
        });
    }

    fn advance(&self, written: u64) {
        self.progressed(|progress| progress.written = progress.written.max(written));
    }

    /// Notes what has come, and answers the reads that waited for it.
    fn progressed(&self, note: impl FnOnce(&mut Progress)) {
        let ready = {
            let mut progress = self.progress.lock();
            note(&mut progress);
            let waiting = std::mem::take(&mut progress.waiters);
            let reached = |w: &Waiter| progress.has(w.offset, w.offset.saturating_add(u64::from(w.size)).min(self.size));
            let (ready, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(reached);
            progress.waiters = waiting;
            ready
        };
        for waiter in ready {
            self.answer(waiter.offset, waiter.size, waiter.done);
        }
    }

    fn finish(&self, failed: Option<FailedKind>) {
        let waiters = {
            let mut progress = self.progress.lock();
            progress.finished = true;
            progress.failed.clone_from(&failed);
            std::mem::take(&mut progress.waiters)
        };
        for waiter in waiters {
            match &failed {
                Some(failed) => (waiter.done)(Err(failed.error())),
                None => self.answer(waiter.offset, waiter.size, waiter.done),
            }
        }
    }
}

/// Hands what is written to it on in pieces.
struct Pieces {
    give: SyncSender<Vec<u8>>,
    piece: Vec<u8>,
}

impl Write for Pieces {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(data);
        if self.piece.len() >= PIECE {
            self.flush()?;
        }
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        self.give.send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn no_spool(dir: &Path, error: io::Error) -> FsError {
    let message = format!("big files cannot be spooled in {}", dir.display());
    tracing::warn!("{message}: {error}");
    match error.raw_os_error() {
        Some(code) if code == Errno::ENOSPC as i32 || code == Errno::EDQUOT as i32 => FsError::NoSpace,
        _ => gitmount_store::StoreError::new(gitmount_store::Fault::Disk, message).caused_by(error).into(),
    }
}
