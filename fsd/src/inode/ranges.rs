//! Which directory an id of an unchanged directory's entry belongs to. Ids only grow, so a sorted list serves, at a third of a tree's
//! memory; what is removed stays as an empty range until half of the list is that.

use super::NodeId;

/// Ranges of ids, each with its directory.
#[derive(Debug, Default)]
pub(super) struct Ranges {
    list: Vec<Range>,
    removed: usize,
}

#[derive(Debug, Clone, Copy)]
struct Range {
    first: u64,
    dir: NodeId,
    /// Number of ids; 0 when it was removed.
    len: u32,
}

impl Ranges {
    /// Adds the `len` ids from `first` on; ranges never overlap, also not removed ones.
    pub(super) fn insert(&mut self, first: u64, dir: NodeId, len: u32) {
        let at = match self.list.last() {
            Some(last) if last.first > first => self.list.partition_point(|range| range.first < first),
            _ => self.list.len(),
        };
        self.list.insert(at, Range { first, dir, len });
    }

    /// Removes the range that begins with `first`.
    pub(super) fn remove(&mut self, first: u64) {
        let Ok(at) = self.list.binary_search_by_key(&first, |range| range.first) else { return };
        if std::mem::take(&mut self.list[at].len) > 0 {
            self.removed += 1;
        }
        if self.removed * 2 > self.list.len() {
            self.list.retain(|range| range.len > 0);
            self.list.shrink_to_fit();
            self.removed = 0;
        }
    }

    /// The directory of an id, and which entry of it.
    pub(super) fn find(&self, id: NodeId) -> Option<(NodeId, usize)> {
        let at = self.list.partition_point(|range| range.first <= id.0).checked_sub(1)?;
        let Range { first, dir, len } = self.list[at];
        (id.0 - first < u64::from(len)).then_some((dir, (id.0 - first) as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_inserted_is_found_until_it_is_removed() {
        let mut ranges = Ranges::default();
        // As ids come, and, after a restart, in any order.
        let firsts: Vec<u64> = (1..=100).chain((101..=200).rev()).map(|n| n * 10).collect();
        for (count, first) in firsts.iter().enumerate() {
            ranges.insert(*first, NodeId(count as u64), 4);
        }
        let find = |ranges: &Ranges, id: u64| ranges.find(NodeId(id));
        assert_eq!((find(&ranges, 9), find(&ranges, 14), find(&ranges, 2004)), (None, None, None));
        for (count, first) in firsts.iter().enumerate() {
            assert_eq!(find(&ranges, first + 3), Some((NodeId(count as u64), 3)));
        }
        for (count, first) in firsts.iter().enumerate() {
            ranges.remove(*first);
            ranges.remove(*first);
            assert_eq!(find(&ranges, *first), None);
            if let Some(next) = firsts.get(count + 1) {
                assert_eq!(find(&ranges, *next), Some((NodeId(count as u64 + 1), 0)));
            }
        }
        assert!(ranges.list.is_empty());
    }
}
