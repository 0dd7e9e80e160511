//! Packet lines, as much of them as is needed without gix. Source: git's `Documentation/gitprotocol-common.txt`.

/// One packet.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    /// A line, without its trailing newline.
    Line(&'a [u8]),
    /// `0000`
    Flush,
    /// `0001`
    Delimiter,
}

/// Splits the first packet off. `None` when `data` does not start with a whole, well-formed one.
pub(super) fn next<'a>(data: &mut &'a [u8]) -> Option<Packet<'a>> {
    let length = length(data.get(..4)?)?;
    let packet = match length {
        0 => Packet::Flush,
        1 => Packet::Delimiter,
        2 | 3 => return None,
        _ => {
            let line = data.get(4..length)?;
            Packet::Line(line.strip_suffix(b"\n").unwrap_or(line))
        }
    };
    *data = &data[length.max(4)..];
    Some(packet)
}

/// The length that four hexadecimal digits announce, themselves included.
pub(super) fn length(digits: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(digits).ok().filter(|t| t.len() == 4 && t.bytes().all(|b| b.is_ascii_hexdigit()))?;
    usize::from_str_radix(text, 16).ok()
}

/// Appends `payload` as one packet.
pub(super) fn put(out: &mut Vec<u8>, payload: &[u8]) {
    out.extend_from_slice(format!("{:04x}", payload.len() + 4).as_bytes());
    out.extend_from_slice(payload);
}

/// Appends a flush packet.
pub(super) fn put_flush(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0000");
}

/// Appends a delimiter packet.
pub(super) fn put_delimiter(out: &mut Vec<u8>) {
    out.extend_from_slice(b"0001");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_split_as_they_were_put() {
        let mut out = vec![];
        put(&mut out, b"command=ls-refs\n");
        put_delimiter(&mut out);
        put(&mut out, b"");
        put_flush(&mut out);
        assert_eq!(out, b"0014command=ls-refs\n000100040000");
        let mut rest = out.as_slice();
        let all: Vec<_> = std::iter::from_fn(|| next(&mut rest)).collect();
        assert_eq!(all, [Packet::Line(b"command=ls-refs"), Packet::Delimiter, Packet::Line(b""), Packet::Flush]);
        assert!(rest.is_empty());
    }

    #[test]
    fn what_is_no_packet_is_none() {
        for bad in ["", "000", "0002", "0003", "0009abc", "+004", "zzzz", "<htm"] {
            assert_eq!(next(&mut bad.as_bytes()), None, "{bad}");
        }
    }
}
