//! Pack index files, version 2 (`gitformat-pack(5)`).

use std::io::Write;

use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;

/// One object of a pack.
#[derive(Debug, Clone, Copy)]
pub(super) struct IndexEntry {
    pub(super) id: ObjectId,
    pub(super) crc: u32,
    pub(super) offset: u64,
}

/// Offsets from here on are written with 64 bits.
const LARGE: u64 = 1 << 31;

/// Writes the index of `entries`, which are sorted by id for it, of the pack with trailer `pack`.
pub(super) fn write(out: &mut dyn Write, entries: &mut [IndexEntry], pack: ObjectId, hash: gix::hash::Kind) -> Result<()> {
    entries.sort_unstable_by(|a, b| a.id.cmp(&b.id).then(a.offset.cmp(&b.offset)));
    let mut out = Hashing { out, hasher: gix::hash::hasher(hash) };
    let mut body = || -> std::io::Result<()> {
        out.write_all(b"\xfftOc\0\0\0\x02")?;
        let mut fan = [0u32; 256];
        for entry in &*entries {
            fan[usize::from(entry.id.first_byte())] += 1;
        }
        let mut sum = 0;
        for count in fan {
            sum += count;
            out.write_all(&sum.to_be_bytes())?;
        }
        for entry in &*entries {
            out.write_all(entry.id.as_slice())?;
        }
        for entry in &*entries {
            out.write_all(&entry.crc.to_be_bytes())?;
        }
        let mut large = Vec::new();
        for entry in &*entries {
            let offset = if entry.offset < LARGE {
                entry.offset as u32
            } else {
                large.push(entry.offset);
                (large.len() as u32 - 1) | LARGE as u32
            };
            out.write_all(&offset.to_be_bytes())?;
        }
        for offset in large {
            out.write_all(&offset.to_be_bytes())?;
        }
        out.write_all(pack.as_slice())
    };
    let failed = |err: std::io::Error| {
        let fault = StoreError::new(Fault::Disk, "the index of a pack cannot be written: the disk may be full");
        fault.caused_by(err)
    };
    body().map_err(failed)?;
    let Hashing { out, hasher } = out;
    let sum = hasher.try_finalize().map_err(|err| StoreError::new(Fault::Internal, "an index cannot be hashed").caused_by(err))?;
    out.write_all(sum.as_slice()).and_then(|()| out.flush()).map_err(failed)
}

/// Hashes what goes through.
struct Hashing<'a> {
    out: &'a mut dyn Write,
    hasher: gix::hash::Hasher,
}

impl Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}
