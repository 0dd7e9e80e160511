//! What a table restored from its journal promises: every node that the kernel knows is what it was, wherever the journal was cut.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::convert::Infallible;
use std::time::Instant;

use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::EntryKind;
use proptest::prelude::*;

use super::super::record::{self, Record};
use super::super::{Carry, DirPlan, DirVersion, Location, RemovedDir, Table, TablePlan, Time};
use super::*;

/// A journal of version 1: later releases must go on reading it. See [`golden`] for what is in it; the boot's id is put in by the test.
const GOLDEN: &[u8] = include_bytes!("golden/nodes-1");
const GOLDEN_BOOT: &str = "00000000-0000-0000-0000-000000000000";

/// What can be asked about a node: what it is, its time, whether it is in the tree, and its parent if it is a loaded directory.
type Fact = (EntryKind, ObjectId, Time, bool, Option<NodeId>);

/// A table, the trees it stands for, and what the kernel knows.
struct World {
    table: Table,
    path: PathBuf,
    trees: HashMap<ObjectId, Vec<(EntryKind, ObjectId)>>,
    known: BTreeMap<NodeId, u64>,
    /// Every id that was ever given out.
    given: HashSet<NodeId>,
    random: u64,
    objects: u64,
}

/// Directories and generations, with the tree and the entries of each.
type Listings = BTreeMap<(NodeId, u32), (ObjectId, Vec<(NodeId, Time)>)>;

impl World {
    fn new(path: &Path, seed: u64) -> Self {
        let mut world = World {
            table: Table::new(id(0), Time(0)),
            path: path.to_owned(),
            trees: HashMap::new(),
            known: BTreeMap::new(),
            given: HashSet::from([NodeId::ROOT]),
            random: seed,
            objects: 0,
        };
        let root = world.new_tree();
        world.table = Table::new(root, Time(1_000_000_000));
        world.table.keep(CommitId::new(id(0xc)), root, Time(1_000_000_000));
        world.table.write_journal(path);
        world.given.extend(world.table.kept().iter().map(|kept| kept.node));
        world
    }

    fn pick(&mut self, below: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % below.max(1)
    }

    fn object(&mut self) -> ObjectId {
        self.objects += 1;
        id(self.objects)
    }

    fn new_entry(&mut self) -> (EntryKind, ObjectId) {
        let kinds = [EntryKind::File, EntryKind::Executable, EntryKind::Symlink, EntryKind::Directory, EntryKind::Directory];
        (kinds[self.pick(kinds.len())], self.object())
    }

    fn new_tree(&mut self) -> ObjectId {
        let entries = (0..self.pick(5)).map(|_| self.new_entry()).collect();
        let tree = self.object();
        self.trees.insert(tree, entries);
        tree
    }

    fn give(&mut self, version: &DirVersion, fresh: impl Fn(usize) -> bool) {
        for index in (0..version.len()).filter(|index| fresh(*index)) {
            assert!(self.given.insert(version.entry(index).0), "{:?} is given out twice", version.entry(index).0);
        }
    }

    fn fact(&self, node: NodeId) -> Option<Fact> {
        let parent = self.table.dir(node).map(|_| self.table.parent(node));
        Some(match self.table.locate(node)? {
            Location::Root(tree, time) => (EntryKind::Directory, tree, time, true, parent),
            Location::Entry { version, index, .. } => {
                let (kind, object) = self.trees[&version.tree][index];
                (kind, object, version.entry(index).1, true, parent)
            }
            Location::Orphan(orphan) => (orphan.kind, orphan.id, orphan.time, false, parent),
        })
    }

    /// Every listing that can be asked for: (directory, generation) → tree and entries.
    fn listings(&self) -> Listings {
        let mut all = BTreeMap::new();
        for (node, generation) in self.given.iter().flat_map(|node| (0..40).map(|generation| (*node, generation))) {
            if let Some(version) = self.table.listing(node, generation) {
                let entries = (0..version.len()).map(|index| version.entry(index)).collect();
                all.insert((node, generation), (version.tree, entries));
            }
        }
        all
    }

    fn facts(&self) -> BTreeMap<NodeId, Option<Fact>> {
        self.known.keys().map(|node| (*node, self.fact(*node))).collect()
    }

    fn loaded(&self) -> Vec<NodeId> {
        let mut loaded: Vec<_> = self.given.iter().copied().filter(|node| self.table.dir(*node).is_some()).collect();
        loaded.sort();
        loaded
    }

    fn load(&mut self) {
        let open: Vec<_> = self.given.iter().copied().filter(|node| self.table.dir(*node).is_none()).collect();
        let mut open: Vec<_> =
            open.into_iter().filter(|node| matches!(self.fact(*node), Some((EntryKind::Directory, _, _, true, _)))).collect();
        open.sort();
        if open.is_empty() {
            return;
        }
        let node = open[self.pick(open.len())];
        let (_, tree, ..) = self.fact(node).expect("is open");
        if !self.trees.contains_key(&tree) {
            let like = self.new_tree();
            self.trees.insert(tree, self.trees[&like].clone());
        }
        let at = self.table.locate(node).expect("is open");
        let version = self.table.load(node, &at, tree, self.trees[&tree].len() as u32).expect("loads");
        self.give(&version, |_| true);
    }

    fn look_up(&mut self) {
        let (kept, loaded) = (self.table.kept(), self.loaded());
        if self.pick(4) == 0 {
            let kept = kept[self.pick(kept.len())];
            assert_eq!(self.table.find_kept(kept.commit.to_string().as_str().into()), Some(kept));
            *self.known.entry(kept.node).or_default() += 1;
        }
        let Some(dir) = (!loaded.is_empty()).then(|| loaded[self.pick(loaded.len())]) else { return };
        let version = self.table.dir(dir).expect("is loaded");
        for _ in 0..version.len().min(3) {
            let index = self.pick(version.len());
            assert!(self.table.count(dir, &version, [index]));
            *self.known.entry(version.entry(index).0).or_default() += 1;
        }
    }

    fn forget(&mut self) {
        let known: Vec<_> = self.known.iter().map(|(node, count)| (*node, *count)).collect();
        let Some((node, count)) = (!known.is_empty()).then(|| known[self.pick(known.len())]) else { return };
        self.table.forget(node, count);
        self.known.remove(&node);
    }

    fn remove(&mut self, node: NodeId, plan: &mut TablePlan) {
        let Some(old) = self.table.dir(node) else { return };
        let entries = self.trees[&old.tree].clone();
        for (index, (kind, _)) in entries.iter().enumerate() {
            if *kind == EntryKind::Directory {
                self.remove(old.entry(index).0, plan);
            }
        }
        plan.removed.push(RemovedDir { node, old, entries });
    }

    fn change(&mut self, node: NodeId, now: Time, plan: &mut TablePlan) -> Option<ObjectId> {
        let old = self.table.dir(node)?;
        let (mut entries, mut tree, mut gone) = (vec![], vec![], vec![]);
        for (index, (kind, object)) in self.trees[&old.tree].clone().into_iter().enumerate() {
            let (child, time) = old.entry(index);
            let kept = Carry::Keep { old: index as u32, time };
            match self.pick(6) {
                0 | 1 => {
                    gone.push((index as u32, kind, object));
                    if kind == EntryKind::Directory {
                        self.remove(child, plan);
                    }
                    continue;
                }
                2 | 3 if kind == EntryKind::Directory => {
                    let object = self.change(child, now, plan).unwrap_or_else(|| self.object());
                    entries.push(Carry::Keep { old: index as u32, time: time.bump(now) });
                    tree.push((kind, object));
                }
                _ => {
                    entries.push(kept);
                    tree.push((kind, object));
                }
            }
            if self.pick(3) == 0 {
                entries.push(Carry::Fresh(now));
                tree.push(self.new_entry());
            }
        }
        let object = self.object();
        self.trees.insert(object, tree);
        plan.dirs.push(DirPlan { node, old, tree: object, entries, gone });
        Some(object)
    }

    fn switch(&mut self) {
        let Some(Location::Root(tree, was)) = self.table.locate(NodeId::ROOT) else { panic!("there is no root") };
        let now = was.bump(Time(self.pick(1 << 30) as i64));
        let mut plan = TablePlan::default();
        let root = self.change(NodeId::ROOT, now, &mut plan).unwrap_or(tree);
        plan.root = Some((root, now));
        let kept = self.table.kept();
        let back = self.pick(4) == 0;
        let commit = if back { kept[self.pick(kept.len())].commit } else { CommitId::new(self.object()) };
        plan.keep = Some((commit, root, now));
        if let Some(old) = kept.get(2)
            && old.commit != commit
        {
            self.remove(old.node, &mut plan);
            plan.retired = vec![old.node];
        }
        let fresh: Vec<_> = plan.dirs.iter().map(|dir| (dir.node, dir.entries.clone())).collect();
        self.table.begin_switch();
        self.table.apply(plan, || {}, |_, _, _| Ok::<_, Infallible>(())).expect("applies");
        for node in self.table.kept().iter().map(|kept| kept.node).filter(|node| !kept.iter().any(|kept| kept.node == *node)) {
            assert!(self.given.insert(node), "{node:?} is given out twice");
        }
        for (node, entries) in fresh {
            let version = self.table.dir(node).expect("is loaded");
            self.give(&version, |index| matches!(entries[index], Carry::Fresh(_)));
        }
    }

    fn restart(&mut self) {
        let before = (self.facts(), self.listings(), self.table.kept(), self.table.untold());
        self.table = Table::restore(&self.path).expect("restores").0;
        assert_eq!(self.facts(), before.0, "a node is not what it was");
        assert_eq!(self.listings(), before.1, "a listing is not what it was");
        assert_eq!(self.table.kept(), before.2, "other snapshots are kept");
        assert_eq!(self.table.untold(), before.3, "other snapshots are to be told of");
        assert!(self.facts().values().all(Option::is_some), "the kernel knows it, and nobody else");
    }

    fn run(&mut self, steps: &[u8]) {
        steps.iter().for_each(|step| self.step(*step));
    }

    fn step(&mut self, step: u8) {
        match step {
            0..=3 => self.load(),
            4..=8 => self.look_up(),
            9..=10 => self.forget(),
            11..=13 => self.switch(),
            14 => self.restart(),
            _ => self.table.journal.as_ref().expect("has one").write_whole().expect("writes"),
        }
    }
}

fn id(n: u64) -> ObjectId {
    ObjectId::from_hex(format!("{n:040x}").as_bytes()).expect("forty digits")
}

proptest! {
    #[test]
    fn nodes_are_what_they_were_after_any_restart(seed: u64, steps in prop::collection::vec(0u8..16, 1..120)) {
        let dir = tempfile::tempdir().expect("a directory");
        let mut world = World::new(&dir.path().join("nodes"), seed);
        for step in steps {
            world.step(step);
        }
        world.restart();
        world.restart();
    }

    #[test]
    fn nonsense_is_refused_and_does_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200), kind in 0u8..8) {
        let bytes = [&[kind][..], &bytes].concat();
        if let Some(record) = record::decode(&bytes) {
            let mut writer = Writer::default();
            writer.record(&record);
            prop_assert_eq!(record::decode(&writer.0), Some(record));
        }
    }
}

#[test]
fn a_journal_cut_anywhere_is_the_state_after_its_last_whole_record() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut world = World::new(&dir.path().join("nodes"), 7);
    let mut states = vec![(fs::metadata(&world.path).expect("is there").len(), world.facts())];
    for step in [0, 0, 4, 4, 0, 4, 11, 4, 0, 12, 4, 5, 11, 0, 4, 13, 9, 11].repeat(2) {
        world.step(step);
        states.push((fs::metadata(&world.path).expect("is there").len(), world.facts()));
    }
    let whole = fs::read(&world.path).expect("reads");
    assert!(whole.len() > 1000, "{}", whole.len());
    let copy = dir.path().join("copy");
    for cut in 0..=whole.len() {
        fs::write(&copy, &whole[..cut]).expect("writes");
        let restored = Table::restore(&copy);
        let last = states.iter().rev().find(|(length, _)| *length <= cut as u64);
        match (restored, last) {
            (Err(JournalError::Damaged(_)), None) => {}
            (Ok((table, _)), Some((_, facts))) => {
                let live = std::mem::replace(&mut world.table, table);
                for (node, fact) in facts {
                    assert_eq!(world.fact(*node), *fact, "{node:?} at {cut}");
                }
                world.table = live;
            }
            (other, last) => panic!("at {cut}: {other:?} although the last state is {last:?}"),
        }
    }
    for at in 0..whole.len() {
        let mut broken = whole.clone();
        broken[at] ^= 0x40;
        fs::write(&copy, &broken).expect("writes");
        // Whatever it gives: no panic, and no id twice.
        if let Ok((table, _)) = Table::restore(&copy) {
            assert!(table.inner.read().next > 1 << 24);
        }
    }
}

#[test]
fn a_full_disk_costs_the_restart_only_until_there_is_space() {
    let dir = tempfile::tempdir().expect("a directory");
    let (home, away) = (dir.path().join("state"), dir.path().join("away"));
    fs::create_dir(&home).expect("a directory");
    let mut world = World::new(&home.join("nodes"), 3);
    world.run(&[0, 0, 4]);
    let journal = world.table.journal.clone().expect("has one");
    // The file cannot grow, and no new one can be made.
    journal.state.lock().file = Some(OpenOptions::new().write(true).open("/dev/full").expect("opens"));
    fs::rename(&home, &away).expect("moves");
    world.run(&[0, 4, 11, 0, 4, 11]);
    let error = world.table.journal_error().expect("is told");
    assert!(error.contains("nodes") && error.contains("space"), "{error}");
    fs::rename(&away, &home).expect("moves back");
    let end = Instant::now() + Duration::from_secs(20);
    while world.table.journal_error().is_some() {
        assert!(Instant::now() < end, "it is not written again");
        thread::sleep(Duration::from_millis(5));
    }
    world.step(4);
    world.restart();
}

#[test]
fn ids_are_not_used_twice_although_nothing_could_be_written_since_the_last_restart() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nodes");
    let mut world = World::new(&path, 3);
    world.run(&[0, 0, 4, 11, 0]);
    let mut last = 0;
    for _ in 0..3 {
        // As if the new file could not be made: the old one is resumed again.
        let old = fs::read(&path).expect("reads");
        let (table, _) = Table::restore(&path).expect("restores");
        let next = table.inner.read().next;
        assert!(next >= last + (1 << 24), "{next} {last}");
        last = next;
        let counted = read_resumes(&old) + 1;
        let mut again = old;
        let end = again.iter().position(|b| *b == b'\n').expect("a line");
        again[end - RESUMES..end].copy_from_slice(format!("{counted:0RESUMES$}").as_bytes());
        drop(table);
        fs::write(&path, again).expect("writes");
    }
}

fn read_resumes(journal: &[u8]) -> u32 {
    let end = journal.iter().position(|b| *b == b'\n').expect("a line");
    str::from_utf8(&journal[end - RESUMES..end]).expect("digits").parse().expect("a number")
}

#[test]
fn a_long_journal_is_compacted_beside_the_work() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut world = World::new(&dir.path().join("nodes"), 5);
    world.run(&[0, 0, 0, 4, 4]);
    let journal = world.table.journal.clone().expect("has one");
    let end = Instant::now() + Duration::from_secs(60);
    let (mut longest, mut compacted) = (0, false);
    while !compacted {
        assert!(Instant::now() < end, "it only grows: {longest}");
        for _ in 0..50 {
            // Back and forth: the table stays small.
            world.table.apply(TablePlan::default(), || {}, |_, _, _| Ok::<_, Infallible>(())).expect("applies");
        }
        let length = journal.state.lock().length;
        compacted = length < longest;
        longest = longest.max(length);
    }
    world.restart();
}

#[test]
fn journals_of_other_versions_and_boots_are_refused_by_name() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("nodes");
    assert!(matches!(Table::restore(&path), Err(JournalError::Unreadable { .. })));
    fs::write(&path, format!("{NAME} 2 {} 0000000000\n", boot())).expect("writes");
    let error = Table::restore(&path).expect_err("is newer");
    assert!(matches!(error, JournalError::Version { found: 2, .. }) && error.to_string().contains("version 2"), "{error}");
    fs::write(&path, GOLDEN).expect("writes");
    assert!(matches!(Table::restore(&path), Err(JournalError::Boot(_))));
    fs::write(&path, "something else\n").expect("writes");
    assert!(matches!(Table::restore(&path), Err(JournalError::Damaged(_))));
}

/// The table of the golden journal: written whole after some steps (directories of both kinds, older listings, orphans), then each other
/// kind of record once at least.
fn golden(path: &Path) -> World {
    let mut world = World::new(path, 42);
    world.run(&[0, 4, 0, 0, 4, 4, 11, 4, 0, 4, 12, 0, 4, 15, 0, 4, 11, 9]);
    let journal = world.table.journal.clone().expect("has one");
    journal.state.lock().forgotten.push(NodeId(999));
    world.table.keep(CommitId::new(id(0xd)), id(0xe), Time(7));
    world
}

#[test]
fn the_journal_of_version_1_is_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut world = golden(&dir.path().join("nodes"));
    if std::env::var_os("GITMOUNT_WRITE_GOLDEN").is_some() {
        let text = fs::read(dir.path().join("nodes")).expect("reads");
        let at = text.windows(36).position(|window| window == boot().as_bytes()).expect("the boot's id");
        let golden = [&text[..at], GOLDEN_BOOT.as_bytes(), &text[at + 36..]].concat();
        fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/inode/journal/golden/nodes-1"), golden).expect("writes");
        return;
    }
    let at = GOLDEN.windows(36).position(|window| window == GOLDEN_BOOT.as_bytes()).expect("the boot's id");
    let now = [&GOLDEN[..at], boot().as_bytes(), &GOLDEN[at + 36..]].concat();
    let path = dir.path().join("golden");
    fs::write(&path, &now).expect("writes");
    let mut kinds = HashSet::new();
    let outcome = read(&path, |record| {
        kinds.insert(std::mem::discriminant::<Record>(&record));
        Some(())
    });
    assert!(outcome.expect("reads").whole);
    assert_eq!(kinds.len(), 6, "every kind of record is in it");
    let (before, kept) = ((world.facts(), world.listings()), world.table.kept());
    let (table, served) = Table::restore(&path).expect("restores");
    world.table = table;
    assert!((world.facts(), world.listings()) == before);
    assert_eq!(served.commit, CommitId::new(id(0xd)));
    assert_eq!(world.table.kept(), kept);
}
