//! Big blobs in parts, each of which can be inflated by itself: those that have access points.

use std::io::Write;
use std::sync::Arc;

use gix_pack::data::entry::Header;

use super::Objects;
use super::database::Found;
use super::pack::{Pack, PackAccess};
use super::stream::unwritable;
use crate::error::Result;
use crate::ids::ObjectId;
use crate::points;

/// A blob that is inflated in parts, by as many threads at once as one likes.
#[derive(Debug)]
pub struct Parts {
    pack: Arc<Pack>,
    entry: u64,
    data: u64,
    object: points::Object,
}

impl Objects {
    /// The parts of a blob, when it has any: it is a big one that was received in full.
    pub fn parts(&self, id: ObjectId) -> Result<Option<Parts>> {
        let Found::Packed(pack, offset) = self.find(id)? else { return Ok(None) };
        let entry = pack.entry(offset)?;
        if entry.header != Header::Blob || entry.decompressed_size < points::BIG {
            return Ok(None);
        }
        let object = pack.points().and_then(|points| points.of(offset, entry.decompressed_size)).cloned();
        Ok(object.map(|object| Parts { pack, entry: offset, data: entry.data_offset, object }))
    }
}

impl Parts {
    /// How many there are.
    pub fn count(&self) -> usize {
        self.object.parts()
    }

    /// Bytes of the blob.
    pub fn size(&self) -> u64 {
        self.object.size
    }

    /// Offset and length of part `number` in the blob; the parts follow each other without a gap.
    pub fn range(&self, number: usize) -> Option<(u64, u64)> {
        self.object.part(number).map(|part| (part.offset, part.length))
    }

    /// Writes part `number` to `out`, in bounded memory. What was written is to be thrown away when this fails.
    ///
    /// # Errors
    /// [`crate::Fault::Corrupt`] when it cannot be had in this way: [`Objects::blob_to`] may give the whole blob still.
    pub fn write(&self, number: usize, out: &mut dyn Write) -> Result<()> {
        let broken = || self.pack.broken(self.entry);
        let part = self.object.part(number).ok_or_else(broken)?;
        let window = self.pack.points().and_then(|points| points.window(&self.object, number)).ok_or_else(broken)?;
        let compressed = self.pack.compressed(self.data)?;
        let right = points::inflate(compressed, &part, &window, out).map_err(unwritable)?;
        if right { Ok(()) } else { Err(broken()) }
    }
}
