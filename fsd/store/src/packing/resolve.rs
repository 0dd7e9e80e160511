//! The ids of the deltas of a received pack. Each tree of deltas is walked from its full object down; what is held in memory is bounded,
//! and objects that are too big for it are resolved through files.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gix_pack::data;

use super::Counts;
use super::index::IndexEntry;
use super::input::{DeltaBase, Entries, broken};
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::objects::pack::PackAccess;
use crate::objects::{Hashing, Objects, delta};

/// Objects and deltas above this many bytes are not held in memory.
const BIG: u64 = 16 << 20;
/// Bytes of bases that one thread holds.
const HELD: usize = 32 << 20;
/// Threads that resolve.
const THREADS: usize = 2;

pub(super) struct Resolver<'a> {
    entries: Vec<IndexEntry>,
    /// Pairs of base and delta, by base.
    children: Vec<(u32, u32)>,
    /// Deltas by the id of their base, until that is known.
    waiting: Mutex<HashMap<ObjectId, Vec<u32>>>,
    /// Where the bases that were named by id are.
    named: Mutex<HashMap<ObjectId, u64>>,
    /// Full objects whose deltas are not resolved yet.
    roots: Vec<u32>,
    hash: gix::hash::Kind,
    objects: &'a Objects,
    scratch: &'a Path,
}

impl<'a> Resolver<'a> {
    pub(super) fn new(read: Entries, hash: gix::hash::Kind, objects: &'a Objects, scratch: &'a Path) -> Result<Self> {
        let Entries { entries, deltas } = read;
        let mut children = Vec::with_capacity(deltas.len());
        let mut waiting: HashMap<ObjectId, Vec<u32>> = HashMap::new();
        for (entry, base) in deltas {
            match base {
                DeltaBase::Offset(offset) => {
                    let base = entries.binary_search_by_key(&offset, |entry| entry.offset);
                    let base = base.map_err(|_| broken("a delta is made against the middle of an object"))?;
                    children.push((base as u32, entry));
                }
                DeltaBase::Id(id) => waiting.entry(id).or_default().push(entry),
            }
        }
        children.sort_unstable();
        let mut resolver = Resolver {
            entries,
            children,
            waiting: Mutex::new(waiting),
            named: Mutex::new(HashMap::new()),
            roots: Vec::new(),
            hash,
            objects,
            scratch,
        };
        resolver.roots = (0..resolver.entries.len() as u32)
            .filter(|entry| {
                let id = resolver.entries[*entry as usize].id;
                !id.is_null() && (!resolver.children_by_offset(*entry).is_empty() || lock(&resolver.waiting).contains_key(&id))
            })
            .collect();
        Ok(resolver)
    }

    /// Resolves all that the known full objects lead to.
    pub(super) fn run(&mut self, pack: &data::File, counts: &Counts, stop: &AtomicBool) -> Result<()> {
        let roots = std::mem::take(&mut self.roots);
        let next = AtomicUsize::new(0);
        let failed = AtomicBool::new(false);
        let threads = THREADS.min(roots.len());
        let results: Vec<Result<Vec<(u32, ObjectId)>>> = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        let mut worker = Worker {
                            all: self,
                            pack,
                            counts,
                            inflate: gix::zlib::Inflate::default(),
                            delta: Vec::new(),
                            held: 0,
                            done: Vec::new(),
                        };
                        while let Some(root) = roots.get(next.fetch_add(1, Ordering::Relaxed)) {
                            if failed.load(Ordering::Relaxed) {
                                break;
                            }
                            if let Err(err) = worker.tree(*root, stop) {
                                failed.store(true, Ordering::Relaxed);
                                return Err(err);
                            }
                        }
                        Ok(worker.done)
                    })
                })
                .collect();
            let joined = workers.into_iter().map(|worker| {
                worker.join().unwrap_or_else(|_| Err(StoreError::new(Fault::Internal, "resolving the deltas of a pack failed")))
            });
            joined.collect()
        });
        for result in results {
            for (entry, id) in result? {
                self.entries[entry as usize].id = id;
            }
        }
        Ok(())
    }

    /// The bases that deltas still wait for.
    pub(super) fn missing_bases(&self) -> Option<Vec<ObjectId>> {
        let waiting = lock(&self.waiting);
        (!waiting.is_empty()).then(|| {
            let mut ids: Vec<ObjectId> = waiting.keys().copied().collect();
            ids.sort_unstable();
            ids
        })
    }

    /// A base was appended to the pack.
    pub(super) fn add_base(&mut self, id: ObjectId, offset: u64, crc: u32) {
        self.roots.push(self.entries.len() as u32);
        self.entries.push(IndexEntry { id, crc, offset });
    }

    /// How many entries the pack has.
    pub(super) fn count(&self) -> Result<u32> {
        u32::try_from(self.entries.len()).map_err(|err| broken("it has too many objects").caused_by(err))
    }

    /// All entries, when all of them have ids.
    pub(super) fn finish(self) -> Result<Vec<IndexEntry>> {
        if self.entries.iter().any(|entry| entry.id.is_null()) {
            return Err(broken("deltas are made against each other in a circle"));
        }
        Ok(self.entries)
    }

    fn children_by_offset(&self, base: u32) -> &[(u32, u32)] {
        let from = self.children.partition_point(|(at, _)| *at < base);
        let to = from + self.children[from..].partition_point(|(at, _)| *at == base);
        &self.children[from..to]
    }

    /// The deltas against `entry`, whose id is known now.
    fn children(&self, entry: u32, id: ObjectId) -> Vec<u32> {
        let mut children: Vec<u32> = self.children_by_offset(entry).iter().map(|(_, child)| *child).collect();
        let mut waiting = lock(&self.waiting);
        if !waiting.is_empty()
            && let Some(more) = waiting.remove(&id)
        {
            lock(&self.named).insert(id, self.entries[entry as usize].offset);
            children.extend(more);
        }
        children
    }
}

/// One thread's work.
struct Worker<'a> {
    all: &'a Resolver<'a>,
    pack: &'a data::File,
    counts: &'a Counts,
    inflate: gix::zlib::Inflate,
    delta: Vec<u8>,
    held: usize,
    done: Vec<(u32, ObjectId)>,
}

/// An object whose deltas are being resolved. Without its bytes it is loaded when they are needed.
struct Frame {
    entry: u32,
    bytes: Option<Vec<u8>>,
    children: Vec<u32>,
}

impl Worker<'_> {
    /// Resolves all deltas that come from one full object.
    fn tree(&mut self, root: u32, stop: &AtomicBool) -> Result<()> {
        let root_entry = self.all.entries[root as usize];
        let header = self.entry(root)?;
        let kind = header.header.as_kind().ok_or_else(|| broken("a full object is none"))?;
        let mut stack = vec![Frame { entry: root, bytes: None, children: self.all.children(root, root_entry.id) }];
        while let Some(frame) = stack.last_mut() {
            let Some(child) = frame.children.pop() else {
                self.release(frame.bytes.take());
                stack.pop();
                continue;
            };
            if stop.load(Ordering::Relaxed) {
                return Err(StoreError::new(Fault::Cancelled, "cancelled while deltas were resolved"));
            }
            if frame.bytes.is_none() {
                frame.bytes = self.load(frame.entry)?;
                self.held += frame.bytes.as_ref().map_or(0, Vec::len);
            }
            let (id, bytes) = match &frame.bytes {
                Some(base) => self.resolve(child, kind, base)?,
                None => (self.hash_by_file(child, kind)?, None),
            };
            if frame.children.is_empty() {
                self.release(frame.bytes.take());
            }
            self.done.push((child, id));
            self.counts.resolved.fetch_add(1, Ordering::Relaxed);
            let children = self.all.children(child, id);
            if !children.is_empty() {
                self.held += bytes.as_ref().map_or(0, Vec::len);
                stack.push(Frame { entry: child, bytes, children });
            }
            self.make_room(&mut stack);
        }
        Ok(())
    }

    /// Drops what is needed last.
    fn make_room(&mut self, stack: &mut [Frame]) {
        let Some((_, below)) = stack.split_last_mut() else { return };
        for frame in below {
            if self.held <= HELD {
                return;
            }
            self.release(frame.bytes.take());
        }
    }

    fn release(&mut self, bytes: Option<Vec<u8>>) {
        self.held -= bytes.map_or(0, |bytes| bytes.len());
    }

    fn entry(&self, entry: u32) -> Result<data::Entry> {
        let offset = self.all.entries[entry as usize].offset;
        self.pack.entry(offset).map_err(|err| broken("an entry cannot be read back").caused_by(err))
    }

    /// The bytes of an object whose base is resolved; `None` when they, or those of what it is made from, are too many: a delta of a few
    /// bytes may stand for any number.
    fn load(&mut self, entry: u32) -> Result<Option<Vec<u8>>> {
        let entry = self.entry(entry)?;
        if entry.decompressed_size > BIG {
            return Ok(None);
        }
        let named = |id: &gix::hash::oid, _: &mut Vec<u8>| -> gix::Result<Option<data::decode::entry::ResolvedBase>> {
            let offset = lock(&self.all.named).get(id).copied();
            offset.map(|offset| self.pack.entry(offset).map(data::decode::entry::ResolvedBase::InPack)).transpose()
        };
        let mut bytes = Vec::new();
        // The pack has a limit of memory. What is really wrong is told by the way through files, which needs none.
        let Ok(outcome) = self.pack.decode_entry(entry, &mut bytes, &mut self.inflate, &named, &mut gix_pack::cache::Never) else {
            return Ok(None);
        };
        bytes.truncate(usize::try_from(outcome.object_size).unwrap_or(usize::MAX));
        bytes.shrink_to_fit();
        Ok((outcome.object_size <= BIG).then_some(bytes))
    }

    /// The id of a delta against `base`, and its bytes when they are not too many.
    fn resolve(&mut self, child: u32, kind: gix::object::Kind, base: &[u8]) -> Result<(ObjectId, Option<Vec<u8>>)> {
        let entry = self.entry(child)?;
        if entry.decompressed_size > BIG {
            return Ok((self.hash_by_file(child, kind)?, None));
        }
        self.delta.resize(entry.decompressed_size as usize, 0);
        self.pack
            .decompress_entry(&entry, &mut self.inflate, &mut self.delta)
            .map_err(|err| broken("a delta does not inflate").caused_by(err))?;
        let malformed = || broken("a delta is malformed");
        let (base_size, size, at) = delta::sizes(&self.delta).ok_or_else(malformed)?;
        if base_size != base.len() as u64 {
            return Err(malformed());
        }
        if size > BIG {
            return Ok((self.hash_by_file(child, kind)?, None));
        }
        let bytes = delta::apply(base, &self.delta[at..], size as usize).ok_or_else(malformed)?;
        let id =
            gix::objs::compute_hash(self.all.hash, kind, &bytes).map_err(|err| broken("an object is made to collide").caused_by(err))?;
        Ok((id, Some(bytes)))
    }

    /// The id of an object that is too big, or made against one that is.
    fn hash_by_file(&mut self, entry: u32, kind: gix::object::Kind) -> Result<ObjectId> {
        let raw = Raw { data: self.pack, named: &self.all.named };
        let offset = self.all.entries[entry as usize].offset;
        let (_, size) = self.all.objects.packed_kind(&raw, offset)?;
        let mut hashing = Hashing::new(self.all.hash, kind, size);
        self.all.objects.stream_packed_to(&raw, offset, self.all.scratch, &mut hashing)?;
        hashing.id()
    }
}

/// The pack before it has an index.
struct Raw<'a> {
    data: &'a data::File,
    named: &'a Mutex<HashMap<ObjectId, u64>>,
}

impl PackAccess for Raw<'_> {
    fn mapped(&self) -> Result<&data::File> {
        Ok(self.data)
    }

    fn offset_of(&self, id: &gix::hash::oid) -> Option<u64> {
        lock(self.named).get(id).copied()
    }

    fn broken(&self, _offset: u64) -> StoreError {
        broken("a big object does not resolve")
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
