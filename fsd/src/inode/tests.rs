//! What node ids promise, without a kernel and without a repository.

use std::convert::Infallible;
use std::sync::Arc;

use gitmount_store::ids::ObjectId;
use gitmount_store::objects::EntryKind;

use super::*;

fn tree(n: u8) -> ObjectId {
    ObjectId::from_hex(format!("{n:040x}").as_bytes()).expect("forty digits")
}

const BIRTH: Time = Time(1_000_000_000_000_000_000);

fn table(len: u32) -> (Table, Arc<DirVersion>) {
    let table = Table::new(tree(1), BIRTH);
    let at = table.locate(NodeId::ROOT).expect("the root");
    let version = table.load(NodeId::ROOT, &at, tree(1), len).expect("loads");
    (table, version)
}

fn plan(old: &Arc<DirVersion>, entries: Vec<Carry>, gone: Vec<(u32, EntryKind, ObjectId)>) -> TablePlan {
    let dir = DirPlan { node: NodeId::ROOT, old: old.clone(), tree: tree(2), entries, gone };
    TablePlan { root: Some((tree(2), BIRTH)), dirs: vec![dir], ..TablePlan::default() }
}

fn apply(table: &Table, plan: TablePlan) {
    table.begin_switch();
    table.apply(plan, || {}, |_, _, _| Ok::<_, Infallible>(())).expect("applies");
}

#[test]
fn ids_are_one_range_and_unique() {
    let (table, root) = table(3);
    let ids: Vec<_> = (0..3).map(|i| root.entry(i).0).collect();
    assert_eq!(ids, [NodeId(4), NodeId(5), NodeId(6)]);
    let at = table.locate(ids[1]).expect("known");
    let sub = table.load(ids[1], &at, tree(9), 2).expect("loads");
    assert_eq!(sub.entry(0).0, NodeId(7));
    assert_eq!(table.parent(ids[1]), NodeId::ROOT);
    assert!(table.locate(NodeId(9)).is_none(), "past the last range");
    match table.locate(NodeId(8)) {
        Some(Location::Entry { dir, index, .. }) => assert_eq!((dir, index), (ids[1], 1)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_empty_directory_that_is_filled_takes_nothing_from_the_next_one() {
    let (table, root) = table(2);
    let [empty, full] = [0, 1].map(|index| root.entry(index).0);
    let load = |dir, id, len| table.load(dir, &table.locate(dir).expect("known"), id, len).expect("loads");
    let was = load(empty, tree(8), 0);
    let child = load(full, tree(9), 1).entry(0).0;
    let dir = DirPlan { node: empty, old: was, tree: tree(10), entries: vec![Carry::Fresh(BIRTH)], gone: vec![] };
    apply(&table, TablePlan { dirs: vec![dir], ..TablePlan::default() });
    assert!(matches!(table.locate(child), Some(Location::Entry { dir, index: 0, .. }) if dir == full));
}

#[test]
fn loading_twice_gives_the_first_ids() {
    let (table, root) = table(3);
    let at = table.locate(NodeId::ROOT).expect("the root");
    let again = table.load(NodeId::ROOT, &at, tree(1), 3).expect("loads");
    assert!(Arc::ptr_eq(&root, &again));
    assert!(table.load(NodeId::ROOT, &at, tree(7), 3).is_none(), "another tree than the one that is served");
}

#[test]
fn a_switch_keeps_ids_of_what_stays_and_orphans_what_the_kernel_knows() {
    let (table, root) = table(3);
    assert!(table.count(NodeId::ROOT, &root, [0, 1, 1]));
    let (kept, known, unknown) = (root.entry(0).0, root.entry(1).0, root.entry(2).0);
    let gone = vec![(1, EntryKind::File, tree(21)), (2, EntryKind::File, tree(22))];
    let later = Time(BIRTH.0 + 5);
    apply(&table, plan(&root, vec![Carry::Fresh(later), Carry::Keep { old: 0, time: BIRTH }], gone));

    let now = table.dir(NodeId::ROOT).expect("loaded");
    assert_eq!(now.entry(1), (kept, BIRTH));
    assert_eq!(now.lookups(1), 1, "counts move along");
    let fresh = now.entry(0).0;
    assert!(fresh > unknown, "a new id, never used before");
    assert_eq!(now.entry(0).1, later);
    assert!(matches!(table.locate(kept), Some(Location::Entry { index: 1, .. })));
    assert!(matches!(table.locate(known), Some(Location::Orphan(o)) if o.id == tree(21)));
    assert!(table.locate(unknown).is_none(), "nobody can ask for it");

    table.forget(known, 1);
    assert!(table.locate(known).is_some(), "one look-up is left");
    table.forget(known, 1);
    assert!(table.locate(known).is_none());
    assert!(!table.count(NodeId::ROOT, &root, [0]), "the old listing is no longer current");
    assert!(table.listing(NodeId::ROOT, root.generation).is_some_and(|v| Arc::ptr_eq(&v, &root)), "but can be read to its end");
}

#[test]
fn forgetting_more_than_was_counted_is_harmless() {
    let (table, root) = table(1);
    table.forget(root.entry(0).0, 7);
    table.forget(NodeId::ROOT, 1);
    table.forget(NodeId(999), 1);
    assert_eq!(root.lookups(0), 0);
}

#[test]
fn a_removed_directory_is_dead_and_its_files_stay_readable() {
    let (table, root) = table(1);
    let dir = root.entry(0).0;
    let at = table.locate(dir).expect("known");
    let sub = table.load(dir, &at, tree(5), 1).expect("loads");
    assert!(table.count(NodeId::ROOT, &root, [0]) && table.count(dir, &sub, [0]));
    let file = sub.entry(0).0;
    let mut plan = plan(&root, vec![], vec![(0, EntryKind::Directory, tree(5))]);
    plan.removed.push(RemovedDir { node: dir, old: sub, entries: vec![(EntryKind::File, tree(6))] });
    apply(&table, plan);
    assert!(matches!(table.locate(dir), Some(Location::Orphan(o)) if o.kind == EntryKind::Directory));
    assert!(matches!(table.locate(file), Some(Location::Orphan(o)) if o.id == tree(6)));
    assert!(table.dir(dir).is_none());
    assert_eq!(table.size(), (1, 2));
    table.forget(dir, 1);
    table.forget(file, 1);
    assert_eq!(table.size(), (1, 0), "nothing leaks");
}

#[test]
fn directories_loaded_during_a_switch_are_handed_over() {
    let (table, root) = table(2);
    table.begin_switch();
    let dir = root.entry(1).0;
    let at = table.locate(dir).expect("known");
    table.load(dir, &at, tree(5), 1).expect("loads");
    let mut seen = vec![];
    let plan = plan(&root, vec![Carry::Keep { old: 0, time: BIRTH }, Carry::Keep { old: 1, time: BIRTH }], vec![]);
    let applied = table.apply(
        plan,
        || {},
        |late, current, _| {
            assert!(late.iter().all(|d| current(*d).is_some()));
            seen = late.to_vec();
            Ok::<_, Infallible>(())
        },
    );
    assert!(applied.is_ok());
    assert_eq!(seen, [dir]);
}

#[test]
fn a_failed_switch_leaves_the_table_as_it_was() {
    let (table, root) = table(1);
    table.begin_switch();
    let dir = root.entry(0).0;
    let at = table.locate(dir).expect("known");
    table.load(dir, &at, tree(5), 1).expect("loads");
    assert_eq!(table.apply(plan(&root, vec![], vec![]), || {}, |_, _, _| Err("broken")), Err("broken"));
    assert!(table.dir(NodeId::ROOT).is_some_and(|v| Arc::ptr_eq(&v, &root)));
}

#[test]
fn only_the_last_listings_are_kept() {
    let (table, first) = table(1);
    let mut old = first.clone();
    for _ in 0..=OLDER_LISTINGS.1 {
        apply(&table, plan(&old, vec![Carry::Keep { old: 0, time: BIRTH }], vec![]));
        old = table.dir(NodeId::ROOT).expect("loaded");
    }
    assert!(table.listing(NodeId::ROOT, first.generation).is_none());
    assert!(table.listing(NodeId::ROOT, old.generation - 1).is_some());
}

#[test]
fn changed_files_get_a_later_second() {
    let second = 1_000_000_000;
    assert_eq!(Time(5 * second + 3).bump(Time(9 * second + 1)), Time(9 * second + 1));
    assert_eq!(Time(5 * second + 3).bump(Time(5 * second + 900)), Time(6 * second), "never within the second it had");
    assert_eq!(Time(5 * second).bump(Time(0)), Time(6 * second), "also when the clock went back");
}
