//! The file of a pack's points, `pack-<id>.points`: magic and version; windows, one after the other; a table; and a footer. It is read from
//! its end: the footer says where the table is, and has a checksum of the table. All numbers are big endian.
//!
//! ```text
//! magic      8  "GMPOINTS"
//! version    4  1
//! windows    32768 each
//! table      for each object: offset of its entry (8), size (8), number of points (4), and for each point:
//!            bits (8), offset (8), CRC-32 of the part (4), number of the window (4), CRC-32 of the window (4)
//! footer     id of the pack (20 or 32), offset of the table (8), objects (4), CRC-32 of the table and of the footer up to here (4)
//! ```

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use flate2::Crc;
use tempfile::NamedTempFile;

use super::{Found, Part, Point, WINDOW, ZLIB_HEADER};

/// What the file's name ends with.
pub(crate) const EXTENSION: &str = "points";

const MAGIC: &[u8; 8] = b"GMPOINTS";
const VERSION: u32 = 1;
const HEAD: u64 = 12;
/// The number of a window that is none.
const NO_WINDOW: u32 = u32::MAX;
/// Most windows in a file, which makes it 8 GiB for 1 TiB of big objects, and so most points but for the first ones.
const MAX_WINDOWS: u32 = 1 << 18;
/// Bytes of the table for each object and for each point.
const OBJECT: u64 = 20;
const POINT: u64 = 28;
/// The biggest table that is read.
const MAX_TABLE: u64 = 2 * (MAX_WINDOWS as u64) * (OBJECT + POINT);

/// Writes the file; what has no room in it is left out.
pub(crate) struct Writer {
    file: BufWriter<NamedTempFile>,
    windows: u32,
    objects: u32,
    table: Vec<u8>,
}

impl Writer {
    /// Starts a file under a temporary name.
    ///
    /// # Errors
    /// Those of writing, as for all methods.
    pub(crate) fn new(file: NamedTempFile) -> std::io::Result<Self> {
        let mut file = BufWriter::with_capacity(256 << 10, file);
        file.write_all(MAGIC)?;
        file.write_all(&VERSION.to_be_bytes())?;
        Ok(Writer { file, windows: 0, objects: 0, table: Vec::new() })
    }

    /// Adds the points of the object of `size` bytes whose entry is at `entry` of the pack.
    pub(crate) fn add(&mut self, entry: u64, size: u64, found: &Found) -> std::io::Result<()> {
        let room = (MAX_WINDOWS - self.windows) as usize;
        if found.windows.is_empty() || found.windows.len() > room {
            return Ok(());
        }
        self.table.extend_from_slice(&entry.to_be_bytes());
        self.table.extend_from_slice(&size.to_be_bytes());
        self.table.extend_from_slice(&(found.points.len() as u32).to_be_bytes());
        for (position, point) in found.points.iter().enumerate() {
            self.table.extend_from_slice(&point.bits.to_be_bytes());
            self.table.extend_from_slice(&point.offset.to_be_bytes());
            self.table.extend_from_slice(&point.crc.to_be_bytes());
            let (number, crc) = match position.checked_sub(1).and_then(|position| found.windows.get(position)) {
                Some(window) => {
                    self.file.write_all(window)?;
                    self.windows += 1;
                    (self.windows - 1, crc_of(window))
                }
                None => (NO_WINDOW, 0),
            };
            self.table.extend_from_slice(&number.to_be_bytes());
            self.table.extend_from_slice(&crc.to_be_bytes());
        }
        self.objects += 1;
        Ok(())
    }

    /// Writes the rest for the pack whose id is `pack`; `None` when there is no point.
    pub(crate) fn finish(mut self, pack: &[u8]) -> std::io::Result<Option<NamedTempFile>> {
        if self.objects == 0 {
            return Ok(None);
        }
        let table = HEAD + u64::from(self.windows) * WINDOW as u64;
        self.table.extend_from_slice(pack);
        self.table.extend_from_slice(&table.to_be_bytes());
        self.table.extend_from_slice(&self.objects.to_be_bytes());
        let crc = crc_of(&self.table);
        self.file.write_all(&self.table)?;
        self.file.write_all(&crc.to_be_bytes())?;
        self.file.into_inner().map(Some).map_err(std::io::IntoInnerError::into_error)
    }
}

/// The points of a pack.
#[derive(Debug)]
pub(crate) struct Points {
    file: File,
    /// By entry, ascending.
    objects: Vec<Object>,
}

/// The points of one object.
#[derive(Debug, Clone)]
pub(crate) struct Object {
    entry: u64,
    /// Bytes of the object.
    pub(crate) size: u64,
    points: Vec<(Point, Window)>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    number: u32,
    crc: u32,
}

impl Points {
    /// Reads the table of the file at `path`; `None` when there is none, when it is broken, or when it is of another pack than `pack`.
    pub(crate) fn open(path: &Path, pack: &[u8]) -> Option<Self> {
        let file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let mut head = [0; HEAD as usize];
        file.read_exact_at(&mut head, 0).ok()?;
        if head[..8] != *MAGIC || head[8..] != VERSION.to_be_bytes() {
            return None;
        }
        let footer_length = pack.len() as u64 + 16;
        let mut footer = vec![0; usize::try_from(footer_length).ok()?];
        file.read_exact_at(&mut footer, length.checked_sub(footer_length)?).ok()?;
        let mut rest = Bytes(footer.strip_prefix(pack)?);
        let (table, objects, crc) = (rest.u64()?, rest.u32()?, rest.u32()?);
        let windows = table.checked_sub(HEAD)?;
        let table_length = (length - footer_length).checked_sub(table)?;
        if !windows.is_multiple_of(WINDOW as u64) || windows / WINDOW as u64 > u64::from(MAX_WINDOWS) || table_length > MAX_TABLE {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(table_length + footer_length - 4).ok()?];
        file.read_exact_at(&mut bytes, table).ok()?;
        if crc_of(&bytes) != crc {
            return None;
        }
        let objects = parse(&bytes[..table_length as usize], objects, (windows / WINDOW as u64) as u32)?;
        Some(Points { file, objects })
    }

    /// The points of the object whose entry is at `entry` and which has `size` bytes.
    pub(crate) fn of(&self, entry: u64, size: u64) -> Option<&Object> {
        let found = self.objects.binary_search_by_key(&entry, |object| object.entry).ok()?;
        self.objects.get(found).filter(|object| object.size == size)
    }

    /// What is before the point `number` of `object`, as far as it has to be known; `None` when it is broken.
    pub(crate) fn window(&self, object: &Object, number: usize) -> Option<Vec<u8>> {
        let (_, window) = object.points.get(number)?;
        if window.number == NO_WINDOW {
            return Some(Vec::new());
        }
        let mut bytes = vec![0; WINDOW];
        self.file.read_exact_at(&mut bytes, HEAD + u64::from(window.number) * WINDOW as u64).ok()?;
        (crc_of(&bytes) == window.crc).then_some(bytes)
    }

    /// All of an object's, to be written elsewhere.
    pub(crate) fn found(&self, object: &Object) -> Option<Found> {
        let windows = (1..object.points.len()).map(|number| self.window(object, number)).collect::<Option<_>>()?;
        Some(Found { points: object.points.iter().map(|(point, _)| *point).collect(), windows })
    }
}

impl Object {
    /// How many parts it has.
    pub(crate) fn parts(&self) -> usize {
        self.points.len()
    }

    /// Part `number`.
    pub(crate) fn part(&self, number: usize) -> Option<Part> {
        let (point, _) = self.points.get(number)?;
        let next = self.points.get(number + 1).map(|(next, _)| next);
        let length = next.map_or(self.size, |next| next.offset) - point.offset;
        Some(Part { bits: point.bits, end: next.map(|next| next.bits), offset: point.offset, length, crc: point.crc })
    }
}

/// Reads the table. Whatever it says can be relied on not to lead out of the object or the file.
fn parse(table: &[u8], objects: u32, windows: u32) -> Option<Vec<Object>> {
    let mut bytes = Bytes(table);
    let mut all: Vec<Object> = Vec::new();
    for _ in 0..objects {
        let (entry, size, count) = (bytes.u64()?, bytes.u64()?, bytes.u32()?);
        if all.last().is_some_and(|last| last.entry >= entry) || u64::from(count) * POINT > bytes.0.len() as u64 {
            return None;
        }
        let mut points: Vec<(Point, Window)> = Vec::with_capacity(count as usize);
        for position in 0..count {
            let point = Point { bits: bytes.u64()?, offset: bytes.u64()?, crc: bytes.u32()? };
            let window = Window { number: bytes.u32()?, crc: bytes.u32()? };
            let fits = match points.last() {
                None => point.bits == ZLIB_HEADER && point.offset == 0 && window.number == NO_WINDOW,
                Some((last, _)) => point.bits > last.bits && point.offset > last.offset && window.number < windows,
            };
            if !fits || point.offset >= size || position == 0 && count < 2 {
                return None;
            }
            points.push((point, window));
        }
        if points.is_empty() {
            return None;
        }
        all.push(Object { entry, size, points });
    }
    bytes.0.is_empty().then_some(all)
}

/// Numbers at the front of bytes.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn u32(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u32::from_be_bytes(*first))
    }

    fn u64(&mut self) -> Option<u64> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_be_bytes(*first))
    }
}

fn crc_of(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
