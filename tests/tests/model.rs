//! A real mount against a model in plain maps: random commits, switches, and whatever readers do in between, with files and listings that
//! stay open across any number of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File, ReadDir};
use std::io::{ErrorKind, Read, Seek};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gitmount_tests::git::Repo;
use gitmount_tests::mount::{Account, Mounted};
use gitmount_tests::scratch;
use gitmount_tests::torture::history::{History, Random, Thing};

const REF: &str = "refs/heads/served";
const NAMES: [&str; 4] = ["a", "A", "b", "c"];
const KEPT: usize = 3;

fn path(random: &mut Random) -> String {
    (0..=random.below(3)).map(|_| NAMES[random.below(NAMES.len())]).collect::<Vec<_>>().join("/")
}

/// Commits that each change a few paths of the one before; few contents, so that old ones come back.
fn commits(random: &mut Random, count: usize) -> Vec<BTreeMap<String, Thing>> {
    let mut files = BTreeMap::new();
    let mut change = || {
        for _ in 0..1 + random.below(6) {
            let path = path(random);
            files.retain(|other: &String, _| *other != path && !other.starts_with(&format!("{path}/")));
            let thing = match random.below(8) {
                0 | 1 => continue,
                2 => Thing::Link(format!("to-{}", random.below(2))),
                n => Thing::File(vec![n as u8; random.below(3) * 5000], n == 3),
            };
            files.retain(|other, _| !path.starts_with(&format!("{other}/")));
            files.insert(path, thing);
        }
        files.clone()
    };
    (0..count).map(|_| change()).collect()
}

/// What stays open: the bytes, or the names, that it must give whenever it is read on.
enum Open {
    File(File, Vec<u8>),
    Listing(ReadDir, BTreeSet<String>, BTreeSet<String>),
}

struct Run<'a> {
    mounted: &'a Mounted<'a>,
    history: &'a History,
    served: usize,
    /// The commits that are kept, the one served last first.
    kept: VecDeque<usize>,
    open: Vec<Open>,
}

impl Run<'_> {
    /// Looks at a path below `root`, where commit `number` must be.
    fn look(&mut self, root: &Path, number: usize, path: &str, keep_open: bool) -> Result<()> {
        let at = root.join(path);
        let Some(thing) = self.history.thing(number, path) else {
            let error = at.symlink_metadata().err().map(|e| e.kind());
            ensure!(matches!(error, Some(ErrorKind::NotFound | ErrorKind::NotADirectory)), "{path} is there, or {error:?}");
            return Ok(());
        };
        let status = at.symlink_metadata().with_context(|| format!("{path} is {thing:?} and cannot be seen"))?;
        match thing {
            Thing::Dir(names) => {
                let mut listing = fs::read_dir(&at)?;
                let mut seen = BTreeSet::new();
                let take = if keep_open { 1 } else { usize::MAX };
                for entry in listing.by_ref().take(take) {
                    ensure!(seen.insert(entry?.file_name().to_string_lossy().into_owned()), "a name in {path} is listed twice");
                }
                if keep_open {
                    self.open.push(Open::Listing(listing, seen, names.clone()));
                } else {
                    ensure!(seen == *names, "{path} holds {seen:?}, not {names:?}");
                }
            }
            Thing::File(bytes, executable) => {
                ensure!(
                    status.len() == bytes.len() as u64 && (status.permissions().mode() & 0o111 != 0) == *executable,
                    "{path}: {status:?}"
                );
                let mut file = File::open(&at)?;
                if keep_open {
                    self.open.push(Open::File(file, bytes.clone()));
                } else {
                    ensure!(read(&mut file)? == *bytes, "{path} has other bytes");
                }
            }
            Thing::Link(target) => ensure!(fs::read_link(&at)?.as_os_str() == target.as_str(), "{path} leads elsewhere"),
        }
        Ok(())
    }

    /// Reads on what is open.
    fn read_on(&mut self, number: usize) -> Result<()> {
        if self.open.is_empty() {
            return Ok(());
        }
        match self.open.swap_remove(number % self.open.len()) {
            Open::File(mut file, bytes) => {
                ensure!(read(&mut file)? == bytes, "an open file has other bytes");
                ensure!(file.metadata()?.size() == bytes.len() as u64);
                self.open.push(Open::File(file, bytes));
            }
            Open::Listing(listing, mut seen, names) => {
                for entry in listing {
                    // So many switches later the kernel is told that its end is not known any more.
                    if entry.as_ref().is_err_and(|e| e.kind() == ErrorKind::StaleNetworkFileHandle) {
                        break;
                    }
                    ensure!(seen.insert(entry?.file_name().to_string_lossy().into_owned()), "an open listing names something twice");
                }
                // The C library reads a page of lines at once: of these small directories all. A dead one ends where it is.
                ensure!(seen == names, "an open listing gave {seen:?}, not {names:?}");
            }
        }
        Ok(())
    }

    fn switch(&mut self, repo: &Repo, next: usize) -> Result<()> {
        repo.point(REF, &self.history.ids[next])?;
        self.mounted.wait_for_commit(&self.history.ids[next], Duration::from_secs(20))?;
        self.served = next;
        self.kept.retain(|kept| *kept != next);
        self.kept.push_front(next);
        self.kept.truncate(KEPT + 1);
        // The follower ends a switch by letting go of what is too old.
        let expected: BTreeSet<_> = self.kept.iter().map(|kept| self.history.ids[*kept].clone()).collect();
        gitmount_tests::run::wait_for("the list of snapshots", Duration::from_secs(20), || {
            let listed = self.mounted.names(".gitmount/commit").ok()?;
            listed.into_iter().collect::<BTreeSet<_>>().eq(&expected).then_some(())
        })
    }

    fn snapshot(&mut self, number: usize, path: &str, keep_open: bool) -> Result<()> {
        let root = self.mounted.join(format!(".gitmount/commit/{}", self.history.ids[number]));
        if self.kept.contains(&number) {
            return self.look(&root, number, path, keep_open);
        }
        ensure!(!root.join(path).exists() && !root.exists(), "a snapshot that is not kept is there");
        Ok(())
    }
}

fn read(file: &mut File) -> Result<Vec<u8>> {
    let mut bytes = vec![];
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn one_history(seed: u64, steps: usize, options: &[&str]) -> Result<()> {
    let mut random = Random(seed * 2 + 1);
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    let history = History::record(&repo, &commits(&mut random, 12))?;
    repo.point(REF, &history.ids[0])?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[&["--ref", REF][..], options].concat())?;
    let mut run = Run { mounted: &mounted, history: &history, served: 0, kept: VecDeque::from([0]), open: vec![] };
    for step in 0..steps {
        let keep_open = random.below(4) == 0 && run.open.len() < 50;
        let (path, number) = (path(&mut random), random.below(history.ids.len()));
        let done = match random.below(20) {
            0 => run.switch(&repo, number),
            1..4 => run.snapshot(number, &path, keep_open),
            4..8 => run.read_on(number),
            8 => run.look(mounted.path(), run.served, "", keep_open),
            9 => (0..history.paths.len()).try_for_each(|n| run.look(mounted.path(), run.served, &history.paths[n], false)),
            _ => run.look(mounted.path(), run.served, &path, keep_open),
        };
        if let Err(error) = done {
            bail!("step {step} of history {seed}, commit {} served: {error:#}", run.served);
        }
    }
    Ok(())
}

fn histories(options: &[&str]) -> Result<()> {
    let (count, steps) = if std::env::var_os("GITMOUNT_TORTURE").is_some() { (200, 3000) } else { (4, 600) };
    (0..count).try_for_each(|seed| one_history(seed, steps, options))
}

#[test]
fn every_answer_is_that_of_the_model() -> Result<()> {
    histories(&[])
}

#[test]
fn so_it_is_without_what_newer_kernels_offer() -> Result<()> {
    histories(&["--without-kernel", "readdirplus,no-open,cache-symlinks,no-opendir,expire-only"])
}
