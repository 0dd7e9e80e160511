//! Copies objects into one new pack. Compressed bytes are taken as they are, deltas too where their base comes along from the same pack, so
//! that memory and time follow the size of the pack and not of what is in it.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::index::IndexEntry;
use super::output::Output;
use super::receive::put_whole;
use super::{Counts, NewPack};
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::objects::pack::{Base, Pack, PackAccess};
use crate::objects::{Objects, Place};

/// Writes the objects `ids` of `source` as one pack into the pack directory `dir`. `None` when there are none.
pub(crate) fn copy(
    source: &Objects,
    ids: impl IntoIterator<Item = ObjectId>,
    dir: &Path,
    counts: &Counts,
    stop: &AtomicBool,
) -> Result<Option<NewPack>> {
    let (mut packs, loose) = places(source, ids)?;
    let count = packs.iter().map(|(_, wanted)| wanted.len()).sum::<usize>() + loose.len();
    if count == 0 {
        return Ok(None);
    }
    let count = u32::try_from(count).map_err(|err| StoreError::new(Fault::Internal, "too many objects for a pack").caused_by(err))?;
    counts.objects.store(u64::from(count), Ordering::Relaxed);
    let mut copier =
        Copier { source, output: Output::new(dir, source.hash())?, dir, entries: Vec::with_capacity(count as usize), counts, stop };
    copier.output.header(count)?;
    for (pack, wanted) in &mut packs {
        copier.pack(pack, wanted)?;
    }
    for id in loose {
        let offset = copier.output.start_entry();
        copier.whole(id, offset)?;
    }
    let Copier { mut output, mut entries, .. } = copier;
    output.seal()?;
    output.keep(&mut entries).map(Some)
}

/// Offset and id.
type Wanted = Vec<(u64, ObjectId)>;

/// What to copy out of each pack, and the loose objects.
type Places = (Vec<(Arc<Pack>, Wanted)>, Vec<ObjectId>);

fn places(source: &Objects, ids: impl IntoIterator<Item = ObjectId>) -> Result<Places> {
    let mut packs: Vec<(Arc<Pack>, Wanted)> = Vec::new();
    let mut loose = Vec::new();
    for id in ids {
        match source.place(id)? {
            Place::Loose => loose.push(id),
            Place::Packed(pack, offset) => match packs.iter_mut().find(|(known, _)| Arc::ptr_eq(known, &pack)) {
                Some((_, wanted)) => wanted.push((offset, id)),
                None => packs.push((pack, vec![(offset, id)])),
            },
        }
    }
    loose.sort_unstable();
    Ok((packs, loose))
}

struct Copier<'a> {
    source: &'a Objects,
    output: Output,
    dir: &'a Path,
    entries: Vec<IndexEntry>,
    counts: &'a Counts,
    stop: &'a AtomicBool,
}

impl Copier<'_> {
    /// Copies `wanted` out of `pack`, in the order they have there: a base comes before its deltas.
    fn pack(&mut self, pack: &Pack, wanted: &mut Wanted) -> Result<()> {
        wanted.sort_unstable();
        let data = pack.mapped()?;
        let offsets = pack.index().sorted_offsets();
        // Old and new offsets of this pack's objects, ascending in both.
        let mut moved: Vec<(u64, u64)> = Vec::with_capacity(wanted.len());
        for (offset, id) in wanted {
            let (offset, id) = (*offset, *id);
            if self.stop.load(Ordering::Relaxed) {
                return Err(StoreError::new(Fault::Cancelled, "cancelled while packs were put together"));
            }
            let next = offsets.partition_point(|at| *at <= offset);
            let end = offsets.get(next).copied().unwrap_or(data.pack_end() as u64);
            let raw = data.entry_slice(offset..end).ok_or_else(|| pack.broken(offset))?;
            check_crc(pack, id, offset, raw)?;
            let entry = pack.entry(offset)?;
            let compressed = data.entry_slice(entry.data_offset..end).ok_or_else(|| pack.broken(offset))?;
            let new_offset = self.output.start_entry();
            match pack.base_of(&entry)? {
                None => {
                    let points = pack.points().and_then(|points| points.found(points.of(offset, entry.decompressed_size)?));
                    if let Some(found) = points {
                        self.output.points(new_offset, entry.decompressed_size, &found);
                    }
                    self.put(new_offset, id, &[raw])?;
                }
                Some(Base::Here(base)) => match moved.binary_search_by_key(&base, |(old, _)| *old) {
                    Ok(found) => {
                        let header = gix_pack::data::entry::Header::OfsDelta { base_distance: new_offset - moved[found].1 };
                        let mut bytes = Vec::with_capacity(32);
                        // Writing to a Vec cannot fail.
                        let _ = header.write_to(entry.decompressed_size, &mut bytes);
                        self.put(new_offset, id, &[&bytes, compressed])?;
                    }
                    Err(_) => self.whole(id, new_offset)?,
                },
                Some(Base::Elsewhere(_)) => self.whole(id, new_offset)?,
            }
            moved.push((offset, new_offset));
        }
        Ok(())
    }

    fn put(&mut self, offset: u64, id: ObjectId, pieces: &[&[u8]]) -> Result<()> {
        for piece in pieces {
            self.output.put(piece)?;
        }
        self.done(offset, id);
        Ok(())
    }

    /// Writes an object that cannot be copied as it is.
    fn whole(&mut self, id: ObjectId, offset: u64) -> Result<()> {
        put_whole(&mut self.output, self.source, id, self.dir)?;
        self.done(offset, id);
        Ok(())
    }

    fn done(&mut self, offset: u64, id: ObjectId) {
        self.entries.push(IndexEntry { id, crc: self.output.entry_crc(), offset });
        self.counts.indexed.fetch_add(1, Ordering::Relaxed);
    }
}

/// Refuses bytes that have rotted, instead of giving them a new checksum.
fn check_crc(pack: &Pack, id: ObjectId, offset: u64, raw: &[u8]) -> Result<()> {
    let stored = pack.index().lookup(id).and_then(|at| pack.index().crc32_at_index(at));
    let mut crc = flate2::Crc::new();
    crc.update(raw);
    // Version 1 of the index has no checksums; the duplicate of an object in one pack has another one.
    if stored.is_none_or(|stored| stored == crc.sum()) || pack.offset_of(&id) != Some(offset) {
        return Ok(());
    }
    Err(pack.broken(offset))
}
