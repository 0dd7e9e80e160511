//! Restarts without a kernel: a file system over a restored view answers as the one before.
//!
//! Commits, walks, forgets and restarts come in random order; every node that the kernel may know is compared.

use std::collections::BTreeMap;
use std::sync::Mutex;

use anyhow::Result;
use bstr::BStr;
use gitmount_fsd::fs::{Attr, FileSystem};
use gitmount_fsd::inode::NodeId;
use gitmount_fsd::view::switch::Kernel;
use gitmount_fsd::view::{View, ViewOptions};
use gitmount_store::ids::CommitId;
use gitmount_store::local::LocalRepository;
use gitmount_tests::git::Repo;
use gitmount_tests::scratch;
use gitmount_tests::torture::history::{History, Random};

struct Nobody;

impl Kernel for Nobody {
    fn expire(&self, _: NodeId, _: &BStr) {}
    fn invalidate(&self, _: NodeId) {}
}

/// Everything below `dir`, as a kernel would come to know it: node → how often it was looked up.
fn walk(fs: &FileSystem, dir: NodeId, random: &mut Random, known: &mut BTreeMap<NodeId, u64>) {
    let below = Mutex::new(Vec::new());
    let listed = fs.list(dir, 0, true, &mut |line| {
        if let Some(attr) = line.attr.filter(|_| ![".", ".."].map(BStr::new).contains(&line.name)) {
            below.lock().expect("no panic").push(attr);
        }
        true
    });
    listed.expect("lists");
    for attr in below.into_inner().expect("no panic") {
        *known.entry(attr.node).or_default() += 1;
        if attr.is_dir() && random.below(3) > 0 {
            walk(fs, attr.node, random, known);
        }
    }
}

fn answers(fs: &FileSystem, known: &BTreeMap<NodeId, u64>) -> Vec<(Attr, String, Option<Vec<String>>)> {
    let nodes = known.keys().chain([&NodeId::ROOT]);
    let answers = nodes.map(|node| {
        let attr = fs.attr(*node).unwrap_or_else(|error| panic!("{node:?}: {error}"));
        let oid = fs.xattr(*node, "user.git.oid".into()).expect("has one").to_string();
        let mut names = Vec::new();
        let listed = fs.list(*node, 0, false, &mut |line| {
            names.push(format!("{} {:?} {} {}", line.name, line.node, line.cookie, line.kind as u8));
            true
        });
        (attr, oid, listed.ok().map(|()| names))
    });
    answers.collect()
}

#[test]
fn every_known_node_answers_as_before() -> Result<()> {
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    let history = History::write(&repo, 30, 3)?;
    let repository = LocalRepository::discover(&repo.git_dir())?;
    let mut options = ViewOptions::new("main", dir.path().join("spool"));
    options.journal = Some(dir.path().join("nodes"));
    let commit = |n: usize| CommitId::parse(&history.ids[n]);
    let mut fs = FileSystem::new(View::new(repository.objects(), commit(0)?, options.clone())?);
    let (mut random, mut known) = (Random(11), BTreeMap::new());
    for _ in 0..150 {
        match random.below(5) {
            0 | 1 => walk(&fs, NodeId::ROOT, &mut random, &mut known),
            2 => {
                fs.view().switch_to(commit(random.below(history.ids.len()))?, &Nobody)?;
            }
            3 => {
                let forgotten: Vec<_> = known.iter().filter(|_| random.below(3) == 0).map(|(node, count)| (*node, *count)).collect();
                for (node, count) in forgotten {
                    fs.forget(node, count);
                    known.remove(&node);
                }
            }
            _ => {
                let (before, served) = (answers(&fs, &known), fs.view().current());
                fs = FileSystem::new(View::resume(repository.objects(), options.clone())?);
                assert_eq!(fs.view().current(), served);
                assert_eq!(answers(&fs, &known), before);
            }
        }
    }
    assert!(known.len() > 50, "{}", known.len());
    Ok(())
}
