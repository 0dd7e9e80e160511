//! What the journal says, as bytes: numbers as LEB128, ids with their length, one kind of record a leading byte.
//!
//! Nothing here trusts what it reads: a record that makes no sense is `None`, never a panic and never a big allocation.

use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::EntryKind;

use super::{Carry, Kept, NodeId, Orphan, Time};

/// A run of consecutive ids with one time: first id, number, time.
pub(super) type Run = (u64, u32, Time);

/// One version of a listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) tree: ObjectId,
    pub(super) generation: u32,
    /// As it was loaded: one run, found by its range.
    pub(super) range: bool,
    pub(super) runs: Vec<Run>,
}

/// What becomes of some entries of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// So many entries from this old index on stay as they are.
    Keep(u32, u32),
    /// One stays and gets another time.
    Touch(u32, Time),
    /// So many new ones.
    Fresh(u32, Time),
}

/// An entry that leaves the tree while the kernel knows it: its old index, what it is.
pub(super) type Left = (u32, EntryKind, ObjectId);

/// One directory of a switch. What is neither kept nor left was unknown to the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Changed {
    pub(super) node: NodeId,
    pub(super) tree: ObjectId,
    /// The id of the first entry, if that one is fresh; the others count on from there.
    pub(super) first: u64,
    pub(super) steps: Vec<Step>,
    pub(super) left: Vec<Left>,
}

/// A switch of the whole table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Switch {
    pub(super) root: Option<(ObjectId, Time)>,
    pub(super) dirs: Vec<Changed>,
    /// Directories that go, with those of their entries that the kernel knows.
    pub(super) removed: Vec<(NodeId, Vec<Left>)>,
    /// The snapshot that is served from now on; its node is new unless it was kept already.
    pub(super) keep: Option<Kept>,
    /// Roots of snapshots that are kept no longer, and whether the kernel knows them.
    pub(super) retired: Vec<(NodeId, bool)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record {
    /// Begins a journal.
    State { next: u64, root: (ObjectId, Time), kept: Vec<Kept>, untold: Vec<CommitId> },
    /// A loaded directory.
    Dir { node: NodeId, parent: NodeId, current: Version, older: Vec<Version> },
    /// Orphans.
    Orphans(Vec<(NodeId, Orphan)>),
    /// A directory was loaded.
    Load { node: NodeId, parent: NodeId, tree: ObjectId, first: u64, len: u32, time: Time },
    /// A switch.
    Switch(Switch),
    /// Orphans were forgotten.
    Forgotten(Vec<NodeId>),
}

const STATE: u8 = 1;
const DIR: u8 = 2;
const ORPHANS: u8 = 3;
const LOAD: u8 = 4;
const SWITCH: u8 = 5;
const FORGOTTEN: u8 = 6;

/// Writes records.
#[derive(Debug, Default)]
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn time(&mut self, time: Time) {
        self.number(time.0.cast_unsigned());
    }

    fn id(&mut self, id: &ObjectId) {
        self.0.push(id.as_bytes().len() as u8);
        self.0.extend_from_slice(id.as_bytes());
    }

    fn all<T>(&mut self, items: &[T], mut each: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        for item in items {
            each(self, item);
        }
    }

    fn kind(&mut self, kind: EntryKind) {
        self.0.push(match kind {
            EntryKind::File => 0,
            EntryKind::Executable => 1,
            EntryKind::Symlink => 2,
            EntryKind::Directory => 3,
            EntryKind::Submodule => 4,
        });
    }

    fn kept(&mut self, kept: &Kept) {
        self.number(kept.node.0);
        self.id(&kept.commit.id());
        self.id(&kept.tree);
        self.time(kept.time);
    }

    fn version(&mut self, version: &Version) {
        self.id(&version.tree);
        self.number(u64::from(version.generation));
        self.0.push(u8::from(version.range));
        self.all(&version.runs, |w, (first, len, time)| {
            w.number(*first);
            w.number(u64::from(*len));
            w.time(*time);
        });
    }

    fn left(&mut self, left: &[Left]) {
        self.all(left, |w, (index, kind, id)| {
            w.number(u64::from(*index));
            w.kind(*kind);
            w.id(id);
        });
    }

    fn changed(&mut self, changed: &Changed) {
        self.number(changed.node.0);
        self.id(&changed.tree);
        self.number(changed.first);
        self.all(&changed.steps, |w, step| match *step {
            Step::Keep(old, len) => {
                w.0.push(0);
                w.number(u64::from(old));
                w.number(u64::from(len));
            }
            Step::Touch(old, time) => {
                w.0.push(1);
                w.number(u64::from(old));
                w.time(time);
            }
            Step::Fresh(len, time) => {
                w.0.push(2);
                w.number(u64::from(len));
                w.time(time);
            }
        });
        self.left(&changed.left);
    }

    /// Adds a record.
    pub(super) fn record(&mut self, record: &Record) {
        match record {
            Record::State { next, root, kept, untold } => {
                self.0.push(STATE);
                self.number(*next);
                self.id(&root.0);
                self.time(root.1);
                self.all(kept, Self::kept);
                self.all(untold, |w, commit| w.id(&commit.id()));
            }
            Record::Dir { node, parent, current, older } => {
                self.0.push(DIR);
                self.number(node.0);
                self.number(parent.0);
                self.version(current);
                self.all(older, Self::version);
            }
            Record::Orphans(orphans) => {
                self.0.push(ORPHANS);
                self.all(orphans, |w, (node, orphan)| {
                    w.number(node.0);
                    w.kind(orphan.kind);
                    w.id(&orphan.id);
                    w.time(orphan.time);
                });
            }
            Record::Load { node, parent, tree, first, len, time } => {
                self.0.push(LOAD);
                self.number(node.0);
                self.number(parent.0);
                self.id(tree);
                self.number(*first);
                self.number(u64::from(*len));
                self.time(*time);
            }
            Record::Switch(Switch { root, dirs, removed, keep, retired }) => {
                self.0.push(SWITCH);
                self.all(root.as_slice(), |w, (tree, time)| {
                    w.id(tree);
                    w.time(*time);
                });
                self.all(dirs, Self::changed);
                self.all(removed, |w, (node, left)| {
                    w.number(node.0);
                    w.left(left);
                });
                self.all(keep.as_slice(), Self::kept);
                self.all(retired, |w, (node, known)| {
                    w.number(node.0);
                    w.0.push(u8::from(*known));
                });
            }
            Record::Forgotten(nodes) => {
                self.0.push(FORGOTTEN);
                self.all(nodes, |w, node| w.number(node.0));
            }
        }
    }
}

/// Reads one record.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn short(&mut self) -> Option<u32> {
        self.number()?.try_into().ok()
    }

    fn node(&mut self) -> Option<NodeId> {
        Some(NodeId(self.number()?))
    }

    fn time(&mut self) -> Option<Time> {
        Some(Time(self.number()?.cast_signed()))
    }

    fn id(&mut self) -> Option<ObjectId> {
        let length = usize::from(self.byte()?);
        let (id, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        ObjectId::try_from(id).ok()
    }

    fn all<T>(&mut self, mut each: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(self.number()?).ok()?;
        // Each item has a byte at least.
        let mut items = Vec::with_capacity(count.min(self.0.len()));
        for _ in 0..count {
            items.push(each(self)?);
        }
        Some(items)
    }

    fn kind(&mut self) -> Option<EntryKind> {
        Some(match self.byte()? {
            0 => EntryKind::File,
            1 => EntryKind::Executable,
            2 => EntryKind::Symlink,
            3 => EntryKind::Directory,
            4 => EntryKind::Submodule,
            _ => return None,
        })
    }

    fn kept(&mut self) -> Option<Kept> {
        Some(Kept { node: self.node()?, commit: CommitId::new(self.id()?), tree: self.id()?, time: self.time()? })
    }

    fn version(&mut self) -> Option<Version> {
        let (tree, generation, range) = (self.id()?, self.short()?, self.byte()? == 1);
        let runs = self.all(|r| Some((r.number()?, r.short()?, r.time()?)))?;
        Some(Version { tree, generation, range, runs })
    }

    fn left(&mut self) -> Option<Vec<Left>> {
        self.all(|r| Some((r.short()?, r.kind()?, r.id()?)))
    }

    fn changed(&mut self) -> Option<Changed> {
        let (node, tree, first) = (self.node()?, self.id()?, self.number()?);
        let steps = self.all(|r| {
            Some(match r.byte()? {
                0 => Step::Keep(r.short()?, r.short()?),
                1 => Step::Touch(r.short()?, r.time()?),
                2 => Step::Fresh(r.short()?, r.time()?),
                _ => return None,
            })
        })?;
        Some(Changed { node, tree, first, steps, left: self.left()? })
    }
}

/// The record that `bytes` are.
pub(super) fn decode(bytes: &[u8]) -> Option<Record> {
    let mut r = Reader(bytes);
    let record = match r.byte()? {
        STATE => Record::State {
            next: r.number()?,
            root: (r.id()?, r.time()?),
            kept: r.all(Reader::kept)?,
            untold: r.all(|r| r.id().map(CommitId::new))?,
        },
        DIR => Record::Dir { node: r.node()?, parent: r.node()?, current: r.version()?, older: r.all(Reader::version)? },
        ORPHANS => Record::Orphans(r.all(|r| {
            let (node, kind, id, time) = (r.node()?, r.kind()?, r.id()?, r.time()?);
            Some((node, Orphan { kind, id, time, lookups: super::FOR_EVER.into() }))
        })?),
        LOAD => Record::Load { node: r.node()?, parent: r.node()?, tree: r.id()?, first: r.number()?, len: r.short()?, time: r.time()? },
        SWITCH => {
            let root = r.all(|r| Some((r.id()?, r.time()?)))?.first().copied();
            let dirs = r.all(Reader::changed)?;
            let removed = r.all(|r| Some((r.node()?, r.left()?)))?;
            let keep = r.all(Reader::kept)?.first().copied();
            let retired = r.all(|r| Some((r.node()?, r.byte()? == 1)))?;
            Record::Switch(Switch { root, dirs, removed, keep, retired })
        }
        FORGOTTEN => Record::Forgotten(r.all(Reader::node)?),
        _ => return None,
    };
    r.0.is_empty().then_some(record)
}

/// A carry list as steps; `time` tells the old time of an entry.
pub(super) fn steps(entries: &[Carry], time: impl Fn(u32) -> Time) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    for carry in entries {
        match (*carry, steps.last_mut()) {
            (Carry::Keep { old, time: now }, last) if now == time(old) => match last {
                Some(Step::Keep(first, len)) if *first + *len == old => *len += 1,
                _ => steps.push(Step::Keep(old, 1)),
            },
            (Carry::Keep { old, time }, _) => steps.push(Step::Touch(old, time)),
            (Carry::Fresh(now), Some(Step::Fresh(len, time))) if *time == now => *len += 1,
            (Carry::Fresh(time), _) => steps.push(Step::Fresh(1, time)),
        }
    }
    steps
}

/// The carry list that steps stand for, of an old listing with `len` entries; at most as many entries as ids could be given.
pub(super) fn carries(steps: &[Step], len: u32, time: impl Fn(u32) -> Time) -> Option<Vec<Carry>> {
    /// A tree object has no more entries than this, whatever it says.
    const MOST: usize = 1 << 28;
    let mut entries = Vec::new();
    for step in steps {
        match *step {
            Step::Keep(first, count) => {
                let end = first.checked_add(count).filter(|end| *end <= len)?;
                entries.extend((first..end).map(|old| Carry::Keep { old, time: time(old) }));
            }
            Step::Touch(old, time) if old < len => entries.push(Carry::Keep { old, time }),
            Step::Touch(..) => return None,
            Step::Fresh(count, time) => {
                if entries.len().saturating_add(count as usize) > MOST {
                    return None;
                }
                entries.extend((0..count).map(|_| Carry::Fresh(time)));
            }
        }
    }
    Some(entries)
}
