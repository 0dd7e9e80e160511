//! Whole objects in memory. An entry's size is known beforehand, so it is inflated in one go, two to three times as fast as a stream;
//! the buffers come from the [`Decoder`] and are used again. A chain of deltas that would take more than [`DELTA_MEMORY`] goes through files.

use gix_pack::cache::DecodeEntry as _;

use super::decoder::Decoder;
use super::pack::{DELTA_MEMORY, PackAccess};
use super::stream::{Full, Link, access};
use super::{Objects, delta};
use crate::error::{Fault, Result, StoreError};

impl Objects {
    /// Reads the object at `offset` of `pack`, delta or not, into `out`, whose former content is lost. It may have `most` bytes: what an entry
    /// of a pack says of its size is nothing that a delta's result would keep to.
    pub(super) fn read_whole(
        &self,
        pack: &dyn PackAccess,
        offset: u64,
        out: &mut Vec<u8>,
        decoder: &mut Decoder,
        most: u64,
    ) -> Result<gix::object::Kind> {
        let entry = pack.entry(offset)?;
        if let Some(kind) = entry.header.as_kind() {
            check_size(entry.decompressed_size, most)?;
            inflate(pack, entry.data_offset, entry.decompressed_size, out, decoder)?;
            return Ok(kind);
        }
        let (chain, full) = self.chain(pack, offset)?;
        let (mut base, mut next) = (std::mem::take(&mut decoder.base), std::mem::take(&mut decoder.next));
        let resolved = resolve(pack, &chain, full, [&mut base, &mut next, out], decoder);
        (decoder.base, decoder.next) = (base, next);
        match resolved? {
            Some(kind) => Ok(kind),
            None => {
                check_size(self.packed_kind(pack, offset)?.1, most)?;
                *out = Vec::new();
                self.stream_packed_to(pack, offset, &std::env::temp_dir(), out).map(|(kind, _)| kind)
            }
        }
    }
}

/// Refuses what is too big to be held as a whole.
pub(super) fn check_size(size: u64, most: u64) -> Result<()> {
    if size <= most {
        return Ok(());
    }
    Err(StoreError::new(
        Fault::Corrupt,
        format!("an object of {size} bytes is too big where {most} bytes are allowed, as for a tree or commit"),
    ))
}

/// Inflates the `size` bytes that are compressed at `from`.
fn inflate(pack: &dyn PackAccess, from: u64, size: u64, out: &mut Vec<u8>, decoder: &mut Decoder) -> Result<()> {
    let broken = || pack.broken(from);
    let size = usize::try_from(size).map_err(|err| broken().caused_by(err))?;
    // A hostile header may claim any size: without the memory it is an error, not an abort.
    out.try_reserve_exact(size.saturating_sub(out.len())).map_err(|err| broken().caused_by(err))?;
    out.resize(size, 0);
    let written = decoder.whole.zlib_decompress(pack.compressed(from)?, out).map_err(|err| broken().caused_by(err))?;
    if written == size { Ok(()) } else { Err(broken()) }
}

/// Applies a chain of deltas in three buffers: a base, what becomes of it, and the last result. `None` when that takes too much memory.
fn resolve(
    start: &dyn PackAccess,
    chain: &[Link],
    full: Full,
    [base, next, out]: [&mut Vec<u8>; 3],
    decoder: &mut Decoder,
) -> Result<Option<gix::object::Kind>> {
    let fits = |sizes: [u64; 3]| sizes.iter().fold(0u64, |sum, size| sum.saturating_add(*size)) <= DELTA_MEMORY as u64;
    let key = |link: &Link| -> Result<(u32, u64)> { Ok((access(link.pack.as_ref(), start).mapped()?.id, link.data_offset)) };
    // Objects that lie together were often made from one base: begin with the newest one that was needed lately.
    let mut known = None;
    for (position, link) in chain.iter().enumerate().skip(1) {
        let (id, at) = key(link)?;
        if let Some((kind, _)) = decoder.bases.get(id, at, base) {
            known = Some((position, kind));
            break;
        }
    }
    let (left, kind) = match (known, full) {
        (Some(known), _) => known,
        (None, Full::Loose(loose)) => {
            if !fits([loose.size, 0, 0]) {
                return Ok(None);
            }
            (chain.len(), loose.read(base, DELTA_MEMORY as u64)?)
        }
        (None, Full::Packed(elsewhere, entry)) => {
            let pack = access(elsewhere.as_ref(), start);
            let kind = entry.header.as_kind().ok_or_else(|| pack.broken(entry.pack_offset()))?;
            let key = (pack.mapped()?.id, entry.data_offset);
            match decoder.bases.get(key.0, key.1, base) {
                Some(_) => {}
                None if !fits([entry.decompressed_size, 0, 0]) => return Ok(None),
                None => {
                    inflate(pack, entry.data_offset, entry.decompressed_size, base, decoder)?;
                    decoder.bases.put(key.0, key.1, base, kind, 0);
                }
            }
            (chain.len(), kind)
        }
    };
    for (position, link) in chain[..left].iter().enumerate().rev() {
        let pack = access(link.pack.as_ref(), start);
        if !fits([base.len() as u64, link.size, 0]) {
            return Ok(None);
        }
        let mut instructions = std::mem::take(&mut decoder.delta);
        let inflated = inflate(pack, link.data_offset, link.size, &mut instructions, decoder);
        let applied = inflated.and_then(|()| {
            let broken = || pack.broken(link.data_offset);
            let (base_size, size, at) = delta::sizes(&instructions).ok_or_else(broken)?;
            if base_size != base.len() as u64 {
                return Err(broken());
            }
            if !fits([base_size, link.size, size]) {
                return Ok(false);
            }
            let size = usize::try_from(size).map_err(|err| broken().caused_by(err))?;
            let into = if position == 0 { &mut *out } else { &mut *next };
            delta::apply_to(base, &instructions[at..], size, into).ok_or_else(broken)?;
            Ok(true)
        });
        decoder.delta = instructions;
        if !applied? {
            return Ok(None);
        }
        if position > 0 {
            std::mem::swap(base, next);
            let (id, at) = key(link)?;
            decoder.bases.put(id, at, base, kind, 0);
        }
    }
    Ok(Some(kind))
}
