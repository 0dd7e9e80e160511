//! Threads that look at a mount without pause and check what they see. They use paths, so each operation is a look-up of its own.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use nix::errno::Errno;

use super::epochs::{Epochs, Observer};
use super::history::{History, Random, Thing};
use crate::mount::close_one;

/// What readers have done together.
#[derive(Debug, Default)]
pub struct Tally {
    /// Operations.
    pub operations: AtomicU64,
    /// Whole trees read.
    pub trees: AtomicU64,
    longest: AtomicU64,
    violations: Mutex<Vec<String>>,
}

impl Tally {
    /// The operation that took longest.
    pub fn longest(&self) -> Duration {
        Duration::from_micros(self.longest.load(Ordering::Relaxed))
    }

    /// What was wrong so far.
    pub fn violations(&self) -> Vec<String> {
        self.violations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn took(&self, time: Duration) {
        self.operations.fetch_add(1, Ordering::Relaxed);
        self.longest.fetch_max(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// Running readers.
#[derive(Debug)]
pub struct Readers {
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts `count` readers of the mount at `root`.
    ///
    /// # Errors
    /// When the mount cannot be read.
    pub fn start(count: usize, root: &Path, history: &Arc<History>, epochs: &Arc<Epochs>) -> Result<Self> {
        close_one(&root.join("wide"))?;
        let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
        let threads = (0..count).map(|number| {
            let (root, history, epochs) = (root.to_owned(), Arc::clone(history), Arc::clone(epochs));
            let (stop, tally) = (Arc::clone(&stop), Arc::clone(&tally));
            std::thread::spawn(move || {
                let mut reader = Reader {
                    root,
                    history: &history,
                    observer: Observer::new(&epochs),
                    random: Random(number as u64 * 7919 + 13),
                    tally: &tally,
                    held: None,
                };
                while !stop.load(Ordering::Relaxed) {
                    if let Err(error) = reader.turn(number) {
                        tally.violations.lock().unwrap_or_else(PoisonError::into_inner).push(format!("reader {number}: {error:#}"));
                        return;
                    }
                }
            })
        });
        let threads = threads.collect();
        Ok(Readers { stop, tally, threads })
    }

    /// What they have done so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Ends them.
    ///
    /// # Errors
    /// The first things that were wrong.
    pub fn finish(mut self) -> Result<Arc<Tally>> {
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            ensure!(thread.join().is_ok(), "a reader panicked");
        }
        let violations = self.tally.violations();
        ensure!(violations.is_empty(), "{} violations:\n{}", violations.len(), violations.join("\n"));
        Ok(Arc::clone(&self.tally))
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

struct Reader<'a> {
    root: PathBuf,
    history: &'a History,
    observer: Observer<'a>,
    random: Random,
    tally: &'a Tally,
    /// A file that stays open across switches, with its bytes.
    held: Option<(File, Vec<u8>, String)>,
}

impl Reader<'_> {
    fn turn(&mut self, number: usize) -> Result<()> {
        if number.is_multiple_of(2) {
            self.directory("")?;
            self.tally.trees.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        let path = self.history.paths[self.random.below(self.history.paths.len())].clone();
        match self.random.below(8) {
            0 => self.listing("wide").map(drop),
            1 => self.kind(&path),
            2 => self.link(&path),
            3 => self.commit(),
            4 => self.held(&path),
            5 => self.snapshot(),
            _ => self.file(&path),
        }
    }

    /// Does one operation: what fails because nothing of the kind is there is `None`; every other failure is one.
    fn attempt<T>(&mut self, path: &str, what: &str, operation: impl FnOnce(&Path) -> io::Result<T>) -> Result<Option<T>> {
        let place = if path.is_empty() { self.root.clone() } else { self.root.join(path) };
        self.observer.begin();
        let began = Instant::now();
        let outcome = operation(&place);
        self.tally.took(began.elapsed());
        match outcome {
            Ok(value) => Ok(Some(value)),
            Err(error) => match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
                _ => Err(error).with_context(|| format!("{what} {path:?} failed")),
            },
        }
    }

    /// A whole tree, depth first.
    fn directory(&mut self, path: &str) -> Result<()> {
        let Some(names) = self.listing(path)? else { return Ok(()) };
        for (name, kind) in names {
            let below = if path.is_empty() { name } else { format!("{path}/{name}") };
            match kind {
                'd' if below == "wide" => self.listing(&below).map(drop)?,
                'd' => self.directory(&below)?,
                'l' => self.link(&below)?,
                _ => self.file(&below)?,
            }
        }
        Ok(())
    }

    fn listing(&mut self, path: &str) -> Result<Option<Vec<(String, char)>>> {
        let pause = self.random.below(4) == 0;
        let listed = self.attempt(path, "listing", |place| {
            // A link to a directory is not that directory.
            let dir = File::options().read(true).custom_flags((nix::libc::O_NOFOLLOW | nix::libc::O_DIRECTORY) as _).open(place)?;
            let listing = fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd()))?;
            let mut names = Vec::new();
            for (position, entry) in listing.enumerate() {
                let entry = entry?;
                let kind = entry.file_type()?;
                let letter = if kind.is_dir() {
                    'd'
                } else if kind.is_symlink() {
                    'l'
                } else {
                    'f'
                };
                names.push((entry.file_name().to_string_lossy().into_owned(), letter));
                if pause && position == 600 {
                    std::thread::sleep(Duration::from_millis(2));
                }
            }
            Ok(names)
        })?;
        let history = self.history;
        // The C library shows a directory that was removed after it was opened as an empty one.
        let Some(names) = listed.filter(|names| !names.is_empty()) else {
            let commits = history.commits(path, |thing| !matches!(thing, Some(Thing::Dir(_))));
            self.observer.saw(commits, &|| format!("no directory {path:?}"))?;
            return Ok(None);
        };
        let set: BTreeSet<String> = names.iter().map(|(name, _)| name.clone()).collect();
        ensure!(set.len() == names.len(), "the listing of {path:?} has a name twice");
        let commits = history.commits(path, |thing| matches!(thing, Some(Thing::Dir(names)) if *names == set));
        // The kinds have to be of the same commit as the names.
        let commits = names.iter().fold(commits, |commits, (name, kind)| {
            let below = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
            if path == "wide" { commits } else { commits & history.commits(&below, |thing| thing.is_some_and(|t| letter(t) == *kind)) }
        });
        self.observer.saw(commits, &|| format!("listing of {path:?}: {set:?}"))?;
        Ok(Some(names))
    }

    fn file(&mut self, path: &str) -> Result<()> {
        let read = self.attempt(path, "reading", |place| match open(place) {
            Ok(mut file) => {
                let meta = file.metadata()?;
                if !meta.is_file() {
                    return Ok(None);
                }
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                Ok(Some((bytes, meta.permissions().mode() & 0o111 != 0)))
            }
            Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => Ok(None),
            Err(error) => Err(error),
        })?;
        let commits = match &read {
            None => self.history.commits(path, |thing| thing.is_none()),
            Some(None) => self.history.commits(path, |thing| matches!(thing, Some(Thing::Dir(_) | Thing::Link(_)))),
            Some(Some((bytes, executable))) => {
                self.history.commits(path, |thing| matches!(thing, Some(Thing::File(b, x)) if b == bytes && x == executable))
            }
        };
        let what = || match &read {
            None => format!("{path:?} is missing"),
            Some(None) => format!("{path:?} is no file"),
            Some(Some((bytes, executable))) => {
                let head = String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).into_owned();
                format!("{path:?} has {} bytes {head:?}, executable: {executable}", bytes.len())
            }
        };
        self.observer.saw(commits, &what)
    }

    fn kind(&mut self, path: &str) -> Result<()> {
        let seen = self.attempt(path, "stat of", |place| fs::symlink_metadata(place))?.map(|meta| {
            let kind = if meta.is_dir() {
                'd'
            } else if meta.is_symlink() {
                'l'
            } else {
                'f'
            };
            (kind, meta.len())
        });
        let fits = |thing: Option<&Thing>| match (thing, seen) {
            (None, None) => true,
            (Some(Thing::File(bytes, _)), Some(('f', size))) => bytes.len() as u64 == size,
            (Some(Thing::Link(target)), Some(('l', size))) => target.len() as u64 == size,
            (Some(Thing::Dir(_)), Some(('d', _))) => true,
            _ => false,
        };
        self.observer.saw(self.history.commits(path, fits), &|| format!("stat of {path:?}: {seen:?}"))
    }

    fn link(&mut self, path: &str) -> Result<()> {
        let seen = self.attempt(path, "link", |place| match fs::read_link(place) {
            Ok(target) => Ok(Some(target.to_string_lossy().into_owned())),
            Err(error) if error.raw_os_error() == Some(nix::libc::EINVAL) => Ok(None),
            Err(error) => Err(error),
        })?;
        let fits = |thing: Option<&Thing>| match (thing, &seen) {
            (None, None) => true,
            (Some(Thing::Link(target)), Some(Some(seen))) => target == seen,
            (Some(Thing::File(..) | Thing::Dir(_)), Some(None)) => true,
            _ => false,
        };
        self.observer.saw(self.history.commits(path, fits), &|| format!("link {path:?}: {seen:?}"))
    }

    /// The commit that the root names.
    fn commit(&mut self) -> Result<()> {
        self.named().map(drop)
    }

    fn named(&mut self) -> Result<String> {
        let value = self.attempt("", "attribute of", |place| xattr::get(place, "user.git.commit"))?.flatten();
        let id = String::from_utf8(value.context("the root names no commit")?)?;
        let number = self.history.ids.iter().position(|known| *known == id).with_context(|| format!("{id} was never served"))?;
        self.observer.saw(1 << number, &|| format!("commit {number}"))?;
        Ok(id)
    }

    /// A tree by name stands still, whatever the rest does.
    fn snapshot(&mut self) -> Result<()> {
        let id = self.named()?;
        let number = self.history.ids.iter().position(|known| *known == id).context("checked before")?;
        let path = self.history.paths[self.random.below(self.history.paths.len())].clone();
        let base = self.root.join(".gitmount/commit").join(&id);
        let began = Instant::now();
        let seen = fs::read(base.join(&path));
        self.tally.took(began.elapsed());
        match (self.history.thing(number, &path), seen) {
            (Some(Thing::File(bytes, _)), Ok(seen)) => ensure!(*bytes == seen, "{path:?} of the snapshot {number} has other bytes"),
            (Some(Thing::File(..)), Err(error)) if error.kind() == io::ErrorKind::NotFound => {
                // Only when it was let go of meanwhile: four switches later.
                ensure!(!base.exists(), "{path:?} is missing in the snapshot {number}");
            }
            (Some(Thing::File(..)), Err(error)) => return Err(error).with_context(|| format!("{path:?} of the snapshot {number}")),
            (_, Ok(_)) => bail!("{path:?} of the snapshot {number} is a file"),
            (_, Err(_)) => {}
        }
        Ok(())
    }

    /// What is open keeps its bytes; now and then another file is opened.
    fn held(&mut self, path: &str) -> Result<()> {
        if let Some((file, bytes, name)) = &self.held {
            let began = Instant::now();
            let mut again = vec![0; bytes.len() + 1];
            let mut filled = 0;
            loop {
                match file.read_at(&mut again[filled..], filled as u64) {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(error) => return Err(error).with_context(|| format!("the open file {name:?}")),
                }
            }
            self.tally.took(began.elapsed());
            ensure!(again[..filled] == bytes[..], "the open file {name:?} has other bytes than when it was opened");
        }
        if self.held.is_none() || self.random.below(10) == 0 {
            let opened = self.attempt(path, "opening", |place| match open(place) {
                Ok(file) if file.metadata()?.is_file() => Ok(Some(file)),
                Ok(_) => Ok(None),
                Err(error) if error.raw_os_error() == Some(nix::libc::ELOOP) => Ok(None),
                Err(error) => Err(error),
            })?;
            if let Some(Some(mut file)) = opened {
                let mut bytes = Vec::new();
                file.read_to_end(&mut bytes)?;
                let fits = |thing: Option<&Thing>| matches!(thing, Some(Thing::File(b, _)) if *b == bytes);
                self.observer.saw(self.history.commits(path, fits), &|| format!("{path:?} opened"))?;
                self.held = Some((file, bytes, path.to_owned()));
            }
        }
        Ok(())
    }
}

fn letter(thing: &Thing) -> char {
    match thing {
        Thing::File(..) => 'f',
        Thing::Link(_) => 'l',
        Thing::Dir(_) => 'd',
    }
}

fn open(place: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(nix::libc::O_NOFOLLOW as _).open(place)
}
