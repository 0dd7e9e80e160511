//! Listings. A cookie carries the version of the listing it came from, so that a reader who is halfway through when the ref moves goes on
//! with the listing it started: nothing skipped, nothing twice.

use std::sync::Arc;

use bstr::{BStr, ByteSlice};
use gitmount_store::objects::EntryKind;

use super::hidden::Hidden;
use super::{Attr, FileSystem, FsError, Result};
use crate::inode::{DirVersion, NodeId};

/// One line of a listing.
#[derive(Debug, Clone, Copy)]
pub struct Line<'a> {
    /// `d_ino`.
    pub node: NodeId,
    /// Where the listing goes on after this line.
    pub cookie: u64,
    /// The name.
    pub name: &'a BStr,
    /// What it is.
    pub kind: EntryKind,
    /// With attributes the kernel may link the entry; without it must look the name up. In a listing with attributes both are counted.
    pub attr: Option<Attr>,
}

/// Generations wrap, since cookies are signed 64-bit offsets.
const GENERATION: u32 = 0x7fff_ffff;
/// `.` and `..` come first.
const DOTS: u32 = 2;

fn cookie(version: &DirVersion, position: u32) -> u64 {
    u64::from(version.generation & GENERATION) << 32 | u64::from(position)
}

impl FileSystem {
    /// Gives `add` the lines of a listing after the one with cookie `after` (0: from the start) until it returns false, which means that
    /// the line did not fit. With `plus`, lines come with attributes and are counted as known to the kernel.
    pub fn list(&self, dir: NodeId, after: u64, plus: bool, add: &mut dyn FnMut(Line<'_>) -> bool) -> Result<()> {
        if let Some(hidden) = Hidden::of(dir) {
            self.hidden_list(hidden, after, plus, add);
            return Ok(());
        }
        let (generation, position) = ((after >> 32) as u32, after as u32);
        if self.node(dir)?.kind == EntryKind::Submodule {
            dots(dir, NodeId::ROOT, position, 0, add);
            return Ok(());
        }
        let (current, mut tree) = self.open(dir)?;
        let mut version = current.clone();
        if position > 0 && generation != version.generation & GENERATION {
            // Rather an error than names left out: the reader's listing is too many switches old.
            let older = self.view.table().listing(dir, generation).ok_or(FsError::Stale)?;
            tree = self.view.tree(older.tree)?;
            version = older;
        }
        if !dots(dir, self.view.table().parent(dir), position, cookie(&version, 0), add) {
            return Ok(());
        }
        let mut link = plus && Arc::ptr_eq(&version, &current);
        let from = position.saturating_sub(DOTS) as usize;
        if link
            && from >= tree.entries().len()
            && let Some(prefetch) = self.prefetch.get()
        {
            // The end is asked for when everything before it has been linked.
            prefetch.listed(dir, &version, &tree);
        }
        let mut fits = true;
        for (index, entry) in tree.entries().iter().enumerate().skip(from) {
            let node = version.entry(index).0;
            // A broken object is told when its own entry is asked for; the listing goes on.
            let mut attr = if link { self.entry_attr(&version, &tree, index).ok() } else { None };
            if attr.is_some() && !self.view.table().count(dir, &version, [index]) {
                // A switch came in between: from here on this is an older listing.
                (link, attr) = (false, None);
            }
            if plus && attr.is_none() {
                self.view.table().hold(node);
            }
            let cookie = cookie(&version, index as u32 + 1 + DOTS);
            if !add(Line { node, cookie, name: entry.name.as_bstr(), kind: entry.kind, attr }) {
                if plus {
                    self.view.table().forget(node, 1);
                }
                fits = false;
                break;
            }
        }
        if link
            && fits
            && let Some(prefetch) = self.prefetch.get()
        {
            // Who reads files while he lists asks for the end after them.
            prefetch.listing(dir);
        }
        Ok(())
    }
}

/// `.` and `..` where the page begins before them; false when the page is full.
pub(super) fn dots(dir: NodeId, parent: NodeId, position: u32, stamp: u64, add: &mut dyn FnMut(Line<'_>) -> bool) -> bool {
    [(1u32, ".", dir), (2, "..", parent)].into_iter().filter(|(at, ..)| position < *at).all(|(at, name, node)| {
        add(Line { node, cookie: stamp | u64::from(at), name: name.into(), kind: EntryKind::Directory, attr: None })
    })
}
