//! What a tree holds: how much, for statistics, and what of it is not served as one may expect.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use gitmount_store::error::Result;
use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::objects::{EntryKind, Objects};

use super::events::{Diary, Kind};
use super::shown::{Shown, lock};
use crate::fuse::Mount;
use crate::view::sums;

/// How long a publish waits for what there is to say about its tree; later it is told by an event.
const SAID_AT_ONCE: Duration = Duration::from_millis(100);

/// Attribute files above this are not looked into.
const LONGEST: u64 = 1 << 20;

/// What was counted of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Measured {
    /// Bytes of all files and links.
    pub bytes: u64,
    /// Entries, with the root.
    pub inodes: u64,
    /// Submodules.
    pub submodules: u64,
    /// Whether its attributes put files into LFS.
    pub lfs: bool,
}

impl Measured {
    /// Counts a tree, with the sizes of its files only when they are wanted; gives up when `stop` says so.
    fn of(objects: &Objects, root: ObjectId, sizes: bool, stop: &dyn Fn() -> bool) -> Result<Option<Self>> {
        sums::sum(
            root,
            |id| objects.tree(id),
            |tree| tree.entries(),
            stop,
            |tree, known: &HashMap<ObjectId, Measured>| {
                let mut measured = Measured { inodes: 1, ..Measured::default() };
                for entry in tree.entries() {
                    let part = match entry.kind {
                        EntryKind::Directory => known.get(&entry.id).copied().unwrap_or_default(),
                        EntryKind::Submodule => Measured { inodes: 1, submodules: 1, ..Measured::default() },
                        EntryKind::File | EntryKind::Executable | EntryKind::Symlink => {
                            let attributes = entry.name == ".gitattributes";
                            // A broken object costs its own size and nothing else.
                            let size = if sizes || attributes { objects.blob_size(entry.id).unwrap_or_default() } else { 0 };
                            let lfs = attributes && size < LONGEST && {
                                let text = objects.blob(entry.id).unwrap_or_default();
                                text.windows(b"filter=lfs".len()).any(|window| window == b"filter=lfs")
                            };
                            Measured { bytes: size, inodes: 1, lfs, ..Measured::default() }
                        }
                    };
                    measured.add(part);
                }
                Ok(measured)
            },
        )
    }

    fn add(&mut self, part: Measured) {
        self.bytes = self.bytes.saturating_add(part.bytes);
        self.inodes = self.inodes.saturating_add(part.inodes);
        self.submodules = self.submodules.saturating_add(part.submodules);
        self.lfs |= part.lfs;
    }

    /// What should be known of the tree, a sentence each.
    pub(super) fn notices(&self) -> Vec<String> {
        let mut notices = vec![];
        if self.submodules > 0 {
            let which = if self.submodules == 1 {
                "1 submodule, which is".to_owned()
            } else {
                format!("{} submodules, which are", self.submodules)
            };
            notices.push(format!("the tree has {which} shown as an empty directory"));
        }
        if self.lfs {
            notices.push("the tree has files in LFS, which are shown as their pointers".to_owned());
        }
        notices
    }
}

/// Counts what a view shows, on a thread of its own; what there is to say of it is told once. Waits a moment for the outcome.
pub(super) fn begin(view: &Arc<Shown>, wait: bool) {
    let Some(snapshot) = view.mount().map(|mount| mount.view().current()) else { return };
    {
        let mut state = lock(&view.measured);
        if state.running || state.commit == Some(snapshot.commit) {
            return;
        }
        state.running = true;
    }
    let (done, finished) = mpsc::channel::<()>();
    let counted = Arc::clone(view);
    let started = std::thread::Builder::new().name("measure".into()).spawn(move || {
        // One at a time: it is for reports only.
        let _turn = lock(&counted.context.measuring);
        let gone = || counted.targets().is_empty() && !counted.is_new();
        let measured = Measured::of(&counted.repository.objects(), snapshot.root, true, &gone);
        finish(&counted, snapshot.commit, measured);
        drop(done);
    });
    match started {
        Ok(_) if wait => drop(finished.recv_timeout(SAID_AT_ONCE)),
        Ok(_) => {}
        Err(error) => {
            lock(&view.measured).running = false;
            tracing::warn!(%error, "no thread can be started to count a tree");
        }
    }
}

/// Looks through what a mount without a daemon shows, on a thread of its own, and notes what there is to say of it.
pub(super) fn note(mount: &Arc<Mount>, diary: &Arc<Diary>) {
    let (objects, snapshot) = (mount.view().objects().clone(), mount.view().current());
    let (mount, diary) = (Arc::downgrade(mount), Arc::clone(diary));
    let started = std::thread::Builder::new().name("measure".into()).spawn(move || {
        let gone = || mount.upgrade().is_none_or(|mount| mount.is_finished());
        match Measured::of(&objects, snapshot.root, false, &gone) {
            Ok(measured) => {
                measured.unwrap_or_default().notices().into_iter().for_each(|said| diary.note(Kind::Notice, snapshot.commit, said))
            }
            Err(error) => tracing::warn!(%error, "the tree cannot be looked through"),
        }
    });
    if let Err(error) = started {
        tracing::warn!(%error, "no thread can be started to look through a tree");
    }
}

fn finish(view: &Shown, commit: CommitId, measured: Result<Option<Measured>>) {
    let mut state = lock(&view.measured);
    state.running = false;
    match measured {
        Ok(Some(measured)) => (state.commit, state.measured) = (Some(commit), Some(measured)),
        Ok(None) => return,
        Err(error) => {
            // Not tried again for this commit.
            state.commit = Some(commit);
            drop(state);
            return tracing::warn!(view = %view.id, %error, "the tree cannot be counted");
        }
    }
    drop(state);
    let notices = measured.ok().flatten().unwrap_or_default().notices();
    let fresh: Vec<String> = {
        let mut known = lock(&view.notices);
        let fresh = notices.iter().filter(|notice| !known.contains(notice)).cloned().collect();
        *known = notices;
        fresh
    };
    for notice in fresh {
        view.tell(Kind::Notice, notice);
    }
}

/// The last count of a view's tree.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Of which commit.
    commit: Option<CommitId>,
    /// What it was.
    pub(super) measured: Option<Measured>,
    running: bool,
}
