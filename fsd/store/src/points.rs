//! Access points into big compressed objects: places from which inflating can start in the middle, so that several threads inflate one
//! object, and so that its end is read without its start.
//!
//! They are found while a pack is received, which inflates everything anyway, and kept in a file beside the pack (`pack-<id>.points`). They
//! are an aid and no data: without the file, or with a broken one, objects are inflated from their start. Whatever is inflated from a point
//! is checked before anybody sees it.

mod file;
mod find;
mod resume;
mod splice;
#[cfg(test)]
mod tests;

pub(crate) use file::{EXTENSION, Object, Points, Writer};
pub(crate) use find::Finder;

use std::io::Write;

/// Blobs of fewer bytes get no points.
pub(crate) const BIG: u64 = 16 << 20;
/// About this many bytes of an object are between two points.
const SPACING: u64 = 4 << 20;
/// How far back deflate refers: what has to be known to go on from a point.
const WINDOW: usize = 32 << 10;
/// Bits of the zlib header, after which the first point is.
const ZLIB_HEADER: u64 = 16;

/// A place between two blocks of a zlib stream, and the part of the object from there to the next point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Point {
    /// Where it is in the compressed bytes.
    pub(crate) bits: u64,
    /// Where it is in the object.
    pub(crate) offset: u64,
    /// CRC-32 of the part.
    pub(crate) crc: u32,
}

/// What is between two points, or between the last one and the end of the object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where it starts in the compressed bytes.
    pub(crate) bits: u64,
    /// Where it ends there; `None` for the last part, which ends with the stream.
    pub(crate) end: Option<u64>,
    /// Where it is in the object.
    pub(crate) offset: u64,
    /// Its bytes.
    pub(crate) length: u64,
    /// CRC-32 of its bytes.
    pub(crate) crc: u32,
}

/// Writes `part` of the object whose zlib stream starts `compressed` to `out`; `window` is what is before the part. Whether it is right: what
/// was written is worth nothing if not.
///
/// # Errors
/// Those of `out`.
pub(crate) fn inflate(compressed: &[u8], part: &Part, window: &[u8], out: &mut dyn Write) -> std::io::Result<bool> {
    if let Some(bytes) = splice::inflate(compressed, part, window)
        && libdeflater::crc32(&bytes) == part.crc
    {
        return out.write_all(&bytes).map(|()| true);
    }
    resume::inflate(compressed, part, window, out)
}

/// The points of one object; the first is at its start and has no window, all others have one of [`WINDOW`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// By offset, ascending.
    pub(crate) points: Vec<Point>,
    /// One for each point but the first.
    pub(crate) windows: Vec<Vec<u8>>,
}
