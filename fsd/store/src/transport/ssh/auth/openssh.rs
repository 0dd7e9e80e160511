//! Private keys as OpenSSH writes them, where the decoder wants them in another form.
//!
//! The format is `PROTOCOL.key` of OpenSSH. It has the private number of an ECDSA key without the zeros that it begins with, which is one of 512 keys
//! of the curve P-256; the decoder takes numbers of that curve in full length only.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

const BEGIN: &str = "-----BEGIN OPENSSH PRIVATE KEY-----";
const END: &str = "-----END OPENSSH PRIVATE KEY-----";
const MAGIC: &[u8] = b"openssh-key-v1\0";
const KIND: &[u8] = b"ecdsa-sha2-nistp256";
/// Bytes of the number in full length.
const NUMBER: usize = 32;
/// The unit in bytes in which a part that is not encrypted is filled up.
const BLOCK: usize = 8;
/// Characters of a line.
const LINE: usize = 70;

/// A P-256 key without a passphrase whose number is short, with that number in full length; `None` for any other text.
pub(super) fn in_full_length(text: &str) -> Option<String> {
    let encoded: String = text.trim().strip_prefix(BEGIN)?.strip_suffix(END)?.split_whitespace().collect();
    let bytes = STANDARD.decode(encoded).ok()?;
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let cipher = string(&mut rest)?;
    let [_derivation, _options] = [string(&mut rest)?, string(&mut rest)?];
    let (count, others) = rest.split_first_chunk()?;
    rest = others;
    if cipher != b"none" || u32::from_be_bytes(*count) != 1 {
        return None;
    }
    string(&mut rest)?;
    let before = bytes.len() - rest.len();
    let private = string(&mut rest)?;

    let (checks, mut rest) = private.split_at_checked(8)?;
    let (kind, curve, point) = (string(&mut rest)?, string(&mut rest)?, string(&mut rest)?);
    let (number, comment) = (string(&mut rest)?, string(&mut rest)?);
    if kind != KIND || number.len() >= NUMBER {
        return None;
    }
    let mut full = [0; NUMBER];
    full[NUMBER - number.len()..].copy_from_slice(number);
    let mut section = checks.to_vec();
    for part in [kind, curve, point, &full, comment] {
        put(&mut section, part);
    }
    section.extend((1..).take(section.len().next_multiple_of(BLOCK) - section.len()));
    let mut all = bytes[..before].to_vec();
    put(&mut all, &section);
    let encoded = STANDARD.encode(all);
    let lines = encoded.as_bytes().chunks(LINE).map(String::from_utf8_lossy).flat_map(|line| [line, "\n".into()]);
    Some(format!("{BEGIN}\n{}{END}\n", lines.collect::<String>()))
}

/// Takes a string off the front: its length as four bytes, and its bytes.
fn string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let (string, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
    *bytes = rest;
    Some(string)
}

fn put(out: &mut Vec<u8>, string: &[u8]) {
    out.extend_from_slice(&(string.len() as u32).to_be_bytes());
    out.extend_from_slice(string);
}
