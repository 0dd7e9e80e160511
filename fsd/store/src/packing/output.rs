//! A pack file that is being written: under a temporary name, hashed on the way, and moved into place with its index when it is on the disk.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flate2::Crc;
use tempfile::NamedTempFile;

use super::NewPack;
use super::index::{self, IndexEntry};
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::objects::pack::DELTA_MEMORY;
use crate::points::{self, Found};
use crate::repository::durable::{self, disk};

/// Prefix of the temporary names; what a killed process leaves is known by it.
const TEMPORARY: &str = "tmp_";

pub(super) struct Output {
    file: BufWriter<NamedTempFile>,
    dir: PathBuf,
    hash: gix::hash::Kind,
    hasher: gix::hash::Hasher,
    crc: Crc,
    offset: u64,
    points: Option<points::Writer>,
}

impl Output {
    /// An empty file in the pack directory `dir`.
    pub(super) fn new(dir: &Path, hash: gix::hash::Kind) -> Result<Self> {
        let file = temporary(dir)?;
        Ok(Output {
            file: BufWriter::with_capacity(256 << 10, file),
            dir: dir.to_owned(),
            hash,
            hasher: gix::hash::hasher(hash),
            crc: Crc::new(),
            offset: 0,
            points: None,
        })
    }

    /// Writes the header of a pack of `objects` objects.
    pub(super) fn header(&mut self, objects: u32) -> Result<()> {
        self.put(&gix_pack::data::header::encode(gix_pack::data::Version::V2, objects))
    }

    /// Writes `bytes`.
    pub(super) fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.hasher.update(bytes);
        self.crc.update(bytes);
        self.offset += bytes.len() as u64;
        self.file.write_all(bytes).map_err(|err| disk(&self.dir, "written", err))
    }

    /// Starts an entry; where it is.
    pub(super) fn start_entry(&mut self) -> u64 {
        self.crc.reset();
        self.offset
    }

    /// Keeps the points of the object of `size` bytes whose entry is at `entry`. Without them it is read all the same, only slower.
    pub(super) fn points(&mut self, entry: u64, size: u64, found: &Found) {
        let added = match &mut self.points {
            Some(writer) => writer.add(entry, size, found),
            None => {
                tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(&self.dir).and_then(points::Writer::new).and_then(|mut writer| {
                    writer.add(entry, size, found)?;
                    self.points = Some(writer);
                    Ok(())
                })
            }
        };
        if let Err(err) = added {
            tracing::debug!("the points of a pack cannot be written: {err}");
            self.points = None;
        }
    }

    /// The checksum of the entry written since [`Output::start_entry`].
    pub(super) fn entry_crc(&self) -> u32 {
        self.crc.sum()
    }

    /// The hash of all that was written.
    pub(super) fn sum(&self) -> Result<ObjectId> {
        self.hasher.clone().try_finalize().map_err(|err| StoreError::new(Fault::Corrupt, "the pack cannot be hashed").caused_by(err))
    }

    /// Appends the trailer.
    pub(super) fn seal(&mut self) -> Result<()> {
        let trailer = self.sum()?;
        self.file.write_all(trailer.as_slice()).and_then(|()| self.file.flush()).map_err(|err| disk(&self.dir, "written", err))
    }

    /// Appends the trailer and maps what is there, to be read back; more can be appended after [`Output::reopen`].
    pub(super) fn map(&mut self) -> Result<gix_pack::data::File> {
        self.seal()?;
        let path = self.file.get_ref().path();
        let pack = gix_pack::data::File::at(path, self.hash)
            .map_err(|err| StoreError::new(Fault::Disk, format!("pack {} cannot be read back", path.display())).caused_by(err))?;
        Ok(pack.with_alloc_limit_bytes(Some(DELTA_MEMORY)))
    }

    /// Takes the trailer off again, so that entries can be appended to the received ones.
    pub(super) fn reopen(&mut self) -> Result<()> {
        let end = self.offset;
        let file = self.file.get_mut().as_file_mut();
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(|err| disk(&self.dir, "written", err))?;
        Ok(())
    }

    /// Corrects the number of objects in the header and hashes everything again.
    pub(super) fn recount(&mut self, objects: u32) -> Result<()> {
        let failed = |err| disk(&self.dir, "written", err);
        self.file.flush().map_err(failed)?;
        let file: &File = self.file.get_ref().as_file();
        file.write_all_at(&objects.to_be_bytes(), 8).map_err(failed)?;
        let mut reader = File::open(self.file.get_ref().path()).map_err(failed)?.take(self.offset);
        self.hasher = gix::hash::hasher(self.hash);
        let mut piece = vec![0; 64 << 10];
        loop {
            match reader.read(&mut piece).map_err(failed)? {
                0 => return Ok(()),
                read => self.hasher.update(&piece[..read]),
            }
        }
    }

    /// Makes the pack part of the repository: itself and its index durable, then the names, the index's last. The trailer is there already.
    pub(super) fn keep(mut self, entries: &mut [IndexEntry]) -> Result<NewPack> {
        let sum = self.sum()?;
        let objects = entries.len() as u64;
        let failed = |err| disk(&self.dir, "written", err);
        self.file.flush().map_err(failed)?;
        let path = self.dir.join(format!("pack-{sum}.pack"));
        let index_path = path.with_extension("idx");
        if path.exists() && index_path.exists() {
            return Ok(NewPack { path, fresh: false, objects });
        }
        let mut index = BufWriter::with_capacity(64 << 10, temporary(&self.dir)?);
        index::write(&mut index, entries, sum, self.hash)?;
        let index = index.into_inner().map_err(|err| disk(&self.dir, "written", err.into_error()))?;
        let dir = self.dir.clone();
        let points = self.points.take();
        let (pack, _) = self.file.into_parts();
        for file in [&pack, &index] {
            file.as_file().set_permissions(std::fs::Permissions::from_mode(0o444)).map_err(|err| disk(&dir, "written", err))?;
            file.as_file().sync_all().map_err(|err| disk(&dir, "written", err))?;
        }
        if let Some(points) = points {
            keep_points(points, sum, &path.with_extension(points::EXTENSION));
        }
        for (file, path) in [(pack, &path), (index, &index_path)] {
            file.persist(path).map_err(|err| disk(&dir, "written", err.error))?;
        }
        // Both names at once: a crash before may leave either of them alone, which nobody reads and the next writer clears away.
        durable::sync_directory(&dir)?;
        Ok(NewPack { path, fresh: true, objects })
    }
}

/// Not durably, and whether it works or not: a file that a crash has torn is recognized.
fn keep_points(points: points::Writer, pack: ObjectId, path: &Path) {
    let kept = points.finish(pack.as_slice()).and_then(|file| {
        let Some(file) = file else { return Ok(()) };
        file.as_file().set_permissions(std::fs::Permissions::from_mode(0o444))?;
        file.persist(path).map(drop).map_err(Into::into)
    });
    if let Err(err) = kept {
        tracing::debug!("the points of a pack cannot be written: {err}");
    }
}

fn temporary(dir: &Path) -> Result<NamedTempFile> {
    tempfile::Builder::new().prefix(TEMPORARY).tempfile_in(dir).map_err(|err| disk(dir, "written", err))
}
