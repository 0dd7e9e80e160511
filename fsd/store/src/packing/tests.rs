//! Streams that are no good packs: each is refused, leaves nothing behind, and does not panic. What is good hashes to git's ids.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use gix::object::Kind;

use super::receive::entry_header;
use super::*;
use crate::error::{Fault, Result};
use crate::ids::ObjectId;
use crate::objects::Objects;

const HASH: gix::hash::Kind = gix::hash::Kind::Sha1;

/// A pack that is put together by hand.
struct Pack {
    bytes: Vec<u8>,
    count: u32,
}

impl Pack {
    fn new() -> Self {
        Pack { bytes: gix_pack::data::header::encode(gix_pack::data::Version::V2, 0).to_vec(), count: 0 }
    }

    fn entry(&mut self, header: gix_pack::data::entry::Header, content: &[u8]) -> u64 {
        let offset = self.bytes.len() as u64;
        header.write_to(content.len() as u64, &mut self.bytes).expect("a Vec takes it");
        let mut deflate = flate2::write::ZlibEncoder::new(&mut self.bytes, flate2::Compression::fast());
        deflate.write_all(content).and_then(|()| deflate.finish()).expect("a Vec takes it");
        self.count += 1;
        offset
    }

    fn blob(&mut self, content: &[u8]) -> u64 {
        self.entry(entry_header(Kind::Blob), content)
    }

    fn finish(mut self) -> Vec<u8> {
        self.bytes[8..12].copy_from_slice(&self.count.to_be_bytes());
        let mut hasher = gix::hash::hasher(HASH);
        hasher.update(&self.bytes);
        self.bytes.extend_from_slice(hasher.try_finalize().expect("a hash").as_slice());
        self.bytes
    }
}

struct Target {
    dir: tempfile::TempDir,
    objects: Objects,
}

impl Target {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::create_dir_all(dir.path().join("objects/pack")).expect("a directory");
        let objects = Objects::open(dir.path().join("objects"), HASH).expect("a database");
        Target { dir, objects }
    }

    fn receive(&self, bytes: &[u8]) -> Result<Option<NewPack>> {
        let pack_dir = self.pack_dir();
        receive(&mut std::io::BufReader::with_capacity(7, bytes), &pack_dir, &self.objects, &Counts::default(), &AtomicBool::new(false))
    }

    fn pack_dir(&self) -> std::path::PathBuf {
        self.dir.path().join("objects/pack")
    }

    fn blob(&self, content: &[u8]) -> bool {
        let id = id(content);
        self.objects.blob(id).is_ok_and(|found| found == content)
    }
}

fn id(content: &[u8]) -> ObjectId {
    gix::objs::compute_hash(HASH, Kind::Blob, content).expect("a hash")
}

fn varint(mut value: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// A delta that copies all of a base of `base` bytes (below 64 KiB) and adds `tail`.
fn appending(base: usize, tail: &[u8]) -> Vec<u8> {
    let mut delta = [varint(base), varint(base + tail.len())].concat();
    delta.extend_from_slice(&[0xb0, base as u8, (base >> 8) as u8, tail.len() as u8]);
    delta.extend_from_slice(tail);
    delta
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).expect("a directory").flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn chains_by_offset_and_by_id_in_any_order() {
    use gix_pack::data::entry::Header;
    let mut pack = Pack::new();
    // By id, before its base and before that one's base.
    pack.entry(Header::RefDelta { base_id: id(b"base one two") }, &appending(12, b" three"));
    pack.entry(Header::RefDelta { base_id: id(b"base one") }, &appending(8, b" two"));
    let base = pack.blob(b"base");
    let at = pack.bytes.len() as u64;
    pack.entry(Header::OfsDelta { base_distance: at - base }, &appending(4, b" one"));
    let target = Target::new();
    let new = target.receive(&pack.finish()).expect("a good pack").expect("objects");
    assert!(new.fresh && new.objects == 4);
    for content in ["base", "base one", "base one two", "base one two three"] {
        assert!(target.blob(content.as_bytes()), "{content}");
    }
    assert_eq!(files(&target.pack_dir()).len(), 2);
}

#[test]
fn a_thin_pack_is_completed_and_a_known_one_is_not_stored_twice() {
    use gix_pack::data::entry::Header;
    let target = Target::new();
    let mut first = Pack::new();
    first.blob(b"base");
    let first = first.finish();
    target.receive(&first).expect("a good pack");
    assert!(!target.receive(&first).expect("the same pack").expect("objects").fresh);
    assert!(target.blob(b"base"));

    let mut thin = Pack::new();
    thin.entry(Header::RefDelta { base_id: id(b"base") }, &appending(4, b" and more"));
    let new = target.receive(&thin.finish()).expect("a thin pack").expect("objects");
    assert_eq!(new.objects, 2);
    assert!(target.blob(b"base and more"));

    let mut baseless = Pack::new();
    baseless.entry(Header::RefDelta { base_id: id(b"nowhere") }, &appending(7, b"!"));
    let error = target.receive(&baseless.finish()).expect_err("the base is nowhere");
    assert_eq!(error.fault(), Fault::Corrupt);
    assert_eq!(files(&target.pack_dir()).len(), 4);
}

#[test]
fn big_objects_and_their_deltas_are_resolved_by_file() {
    use gix_pack::data::entry::Header;
    let big: Vec<u8> = (0..(17u32 << 20)).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut pack = Pack::new();
    let base = pack.blob(&big);
    // Copies 16 MiB - 1 from the start, then a literal; and a small delta of that.
    let size = (16 << 20) - 1 + 4;
    let mut delta = [varint(big.len()), varint(size)].concat();
    delta.extend_from_slice(&[0xf0, 0xff, 0xff, 0xff, 4, b't', b'a', b'i', b'l']);
    let at = pack.bytes.len() as u64;
    pack.entry(Header::OfsDelta { base_distance: at - base }, &delta);
    let target = Target::new();
    target.receive(&pack.finish()).expect("a good pack");
    let mut second = big[..(16 << 20) - 1].to_vec();
    second.extend_from_slice(b"tail");
    assert!(target.blob(&big) && target.blob(&second));
    assert!(files(&target.pack_dir()).iter().all(|name| name.starts_with("pack-")), "{:?}", files(&target.pack_dir()));
}

/// The most memory that this process has had since `restart_peak`.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn restart_peak() -> u64 {
    std::fs::write("/proc/self/clear_refs", "5").expect("proc");
    peak()
}

#[test]
fn deltas_of_few_bytes_that_stand_for_many_take_no_memory() {
    use gix_pack::data::entry::Header;
    const COPIES: usize = 5600;
    const ENOUGH: u64 = 300 << 20;
    let base: Vec<u8> = (0..60_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut huge = [varint(base.len()), varint(base.len() * COPIES)].concat();
    huge.extend([0xb0, base.len() as u8, (base.len() >> 8) as u8].repeat(COPIES));
    // A thousand bytes of what is huge, and a delta of that.
    let small = [varint(base.len() * COPIES), varint(1000), vec![0xb0, 232, 3]].concat();
    let mut pack = Pack::new();
    let mut last = pack.entry(entry_header(Kind::Tree), &base);
    for delta in [&huge, &small, &appending(1000, b"tail")] {
        let at = pack.bytes.len() as u64;
        last = pack.entry(Header::OfsDelta { base_distance: at - last }, delta);
    }
    let pack = pack.finish();
    assert!(pack.len() < 200_000);
    let mut hashing = crate::objects::Hashing::new(HASH, Kind::Tree, (base.len() * COPIES) as u64);
    (0..COPIES).for_each(|_| hashing.write_all(&base).expect("it takes all"));
    let big = hashing.id().expect("a hash");

    let target = Target::new();
    let before = restart_peak();
    target.receive(&pack).expect("a good pack");
    let wanted = [&base[..1000], b"tail"].concat();
    let mut found = Vec::new();
    target.objects.read(gix::objs::compute_hash(HASH, Kind::Tree, &wanted).expect("a hash"), &mut found).expect("it is small");
    assert_eq!(found, wanted);
    for refused in [target.objects.tree(big).map(drop), target.objects.read(big, &mut found).map(drop)] {
        let error = refused.expect_err("no tree is that big");
        assert!(error.fault() == Fault::Corrupt && error.to_string().contains("too big"), "{error}");
    }
    let grown = peak().saturating_sub(before);
    assert!(grown < ENOUGH, "it took {} MiB", grown >> 20);
}

#[test]
fn every_cut_and_every_flipped_byte_is_refused_and_leaves_nothing() {
    use gix_pack::data::entry::Header;
    let mut pack = Pack::new();
    let base = pack.blob(b"some content that is long enough to be worth a delta");
    let at = pack.bytes.len() as u64;
    pack.entry(Header::OfsDelta { base_distance: at - base }, &appending(52, b"!"));
    pack.entry(entry_header(Kind::Tree), b"");
    let good = pack.finish();
    let target = Target::new();
    for cut in 0..good.len() {
        let error = target.receive(&good[..cut]).expect_err("a cut stream");
        assert!(matches!(error.fault(), Fault::Unreachable | Fault::Corrupt), "{cut}: {error}");
    }
    for at in 0..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x21;
        assert!(target.receive(&bad).is_err(), "byte {at}");
    }
    assert_eq!(files(&target.pack_dir()), [] as [&str; 0]);
    target.receive(&good).expect("a good pack");
}

#[test]
fn impossible_entries_are_refused() {
    use gix_pack::data::entry::Header;
    let mut middle = Pack::new();
    middle.blob(b"base");
    middle.entry(Header::OfsDelta { base_distance: 3 }, &appending(4, b"!"));
    let mut before = Pack::new();
    before.entry(Header::OfsDelta { base_distance: 1000 }, &appending(4, b"!"));
    let mut wrong_base = Pack::new();
    let base = wrong_base.blob(b"base");
    let at = wrong_base.bytes.len() as u64;
    wrong_base.entry(Header::OfsDelta { base_distance: at - base }, &appending(9, b"!"));
    let mut circle = Pack::new();
    circle.entry(Header::RefDelta { base_id: id(b"b") }, &appending(1, b"!"));
    let mut huge = Pack::new();
    huge.bytes.extend_from_slice(&[0xbf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]);
    huge.count = 1;
    let mut unknown = Pack::new();
    unknown.bytes.extend_from_slice(&[0x51, 0x78, 0x9c]);
    unknown.count = 1;
    let target = Target::new();
    for (what, pack) in
        [("middle", middle), ("before", before), ("wrong base", wrong_base), ("circle", circle), ("huge", huge), ("unknown", unknown)]
    {
        let error = target.receive(&pack.finish()).expect_err(what);
        assert_eq!(error.fault(), Fault::Corrupt, "{what}: {error}");
    }
    assert_eq!(files(&target.pack_dir()), [] as [&str; 0]);
}

#[test]
fn an_empty_pack_is_no_pack() {
    let target = Target::new();
    assert_eq!(target.receive(&Pack::new().finish()).expect("a good stream"), None);
    assert_eq!(files(&target.pack_dir()), [] as [&str; 0]);
}
