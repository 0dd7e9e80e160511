//! Loose objects: one zlib stream a file, `<kind> <size>\0<content>`.

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use bstr::ByteSlice;
use flate2::bufread::ZlibDecoder;

use crate::error::{Fault, Result, StoreError};

/// An open loose object, its header read.
pub(super) struct Loose {
    pub(super) kind: gix::object::Kind,
    pub(super) size: u64,
    path: PathBuf,
    content: ZlibDecoder<BufReader<File>>,
}

/// Longest header: the longest kind, a space, twenty digits, NUL.
const MAX_HEADER: usize = 6 + 1 + 20 + 1;

impl Loose {
    /// Opens the object of `id` below the objects directory `dir`; `None` when it has none.
    pub(super) fn open(dir: &Path, id: &gix::hash::oid) -> Result<Option<Self>> {
        let hex = id.to_hex().to_string();
        let path = dir.join(&hex[..2]).join(&hex[2..]);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(err) if matches!(err.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory) => return Ok(None),
            Err(err) => {
                return Err(StoreError::new(Fault::Disk, format!("object file {} cannot be opened", path.display())).caused_by(err));
            }
        };
        let mut content = ZlibDecoder::new(BufReader::with_capacity(16 << 10, file));
        let (kind, size) = read_header(&mut content).ok_or_else(|| broken(&path))?;
        Ok(Some(Loose { kind, size, path, content }))
    }

    /// Appends the content, `most` bytes at most, to `out`, which is cleared first.
    pub(super) fn read(mut self, out: &mut Vec<u8>, most: u64) -> Result<gix::object::Kind> {
        out.clear();
        super::whole::check_size(self.size, most)?;
        // The size is not trusted for a big reservation: a short file may claim anything.
        out.reserve(usize::try_from(self.size.min(16 << 20)).unwrap_or_default());
        let read = (&mut self.content).take(self.size.saturating_add(1)).read_to_end(out);
        let read = read.map_err(|err| broken(&self.path).caused_by(err))?;
        if read as u64 != self.size {
            return Err(broken(&self.path));
        }
        Ok(self.kind)
    }

    /// Reads the next piece of the content; 0 at its end, which is checked against the header.
    pub(super) fn read_piece(&mut self, piece: &mut [u8]) -> Result<usize> {
        self.content.read(piece).map_err(|err| broken(&self.path).caused_by(err))
    }

    pub(super) fn broken(&self) -> StoreError {
        broken(&self.path)
    }
}

fn read_header(content: &mut impl Read) -> Option<(gix::object::Kind, u64)> {
    let mut header = Vec::with_capacity(MAX_HEADER);
    let mut byte = [0];
    loop {
        content.read_exact(&mut byte).ok()?;
        if byte[0] == 0 {
            break;
        }
        header.push(byte[0]);
        if header.len() == MAX_HEADER {
            return None;
        }
    }
    let (kind, size) = header.split_once_str(" ")?;
    Some((gix::object::Kind::from_bytes(kind).ok()?, size.to_str().ok()?.parse().ok()?))
}

fn broken(path: &Path) -> StoreError {
    StoreError::new(Fault::Corrupt, format!("object file {} is broken", path.display()))
}
