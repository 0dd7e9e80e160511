//! Inflating from the middle of a stream.
//!
//! Blocks of deflate begin at any bit, and an inflater takes bytes. So it is first given empty blocks that together are as many bits long
//! as those of the first byte that belong to the block before.

use std::io::Write;

use flate2::Crc;
use zlib_rs::{Inflate, InflateFlush, Status};

use super::Part;

/// Bytes that are inflated at once.
const PIECE: usize = 256 << 10;

/// An inflater that stands between two blocks.
pub(super) struct Resume {
    inflate: Inflate,
}

impl Resume {
    /// Stands before bit `skip` of the byte `first`, after `window`. `None` when that is no place to start from.
    pub(super) fn new(window: &[u8], skip: u8, first: u8) -> Option<Self> {
        let mut inflate = Inflate::new(false, 15);
        if !window.is_empty() {
            inflate.set_dictionary(window).ok()?;
        }
        let mut resume = Resume { inflate };
        if skip > 0 {
            let mut bits = empty_blocks(skip);
            bits.extend((skip..8).map(|bit| first >> bit & 1));
            let bytes = bytes_of(&bits);
            let (consumed, produced, ended) = resume.step(&bytes, &mut [0; 8])?;
            if consumed != bytes.len() || produced != 0 || ended {
                return None;
            }
        }
        Some(resume)
    }

    /// Inflates some of `input` into `out`: how much was consumed and produced, and whether the stream has ended. `None` for what is no
    /// deflate stream.
    pub(super) fn step(&mut self, input: &[u8], out: &mut [u8]) -> Option<(usize, usize, bool)> {
        let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
        let status = self.inflate.decompress(input, out, InflateFlush::NoFlush).ok()?;
        let consumed = (self.inflate.total_in() - before_in) as usize;
        let produced = (self.inflate.total_out() - before_out) as usize;
        Some((consumed, produced, status == Status::StreamEnd))
    }
}

/// Bits of empty blocks, `bits` (1 to 7) more than a multiple of 8.
pub(super) fn empty_blocks(bits: u8) -> Vec<u8> {
    let mut all = Vec::with_capacity(136);
    let mut put = |value: u32, count: u32| all.extend((0..count).map(|bit| (value >> bit & 1) as u8));
    if bits % 2 == 1 {
        // 97 bits: dynamic codes; 257 lengths, 1 distance, 18 code lengths, of which those of 17, 18 and 1 are not zero.
        put(0b100, 3);
        put(0, 5);
        put(0, 5);
        put(14, 4);
        for length in [0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2] {
            put(length, 3);
        }
        // 138, 108 and 10 literals are not used (18 is coded `0`, 17 `11`), the end of the block and the distance are (1 is coded `10`).
        for (code, length, more, extra) in [(0, 1, 127, 7), (0, 1, 97, 7), (0b11, 2, 7, 3), (0b01, 2, 0, 0), (0b01, 2, 0, 0)] {
            put(code, length);
            put(more, extra);
        }
        put(0, 1);
    }
    for _ in 0..bits / 2 {
        // 10 bits: fixed codes, and the end of the block.
        put(0b010, 3);
        put(0, 7);
    }
    all
}

/// Bits as bytes, the first bit of a byte being its lowest.
pub(super) fn bytes_of(bits: &[u8]) -> Vec<u8> {
    bits.chunks(8).map(|byte| byte.iter().rev().fold(0, |all, bit| all << 1 | bit)).collect()
}

/// [`super::inflate`] in pieces, for parts of any size.
pub(super) fn inflate(compressed: &[u8], part: &Part, window: &[u8], out: &mut dyn Write) -> std::io::Result<bool> {
    let (at, skip) = (usize::try_from(part.bits / 8).unwrap_or(usize::MAX), (part.bits % 8) as u8);
    let Some(mut input) = compressed.get(at..) else { return Ok(false) };
    let mut first = 0;
    if skip > 0 {
        let Some((byte, rest)) = input.split_first() else { return Ok(false) };
        (first, input) = (*byte, rest);
    }
    let Some(mut resume) = Resume::new(window, skip, first) else { return Ok(false) };
    let mut piece = vec![0; PIECE];
    let mut sum = Crc::new();
    let mut left = part.length;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(PIECE);
        let Some((consumed, produced, ended)) = resume.step(input, &mut piece[..most]) else { return Ok(false) };
        input = &input[consumed..];
        left -= produced as u64;
        sum.update(&piece[..produced]);
        out.write_all(&piece[..produced])?;
        if left > 0 && (ended || consumed == 0 && produced == 0) {
            return Ok(false);
        }
    }
    Ok(sum.sum() == part.crc)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_blocks_have_every_length_and_nothing_in_them() {
        for bits in 1..8 {
            assert_eq!(empty_blocks(bits).len() % 8, usize::from(bits));
            // A last, stored block of three bytes behind them: three bits, the rest of the byte, lengths, bytes.
            let mut all = empty_blocks(bits);
            all.extend([1, 0, 0]);
            all.resize(all.len().next_multiple_of(8), 0);
            let mut bytes = bytes_of(&all);
            bytes.extend([3, 0, !3, !0, b'a', b'b', b'c']);
            let mut out = [0; 16];
            let mut inflate = Inflate::new(false, 15);
            let status = inflate.decompress(&bytes, &mut out, InflateFlush::NoFlush);
            assert!(matches!(status, Ok(Status::StreamEnd)), "{bits}: {status:?}");
            assert_eq!(&out[..inflate.total_out() as usize], b"abc");
        }
    }
}
