//! A part as a stream of its own, which is inflated in one go, some twice as fast as in pieces.
//!
//! A stored block of what is before the part comes first. The part follows at the bit of a byte at which it is in its own stream, since stored
//! blocks depend on it; an empty last block ends the stream, unless the part does so itself.

use libdeflater::Decompressor;

use super::resume::{bytes_of, empty_blocks};
use super::{Part, WINDOW};

/// Parts of more bytes, compressed or not, are inflated in pieces: each thread that inflates one holds it twice.
pub(super) const MOST: u64 = 12 << 20;

/// The bytes of `part`; `None` when it cannot be had in this way.
pub(super) fn inflate(compressed: &[u8], part: &Part, window: &[u8]) -> Option<Vec<u8>> {
    // The last part ends with the stream: compressed bytes are seldom more than those of the object.
    let most = part.length + part.length / 256 + 64;
    let end = part.end.map_or(part.bits / 8 + most, |end| end.div_ceil(8)).min(compressed.len() as u64);
    let input = compressed.get(usize::try_from(part.bits / 8).ok()?..usize::try_from(end).ok()?)?;
    if most > MOST || input.len() as u64 > MOST || window.len() > WINDOW {
        return None;
    }
    let mut stream = Vec::with_capacity(window.len() + input.len() + 32);
    if !window.is_empty() {
        let length = window.len() as u16;
        stream.push(0);
        stream.extend_from_slice(&length.to_le_bytes());
        stream.extend_from_slice(&(!length).to_le_bytes());
        stream.extend_from_slice(window);
    }
    let skip = (part.bits % 8) as u8;
    let mut rest = input;
    if skip > 0 {
        let (first, others) = input.split_first()?;
        let mut bits = empty_blocks(skip);
        bits.extend((skip..8).map(|bit| first >> bit & 1));
        stream.extend(bytes_of(&bits));
        rest = others;
    }
    stream.extend_from_slice(rest);
    if let Some(end) = part.end {
        // 10 bits: the last block, of fixed codes, with nothing but its end.
        let used = (end % 8) as u32;
        let kept = if used == 0 { 0 } else { u32::from(stream.pop()?) & ((1 << used) - 1) };
        stream.extend_from_slice(&(0b011 << used | kept).to_le_bytes()[..3]);
    }
    let mut bytes = vec![0; window.len() + part.length as usize];
    let written = Decompressor::new().deflate_decompress(&stream, &mut bytes).ok()?;
    (written == bytes.len()).then(|| bytes.split_off(window.len()))
}
