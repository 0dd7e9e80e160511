//! Small packs become one, without a look at what is needed: the work goes with what came since, not with the repository. The packs that
//! are left are each at least twice as big as the next smaller one, so that there are few, and each byte is rewritten only a few times.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use gix::hashtable::HashSet;

use super::files;
use crate::error::Result;
use crate::ids::ObjectId;
use crate::packing::{self, Counts};
use crate::repository::Repository;
use crate::repository::durable::disk;

/// Merges the small packs of a repository, whose lock is held.
pub(super) fn merge(repository: &Repository, stop: &AtomicBool) -> Result<()> {
    let objects = repository.objects();
    objects.relist()?;
    let directory = repository.pack_dir();
    let mut packs = Vec::new();
    for pack in objects.packs() {
        // Those of alternates are not ours to touch.
        if pack.path().parent() == Some(&directory) {
            packs.push((size(pack.path())?, pack));
        }
    }
    packs.sort_by_key(|(bytes, _)| *bytes);
    let sizes: Vec<u64> = packs.iter().map(|(bytes, _)| *bytes).collect();
    let (small, big) = packs.split_at(small(&sizes));
    if small.is_empty() {
        return Ok(());
    }
    let elsewhere = |id: &ObjectId| big.iter().any(|(_, pack)| pack.index().lookup(id).is_some());
    let ids: HashSet<ObjectId> =
        small.iter().flat_map(|(_, pack)| pack.index().iter()).map(|entry| entry.oid).filter(|id| !elsewhere(id)).collect();
    let new = packing::copy(&objects, ids.iter().copied(), &directory, &Counts::default(), stop)?;
    if let Some(new) = &new {
        files::check_index(&new.path, &ids, objects.hash())?;
    }
    let old: Vec<PathBuf> = small.iter().map(|(_, pack)| pack.path().to_owned()).collect();
    repository.record_packs(&old)?;
    files::remove_packs(&directory, &old, new.as_ref().map(|new| new.path.as_path()))?;
    objects.relist()
}

/// How many of the packs of these sizes, ascending, are to become one.
fn small(sizes: &[u64]) -> usize {
    let grows = |at: usize| sizes[at] >= sizes[at - 1].saturating_mul(2);
    let Some(mut count) = (1..sizes.len()).rev().find(|at| !grows(*at)).map(|at| at + 1) else { return 0 };
    // What comes out of it must fit below the next one.
    let mut sum: u64 = sizes[..count].iter().sum();
    while count < sizes.len() && sizes[count] < sum.saturating_mul(2) {
        sum += sizes[count];
        count += 1;
    }
    count
}

/// The bytes of all packs, and of the biggest one.
pub(super) fn sizes(repository: &Repository) -> Result<(u64, u64)> {
    let (mut all, mut biggest) = (0, 0);
    for pack in repository.objects().packs() {
        let bytes = size(pack.path())?;
        all += bytes;
        biggest = biggest.max(bytes);
    }
    Ok((all, biggest))
}

fn size(path: &Path) -> Result<u64> {
    match std::fs::metadata(path) {
        Ok(meta) => Ok(meta.len()),
        // Gone since it was listed.
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(err) => Err(disk(path, "read", err)),
    }
}

#[cfg(test)]
mod tests {
    use super::small;

    #[test]
    fn big_packs_stay_and_what_is_left_is_geometric() {
        for (sizes, merged) in [
            (&[][..], 0),
            (&[5], 0),
            (&[5, 5], 2),
            (&[1, 2, 4, 8], 0),
            (&[1, 1, 1, 1000], 3),
            (&[1, 1, 1, 5, 1000], 4),
            (&[1, 1, 1, 6, 1000], 3),
            (&[10, 10, 1000, 1100], 4),
        ] {
            assert_eq!(small(sizes), merged, "{sizes:?}");
        }
        // Packs of one size come and go: few are ever there, and each byte is rewritten seldom.
        let (mut packs, mut written) = (vec![1_000_000], 0);
        for round in 0..10_000 {
            packs.insert(0, 100 + round % 7);
            packs.sort_unstable();
            if packs.len() > super::super::MANY_PACKS {
                let count = small(&packs);
                let sum = packs.drain(..count).sum();
                written += sum;
                packs.push(sum);
                packs.sort_unstable();
                assert!(packs.len() <= 16, "{packs:?}");
            }
        }
        assert!(written < 20 * 1_030_000, "{written} bytes were written");
    }
}
