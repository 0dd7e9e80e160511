//! Which files differ between two trees, whatever the kernel knows of them.

use bstr::{BString, ByteVec};
use gitmount_store::error::Result;
use gitmount_store::ids::ObjectId;
use gitmount_store::objects::EntryKind;

use super::View;

impl View {
    /// The paths of files of `new` that `old` does not have in the same form, at most `limit` of them.
    pub fn changed_files(&self, old: ObjectId, new: ObjectId, limit: usize) -> Result<Vec<BString>> {
        let mut found = Vec::new();
        let mut work = vec![(BString::default(), Some(old), new)];
        while let Some((prefix, old, new)) = work.pop() {
            if old == Some(new) {
                continue;
            }
            let (before, after) = (old.map(|id| self.tree(id)).transpose()?, self.tree(new)?);
            for entry in after.entries() {
                let was = before.as_ref().and_then(|tree| tree.find(entry.name.as_ref()).map(|index| &tree.entries()[index]));
                let path = || {
                    let mut path = prefix.clone();
                    path.push_str(&entry.name);
                    path
                };
                match entry.kind {
                    EntryKind::Directory => {
                        let mut below = path();
                        below.push(b'/');
                        work.push((below, was.filter(|w| w.kind == EntryKind::Directory).map(|w| w.id), entry.id));
                    }
                    EntryKind::File | EntryKind::Executable if was.is_none_or(|w| (w.kind, w.id) != (entry.kind, entry.id)) => {
                        if found.len() == limit {
                            return Ok(found);
                        }
                        found.push(path());
                    }
                    _ => {}
                }
            }
        }
        Ok(found)
    }
}
