//! The file system's answers, without any FUSE type: attributes, look-ups, listings, reads, extended attributes.
//!
//! Promises: what is answered about a node never changes while the kernel knows it; a broken object fails its own entry and nothing else;
//! a whole big blob is never in memory; no answer waits for the network.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use bstr::{BStr, BString, ByteSlice, ByteVec};
use gitmount_store::StoreError;
use gitmount_store::error::Fault;
use gitmount_store::ids::ObjectId;
use gitmount_store::objects::EntryKind;
use parking_lot::Mutex;

use crate::inode::{DirVersion, Location, NodeId, Time};
use crate::view::trees::Listing;
use crate::view::{Node, View, sums};

pub mod blobs;
mod hidden;
pub mod listing;
pub mod prefetch;
pub mod spool;

use blobs::Blobs;
use hidden::Hidden;
use prefetch::{PageCache, Prefetch};
use spool::Spool;

/// Why an answer is an error.
#[derive(Debug, thiserror::Error)]
pub enum FsError {
    /// There is no such entry, or the directory was removed by a commit.
    #[error("no such entry")]
    NotFound,
    /// The node is not known (any more).
    #[error("the node is stale")]
    Stale,
    /// The node is no directory.
    #[error("not a directory")]
    NotDirectory,
    /// The node is a directory.
    #[error("is a directory")]
    IsDirectory,
    /// The node is no symbolic link.
    #[error("not a symbolic link")]
    NotLink,
    /// A link's target is longer than Linux allows (4095 bytes).
    #[error("the link target is too long")]
    LinkTooLong,
    /// There is no such extended attribute.
    #[error("no such attribute")]
    NoAttribute,
    /// The disk that spools big files is full.
    #[error("no space left to spool a big file")]
    NoSpace,
    /// An object is missing or broken.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The layer's result.
pub type Result<T> = std::result::Result<T, FsError>;

/// Attributes of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// The node; also `st_ino`.
    pub node: NodeId,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// mtime, and so ctime and atime.
    pub time: Time,
    /// Links: 1, or 0 when it is no longer in the tree.
    pub nlink: u32,
}

impl Attr {
    /// Whether it is shown as a directory.
    pub fn is_dir(&self) -> bool {
        is_dir(self.kind)
    }
}

/// Whether entries of this kind are shown as directories.
pub fn is_dir(kind: EntryKind) -> bool {
    matches!(kind, EntryKind::Directory | EntryKind::Submodule)
}

/// Sizes of the whole tree, for `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// Bytes of all files.
    pub bytes: u64,
    /// Entries.
    pub files: u64,
}

/// Bytes that `st_size` of a directory says, as on other file systems.
const DIR_SIZE: u64 = 4096;
/// Links of a directory: like some other file systems (Btrfs) it does not count its sub-directories. Programs then make no
/// assumption: with a count, `find` asks for the type of the file system (`statfs`, a message) before it relies on it.
const DIR_LINKS: u32 = 1;
/// The longest link target Linux reads.
const LINK_MAX: usize = 4095;
/// A handler looks again this often when switches keep coming in between.
const ATTEMPTS: usize = 64;

/// The file system of one view.
#[derive(Debug)]
pub struct FileSystem {
    view: Arc<View>,
    blobs: Arc<Blobs>,
    prefetch: OnceLock<Arc<Prefetch>>,
    spool: Spool,
    usage: Mutex<Option<(ObjectId, Usage)>>,
}

impl FileSystem {
    /// The file system that shows `view`.
    pub fn new(view: Arc<View>) -> Self {
        let options = view.options();
        FileSystem {
            blobs: Arc::new(Blobs::new(view.objects().clone(), options.caches.clone())),
            prefetch: OnceLock::new(),
            spool: Spool::new(view.objects().clone(), options.spool_dir.clone(), options.spool_limit),
            usage: Mutex::new(None),
            view,
        }
    }

    /// The view.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// From now on files are put into `cache` ahead of a reader that walks the tree.
    pub fn prefetch_into(&self, cache: Arc<dyn PageCache>) {
        self.prefetch.get_or_init(|| Arc::new(Prefetch::new(self.view.clone(), self.blobs.clone(), cache)));
    }

    /// Tells the prefetcher which file a reader asks for.
    fn asked(&self, node: &Node) {
        if let (Some(prefetch), Location::Entry { dir, version, index }, Some(listing)) =
            (self.prefetch.get(), &node.location, &node.listing)
        {
            prefetch.asked(*dir, *index, version, listing);
        }
    }

    fn node(&self, id: NodeId) -> Result<Node> {
        self.view.node(id)?.ok_or(FsError::Stale)
    }

    /// Attributes of a node.
    pub fn attr(&self, id: NodeId) -> Result<Attr> {
        if let Some(hidden) = Hidden::of(id) {
            return Ok(self.hidden_attr(hidden));
        }
        let node = self.node(id)?;
        let mut attr = attr_of(node.id, node.kind, node.time, || node.size(self.view.objects()))?;
        if matches!(node.location, Location::Orphan(_)) {
            attr.nlink = 0;
        }
        Ok(attr)
    }

    /// Attributes of an entry of a directory's current listing.
    fn entry_attr(&self, version: &DirVersion, listing: &Listing, index: usize) -> Result<Attr> {
        let (node, time) = version.entry(index);
        attr_of(node, listing.entries()[index].kind, time, || listing.size(index, self.view.objects()))
    }

    /// The current listing of a directory with its tree, or an error that says why there is none.
    fn open(&self, id: NodeId) -> Result<(Arc<DirVersion>, Arc<Listing>)> {
        for _ in 0..ATTEMPTS {
            let node = self.node(id)?;
            match (node.kind, &node.location) {
                (_, Location::Orphan(_)) => return Err(if is_dir(node.kind) { FsError::NotFound } else { FsError::NotDirectory }),
                (EntryKind::Directory, _) => {}
                _ => return Err(FsError::NotDirectory),
            }
            if let Some(open) = self.view.open_dir(&node)? {
                return Ok(open);
            }
        }
        Err(FsError::Stale)
    }

    /// Looks `name` up in a directory and counts it as known to the kernel; `Ok(None)` when there is none (which may be cached).
    pub fn lookup(&self, parent: NodeId, name: &BStr) -> Result<Option<Attr>> {
        if let Some(hidden) = Hidden::of(parent) {
            return self.hidden_lookup(hidden, name);
        }
        if self.leads_to_hidden(parent, name)? {
            return Ok(Some(self.hidden_attr(Hidden::Top)));
        }
        if self.node(parent)?.kind == EntryKind::Submodule {
            return Ok(None);
        }
        for _ in 0..ATTEMPTS {
            let (version, tree) = self.open(parent)?;
            let Some(index) = tree.find(name) else { return Ok(None) };
            let attr = self.entry_attr(&version, &tree, index)?;
            if self.view.table().count(parent, &version, [index]) {
                return Ok(Some(attr));
            }
        }
        Err(FsError::Stale)
    }

    /// The kernel forgets `count` look-ups of a node.
    pub fn forget(&self, node: NodeId, count: u64) {
        self.view.table().forget(node, count);
    }

    /// The target of a symbolic link, byte for byte.
    pub fn link(&self, id: NodeId) -> Result<Vec<u8>> {
        let node = self.node(id)?;
        if node.kind != EntryKind::Symlink {
            return Err(FsError::NotLink);
        }
        match self.view.objects().blob_size(node.object)? {
            // Linux knows no link without a target.
            0 => return Err(FsError::NotFound),
            size if size > LINK_MAX as u64 => return Err(FsError::LinkTooLong),
            _ => {}
        }
        Ok(self.view.objects().blob(node.object)?)
    }

    /// Reads up to `size` bytes at `offset`; `done` gets them, now or from another thread once a big file is inflated that far.
    pub fn read(&self, id: NodeId, offset: u64, size: u32, done: impl FnOnce(Result<&[u8]>) + Send + 'static) {
        let node = match self.node(id) {
            Ok(node) if is_dir(node.kind) => return done(Err(FsError::IsDirectory)),
            Ok(node) => node,
            Err(error) => return done(Err(error)),
        };
        if offset == 0 {
            self.asked(&node);
        }
        let object = node.object;
        let total = match node.size(self.view.objects()) {
            Ok(total) => total,
            Err(error) => return done(Err(error.into())),
        };
        if total > self.view.options().spool_threshold {
            return self.spool.read(object, total, offset, size, Box::new(done));
        }
        let whole = offset == 0 && u64::from(size) >= total;
        let blob = if whole { self.blobs.share(object) } else { self.blobs.get(object) };
        match blob {
            Ok(blob) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(blob.len());
                let to = from.saturating_add(size as usize).min(blob.len());
                done(Ok(&blob[from..to]));
            }
            Err(error) => done(Err(error.into())),
        }
    }

    /// The value of an extended attribute.
    pub fn xattr(&self, id: NodeId, name: &BStr) -> Result<BString> {
        match name.as_bytes() {
            _ if Hidden::of(id).is_some() => Err(FsError::NoAttribute),
            b"user.git.oid" => Ok(self.node(id)?.object.to_string().into()),
            b"user.git.commit" => self.commit_at(id).ok_or(FsError::NoAttribute),
            b"user.git.ref" if id == NodeId::ROOT => Ok(self.view.options().ref_name.as_str().into()),
            _ => Err(FsError::NoAttribute),
        }
    }

    /// The names of a node's extended attributes, each ended by NUL.
    pub fn xattr_names(&self, id: NodeId) -> BString {
        if Hidden::of(id).is_some() {
            return BString::default();
        }
        let mut names = BString::from("user.git.oid\0");
        if self.commit_at(id).is_some() {
            names.push_str("user.git.commit\0");
        }
        if id == NodeId::ROOT {
            names.push_str("user.git.ref\0");
        }
        names
    }

    /// The commit whose root a node is.
    fn commit_at(&self, id: NodeId) -> Option<BString> {
        let commit = if id == NodeId::ROOT { self.view.current().commit } else { self.view.table().kept_at(id)?.commit };
        Some(commit.to_string().into())
    }

    /// The sizes below `root`.
    fn usage_of(&self, root: ObjectId) -> Result<Usage> {
        let usage = sums::sum(
            root,
            |id| self.view.tree(id),
            |tree| tree.entries(),
            &|| false,
            |tree, known: &HashMap<ObjectId, Usage>| {
                let mut usage = Usage::default();
                for (index, entry) in tree.entries().iter().enumerate() {
                    let part = match entry.kind {
                        EntryKind::Directory => known.get(&entry.id).copied().unwrap_or_default(),
                        EntryKind::Submodule => Usage::default(),
                        _ => Usage { bytes: tree.size(index, self.view.objects()).unwrap_or(0), files: 0 },
                    };
                    usage.bytes = usage.bytes.saturating_add(part.bytes);
                    usage.files = usage.files.saturating_add(part.files).saturating_add(1);
                }
                Ok(usage)
            },
        )?;
        Ok(usage.unwrap_or_default())
    }

    /// Sizes of the whole tree; computed once a snapshot.
    pub fn usage(&self) -> Result<Usage> {
        let root = self.view.current().root;
        if let Some((known, usage)) = *self.usage.lock()
            && known == root
        {
            return Ok(usage);
        }
        let usage = self.usage_of(root)?;
        *self.usage.lock() = Some((root, usage));
        Ok(usage)
    }
}

/// Attributes of something in the tree.
fn attr_of(node: NodeId, kind: EntryKind, time: Time, size: impl FnOnce() -> gitmount_store::error::Result<u64>) -> Result<Attr> {
    let (size, nlink) = match kind {
        EntryKind::Directory | EntryKind::Submodule => (DIR_SIZE, DIR_LINKS),
        EntryKind::File | EntryKind::Executable | EntryKind::Symlink => (size()?, 1),
    };
    Ok(Attr { node, kind, size, time, nlink })
}

/// A disk-full error of the store as the file system's own, everything else as it is.
fn disk(error: StoreError) -> FsError {
    if error.fault() == Fault::Disk { FsError::NoSpace } else { FsError::Store(error) }
}
