//! Points of streams of every kind: what is inflated from them is the object, and a file that is not theirs is none.

use std::io::Write;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::*;

const PACK: [u8; 20] = [7; 20];

/// Bytes that deflate into fixed, dynamic and stored blocks.
fn object(kind: &str, size: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        match kind {
            "noise" => bytes.extend_from_slice(&next().to_le_bytes()),
            "zeros" => bytes.resize(bytes.len() + 1000, 0),
            "text" => bytes.extend_from_slice(format!("line {} of {}\n", bytes.len(), next() % 5000).as_bytes()),
            _ if (bytes.len() >> 20) % 3 == 0 => bytes.extend_from_slice(&next().to_le_bytes()),
            _ => bytes.extend_from_slice(format!("{:x} ", next() % 300).as_bytes()),
        }
    }
    bytes.truncate(size);
    bytes
}

fn deflated(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(level));
    encoder.write_all(bytes).expect("a Vec takes it");
    encoder.finish().expect("a Vec takes it")
}

/// The points of a stream that comes in pieces of `step` bytes, and the object.
fn find(compressed: &[u8], step: usize) -> (Found, Vec<u8>) {
    let (mut finder, mut object, mut at) = (Finder::new(), Vec::new(), 0);
    let mut out = vec![0; 64 << 10];
    loop {
        let end = (at + step).min(compressed.len());
        let (consumed, produced, ended) = finder.step(&compressed[at..end], &mut out).expect("a good stream");
        at += consumed;
        object.extend_from_slice(&out[..produced]);
        if ended {
            return (finder.finish(), object);
        }
    }
}

fn write(path: &std::path::Path, objects: &[(u64, u64, &Found)]) {
    let mut writer = Writer::new(tempfile::NamedTempFile::new().expect("a file")).expect("written");
    for (entry, size, found) in objects {
        writer.add(*entry, *size, found).expect("written");
    }
    std::fs::copy(writer.finish(&PACK).expect("written").expect("points").path(), path).expect("copied");
}

#[test]
fn every_part_is_what_the_whole_has_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("points");
    for (kind, size, level, fewest) in [
        ("text", 30 << 20, 6, 6),
        ("mixed", 30 << 20, 6, 4),
        ("mixed", 20 << 20, 4, 2),
        ("text", 20 << 20, 9, 4),
        ("noise", 20 << 20, 6, 0),
    ] {
        let whole = object(kind, size);
        let compressed = deflated(&whole, level);
        let (found, inflated) = find(&compressed, 10_007);
        assert!(inflated == whole, "{kind}");
        assert!(found.windows.len() >= fewest, "{kind} of level {level} has {} points", found.windows.len());
        if found.windows.is_empty() {
            continue;
        }
        write(&path, &[(12, size as u64, &found)]);
        let points = Points::open(&path, &PACK).expect("a good file");
        assert!(points.of(12, size as u64 + 1).is_none() && points.of(13, size as u64).is_none());
        let object = points.of(12, size as u64).expect("its points");
        let mut end = 0;
        for number in 0..object.parts() {
            let part = object.part(number).expect("a part");
            assert_eq!(part.offset, end);
            end += part.length;
            let expected = &whole[part.offset as usize..end as usize];
            let window = points.window(object, number).expect("a window");
            let is_it = |compressed: &[u8], part: &Part| {
                let (mut quick, mut slow) = (Vec::new(), Vec::new());
                let right = inflate(compressed, part, &window, &mut quick).expect("a Vec takes it");
                assert_eq!(resume::inflate(compressed, part, &window, &mut slow).expect("a Vec takes it"), right);
                assert!(!right || quick == expected && slow == expected, "{kind}: part {number} as {part:?}");
                right
            };
            assert!(is_it(&compressed, &part), "{kind}: part {number}");
            let quick = splice::inflate(&compressed, &part, &window);
            let small = part.length + part.length / 256 + 64 <= splice::MOST;
            assert!(if small { quick.as_deref() == Some(expected) } else { quick.is_none() }, "{kind}: {part:?} in one go");
            // More of the pack follows.
            assert!(is_it(&[&compressed[..], &[0x5a; 5000]].concat(), &part));
            // Any other bit, sum or length is told (some bits are only there to fill a byte up).
            for other in
                [Part { bits: part.bits + 1, ..part }, Part { crc: part.crc ^ 1, ..part }, Part { length: part.length - 1, ..part }]
            {
                is_it(&compressed, &other);
            }
            // An end that is wrong costs time only.
            for end in [part.bits, part.bits + 1, part.end.map_or(part.bits + 99, |end| end - 1), part.end.map_or(u64::MAX, |end| end + 1)]
            {
                assert!(is_it(&compressed, &Part { end: Some(end), ..part }));
            }
        }
        assert_eq!(end, size as u64);
        assert_eq!(points.found(object), Some(found));
    }
}

#[test]
fn zeros_and_small_pieces_do_no_harm() {
    let whole = object("zeros", 40 << 20);
    let (found, inflated) = find(&deflated(&whole, 6), 64);
    assert!(inflated == whole);
    assert_eq!(found.points.len(), found.windows.len() + 1);
}

#[test]
fn a_file_that_is_cut_flipped_or_of_another_pack_is_none() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("points");
    let point = |bits, offset| Point { bits, offset, crc: 5 };
    let window = |byte| vec![byte; WINDOW];
    let found = Found { points: vec![point(16, 0), point(999, 5 << 20), point(5000, 9 << 20)], windows: vec![window(1), window(2)] };
    write(&path, &[(12, 20 << 20, &found), (700, 30 << 20, &found)]);
    let good = std::fs::read(&path).expect("read");
    assert!(Points::open(&path, &PACK).is_some());
    assert!(Points::open(&path, &[8; 20]).is_none() && Points::open(&path, &[7; 32]).is_none());
    assert!(Points::open(&dir.path().join("none"), &PACK).is_none());
    let table = good.len() - 36 - 2 * (OBJECT_BYTES + 3 * POINT_BYTES);
    for at in (0..12).chain(table..good.len()) {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        std::fs::write(&path, &bad).expect("written");
        assert!(Points::open(&path, &PACK).is_none(), "byte {at}");
    }
    for cut in (0..200).chain(good.len() - 300..good.len()) {
        std::fs::write(&path, &good[..cut]).expect("written");
        assert!(Points::open(&path, &PACK).is_none(), "{cut} bytes");
    }
    // A window is looked at when it is needed.
    let mut bad = good.clone();
    bad[100] ^= 1;
    std::fs::write(&path, &bad).expect("written");
    let points = Points::open(&path, &PACK).expect("the table is good");
    let object = points.of(12, 20 << 20).expect("an object");
    assert!(points.window(object, 1).is_none() && points.window(object, 2).is_some() && points.found(object).is_none());
}

const OBJECT_BYTES: usize = 20;
const POINT_BYTES: usize = 28;

#[test]
fn tables_that_lead_astray_are_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("points");
    let point = |bits, offset| Point { bits, offset, crc: 5 };
    let opens = |points: Vec<Point>, size| {
        let windows = vec![vec![1; WINDOW]; points.len() - 1];
        write(&path, &[(12, size, &Found { points, windows })]);
        Points::open(&path, &PACK).is_some()
    };
    let good = [point(16, 0), point(100, 50), point(200, 60)];
    assert!(opens(good.to_vec(), 61));
    assert!(!opens(good.to_vec(), 60), "a point at the end");
    assert!(!opens(vec![good[0], good[2], good[1]], 1000), "backwards");
    assert!(!opens(vec![good[1], good[2]], 1000), "no start");
    assert!(!opens(vec![good[0], point(200, 50), point(200, 60)], 1000), "the same bits");
    assert!(!opens(vec![point(17, 0), good[1]], 1000), "a start elsewhere");
}
