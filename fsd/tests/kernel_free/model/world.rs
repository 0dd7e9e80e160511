//! What must be where. A *being* is what a node id stands for: a file as long as it does not change, a directory as long as its path is one.

use std::collections::BTreeMap;

use gitmount_tests::torture::history::Thing;

pub(super) type Tree = BTreeMap<String, Thing>;

/// Where a being is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// At this path of what is served.
    Live(String),
    /// At this path of the kept snapshot of a commit.
    Kept(usize, String),
    /// Nowhere any more.
    Dead,
}

#[derive(Debug, Clone)]
pub(super) struct Being {
    pub(super) thing: Thing,
    pub(super) place: Place,
}

/// A tree's beings by path; the root is the empty one.
type Beings = BTreeMap<String, usize>;

pub(super) struct World {
    pub(super) beings: Vec<Being>,
    live: Beings,
    /// The one served last first.
    pub(super) kept: Vec<(usize, Beings)>,
    keep: usize,
}

impl World {
    pub(super) fn new(keep: usize) -> Self {
        World { beings: vec![], live: Beings::new(), kept: vec![], keep }
    }

    fn born(&mut self, thing: &Thing, place: Place) -> usize {
        self.beings.push(Being { thing: thing.clone(), place });
        self.beings.len() - 1
    }

    /// Serves commit `number`, which holds `tree`; gives the directories that change, by being.
    pub(super) fn serve(&mut self, number: usize, tree: &Tree) -> Vec<usize> {
        let (old, mut changed) = (std::mem::take(&mut self.live), vec![]);
        let before: Tree = old.iter().map(|(path, being)| (path.clone(), self.beings[*being].thing.clone())).collect();
        for (path, thing) in tree {
            let same = old.get(path).copied().filter(|being| match (&self.beings[*being].thing, thing) {
                (Thing::Dir(_), Thing::Dir(_)) => true,
                (was, is) => was == is,
            });
            let being = same.unwrap_or_else(|| self.born(thing, Place::Live(path.clone())));
            if same.is_some() && matches!(thing, Thing::Dir(_)) && below(&before, path) != below(tree, path) {
                changed.push(being);
            }
            self.beings[being].thing = thing.clone();
            self.live.insert(path.clone(), being);
        }
        let dead: Vec<_> = old.into_iter().filter(|(path, being)| self.live.get(path) != Some(being)).collect();
        self.die(dead);
        self.keep(number, tree);
        changed
    }

    fn keep(&mut self, number: usize, tree: &Tree) {
        match self.kept.iter().position(|(kept, _)| *kept == number) {
            Some(known) => self.kept[..=known].rotate_right(1),
            None => {
                let beings = tree.iter().map(|(path, thing)| (path.clone(), self.born(thing, Place::Kept(number, path.clone())))).collect();
                self.kept.insert(0, (number, beings));
            }
        }
        for (_, beings) in self.kept.split_off(self.kept.len().min(self.keep + 1)) {
            self.die(beings);
        }
    }

    fn die(&mut self, beings: impl IntoIterator<Item = (String, usize)>) {
        for (_, being) in beings {
            self.beings[being].place = Place::Dead;
        }
    }

    /// The being at `path` of what is served.
    pub(super) fn live(&self, path: &str) -> Option<usize> {
        self.live.get(path).copied()
    }

    /// The being at `path` of the kept snapshot of a commit.
    pub(super) fn snapshot(&self, number: usize, path: &str) -> Option<usize> {
        self.kept.iter().find(|(kept, _)| *kept == number)?.1.get(path).copied()
    }

    /// What the name leads to in a directory: an error, an absence or a being.
    pub(super) fn look(&self, dir: usize, name: &str) -> Result<Option<usize>, ()> {
        let join = |path: &str| if path.is_empty() { name.to_owned() } else { format!("{path}/{name}") };
        match &self.beings[dir].place {
            Place::Dead => Err(()),
            Place::Live(path) => Ok(self.live(&join(path))),
            Place::Kept(number, path) => Ok(self.snapshot(*number, &join(path))),
        }
    }

    /// The names in a directory that is not dead.
    pub(super) fn names(&self, dir: usize) -> Option<Vec<String>> {
        match &self.beings[dir] {
            Being { place: Place::Dead, .. } => None,
            Being { thing: Thing::Dir(names), .. } => Some(names.iter().cloned().collect()),
            being => panic!("{being:?} is no directory"),
        }
    }
}

fn below<'a>(tree: &'a Tree, path: &str) -> Vec<(&'a String, &'a Thing)> {
    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
    tree.iter().filter(|(other, _)| other.starts_with(&prefix) && !other.is_empty()).collect()
}
