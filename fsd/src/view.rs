//! What a mount shows: the current snapshot behind one pointer, and the two-phase switch to the next.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;
use gitmount_store::StoreError;
use gitmount_store::error::{Fault, Result};
use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::{EntryKind, Objects};
use gitmount_store::path::RepoPath;
use parking_lot::Mutex;

use crate::inode::{DirVersion, Location, NodeId, Table, Time};

pub mod caches;
mod changes;
pub mod gate;
pub mod snapshots;
pub mod sums;
pub mod switch;
mod sync;
pub mod trees;

use caches::Caches;
use gate::Gate;
use trees::{Listing, Trees};

/// What a view is made from.
#[derive(Debug, Clone)]
pub struct ViewOptions {
    /// Sub-directory that becomes the root.
    pub path: RepoPath,
    /// What `user.git.ref` says on the root.
    pub ref_name: String,
    /// Where big blobs are spooled (unlinked files).
    pub spool_dir: PathBuf,
    /// Upper bound of all spooled bytes together (default 8 GiB).
    pub spool_limit: u64,
    /// Blobs above this many bytes are spooled (default 8 MiB).
    pub spool_threshold: u64,
    /// What is kept in memory; views of one process share it (default: its own).
    pub caches: Arc<Caches>,
    /// Owner shown on every entry.
    pub uid: u32,
    /// Group shown on every entry.
    pub gid: u32,
    /// Snapshots kept below `.gitmount/commit` beside the one that is served (default 3).
    pub keep_snapshots: usize,
    /// Where the node journal is kept, by which another process can resume the view; none keeps none.
    pub journal: Option<PathBuf>,
}

impl ViewOptions {
    /// The defaults: the whole tree, owned by the caller, spooling into `spool_dir`.
    pub fn new(ref_name: impl Into<String>, spool_dir: impl Into<PathBuf>) -> Self {
        ViewOptions {
            path: RepoPath::default(),
            ref_name: ref_name.into(),
            spool_dir: spool_dir.into(),
            spool_limit: 8 << 30,
            spool_threshold: 8 << 20,
            caches: Arc::default(),
            uid: nix::unistd::getuid().as_raw(),
            gid: nix::unistd::getgid().as_raw(),
            keep_snapshots: 3,
            journal: None,
        }
    }
}

/// An immutable commit and the tree that is served of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// The commit.
    pub commit: CommitId,
    /// The tree at the view's path.
    pub root: ObjectId,
}

/// What a switch did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Switched {
    /// The commit before.
    pub old: CommitId,
    /// The commit now served.
    pub new: CommitId,
    /// Names the kernel was told about.
    pub changed: usize,
    /// From the call to the new tree visible.
    pub took: Duration,
}

/// What a node is, right now.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its id.
    pub id: NodeId,
    /// What it is.
    pub kind: EntryKind,
    /// Its object.
    pub object: ObjectId,
    /// Its mtime.
    pub time: Time,
    /// Where it was found.
    pub location: Location,
    /// The tree it is an entry of.
    pub listing: Option<Arc<Listing>>,
}

impl Node {
    /// The size of a file or symbolic link.
    ///
    /// # Errors
    /// When its header cannot be read.
    pub fn size(&self, objects: &Objects) -> Result<u64> {
        match (&self.listing, &self.location) {
            (Some(listing), Location::Entry { index, .. }) => listing.size(*index, objects),
            _ => objects.blob_size(self.object),
        }
    }
}

/// A view. All methods may be called from any thread.
#[derive(Debug)]
pub struct View {
    objects: Objects,
    options: ViewOptions,
    table: Table,
    gate: Gate,
    trees: Trees,
    snapshot: ArcSwap<Snapshot>,
    switching: Mutex<()>,
    /// Whether the kernel may know `.gitmount/commit`.
    commits_known: AtomicBool,
    /// When the list of kept snapshots changed, as [`Time`].
    commits_time: AtomicI64,
    /// Whether it was said that the tree has a `.gitmount` of its own.
    said_hidden: AtomicBool,
}

impl View {
    /// A view of `commit`.
    ///
    /// # Errors
    /// `NotFound` when `options.path` is no directory of the commit.
    pub fn new(objects: Objects, commit: CommitId, options: ViewOptions) -> Result<Arc<Self>> {
        let info = objects.commit(commit)?;
        let root = objects.tree_at(info.tree, &options.path)?;
        // A root that cannot be shown is told now, not at the first look.
        objects.tree(root)?;
        let time = time_of(info.time);
        let mut table = Table::new(root, time);
        table.keep(commit, root, time);
        if let Some(path) = &options.journal {
            table.write_journal(path);
        }
        Ok(Self::over(table, Snapshot { commit, root }, time, objects, options))
    }

    /// The view that another process served, by the journal at `options.journal`: every node is what it was. What that process served must
    /// still be in `objects`.
    ///
    /// # Errors
    /// When there is no journal that can be used, or it does not belong to these options; the mount has to be made anew then.
    pub fn resume(objects: Objects, options: ViewOptions) -> Result<Arc<Self>> {
        let unusable = |why: String| StoreError::new(Fault::Corrupt, why);
        let path = options.journal.as_ref().ok_or_else(|| unusable("a view without a journal cannot be resumed".into()))?;
        let (table, served) = Table::restore(path).map_err(|error| unusable(error.to_string()).caused_by(error))?;
        let commit = served.commit;
        let root = objects.tree_at(objects.commit(commit)?.tree, &options.path)?;
        if root != served.root {
            return Err(unusable(format!("the node journal {} is of another view: the mount has to be made anew", path.display())));
        }
        objects.tree(root)?;
        let view = Self::over(table, Snapshot { commit, root }, time_of(SystemTime::now()), objects, options);
        // Who asked the process before is not known.
        view.commits_are_known();
        Ok(view)
    }

    fn over(table: Table, snapshot: Snapshot, commits_time: Time, objects: Objects, options: ViewOptions) -> Arc<Self> {
        let view = Arc::new(View {
            table,
            gate: Gate::default(),
            trees: Trees::new(objects.clone(), options.caches.clone()),
            snapshot: ArcSwap::from_pointee(snapshot),
            switching: Mutex::new(()),
            commits_known: AtomicBool::new(false),
            commits_time: AtomicI64::new(commits_time.0),
            said_hidden: AtomicBool::new(false),
            objects,
            options,
        });
        view.say_if_hidden();
        view
    }

    /// What is wrong with writing the node journal, while something is: the view goes on, but could not be resumed.
    pub fn journal_error(&self) -> Option<String> {
        self.table.journal_error()
    }

    /// The snapshot served now.
    pub fn current(&self) -> Snapshot {
        **self.snapshot.load()
    }

    /// What it was made from.
    pub fn options(&self) -> &ViewOptions {
        &self.options
    }

    /// Its objects.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// Its node table.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// The gate that every handler passes whose reply depends on the snapshot.
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// A decoded tree, from the cache when it is there.
    pub fn tree(&self, id: ObjectId) -> Result<Arc<Listing>> {
        self.trees.get(id)
    }

    /// What `node` is; `Ok(None)` when it is not known.
    pub fn node(&self, id: NodeId) -> Result<Option<Node>> {
        let Some(location) = self.table.locate(id) else { return Ok(None) };
        let (kind, object, time, listing) = match &location {
            Location::Root(tree, time) => (EntryKind::Directory, *tree, *time, None),
            Location::Orphan(orphan) => (orphan.kind, orphan.id, orphan.time, None),
            Location::Entry { version, index, .. } => {
                let tree = self.tree(version.tree)?;
                let entry = &tree.entries()[*index];
                (entry.kind, entry.id, version.entry(*index).1, Some(tree.clone()))
            }
        };
        Ok(Some(Node { id, kind, object, time, location, listing }))
    }

    /// The current version of directory `node` and its tree, loading it on first use; `Ok(None)` when a switch came in between or the node
    /// is no live directory: look at the node again.
    pub fn open_dir(&self, node: &Node) -> Result<Option<(Arc<DirVersion>, Arc<Listing>)>> {
        if let Some(version) = self.table.dir(node.id) {
            let tree = self.tree(version.tree)?;
            return Ok(Some((version, tree)));
        }
        let tree = self.tree(node.object)?;
        let len = u32::try_from(tree.entries().len()).unwrap_or(u32::MAX);
        Ok(self.table.load(node.id, &node.location, node.object, len).map(|version| (version, tree)))
    }
}

/// A system time as [`Time`], clamped to the years 1970 to 2200: later ones would leave no room for the times of switches.
pub fn time_of(time: SystemTime) -> Time {
    const YEAR_2200: Duration = Duration::from_secs(7_258_118_400);
    let after = time.duration_since(UNIX_EPOCH).unwrap_or_default().min(YEAR_2200);
    Time(i64::try_from(after.as_nanos()).unwrap_or(i64::MAX))
}
