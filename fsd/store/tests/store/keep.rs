//! What is kept by name survives its process and every gc, and ends when its name does.

use anyhow::{Context, Result, ensure};
use gitmount_store::Fault;
use gitmount_store::ids::{CommitId, ObjectId};
use gitmount_store::store::{Store, StoreOptions};
use gitmount_tests::fixtures;

use crate::support::{TestStore, as_git, fetch, file_url, fsck, gc, same_files, verify};

#[test]
fn a_named_pin_outlives_its_process_and_moves_in_one_step() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = fixtures::small(&dir.path().join("r.git"), &[("a", "1\n"), ("d/b", "1\n")])?;
    let store = TestStore::new()?;
    let url = file_url(&source);
    let repository = store.repository(&url)?;
    let first = fetch(&repository, "HEAD", 1)?.commit;
    repository.pin_named("view/ä b", first)?;
    repository.pin_named("other", first)?;
    fixtures::commit(&source, "Second", &[("a", "2\n")])?;
    let second = fetch(&repository, "HEAD", 1)?.commit;
    drop(repository);

    // A new store object is what a new process has.
    let again = Store::open(StoreOptions::new(store.store.root()))?;
    let policy = gitmount_store::url::UrlPolicy { allow_file: true, ..Default::default() };
    let repository = again.repository(&gitmount_store::url::RepoUrl::parse(&url, &policy)?)?;
    ensure!(repository.named_pins()? == [("other".to_owned(), first), ("view/ä b".to_owned(), first)], "{:?}", repository.named_pins()?);
    gc(&repository)?;
    same_files(&repository, &source, first)?;
    repository.pin_named("view/ä b", second)?;
    repository.unpin_named("other")?;
    repository.unpin_named("never there")?;
    ensure!(repository.named_pins()? == [("view/ä b".to_owned(), second)]);
    gc(&repository)?;
    ensure!(!repository.objects().contains(first.id())?, "a commit that nothing keeps is still there");
    let refused = repository.pin_named("view", first).err().context("it is gone")?;
    ensure!(refused.fault() == Fault::NotFound, "{refused}");
    ensure!(as_git(&repository).line(["for-each-ref", "refs/gitmount/keep"])?.contains(&second.to_string()));
    for name in ["", &"x".repeat(300)] {
        let refused = repository.pin_named(name, second).err().context("no name")?;
        ensure!(refused.fault() == Fault::Usage, "{refused}");
    }
    fsck(&repository)
}

#[test]
fn single_objects_are_kept_until_their_list_is_empty() -> Result<()> {
    let dir = gitmount_tests::scratch::dir()?;
    let source = fixtures::small(&dir.path().join("r.git"), &[("a", "1\n"), ("d/b", "old\n")])?;
    let store = TestStore::new()?;
    let repository = store.repository(&file_url(&source))?;
    fetch(&repository, "HEAD", 1)?;
    let old = |path: &str| -> Result<ObjectId> { Ok(CommitId::parse(&source.id(&format!("HEAD:{path}"))?)?.id()) };
    let (a, b) = (old("a")?, old("d/b")?);
    repository.keep_objects("open", &[a, b])?;
    repository.keep_objects("also open", &[b])?;
    fixtures::commit(&source, "Second", &[("a", "2\n"), ("d/b", "new\n")])?;
    fetch(&repository, "HEAD", 1)?;
    gc(&repository)?;
    ensure!(repository.objects().blob(a)? == b"1\n" && repository.objects().blob(b)? == b"old\n");
    ensure!(verify(&repository)?.problems.is_empty(), "{:?}", verify(&repository)?);

    repository.keep_objects("open", &[])?;
    gc(&repository)?;
    ensure!(!repository.objects().contains(a)? && repository.objects().blob(b)? == b"old\n");
    let refused = repository.keep_objects("open", &[b, a]).err().context("one of them is gone")?;
    ensure!(refused.fault() == Fault::NotFound && refused.to_string().contains(&a.to_string()), "{refused}");
    repository.keep_objects("also open", &[])?;
    gc(&repository)?;
    ensure!(!repository.objects().contains(b)?);
    fsck(&repository)
}
