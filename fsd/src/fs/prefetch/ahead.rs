//! Which directories a walk will list next, and the files in them that are inflated before it does.
//!
//! Programs that read a tree list a directory, read its files and go into its sub-directories in the order of the listing. That order is
//! followed here through the trees, some directories and a window of bytes ahead. The kernel does not know these files yet, so they wait
//! in the blob cache until their directory is listed. Each listing that was foreseen widens the window, another one narrows it.

use std::collections::VecDeque;
use std::sync::Arc;

use gitmount_store::ids::ObjectId;
use gitmount_store::objects::EntryKind;

use super::{is_file, is_stored};
use crate::fs::blobs::Blobs;
use crate::inode::{Location, NodeId};
use crate::view::View;
use crate::view::trees::Listing;

/// The smallest window, in bytes, and the largest: half of the blob cache.
const WINDOW: (u64, u64) = (256 << 10, 4 << 20);
/// Directories that may be planned.
const PLANNED: usize = 256;

/// The way a walk is expected to go.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    window: u64,
    /// Bytes that are kept for directories that were not listed yet.
    bytes: u64,
    /// The directories whose entries come next, innermost last.
    frames: Vec<Frame>,
    /// In the order in which they will be listed.
    planned: VecDeque<Planned>,
}

#[derive(Debug)]
struct Frame {
    listing: Arc<Listing>,
    next: usize,
}

#[derive(Debug)]
struct Planned {
    tree: ObjectId,
    listing: Arc<Listing>,
    next: usize,
    kept: Vec<(ObjectId, u64)>,
}

impl Ahead {
    /// The walk listed `dir`, which shows `tree`.
    pub(super) fn listed(&mut self, view: &View, blobs: &Blobs, dir: NodeId, tree: ObjectId) {
        let Some(at) = self.planned.iter().position(|planned| planned.tree == tree) else {
            let narrower = if self.window / 4 < WINDOW.0 { 0 } else { self.window / 4 };
            self.window = if self.follows() { narrower } else { WINDOW.0 };
            self.clear(blobs);
            self.frames = path(view, dir).unwrap_or_default();
            return;
        };
        for (position, planned) in self.planned.drain(..=at).enumerate() {
            for (id, size) in planned.kept {
                self.bytes -= size;
                if position < at {
                    blobs.forget(id);
                }
            }
        }
        self.window = (self.window * 2).clamp(WINDOW.0, WINDOW.1);
    }

    /// The walk reads files of `dir`: it goes on from there, unless it is followed already.
    pub(super) fn reads(&mut self, view: &View, dir: NodeId) {
        if !self.follows() {
            self.window = WINDOW.0;
            self.frames = path(view, dir).unwrap_or_default();
        }
    }

    fn follows(&self) -> bool {
        !self.frames.is_empty() || !self.planned.is_empty()
    }

    /// The next blob to keep; `None` when enough is.
    pub(super) fn next(&mut self, view: &View) -> Option<ObjectId> {
        loop {
            if let Some(last) = self.planned.back_mut() {
                for (index, entry) in last.listing.entries().iter().enumerate().skip(last.next) {
                    let size = if is_file(entry) { last.listing.size(index, view.objects()).unwrap_or(0) } else { 0 };
                    if is_stored(size) {
                        if self.bytes + size > self.window {
                            return None;
                        }
                        self.bytes += size;
                        last.kept.push((entry.id, size));
                        last.next = index + 1;
                        return Some(entry.id);
                    }
                    last.next = index + 1;
                }
            }
            // With a closed window one directory is foreseen, to see whether it comes.
            if self.planned.len() >= if self.window == 0 { 1 } else { PLANNED } {
                return None;
            }
            let frame = self.frames.last_mut()?;
            let mut rest = frame.listing.entries().iter().enumerate().skip(frame.next);
            let Some((index, below)) = rest.find(|(_, entry)| entry.kind == EntryKind::Directory) else {
                self.frames.pop();
                continue;
            };
            frame.next = index + 1;
            let Ok(listing) = view.tree(below.id) else { continue };
            self.planned.push_back(Planned { tree: below.id, listing: listing.clone(), next: 0, kept: Vec::new() });
            self.frames.push(Frame { listing, next: 0 });
        }
    }

    /// Forgets the way and what was kept for it.
    pub(super) fn clear(&mut self, blobs: &Blobs) {
        for (id, _) in self.planned.drain(..).flat_map(|planned| planned.kept) {
            blobs.forget(id);
        }
        self.frames.clear();
        self.bytes = 0;
    }
}

/// Where a walk goes on that has just listed `dir`: in it, then after it in its parents.
fn path(view: &View, dir: NodeId) -> Option<Vec<Frame>> {
    let version = view.table().dir(dir)?;
    let mut frames = vec![Frame { listing: view.tree(version.tree).ok()?, next: 0 }];
    let mut at = dir;
    while let Location::Entry { dir, version, index } = view.table().locate(at)? {
        frames.push(Frame { listing: view.tree(version.tree).ok()?, next: index + 1 });
        at = dir;
    }
    frames.reverse();
    Some(frames)
}
