//! What a tree and everything below it amount to.

use std::collections::HashMap;

use gitmount_store::error::Result;
use gitmount_store::ids::ObjectId;
use gitmount_store::objects::{Entry, EntryKind};

/// Sums up `root` from below: `of` gives what one tree amounts to, from what was summed up for its sub-directories. `None` when `stop` says
/// so. A tree that stands at many places is summed up once: a few of them nested could claim more files than anybody can count.
///
/// # Errors
/// What `read` and `of` give.
pub fn sum<T, L>(
    root: ObjectId,
    read: impl Fn(ObjectId) -> Result<L>,
    entries: fn(&L) -> &[Entry],
    stop: &dyn Fn() -> bool,
    mut of: impl FnMut(&L, &HashMap<ObjectId, T>) -> Result<T>,
) -> Result<Option<T>> {
    let mut known: HashMap<ObjectId, T> = HashMap::new();
    let mut work = vec![root];
    while let Some(id) = work.last().copied() {
        if stop() {
            return Ok(None);
        }
        if known.contains_key(&id) {
            work.pop();
            continue;
        }
        let tree = read(id)?;
        let below = entries(&tree).iter().filter(|entry| entry.kind == EntryKind::Directory).map(|entry| entry.id);
        let mut missing: Vec<_> = below.filter(|id| !known.contains_key(id)).collect();
        if missing.is_empty() {
            let summed = of(&tree, &known)?;
            known.insert(id, summed);
            work.pop();
        } else {
            missing.sort_unstable();
            missing.dedup();
            work.append(&mut missing);
        }
    }
    Ok(known.remove(&root))
}
