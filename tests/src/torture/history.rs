//! Commits of one small tree: files that grow and shrink, become executable, links or directories and back, come and go, change their case.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use super::epochs::Commits;
use crate::git::Repo;
use crate::import::{Import, Mode};

/// The most commits a history can have: sets of them are the bits of a word.
pub const MOST: usize = 64;

/// Names in the directory `wide`: too many for one page of a listing. They are empty files.
const WIDE: usize = 1500;

/// What a path is in a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Thing {
    /// A file with its bytes; executable or not.
    File(Vec<u8>, bool),
    /// A link with its target.
    Link(String),
    /// A directory with the names in it.
    Dir(BTreeSet<String>),
}

/// Commits, and what each of them holds.
#[derive(Debug)]
pub struct History {
    /// Ids, oldest first.
    pub ids: Vec<String>,
    /// All paths of each commit, the root as the empty one.
    trees: Vec<BTreeMap<String, Thing>>,
    /// All paths of all commits, sorted.
    pub paths: Vec<String>,
}

/// The branch that has all commits.
pub const BRANCH: &str = "refs/heads/history";

impl History {
    /// Writes `count` commits into `repo`.
    pub fn write(repo: &Repo, count: usize, seed: u64) -> Result<Self> {
        let mut random = Random(seed | 1);
        let mut files: BTreeMap<String, Thing> = BTreeMap::new();
        let mut commits = Vec::new();
        for number in 0..count.min(MOST) {
            if number == 0 {
                for path in slots() {
                    files.insert(path.clone(), content(&path, number, &mut random));
                }
                files.extend((0..WIDE).map(|n| (format!("wide/n{n:04}"), Thing::File(vec![], false))));
            } else {
                change(&mut files, number, &mut random);
            }
            commits.push(files.clone());
        }
        Self::record(repo, &commits)
    }

    /// Writes commits with these files and links into `repo`.
    pub fn record(repo: &Repo, commits: &[BTreeMap<String, Thing>]) -> Result<Self> {
        let mut import = Import::into(repo)?;
        let none: BTreeMap<String, Thing> = BTreeMap::new();
        let mut before = &none;
        for files in commits {
            import.commit(BRANCH, "A change")?;
            for path in before.keys().filter(|path| before.get(*path) != files.get(*path)) {
                import.delete(path.as_bytes())?;
            }
            for (path, thing) in files.iter().filter(|(path, thing)| before.get(*path) != Some(thing)) {
                match thing {
                    Thing::File(bytes, false) => import.entry(Mode::File, path.as_bytes(), bytes)?,
                    Thing::File(bytes, true) => import.entry(Mode::Executable, path.as_bytes(), bytes)?,
                    Thing::Link(target) => import.entry(Mode::Symlink, path.as_bytes(), target.as_bytes())?,
                    Thing::Dir(_) => continue,
                };
            }
            before = files;
        }
        import.finish()?;
        let ids = repo.line(["rev-list", "--reverse", BRANCH])?.lines().map(str::to_owned).collect();
        let trees: Vec<_> = commits.iter().map(with_directories).collect();
        let paths: BTreeSet<String> = trees.iter().flat_map(|tree| tree.keys().cloned()).collect();
        Ok(History { ids, trees, paths: paths.into_iter().collect() })
    }

    /// All that commit `number` holds.
    pub fn tree(&self, number: usize) -> &BTreeMap<String, Thing> {
        &self.trees[number]
    }

    /// What `path` is in commit `number`.
    pub fn thing(&self, number: usize, path: &str) -> Option<&Thing> {
        self.trees[number].get(path)
    }

    /// The commits in which `fits` holds of what `path` is there.
    pub fn commits(&self, path: &str, fits: impl Fn(Option<&Thing>) -> bool) -> Commits {
        self.trees.iter().enumerate().filter(|(_, tree)| fits(tree.get(path))).fold(0, |set, (number, _)| set | 1 << number)
    }
}

/// The places at which something may be. Names that differ in case, and a directory that may be a file as a whole.
fn slots() -> Vec<String> {
    let mut all: Vec<String> = ["stable/always", "turn", "turn/inner/a", "turn/inner/b", "Case", "case", "deep/a/b/c/d/e", "deep/a/b/x"]
        .map(str::to_owned)
        .to_vec();
    for dir in 0..6 {
        all.extend((0..8).map(|file| format!("dir{dir}/file{file}")));
        all.push(format!("dir{dir}/sub/one"));
    }
    all.retain(|path| path != "turn" && path != "case");
    all
}

fn change(files: &mut BTreeMap<String, Thing>, number: usize, random: &mut Random) {
    let all = slots();
    for _ in 0..2 + random.below(12) {
        let path = &all[random.below(all.len())];
        if path.starts_with("turn") || path == "Case" {
            continue;
        }
        match random.below(6) {
            0 if path != "stable/always" => drop(files.remove(path)),
            1 => drop(files.insert(path.clone(), Thing::Link(format!("nowhere-{number}")))),
            2 => {
                if let Some(Thing::File(_, executable)) = files.get_mut(path) {
                    *executable = !*executable;
                }
            }
            _ => drop(files.insert(path.clone(), content(path, number, random))),
        }
    }
    // Always something that tells this commit from the one before.
    files.insert("stable/always".into(), content("stable/always", number, random));
    files.retain(|path, _| path != "turn" && !path.starts_with("turn/") && path.to_lowercase() != "case");
    files.insert(if number.is_multiple_of(2) { "Case" } else { "case" }.into(), content("case", number / 4, random));
    match number % 4 {
        0 => drop(files.insert("turn".into(), content("turn", number, random))),
        1 => drop(files.insert("turn".into(), Thing::Link("stable".into()))),
        2 => {
            files.insert("turn/inner/a".into(), content("turn/inner/a", number / 8, random));
            files.insert("turn/inner/b".into(), content("turn/inner/b", number, random));
        }
        _ => {}
    }
    for _ in 0..4 {
        let path = format!("wide/n{:04}", random.below(WIDE));
        if files.remove(&path).is_none() {
            files.insert(path, Thing::File(vec![], false));
        }
    }
    // A whole directory that goes, and comes back as another one.
    if random.below(3) == 0 {
        files.retain(|path, _| !path.starts_with("dir5/"));
    } else if !files.keys().any(|path| path.starts_with("dir5/")) {
        files.insert("dir5/file0".into(), content("dir5/file0", number, random));
    }
}

/// Bytes that no other path or version has; now and then too many for one read.
fn content(path: &str, version: usize, random: &mut Random) -> Thing {
    let line = format!("{path} version {version}\n");
    let times = if random.below(12) == 0 { 300_000 / line.len() } else { 1 + random.below(40) };
    Thing::File(line.repeat(times).into_bytes(), false)
}

fn with_directories(files: &BTreeMap<String, Thing>) -> BTreeMap<String, Thing> {
    let mut all = files.clone();
    all.insert(String::new(), Thing::Dir(BTreeSet::new()));
    for path in files.keys() {
        let mut child = path.as_str();
        while !child.is_empty() {
            let (dir, name) = child.rsplit_once('/').unwrap_or(("", child));
            if let Thing::Dir(names) = all.entry(dir.to_owned()).or_insert_with(|| Thing::Dir(BTreeSet::new())) {
                names.insert(name.to_owned());
            }
            child = dir;
        }
    }
    all
}

/// A small generator of numbers that look random (xorshift64*).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// A number below `end`.
    pub fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch;

    #[test]
    fn the_model_is_what_git_holds() -> Result<()> {
        let dir = scratch::dir()?;
        let repo = Repo::init_bare(dir.path().join("r.git"))?;
        let history = History::write(&repo, 20, 7)?;
        assert_eq!(history.ids.len(), 20);
        for (number, id) in history.ids.iter().enumerate() {
            let listed = repo.line(["ls-tree", "-r", "--name-only", id])?;
            let ours: Vec<_> =
                history.trees[number].iter().filter(|(_, thing)| !matches!(thing, Thing::Dir(_))).map(|(path, _)| path.as_str()).collect();
            let mut theirs: Vec<_> = listed.lines().collect();
            theirs.sort_unstable();
            assert_eq!(ours, theirs, "commit {number}");
        }
        Ok(())
    }
}
