//! Big objects in bounded memory: full ones are inflated straight out of the mapped pack, deltas are resolved through unlinked files, one
//! link of the chain after the other.

use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::ZlibDecoder;

use super::database::Found;
use super::loose::Loose;
use super::pack::{Base, Pack, PackAccess};
use super::{MAX_PACK_HOPS, Objects};
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;

/// Size of the pieces that are written. Inflating keeps a window of 32 KiB from piece to piece, so small ones cost a copy each.
const PIECE: usize = 512 << 10;
/// Longest chain of deltas that is followed; git makes at most 4095.
const MAX_CHAIN: usize = 10_000;

impl Objects {
    /// Writes any object to `out` in bounded memory; its kind and size.
    pub(crate) fn stream_to(&self, id: ObjectId, scratch: &Path, out: &mut dyn Write) -> Result<(gix::object::Kind, u64)> {
        match self.find(id)? {
            Found::Loose(loose) => stream_loose(*loose, out),
            Found::Packed(pack, offset) => self.stream_packed_to(&*pack, offset, scratch, out),
        }
    }

    /// Like [`Objects::stream_to`], for the entry at `offset` of `pack`.
    pub(crate) fn stream_packed_to(
        &self,
        pack: &dyn PackAccess,
        offset: u64,
        scratch: &Path,
        out: &mut dyn Write,
    ) -> Result<(gix::object::Kind, u64)> {
        let (chain, full) = self.chain(pack, offset)?;
        // Small bases stay in the page cache, so one way serves all sizes.
        let mut base: Option<Spooled> = None;
        let (kind, mut size) = if chain.is_empty() {
            return full.stream(pack, out);
        } else {
            let mut spool = Spool::new(scratch)?;
            let header = full.stream(pack, &mut spool.file)?;
            base.replace(spool.finish()?);
            header
        };
        for (position, link) in chain.iter().enumerate().rev() {
            let from = base.take().ok_or_else(|| pack.broken(offset))?;
            if position == 0 {
                size = link.apply(pack, &from, size, out)?;
            } else {
                let mut spool = Spool::new(scratch)?;
                size = link.apply(pack, &from, size, &mut spool.file)?;
                base = Some(spool.finish()?);
            }
        }
        Ok((kind, size))
    }

    /// The deltas from the entry at `offset` down, and the full object below them.
    pub(super) fn chain(&self, pack: &dyn PackAccess, offset: u64) -> Result<(Vec<Link>, Full)> {
        let mut chain = Vec::new();
        let mut elsewhere: Option<Arc<Pack>> = None;
        let mut at = offset;
        let mut hops = 0;
        loop {
            let here = access(elsewhere.as_ref(), pack);
            let entry = here.entry(at)?;
            let Some(base) = here.base_of(&entry)? else {
                return Ok((chain, Full::Packed(elsewhere, entry)));
            };
            chain.push(Link { pack: elsewhere.clone(), data_offset: entry.data_offset, size: entry.decompressed_size });
            // Base ids can form a circle; offsets cannot, but both end here.
            if chain.len() > MAX_CHAIN {
                return Err(here.broken(at));
            }
            match base {
                Base::Here(offset) => at = offset,
                Base::Elsewhere(id) => {
                    hops += 1;
                    if hops > MAX_PACK_HOPS {
                        return Err(here.broken(at));
                    }
                    match self.find(id)? {
                        Found::Loose(loose) => return Ok((chain, Full::Loose(loose))),
                        Found::Packed(other, offset) => {
                            elsewhere = Some(other);
                            at = offset;
                        }
                    }
                }
            }
        }
    }
}

pub(super) fn access<'a>(elsewhere: Option<&'a Arc<Pack>>, start: &'a dyn PackAccess) -> &'a dyn PackAccess {
    elsewhere.map_or(start, |pack| &**pack)
}

/// The full object at the end of a chain. `None` for the pack means the one the chain starts in.
pub(super) enum Full {
    Packed(Option<Arc<Pack>>, gix_pack::data::Entry),
    Loose(Box<Loose>),
}

impl Full {
    fn stream(self, start: &dyn PackAccess, out: &mut dyn Write) -> Result<(gix::object::Kind, u64)> {
        match self {
            Full::Loose(loose) => stream_loose(*loose, out),
            Full::Packed(pack, entry) => {
                let pack = access(pack.as_ref(), start);
                let broken = || pack.broken(entry.pack_offset());
                let kind = entry.header.as_kind().ok_or_else(broken)?;
                let mut content = ZlibDecoder::new(pack.compressed(entry.data_offset)?);
                let mut piece = vec![0; PIECE];
                let mut size = 0u64;
                loop {
                    let read = content.read(&mut piece).map_err(|err| broken().caused_by(err))?;
                    if read == 0 {
                        break;
                    }
                    size += read as u64;
                    if size > entry.decompressed_size {
                        return Err(broken());
                    }
                    out.write_all(&piece[..read]).map_err(unwritable)?;
                }
                if size == entry.decompressed_size { Ok((kind, size)) } else { Err(broken()) }
            }
        }
    }
}

pub(super) fn stream_loose(mut loose: Loose, out: &mut dyn Write) -> Result<(gix::object::Kind, u64)> {
    let mut piece = vec![0; PIECE];
    let mut size = 0u64;
    loop {
        let read = loose.read_piece(&mut piece)?;
        if read == 0 {
            break;
        }
        size += read as u64;
        if size > loose.size {
            return Err(loose.broken());
        }
        out.write_all(&piece[..read]).map_err(unwritable)?;
    }
    if size == loose.size { Ok((loose.kind, size)) } else { Err(loose.broken()) }
}

/// One delta of a chain.
pub(super) struct Link {
    /// Where it is; `None` means the pack that the chain starts in.
    pub(super) pack: Option<Arc<Pack>>,
    /// Where its compressed bytes start.
    pub(super) data_offset: u64,
    /// The bytes of the delta itself.
    pub(super) size: u64,
}

impl Link {
    /// Applies this delta to `base` of `base_size` bytes; the size of the result.
    fn apply(&self, start: &dyn PackAccess, base: &Spooled, base_size: u64, out: &mut dyn Write) -> Result<u64> {
        let pack = access(self.pack.as_ref(), start);
        let broken = || pack.broken(self.data_offset);
        let compressed = pack.compressed(self.data_offset)?;
        let inflated = ZlibDecoder::new(compressed).take(self.size);
        let mut delta = Instructions { inner: BufReader::with_capacity(PIECE, inflated), pack, at: self.data_offset };
        if delta.varint()? != base_size {
            return Err(broken());
        }
        let result_size = delta.varint()?;
        let mut piece = vec![0; PIECE];
        let mut written = 0u64;
        while let Some(command) = delta.next()? {
            let length = if command & 0x80 != 0 {
                let (offset, length) = delta.copy(command)?;
                if offset.checked_add(length).is_none_or(|end| end > base_size) {
                    return Err(broken());
                }
                base.copy(offset, length, &mut piece, out)?;
                length
            } else if command != 0 {
                let literal = &mut piece[..usize::from(command)];
                delta.exact(literal)?;
                out.write_all(literal).map_err(unwritable)?;
                u64::from(command)
            } else {
                return Err(broken());
            };
            written += length;
            if written > result_size {
                return Err(broken());
            }
        }
        if written == result_size { Ok(written) } else { Err(broken()) }
    }
}

/// The instructions of a delta, read as they inflate (`gitformat-pack(5)`, "Deltified representation").
struct Instructions<'a, R> {
    inner: BufReader<R>,
    pack: &'a dyn PackAccess,
    at: u64,
}

impl<R: Read> Instructions<'_, R> {
    fn next(&mut self) -> Result<Option<u8>> {
        let mut byte = [0];
        match self.inner.read(&mut byte) {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some(byte[0])),
            Err(err) => Err(self.pack.broken(self.at).caused_by(err)),
        }
    }

    fn exact(&mut self, out: &mut [u8]) -> Result<()> {
        self.inner.read_exact(out).map_err(|err| self.pack.broken(self.at).caused_by(err))
    }

    fn byte(&mut self) -> Result<u8> {
        let mut byte = [0];
        self.exact(&mut byte)?;
        Ok(byte[0])
    }

    fn varint(&mut self) -> Result<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(self.pack.broken(self.at))
    }

    /// Offset and length of a copy command.
    fn copy(&mut self, command: u8) -> Result<(u64, u64)> {
        let mut offset = 0u64;
        let mut length = 0u64;
        for bit in 0..4 {
            if command & (1 << bit) != 0 {
                offset |= u64::from(self.byte()?) << (8 * bit);
            }
        }
        for bit in 0..3 {
            if command & (0x10 << bit) != 0 {
                length |= u64::from(self.byte()?) << (8 * bit);
            }
        }
        Ok((offset, if length == 0 { 0x10000 } else { length }))
    }
}

/// An unlinked file that is being written.
struct Spool {
    file: BufWriter<File>,
}

impl Spool {
    fn new(scratch: &Path) -> Result<Self> {
        let file = tempfile::tempfile_in(scratch).map_err(|err| {
            StoreError::new(Fault::Disk, format!("no temporary file can be made in directory {}", scratch.display())).caused_by(err)
        })?;
        Ok(Spool { file: BufWriter::with_capacity(PIECE, file) })
    }

    fn finish(self) -> Result<Spooled> {
        let file = self.file.into_inner().map_err(|err| unwritable(err.into_error()))?;
        Ok(Spooled { file })
    }
}

/// A written base.
struct Spooled {
    file: File,
}

impl Spooled {
    fn copy(&self, mut offset: u64, mut length: u64, piece: &mut [u8], out: &mut dyn Write) -> Result<()> {
        while length > 0 {
            let step = usize::try_from(length).unwrap_or(usize::MAX).min(piece.len());
            self.file.read_exact_at(&mut piece[..step], offset).map_err(unwritable)?;
            out.write_all(&piece[..step]).map_err(unwritable)?;
            offset += step as u64;
            length -= step as u64;
        }
        Ok(())
    }
}

pub(super) fn unwritable(err: std::io::Error) -> StoreError {
    let message = match err.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => "no space is left for a big object: free some on its disk",
        _ => "a big object cannot be written to its file",
    };
    StoreError::new(Fault::Disk, message).caused_by(err)
}

/// Takes the content of an object piece by piece and gives its id.
pub(crate) struct Hashing(gix::hash::Hasher);

impl Hashing {
    /// For an object of `kind` with `size` bytes.
    pub(crate) fn new(hash: gix::hash::Kind, kind: gix::object::Kind, size: u64) -> Self {
        let mut hasher = gix::hash::hasher(hash);
        hasher.update(&gix::objs::encode::loose_header(kind, size));
        Hashing(hasher)
    }

    /// The id, when all content has come.
    ///
    /// # Errors
    /// When the content is made to collide with another (SHA-1).
    pub(crate) fn id(self) -> Result<ObjectId> {
        self.0.try_finalize().map_err(|err| StoreError::new(Fault::Corrupt, "an object is made to collide with another").caused_by(err))
    }
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
