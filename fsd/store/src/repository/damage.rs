//! How it is known that something of a repository is broken: a mark that whoever finds damage leaves (`verify`, `gc`, a fetch, a reader), and
//! a list of the packs that there must be, so that a lost or changed one is noticed at the next fetch without reading it.

use std::fmt::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use super::{Repository, durable, refs};
use crate::error::Result;

const MARK: &str = "gitmount-damaged";
/// How long a look that found nothing is believed.
const BELIEVED: Duration = Duration::from_secs(60 * 60);
const PACKS: &str = "gitmount-packs";

/// What is known about a repository's objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Condition {
    /// Nothing bad.
    Sound,
    /// Something may be broken; nobody has looked yet.
    Suspect,
    /// What was broken is removed, and something that is to be kept is not whole.
    Incomplete,
}

impl Repository {
    /// Says that something in it was found broken or missing: the next fetch looks at everything, and fetches again what is not whole.
    pub fn suspect(&self) -> Result<()> {
        self.set_condition(Condition::Suspect)
    }

    /// What is known without reading any object.
    pub(crate) fn condition(&self) -> Result<Condition> {
        let noticed = self.objects.load().has_noticed_damage() && !self.is_examined_lately();
        Ok(match self.mark()? {
            Condition::Sound if noticed || !self.has_its_packs()? => Condition::Suspect,
            // Whatever is lost is known, and readers meet it all the time.
            marked => marked,
        })
    }

    /// Everything was looked at just now, and something was found or not.
    pub(crate) fn examined(&self, found: bool) {
        self.objects.load().forget_damage();
        self.forget_complete();
        *self.sound.lock().unwrap_or_else(PoisonError::into_inner) = (!found).then(Instant::now);
    }

    /// Whether everything was looked at lately and nothing was found: whoever says otherwise now is not believed, since looking is expensive
    /// and hostile content can look like damage.
    pub(crate) fn is_examined_lately(&self) -> bool {
        self.sound.lock().unwrap_or_else(PoisonError::into_inner).is_some_and(|last| last.elapsed() < BELIEVED)
    }

    /// Whether something is known to be lost.
    pub(crate) fn is_incomplete(&self) -> Result<bool> {
        Ok(self.mark()? == Condition::Incomplete)
    }

    /// Remembers what was found.
    pub(crate) fn set_condition(&self, condition: Condition) -> Result<()> {
        let path = self.git_dir.join(MARK);
        match condition {
            Condition::Sound => durable::remove(&path),
            Condition::Suspect => durable::place(&path, b"suspect\n"),
            Condition::Incomplete => durable::place(&path, b"incomplete\n"),
        }
    }

    fn mark(&self) -> Result<Condition> {
        let path = self.git_dir.join(MARK);
        match std::fs::read(&path) {
            Ok(text) if text == b"incomplete\n" => Ok(Condition::Incomplete),
            Ok(_) => Ok(Condition::Suspect),
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(Condition::Sound),
            Err(err) => Err(durable::disk(&path, "read", err)),
        }
    }

    /// Writes the list of packs, without those that are about to be removed. The repository's lock is held. It is made before packs go and
    /// after they come, so that at no moment it names one that is rightly not there; that it survives a crash of the machine does not matter.
    pub(crate) fn record_packs(&self, going: &[PathBuf]) -> Result<()> {
        let mut text = String::new();
        for pack in refs::list(&self.pack_dir())? {
            if pack.extension().is_some_and(|extension| extension == "pack")
                && !going.contains(&pack)
                && let Some(line) = describe(&pack)
            {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{line}");
            }
        }
        let path = self.git_dir.join(PACKS);
        let aside = self.git_dir.join(".tmp-packs");
        std::fs::write(&aside, text).and_then(|()| std::fs::rename(&aside, &path)).map_err(|err| durable::disk(&path, "written", err))
    }

    /// Whether the packs of the list are there as they were.
    fn has_its_packs(&self) -> Result<bool> {
        let path = self.git_dir.join(PACKS);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(err) if err.kind() == std::io::ErrorKind::NotFound => return Ok(true),
            Err(err) => return Err(durable::disk(&path, "read", err)),
        };
        let directory = self.pack_dir();
        Ok(text.lines().all(|line| {
            let name = line.split(' ').next().unwrap_or_default();
            describe(&directory.join(name)).as_deref() == Some(line)
        }))
    }
}

/// Name, sizes and time of a pack and its index; `None` when one of them is missing.
fn describe(pack: &Path) -> Option<String> {
    let (data, index) = (std::fs::metadata(pack).ok()?, std::fs::metadata(pack.with_extension("idx")).ok()?);
    let name = pack.file_name()?.to_str()?;
    Some(format!("{name} {} {}.{} {} {}.{}", data.len(), data.mtime(), data.mtime_nsec(), index.len(), index.mtime(), index.mtime_nsec()))
}
