//! A kernel that remembers all it may, and a check of every answer.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use bstr::BString;
use gitmount_fsd::fs::{Attr, FileSystem, FsError};
use gitmount_fsd::inode::{NodeId, Time};
use gitmount_fsd::view::{View, ViewOptions};
use gitmount_store::ids::CommitId;
use gitmount_store::local::LocalRepository;
use gitmount_store::objects::EntryKind;
use gitmount_tests::git::Repo;
use gitmount_tests::torture::history::{History, Thing};

use super::world::{Place, World};
use crate::fixture::Recorder;

/// What is asked or happens. Numbers choose among what there is.
#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Looks a path up from the root on.
    Walk(String),
    /// Looks a path up in a kept snapshot.
    WalkSnapshot(usize, String),
    /// Looks a name up in a directory that is known, also when it is dead.
    Look(usize, &'static str),
    /// Begins to list a known directory.
    Begin(usize),
    /// Reads some lines of a listing.
    List(usize, usize, bool),
    /// Reads a known file or link.
    Read(usize),
    /// Forgets a node.
    Forget(usize),
    /// Serves another commit.
    Switch(usize),
    /// Another process goes on.
    Restart,
}

struct Listing {
    dir: usize,
    cookie: u64,
    /// From the first line on: what the directory held then.
    expected: Option<Vec<String>>,
    seen: Vec<String>,
    restarts: usize,
}

pub(super) struct Client {
    _dir: tempfile::TempDir,
    repository: LocalRepository,
    history: History,
    commits: Vec<CommitId>,
    fs: Option<FileSystem>,
    world: World,
    restarts: usize,
    /// Every node that was ever told, and what it stands for; and the other way round.
    being_of: HashMap<NodeId, usize>,
    node_of: HashMap<usize, NodeId>,
    /// Look-ups that are not forgotten, in the order of their first.
    known: Vec<(NodeId, u64)>,
    /// The time of each being when it was seen last, and of each path.
    times: HashMap<usize, Time>,
    path_times: HashMap<String, Time>,
    /// Directories whose time must be later than when it was seen last.
    changed: HashSet<usize>,
    dentries: HashMap<(NodeId, String), Option<NodeId>>,
    attrs: HashMap<NodeId, Attr>,
    listings: Vec<Listing>,
}

fn kind_of(thing: &Thing) -> EntryKind {
    match thing {
        Thing::Dir(_) => EntryKind::Directory,
        Thing::File(_, false) => EntryKind::File,
        Thing::File(_, true) => EntryKind::Executable,
        Thing::Link(_) => EntryKind::Symlink,
    }
}

/// What of an attribute is the same for as long as the kernel may keep it.
fn lasting(attr: &Attr) -> (NodeId, EntryKind, u64, Time) {
    (attr.node, attr.kind, attr.size, attr.time)
}

impl Client {
    pub(super) fn new(commits: &[BTreeMap<String, Thing>], keep: usize) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let repo = Repo::init_bare(dir.path().join("r.git")).expect("a repository");
        let history = History::record(&repo, commits).expect("commits");
        let repository = LocalRepository::discover(repo.path()).expect("a repository");
        let commits: Vec<_> = history.ids.iter().map(|id| repository.resolve(id).expect("a commit")).collect();
        let mut options = ViewOptions::new("main", dir.path().join("spool"));
        options.keep_snapshots = keep;
        options.journal = Some(dir.path().join("nodes"));
        let view = View::new(repository.objects(), commits[0], options).expect("a view");
        let mut world = World::new(keep);
        world.serve(0, history.tree(0));
        let root = world.live("").expect("a root");
        Client {
            _dir: dir,
            repository,
            history,
            commits,
            fs: Some(FileSystem::new(view)),
            world,
            restarts: 0,
            being_of: HashMap::from([(NodeId::ROOT, root)]),
            node_of: HashMap::from([(root, NodeId::ROOT)]),
            known: vec![],
            times: HashMap::new(),
            path_times: HashMap::new(),
            changed: HashSet::new(),
            dentries: HashMap::new(),
            attrs: HashMap::new(),
            listings: vec![],
        }
    }

    fn fs(&self) -> &FileSystem {
        self.fs.as_ref().expect("there is always one")
    }

    pub(super) fn run(&mut self, op: &Op) {
        match op {
            Op::Walk(path) => self.walk(NodeId::ROOT, path),
            Op::WalkSnapshot(number, path) => self.walk_snapshot(number % self.commits.len(), path),
            Op::Look(number, name) => drop(self.pick(*number, true).map(|dir| self.look(dir, name))),
            Op::Begin(number) => {
                if let Some(dir) = self.pick(*number, true) {
                    let (dir, restarts) = (self.being_of[&dir], self.restarts);
                    self.listings.push(Listing { dir, cookie: 0, expected: None, seen: vec![], restarts });
                }
            }
            Op::List(number, lines, plus) => self.list(*number, *lines, *plus),
            Op::Read(number) => drop(self.pick(*number, false).map(|node| self.read(node))),
            Op::Forget(number) => self.forget(*number),
            Op::Switch(number) => self.switch(number % self.commits.len()),
            Op::Restart => self.restart(),
        }
    }

    /// A node that the kernel knows: a directory or something else.
    fn pick(&self, number: usize, dir: bool) -> Option<NodeId> {
        let is_dir = |node: &NodeId| matches!(self.world.beings[self.being_of[node]].thing, Thing::Dir(_));
        let root = std::iter::once(NodeId::ROOT);
        let all: Vec<_> = root.chain(self.known.iter().map(|(node, _)| *node)).filter(|node| is_dir(node) == dir).collect();
        (!all.is_empty()).then(|| all[number % all.len()])
    }

    fn walk(&mut self, from: NodeId, path: &str) {
        let mut dir = from;
        for name in path.split('/') {
            match self.look(dir, name) {
                Some(next) if self.fs().attr(next).is_ok_and(|attr| attr.is_dir()) => dir = next,
                _ => return,
            }
        }
    }

    fn walk_snapshot(&mut self, number: usize, path: &str) {
        for (parent, name, node) in [(NodeId::ROOT, ".gitmount", NodeId::HIDDEN), (NodeId::HIDDEN, "commit", NodeId::COMMITS)] {
            let found = self.fs().lookup(parent, name.into()).expect("no error");
            assert_eq!(found.map(|attr| attr.node), Some(node));
        }
        let name = self.commits[number].to_string();
        match (self.fs().lookup(NodeId::COMMITS, name.as_str().into()), self.world.snapshot(number, "")) {
            (Ok(Some(attr)), Some(being)) => {
                self.learn(&attr, being);
                self.dentries.insert((NodeId::COMMITS, name), Some(attr.node));
                self.walk(attr.node, path);
            }
            (Err(FsError::NotFound), None) => {}
            (found, expected) => panic!("snapshot {number} is {found:?}, not {expected:?}"),
        }
    }

    /// Looks a name up, checks the answer, and remembers it.
    fn look(&mut self, dir: NodeId, name: &str) -> Option<NodeId> {
        let expected = self.world.look(self.being_of[&dir], name);
        match (self.fs().lookup(dir, name.into()), expected) {
            (Ok(Some(attr)), Ok(Some(being))) => {
                self.learn(&attr, being);
                self.dentries.insert((dir, name.to_owned()), Some(attr.node));
                Some(attr.node)
            }
            (Ok(None), Ok(None)) => {
                self.dentries.insert((dir, name.to_owned()), None);
                None
            }
            (Err(FsError::NotFound), Err(())) => None,
            (found, expected) => panic!("{name} in {dir:?} is {found:?}, not {expected:?}"),
        }
    }

    /// Counts a look-up of `being` and checks its attributes.
    fn learn(&mut self, attr: &Attr, being: usize) {
        self.same_node(attr.node, being);
        match self.known.iter_mut().find(|(node, _)| *node == attr.node) {
            Some((_, count)) => *count += 1,
            None => self.known.push((attr.node, 1)),
        }
        self.check(attr, being);
        self.attrs.insert(attr.node, *attr);
    }

    /// One node for each being, for ever.
    fn same_node(&mut self, node: NodeId, being: usize) {
        let first = *self.being_of.entry(node).or_insert(being);
        assert_eq!(first, being, "{node:?} stood for {:?}", self.world.beings[first]);
        assert_eq!(*self.node_of.entry(being).or_insert(node), node, "{:?} has another node", self.world.beings[being]);
    }

    fn check(&mut self, attr: &Attr, being: usize) {
        let it = self.world.beings[being].clone();
        let size = match &it.thing {
            Thing::File(bytes, _) => bytes.len(),
            Thing::Link(target) => target.len(),
            Thing::Dir(_) => 4096,
        };
        assert_eq!((attr.kind, attr.size), (kind_of(&it.thing), size as u64), "{it:?}");
        assert_eq!(attr.nlink, u32::from(it.place != Place::Dead), "{it:?}");
        let changed = self.changed.remove(&being);
        if let Some(&seen) = self.times.get(&being) {
            assert!(if changed { attr.time > seen } else { attr.time == seen }, "{it:?} had {seen:?} and has {:?}", attr.time);
        } else if let Place::Live(path) = &it.place
            && let Some(other) = self.path_times.get(path)
        {
            assert!(attr.time.0 / 1_000_000_000 > other.0 / 1_000_000_000, "{it:?} is no later than what was there: {attr:?} {other:?}");
        }
        self.times.insert(being, attr.time);
        if let Place::Live(path) = it.place {
            self.path_times.insert(path, attr.time);
        }
    }

    fn list(&mut self, number: usize, lines: usize, plus: bool) {
        if self.listings.is_empty() {
            return;
        }
        let number = number % self.listings.len();
        let mut listing = self.listings.swap_remove(number);
        let (dir, now) = (self.node_of[&listing.dir], self.world.names(listing.dir));
        let first = listing.expected.is_none();
        let expected = listing.expected.get_or_insert_with(|| now.clone().unwrap_or_default()).clone();
        let (mut got, mut end) = (vec![], true);
        let listed = self.fs().list(dir, listing.cookie, plus, &mut |line| {
            end = false;
            if got.len() == lines {
                return false;
            }
            got.push((line.name.to_string(), line.node, line.kind, line.attr));
            listing.cookie = line.cookie;
            true
        });
        match listed {
            Ok(()) if now.is_some() => {}
            Err(FsError::NotFound) if now.is_none() => return,
            // What a process that is gone had kept of older listings may be gone, too.
            Err(FsError::Stale) if !first && listing.restarts < self.restarts => return,
            other => panic!("listing {:?} gave {other:?}", self.world.beings[listing.dir]),
        }
        for (name, node, kind, attr) in got {
            if name == "." || name == ".." {
                continue;
            }
            // The line may be of an older listing: only a line with attributes is of what is served now.
            match (attr, self.world.look(listing.dir, &name)) {
                (Some(attr), Ok(Some(being))) => {
                    self.learn(&attr, being);
                    assert_eq!((attr.node, attr.kind), (node, kind));
                    self.dentries.insert((dir, name.clone()), Some(node));
                }
                (Some(attr), other) => panic!("{name} is {attr:?}, not {other:?}"),
                (None, _) if plus => self.fs().forget(node, 1),
                (None, _) => {}
            }
            listing.seen.push(name);
        }
        if end {
            let mut names = listing.seen;
            names.sort();
            assert_eq!(names, expected, "the whole listing of {:?}", self.world.beings[listing.dir]);
        } else {
            self.listings.push(listing);
        }
    }

    fn read(&self, node: NodeId) {
        match &self.world.beings[self.being_of[&node]].thing {
            Thing::Link(target) => assert_eq!(self.fs().link(node).expect("a link"), target.as_bytes()),
            Thing::File(bytes, _) => {
                let (give, take) = std::sync::mpsc::channel();
                self.fs().read(node, 0, 1 << 16, move |data| give.send(data.map(<[u8]>::to_vec)).expect("somebody waits"));
                assert_eq!(take.recv().expect("an answer").expect("bytes"), *bytes);
            }
            Thing::Dir(_) => panic!("no directory is chosen"),
        }
    }

    fn forget(&mut self, number: usize) {
        if self.known.is_empty() {
            return;
        }
        let (node, count) = self.known.swap_remove(number % self.known.len());
        self.fs().forget(node, count);
        self.dentries.retain(|(dir, _), to| *dir != node && *to != Some(node));
        self.attrs.remove(&node);
        let being = self.being_of[&node];
        self.listings.retain(|listing| listing.dir != being);
        if self.world.beings[being].place == Place::Dead && self.restarts == 0 {
            assert!(matches!(self.fs().attr(node), Err(FsError::Stale)), "{node:?} is forgotten and dead");
        }
    }

    fn switch(&mut self, number: usize) {
        let kernel = Recorder::default();
        self.fs().view().switch_to(self.commits[number], &kernel).expect("switches");
        let changed = self.world.serve(number, self.history.tree(number));
        self.changed.extend(changed);
        for (dir, name) in kernel.expired.into_inner().expect("no panic") {
            self.dentries.remove(&(dir, name.to_string()));
        }
        for dir in kernel.invalidated.into_inner().expect("no panic") {
            self.attrs.remove(&dir);
        }
        let pinned: Vec<_> = self.world.kept.iter().map(|(kept, _)| self.commits[*kept]).collect();
        assert_eq!(self.fs().view().pinned(), pinned);
        self.check_all();
    }

    fn restart(&mut self) {
        let options = self.fs().view().options().clone();
        let served = self.fs().view().current();
        self.fs = None;
        let view = View::resume(self.repository.objects(), options).expect("the journal is whole");
        assert_eq!(view.current(), served);
        self.fs = Some(FileSystem::new(Arc::clone(&view)));
        self.restarts += 1;
        self.check_all();
    }

    /// Everything that is remembered must be what would be answered now; everything that is known must be what it was.
    fn check_all(&mut self) {
        for ((dir, name), cached) in &self.dentries {
            let name: BString = name.as_str().into();
            match (self.fs().lookup(*dir, name.as_ref()), cached) {
                (Ok(Some(attr)), Some(node)) if attr.node == *node => self.fs().forget(attr.node, 1),
                (Ok(None) | Err(FsError::NotFound), None) => {}
                (now, cached) => panic!("the kernel still takes {name} in {dir:?} for {cached:?}, but it is {now:?}"),
            }
        }
        for (node, cached) in &self.attrs {
            let now = self.fs().attr(*node).expect("is known");
            assert_eq!(
                lasting(&now),
                lasting(cached),
                "the kernel still has old attributes of {:?}",
                self.world.beings[self.being_of[node]]
            );
        }
        for (node, _) in self.known.clone() {
            let (attr, being) = (self.fs().attr(node).expect("is known"), self.being_of[&node]);
            self.check(&attr, being);
            if !attr.is_dir() {
                self.read(node);
            }
        }
    }
}
