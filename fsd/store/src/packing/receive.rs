//! From a stream to an indexed pack of the repository.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::input::{self, broken};
use super::output::Output;
use super::resolve::Resolver;
use super::{Counts, NewPack};
use crate::error::{Result, StoreError};
use crate::ids::ObjectId;
use crate::objects::Objects;
use crate::repository::durable;

/// Receives a pack from `stream` into the pack directory `dir`. A thin pack is completed from `objects`. `None` for a pack without objects.
pub(crate) fn receive(
    stream: &mut dyn BufRead,
    dir: &Path,
    objects: &Objects,
    counts: &Counts,
    stop: &AtomicBool,
) -> Result<Option<NewPack>> {
    let hash = objects.hash();
    let mut output = Output::new(dir, hash)?;
    let read = input::read(stream, &mut output, hash, counts, stop)?;
    if read.entries.is_empty() {
        return Ok(None);
    }
    let mut pack = output.map()?;
    let mut resolver = Resolver::new(read, hash, objects, dir)?;
    resolver.run(&pack, counts, stop)?;
    // What waits now waits for objects outside of the pack, or for such as wait themselves.
    while let Some(bases) = resolver.missing_bases() {
        output.reopen()?;
        let mut appended = 0;
        for id in bases {
            if !objects.contains_now(&id) {
                continue;
            }
            let offset = output.start_entry();
            put_whole(&mut output, objects, id, dir)?;
            resolver.add_base(id, offset, output.entry_crc());
            appended += 1;
        }
        if appended == 0 {
            return Err(broken("a delta is made against an object that is neither in it nor here"));
        }
        output.recount(resolver.count()?)?;
        pack = output.map()?;
        resolver.run(&pack, counts, stop)?;
    }
    drop(pack);
    let mut entries = resolver.finish()?;
    output.keep(&mut entries).map(Some)
}

/// Writes the entry of a full object, compressed anew.
pub(super) fn put_whole(output: &mut Output, source: &Objects, id: ObjectId, scratch: &Path) -> Result<()> {
    let (kind, size) = source.header(id)?;
    let mut header = Vec::with_capacity(16);
    // Writing to a Vec cannot fail.
    let _ = entry_header(kind).write_to(size, &mut header);
    output.put(&header)?;
    let mut deflate = flate2::write::ZlibEncoder::new(ToOutput(output, None), flate2::Compression::default());
    let streamed = source.stream_to(id, scratch, &mut deflate).map(drop);
    let finished = streamed.and_then(|()| deflate.try_finish().map_err(|err| durable::disk(scratch, "written", err)));
    // What failed below says more than what it made fail above.
    match deflate.get_mut().1.take() {
        Some(failure) => Err(failure),
        None => finished,
    }
}

pub(super) fn entry_header(kind: gix::object::Kind) -> gix_pack::data::entry::Header {
    use gix_pack::data::entry::Header;
    match kind {
        gix::object::Kind::Commit => Header::Commit,
        gix::object::Kind::Tree => Header::Tree,
        gix::object::Kind::Blob => Header::Blob,
        gix::object::Kind::Tag => Header::Tag,
    }
}

/// Writes into an [`Output`], whose error is kept: [`std::io::Error`] would lose what it says.
struct ToOutput<'a>(&'a mut Output, Option<StoreError>);

impl Write for ToOutput<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self.0.put(bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(err) => {
                let shown = std::io::Error::other(err.to_string());
                self.1 = Some(err);
                Err(shown)
            }
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
