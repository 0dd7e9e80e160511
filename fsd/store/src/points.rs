//! Access points into big compressed objects: places from which inflating can start in the middle, so that several threads inflate one
//! object, and so that its end is read without its start.
//!
//! They are found while a pack is received, which inflates everything anyway, and kept in a file beside the pack (`pack-<id>.points`). They
//! are an aid and no data: without the file, or with a broken one, objects are inflated from their start. Whatever is inflated from a point
//! is checked before anybody sees it.

mod file;
mod find;
mod resume;
#[cfg(test)]
mod tests;

pub(crate) use file::{EXTENSION, Object, Points, Writer};
pub(crate) use find::Finder;
pub(crate) use resume::inflate;

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

/// The points of one object; the first is at its start and has no window, all others have one of [`WINDOW`] bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// By offset, ascending.
    pub(crate) points: Vec<Point>,
    /// One for each point but the first.
    pub(crate) windows: Vec<Vec<u8>>,
}
