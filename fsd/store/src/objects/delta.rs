//! Deltas in memory (`gitformat-pack(5)`, "Deltified representation"). `None` stands for a malformed delta: who calls knows where it is from.

/// The sizes of base and result at the start of a delta, and where its instructions start.
pub(crate) fn sizes(delta: &[u8]) -> Option<(u64, u64, usize)> {
    let (base, after_base) = varint(delta)?;
    let (result, after_result) = varint(delta.get(after_base..)?)?;
    Some((base, result, after_base + after_result))
}

fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (position, byte) in bytes.iter().enumerate().take(10) {
        let part = u64::from(byte & 0x7f);
        let shift = 7 * position as u32;
        if part << shift >> shift != part {
            return None;
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Some((value, position + 1));
        }
    }
    None
}

/// Applies `instructions` to `base`; the result has exactly `size` bytes.
pub(crate) fn apply(base: &[u8], instructions: &[u8], size: usize) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    apply_to(base, instructions, size, &mut out)?;
    Some(out)
}

/// As [`apply`], into a buffer that was used before; its former content is lost.
pub(crate) fn apply_to(base: &[u8], mut instructions: &[u8], size: usize, out: &mut Vec<u8>) -> Option<()> {
    out.clear();
    out.try_reserve_exact(size).ok()?;
    while let Some((&command, rest)) = instructions.split_first() {
        let piece;
        if command & 0x80 != 0 {
            let (mut offset, mut length, mut at) = (0usize, 0usize, 0);
            for bit in 0..4 {
                if command & (1 << bit) != 0 {
                    offset |= usize::from(*rest.get(at)?) << (8 * bit);
                    at += 1;
                }
            }
            for bit in 0..3 {
                if command & (0x10 << bit) != 0 {
                    length |= usize::from(*rest.get(at)?) << (8 * bit);
                    at += 1;
                }
            }
            let length = if length == 0 { 0x10000 } else { length };
            piece = base.get(offset..offset.checked_add(length)?)?;
            instructions = rest.get(at..)?;
        } else {
            // Command 0 is reserved.
            if command == 0 {
                return None;
            }
            (piece, instructions) = rest.split_at_checked(usize::from(command))?;
        }
        if out.len() + piece.len() > size {
            return None;
        }
        out.extend_from_slice(piece);
    }
    (out.len() == size).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_and_literals() {
        // Copy 3 from 1, the literal "xy", copy 1 from 0.
        let delta = [5, 6, 0x91, 1, 3, 2, b'x', b'y', 0x90, 1];
        let (base, result, at) = sizes(&delta).expect("sizes");
        assert_eq!((base, result, at), (5, 6, 2));
        assert_eq!(apply(b"abcde", &delta[at..], 6).expect("applies"), b"bcdxya");
    }

    #[test]
    fn malformed_deltas_are_refused() {
        for bad in [&[0u8][..], &[0x91, 1], &[3, b'x'], &[0x91, 4, 3], &[0x90, 9], &[1, b'x']] {
            assert_eq!(apply(b"abcde", bad, 3), None, "{bad:?}");
        }
        assert_eq!(sizes(&[0x80; 12]), None);
    }
}
