//! `verify`: reads everything and believes nothing.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use gix::progress::Discard;

use super::files::Files;
use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::objects::pack::{Pack, PackAccess};
use crate::objects::reach::Limits;
use crate::objects::{Hashing, Objects};
use crate::repository::Repository;

/// Objects up to this many bytes are read whole.
const WHOLE: u64 = 4 << 20;

/// What `verify` found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Objects checked.
    pub objects: u64,
    /// One sentence a broken object or pack.
    pub problems: Vec<String>,
}

/// Checks every pack checksum, every object against its id, and that what is pinned or known is complete down to where its history was
/// cut. Waits while the repository is fetched. When something is broken, the next fetch gets it again.
///
/// # Errors
/// Only what keeps it from looking, such as `stop` being set; what is broken is in the report.
pub fn verify(repository: &Repository, stop: &AtomicBool) -> Result<VerifyReport> {
    let _lock = repository.lock(stop)?;
    let objects = repository.objects();
    objects.relist()?;
    let mut check = Check::new(&objects, repository.git_dir(), stop);
    let files = Files::list(objects.directory())?;
    for path in &files.packs {
        match Pack::open(&path.with_extension("idx"), objects.hash()) {
            Ok(pack) => drop(check.pack(&pack)?),
            Err(err) => check.problem(err),
        }
    }
    for (path, id) in &files.loose {
        check.go_on()?;
        check.loose(path, *id);
    }
    let before = check.found;
    check.connectivity(repository)?;
    // What is known to be lost alone is nothing new.
    let news = before > 0 || !repository.is_incomplete()?;
    if news && !check.report.problems.is_empty() {
        repository.suspect()?;
    }
    Ok(check.report)
}

pub(super) struct Check<'a> {
    objects: &'a Objects,
    stop: &'a AtomicBool,
    scratch: &'a Path,
    report: VerifyReport,
    /// How often something was found, also when it was said before.
    found: usize,
    content: Vec<u8>,
}

/// What a look at a pack found.
pub(super) struct PackState {
    /// Whether there is nothing to object to.
    pub(super) sound: bool,
    /// The objects that are what they should be.
    pub(super) readable: Vec<ObjectId>,
}

impl<'a> Check<'a> {
    pub(super) fn new(objects: &'a Objects, scratch: &'a Path, stop: &'a AtomicBool) -> Self {
        Check { objects, stop, scratch, report: VerifyReport::default(), found: 0, content: Vec::new() }
    }

    fn problem(&mut self, problem: impl ToString) {
        self.found += 1;
        let problem = problem.to_string();
        if !self.report.problems.contains(&problem) {
            self.report.problems.push(problem);
        }
    }

    pub(super) fn go_on(&self) -> Result<()> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(StoreError::new(Fault::Cancelled, "the check of the repository was cancelled"));
        }
        Ok(())
    }

    pub(super) fn pack(&mut self, pack: &Pack) -> Result<PackState> {
        let before = self.found;
        let mut readable = Vec::new();
        self.go_on()?;
        if pack.index().verify_checksum(&mut Discard, self.stop).is_err() {
            self.problem(format!("the index of pack {} has a wrong checksum", pack.path().display()));
        }
        let data = match pack.mapped() {
            Ok(data) => data,
            Err(err) => {
                self.problem(err);
                return Ok(PackState { sound: false, readable });
            }
        };
        if data.verify_checksum(&mut Discard, self.stop).is_err() {
            self.problem(format!("pack {} has a wrong checksum", pack.path().display()));
        }
        // In the order of the pack, where bases are near their deltas.
        let mut entries: Vec<(u64, ObjectId)> = pack.index().iter().map(|entry| (entry.pack_offset, entry.oid)).collect();
        entries.sort_unstable();
        for (offset, id) in entries {
            self.go_on()?;
            self.report.objects += 1;
            match self.packed_id(pack, offset) {
                Ok(actual) if actual == id => readable.push(id),
                Ok(actual) => self.problem(format!("object {id} in pack {} hashes to {actual}", pack.path().display())),
                Err(err) => self.problem(format!("object {id} cannot be read: {err}")),
            }
        }
        Ok(PackState { sound: self.found == before, readable })
    }

    fn packed_id(&mut self, pack: &Pack, offset: u64) -> Result<ObjectId> {
        let (kind, size) = self.objects.packed_kind(pack, offset)?;
        let mut hashing = Hashing::new(self.objects.hash(), kind, size);
        if size > WHOLE {
            self.objects.stream_packed_to(pack, offset, self.scratch, &mut hashing)?;
        } else {
            self.objects.read_packed(pack, offset, &mut self.content)?;
            // Hashing does not fail to write.
            let _ = std::io::Write::write_all(&mut hashing, &self.content);
        }
        hashing.id()
    }

    /// Checks a loose object; whether it is what it should be.
    pub(super) fn loose(&mut self, path: &Path, id: ObjectId) -> bool {
        let before = self.found;
        self.report.objects += 1;
        match self.objects.loose_id(id) {
            Ok(Some(actual)) if actual == id => {}
            Ok(Some(actual)) => self.problem(format!("object file {} hashes to {actual}", path.display())),
            Ok(None) => self.problem(format!("object file {} is gone", path.display())),
            Err(err) => self.problem(err),
        }
        self.found == before
    }

    /// Everything below the pinned and known commits is there.
    fn connectivity(&mut self, repository: &Repository) -> Result<()> {
        let boundary = repository.boundary()?;
        let mut problems = Vec::new();
        let mut note = |err: StoreError| {
            problems.push(err.to_string());
            Ok(())
        };
        let limits = Limits { boundary: &boundary, depth: 0, skip: &|_| false, stop: self.stop, problem: &mut note };
        let reached = self.objects.reach(&repository.tips()?, limits)?;
        for problem in problems {
            self.problem(problem);
        }
        for id in reached.ids.iter().copied().chain(repository.kept_objects()?) {
            if !self.objects.contains_now(&id) {
                self.problem(format!("object {id} is missing in {}", self.objects.directory().display()));
            }
        }
        Ok(())
    }
}
