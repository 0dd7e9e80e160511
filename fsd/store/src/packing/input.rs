//! The stream of a pack as a host sends it, entry by entry. Full objects are hashed as they inflate, on a thread of their own, so that
//! nothing is ever held in memory as a whole and nothing is inflated twice.

use std::io::BufRead;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};
use flate2::{Decompress, FlushDecompress, Status};
use gix::object::Kind;

use super::Counts;
use super::index::IndexEntry;
use super::output::Output;
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::points::{self, Finder};

/// Bytes that are handed to the hashing thread at once.
const BATCH: usize = 256 << 10;
/// Batches on the way at most.
const BATCHES: usize = 8;
/// What one step of inflating gives at most.
const CHUNK: usize = 64 << 10;

/// What the stream had.
pub(super) struct Entries {
    /// All entries in the order of the stream; the ids of deltas are still null.
    pub(super) entries: Vec<IndexEntry>,
    /// The deltas: which entry, and against what.
    pub(super) deltas: Vec<(u32, DeltaBase)>,
}

/// What a delta in a received pack is made against.
#[derive(Debug, Clone, Copy)]
pub(super) enum DeltaBase {
    /// The entry at this offset.
    Offset(u64),
    /// An object by id: in the pack, or, in a thin pack, one that the receiver has.
    Id(ObjectId),
}

/// Reads the whole stream into `output`, its checksum checked.
pub(super) fn read(
    stream: &mut dyn BufRead,
    output: &mut Output,
    hash: gix::hash::Kind,
    counts: &Counts,
    stop: &AtomicBool,
) -> Result<Entries> {
    std::thread::scope(|scope| {
        let (full, to_hash) = bounded::<Batch>(BATCHES);
        let (emptied, empty) = bounded::<Batch>(BATCHES + 2);
        let hashing = scope.spawn(move || hash_batches(&to_hash, &emptied, hash));
        let mut reader = Reader {
            stream,
            output,
            hash,
            counts,
            stop,
            inflate: Decompress::new(true),
            chunk: vec![0; CHUNK],
            batch: Batch::default(),
            full,
            empty,
        };
        let read = reader.entries();
        // The hashing thread ends with the channel.
        drop(reader);
        let hashed = hashing.join().unwrap_or_else(|_| Err(StoreError::new(Fault::Internal, "hashing a pack failed")));
        // A failure of the hashing thread shows in the reader, too, but is told best by itself.
        let (ids, (mut read, plain)) = match (hashed, read) {
            (Ok(ids), Ok(read)) => (ids, read),
            (Err(err), _) | (_, Err(err)) => return Err(err),
        };
        for (entry, id) in plain.into_iter().zip(ids) {
            read.entries[entry as usize].id = id;
        }
        Ok(read)
    })
}

struct Reader<'a> {
    stream: &'a mut dyn BufRead,
    output: &'a mut Output,
    hash: gix::hash::Kind,
    counts: &'a Counts,
    stop: &'a AtomicBool,
    inflate: Decompress,
    chunk: Vec<u8>,
    batch: Batch,
    full: Sender<Batch>,
    empty: Receiver<Batch>,
}

impl Reader<'_> {
    /// The entries, and which of them are no deltas, in order.
    fn entries(&mut self) -> Result<(Entries, Vec<u32>)> {
        let mut header = [0; gix_pack::data::header::SIZE];
        self.exact(&mut header)?;
        let (_, count) = gix_pack::data::header::decode(&header).map_err(|err| broken("it is no pack").caused_by(err))?;
        self.output.put(&header)?;
        self.counts.objects.store(u64::from(count), Ordering::Relaxed);
        // A hostile header may claim any number: memory follows what really comes.
        let mut read = Entries { entries: Vec::with_capacity(count.min(1 << 20) as usize), deltas: Vec::new() };
        let mut plain = Vec::with_capacity(count.min(1 << 20) as usize);
        for number in 0..count {
            if self.stop.load(Ordering::Relaxed) {
                return Err(StoreError::new(Fault::Cancelled, "cancelled while a pack was received"));
            }
            let offset = self.output.start_entry();
            match self.entry(offset)? {
                Some(base) => read.deltas.push((number, base)),
                None => plain.push(number),
            }
            read.entries.push(IndexEntry { id: self.hash.null(), crc: self.output.entry_crc(), offset });
            self.counts.indexed.fetch_add(1, Ordering::Relaxed);
        }
        self.counts.deltas.store(read.deltas.len() as u64, Ordering::Relaxed);
        self.flush_batch()?;
        let mut trailer = [0; 32];
        let trailer = &mut trailer[..self.hash.len_in_bytes()];
        self.exact(trailer)?;
        if self.output.sum()?.as_slice() != trailer {
            return Err(broken("its checksum is wrong"));
        }
        Ok((read, plain))
    }

    /// Reads one entry; the base of a delta.
    fn entry(&mut self, offset: u64) -> Result<Option<DeltaBase>> {
        let mut header = Header { bytes: [0; 64], length: 0 };
        let first = header.next(self)?;
        let mut size = u64::from(first & 0x0f);
        let mut more = first & 0x80 != 0;
        let mut shift = 4;
        while more {
            let byte = header.next(self)?;
            let part = u64::from(byte & 0x7f);
            if shift > 60 || part << shift >> shift != part {
                return Err(broken("an entry has an impossible size"));
            }
            size |= part << shift;
            shift += 7;
            more = byte & 0x80 != 0;
        }
        let (kind, base) = match first >> 4 & 7 {
            1 => (Some(Kind::Commit), None),
            2 => (Some(Kind::Tree), None),
            3 => (Some(Kind::Blob), None),
            4 => (Some(Kind::Tag), None),
            6 => (None, Some(DeltaBase::Offset(self.base_offset(&mut header, offset)?))),
            7 => {
                let mut id = [0; 32];
                for byte in &mut id[..self.hash.len_in_bytes()] {
                    *byte = header.next(self)?;
                }
                let id = ObjectId::try_from(&id[..self.hash.len_in_bytes()]).map_err(|err| broken("an id is malformed").caused_by(err))?;
                (None, Some(DeltaBase::Id(id)))
            }
            other => return Err(broken(&format!("it has an entry of unknown type {other}"))),
        };
        self.output.put(header.bytes())?;
        self.content(kind, offset, size)?;
        Ok(base)
    }

    fn base_offset(&mut self, header: &mut Header, offset: u64) -> Result<u64> {
        let wrong = || broken("a delta has an impossible base");
        let mut byte = header.next(self)?;
        let mut distance = u64::from(byte & 0x7f);
        while byte & 0x80 != 0 {
            byte = header.next(self)?;
            distance = distance.checked_add(1).filter(|distance| *distance < 1 << 56).ok_or_else(wrong)?;
            distance = distance << 7 | u64::from(byte & 0x7f);
        }
        offset.checked_sub(distance).filter(|base| *base < offset).ok_or_else(wrong)
    }

    /// Inflates the content of the entry at `offset`, of `size` bytes; full objects (with a kind) go on to be hashed.
    fn content(&mut self, kind: Option<Kind>, offset: u64, size: u64) -> Result<()> {
        self.inflate.reset(true);
        if let Some(kind) = kind {
            self.batch.pieces.push(Piece::Start(kind, size));
        }
        let mut finder = (kind == Some(Kind::Blob) && size >= points::BIG).then(Finder::new);
        let mut inflated = 0u64;
        loop {
            let input = self.stream.fill_buf().map_err(cut)?;
            if input.is_empty() {
                return Err(cut(std::io::ErrorKind::UnexpectedEof.into()));
            }
            let (consumed, produced, ended) = match &mut finder {
                Some(finder) => finder.step(input, &mut self.chunk).ok_or_else(|| broken("a big object does not inflate"))?,
                None => {
                    let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
                    let status = self
                        .inflate
                        .decompress(input, &mut self.chunk, FlushDecompress::None)
                        .map_err(|err| broken("an object does not inflate").caused_by(err))?;
                    let consumed = (self.inflate.total_in() - before_in) as usize;
                    (consumed, (self.inflate.total_out() - before_out) as usize, status == Status::StreamEnd)
                }
            };
            self.output.put(&input[..consumed])?;
            self.stream.consume(consumed);
            self.counts.received.fetch_add(consumed as u64, Ordering::Relaxed);
            inflated += produced as u64;
            if inflated > size || !ended && consumed == 0 && produced == 0 {
                return Err(broken("an object is longer than its entry says"));
            }
            if kind.is_some() && produced > 0 {
                self.batch.bytes.extend_from_slice(&self.chunk[..produced]);
                self.batch.pieces.push(Piece::Bytes(produced));
                if self.batch.bytes.len() >= BATCH {
                    self.flush_batch()?;
                }
            }
            if ended {
                break;
            }
            if self.stop.load(Ordering::Relaxed) {
                return Err(StoreError::new(Fault::Cancelled, "cancelled while a pack was received"));
            }
        }
        if inflated != size {
            return Err(broken("an object is shorter than its entry says"));
        }
        if let Some(finder) = finder {
            self.output.points(offset, size, &finder.finish());
        }
        Ok(())
    }

    fn flush_batch(&mut self) -> Result<()> {
        let next = self.empty.try_recv().unwrap_or_default();
        let batch = std::mem::replace(&mut self.batch, next);
        self.full.send(batch).map_err(|_| StoreError::new(Fault::Internal, "hashing a pack ended early"))
    }

    fn exact(&mut self, out: &mut [u8]) -> Result<()> {
        self.counts.received.fetch_add(out.len() as u64, Ordering::Relaxed);
        self.stream.read_exact(out).map_err(cut)
    }
}

/// The header of an entry as its bytes come: type and size, then the base of a delta.
struct Header {
    bytes: [u8; 64],
    length: usize,
}

impl Header {
    fn next(&mut self, reader: &mut Reader<'_>) -> Result<u8> {
        let at = self.bytes.get_mut(self.length).ok_or_else(|| broken("the header of an entry does not end"))?;
        let mut byte = [0];
        reader.exact(&mut byte)?;
        *at = byte[0];
        self.length += 1;
        Ok(byte[0])
    }

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// Content on its way to be hashed, with where objects start.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

enum Piece {
    Start(Kind, u64),
    Bytes(usize),
}

/// Hashes objects; their ids in order.
fn hash_batches(batches: &Receiver<Batch>, emptied: &Sender<Batch>, hash: gix::hash::Kind) -> Result<Vec<ObjectId>> {
    let mut ids = Vec::new();
    let mut current: Option<gix::hash::Hasher> = None;
    let mut end = |hasher: Option<gix::hash::Hasher>| -> Result<()> {
        if let Some(hasher) = hasher {
            // SHA-1 with detection of the known collision attack, as in git.
            ids.push(hasher.try_finalize().map_err(|err| broken("an object is made to collide").caused_by(err))?);
        }
        Ok(())
    };
    for mut batch in batches {
        let mut at = 0;
        for piece in batch.pieces.drain(..) {
            match piece {
                Piece::Start(kind, size) => {
                    end(current.take())?;
                    let mut hasher = gix::hash::hasher(hash);
                    hasher.update(&gix::objs::encode::loose_header(kind, size));
                    current = Some(hasher);
                }
                Piece::Bytes(length) => {
                    if let Some(hasher) = &mut current {
                        hasher.update(&batch.bytes[at..at + length]);
                    }
                    at += length;
                }
            }
        }
        batch.bytes.clear();
        // When nobody takes it back it is simply dropped.
        let _ = emptied.try_send(batch);
    }
    end(current.take())?;
    Ok(ids)
}

pub(super) fn broken(what: &str) -> StoreError {
    StoreError::new(Fault::Corrupt, format!("the pack that was sent is broken: {what}"))
}

fn cut(err: std::io::Error) -> StoreError {
    StoreError::new(Fault::Unreachable, "the connection ended before the whole pack was received").caused_by(err)
}
