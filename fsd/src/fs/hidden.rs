//! `.gitmount/commit/<full id>/`: the kept snapshots by name. Reachable, but not listed at the root, so that no walk of the tree finds
//! everything several times.
//!
//! A name that is not there (yet) is an error and no cached absence: it may be there after the next switch.

use bstr::{BStr, ByteSlice};
use gitmount_store::objects::EntryKind;

use super::listing::{Line, dots};
use super::{Attr, DIR_LINKS, DIR_SIZE, FileSystem, FsError, Result};
use crate::inode::{Kept, NodeId, Time};
use crate::view::snapshots::HIDDEN_NAME;

/// The one name in `.gitmount`.
const COMMITS_NAME: &str = "commit";

/// A directory that is in no tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hidden {
    /// `.gitmount`
    Top,
    /// `.gitmount/commit`
    Commits,
}

impl Hidden {
    pub(super) fn of(node: NodeId) -> Option<Self> {
        match node {
            NodeId::HIDDEN => Some(Hidden::Top),
            NodeId::COMMITS => Some(Hidden::Commits),
            _ => None,
        }
    }

    fn node(self) -> NodeId {
        match self {
            Hidden::Top => NodeId::HIDDEN,
            Hidden::Commits => NodeId::COMMITS,
        }
    }
}

fn directory(node: NodeId, time: Time) -> Attr {
    Attr { node, kind: EntryKind::Directory, size: DIR_SIZE, time, nlink: DIR_LINKS }
}

fn root_of(kept: &Kept) -> Attr {
    directory(kept.node, kept.time)
}

impl FileSystem {
    /// Whether this name at the root leads to the snapshots. The root is loaded from then on, so that a switch tells when that changes.
    pub(super) fn leads_to_hidden(&self, parent: NodeId, name: &BStr) -> Result<bool> {
        Ok(parent == NodeId::ROOT && name == HIDDEN_NAME && self.open(parent)?.1.find(name).is_none())
    }

    pub(super) fn hidden_attr(&self, hidden: Hidden) -> Attr {
        directory(hidden.node(), self.view.commits_time())
    }

    pub(super) fn hidden_lookup(&self, parent: Hidden, name: &BStr) -> Result<Option<Attr>> {
        match parent {
            Hidden::Top if name == COMMITS_NAME => {
                self.view.commits_are_known();
                Ok(Some(self.hidden_attr(Hidden::Commits)))
            }
            Hidden::Top => Ok(None),
            Hidden::Commits => match self.view.table().find_kept(name) {
                Some(kept) => Ok(Some(root_of(&kept))),
                None => Err(FsError::NotFound),
            },
        }
    }

    /// As [`FileSystem::list`]. Snapshots come in the order in which they were first kept, and their nodes are the cookies.
    pub(super) fn hidden_list(&self, dir: Hidden, after: u64, plus: bool, add: &mut dyn FnMut(Line<'_>) -> bool) {
        let parent = if dir == Hidden::Top { NodeId::ROOT } else { NodeId::HIDDEN };
        let position = u32::try_from(after).unwrap_or(u32::MAX);
        if !dots(dir.node(), parent, position, 0, add) {
            return;
        }
        match dir {
            Hidden::Top if after < NodeId::COMMITS.0 => {
                self.view.commits_are_known();
                let attr = plus.then(|| self.hidden_attr(Hidden::Commits));
                let (node, name) = (NodeId::COMMITS, COMMITS_NAME.into());
                add(Line { node, cookie: node.0, name, kind: EntryKind::Directory, attr });
            }
            Hidden::Top => {}
            Hidden::Commits => {
                let mut all = self.view.table().kept();
                all.sort_unstable_by_key(|kept| kept.node);
                for kept in all.iter().filter(|kept| kept.node.0 > after) {
                    if plus {
                        self.view.table().hold(kept.node);
                    }
                    let (node, name) = (kept.node, kept.commit.to_string());
                    let attr = plus.then(|| root_of(kept));
                    if !add(Line { node, cookie: node.0, name: name.as_bytes().as_bstr(), kind: EntryKind::Directory, attr }) {
                        if plus {
                            self.view.table().forget(node, 1);
                        }
                        return;
                    }
                }
            }
        }
    }
}
