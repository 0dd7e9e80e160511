//! The file system against a model of it in plain maps, under random commits and whatever a kernel may ask in any order.
//!
//! - [`world`]: what must be where: which node a path is, which directories are dead, which snapshots are kept.
//! - [`client`]: a kernel that remembers names, attributes and half-read listings, and checks every answer against the world.

use std::collections::BTreeMap;

use gitmount_tests::torture::history::Thing;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

mod client;
mod world;

use client::{Client, Op};

const NAMES: [&str; 4] = ["a", "A", "b", "c"];

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn path() -> impl Strategy<Value = String> {
    prop::collection::vec(name(), 1..=3).prop_map(|names| names.join("/"))
}

/// Few contents, so that old ones come back.
fn thing() -> impl Strategy<Value = Option<Thing>> {
    prop_oneof![
        5 => (0..3u8, any::<bool>()).prop_map(|(n, executable)| Some(Thing::File(vec![n; usize::from(n) * 5], executable))),
        1 => (0..2u8).prop_map(|n| Some(Thing::Link(format!("to-{n}")))),
        2 => Just(None),
    ]
}

type Files = BTreeMap<String, Thing>;

/// Commits that each change a few paths of the one before: put there, or removed. What is in the way goes.
fn commits() -> impl Strategy<Value = Vec<Files>> {
    prop::collection::vec(prop::collection::vec((path(), thing()), 0..6), 2..8).prop_map(|all| {
        let mut files = Files::new();
        let change = |edits: Vec<(String, Option<Thing>)>| {
            for (path, thing) in edits {
                let below = format!("{path}/");
                files.retain(|other, _| *other != path && !other.starts_with(&below));
                if let Some(thing) = thing {
                    files.retain(|other, _| !path.starts_with(&format!("{other}/")));
                    files.insert(path, thing);
                }
            }
            files.clone()
        };
        all.into_iter().map(change).collect()
    })
}

fn op() -> impl Strategy<Value = Op> {
    let some = 0..1000usize;
    prop_oneof![
        8 => path().prop_map(Op::Walk),
        3 => (some.clone(), path()).prop_map(|(snapshot, path)| Op::WalkSnapshot(snapshot, path)),
        4 => (some.clone(), name()).prop_map(|(dir, name)| Op::Look(dir, name)),
        2 => some.clone().prop_map(Op::Begin),
        5 => (some.clone(), 1..6usize, any::<bool>()).prop_map(|(listing, lines, plus)| Op::List(listing, lines, plus)),
        3 => some.clone().prop_map(Op::Read),
        3 => some.clone().prop_map(Op::Forget),
        5 => some.prop_map(Op::Switch),
        1 => Just(Op::Restart),
    ]
}

#[test]
fn every_answer_is_that_of_the_model() {
    let cases = if std::env::var_os("GITMOUNT_TORTURE").is_some() { 3000 } else { 60 };
    let mut runner = TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() });
    let cases = (commits(), prop::collection::vec(op(), 10..120), 0..4usize);
    let run = runner.run(&cases, |(commits, ops, keep)| {
        let mut client = Client::new(&commits, keep);
        for op in &ops {
            client.run(op);
        }
        Ok(())
    });
    run.expect("answers as the model does");
}
