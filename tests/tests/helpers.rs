//! The helpers of these tests, checked with git's own client: fixtures are what they claim, servers serve and misbehave, and the two
//! ways to compare agree.

use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use gitmount_tests::compare::{self, Entry, archive, objects};
use gitmount_tests::fixtures::{self, Build, big, content, names, refs, shape, storage};
use gitmount_tests::git::{Repo, git};
use gitmount_tests::run::{Finished, run, run_with};
use gitmount_tests::scratch;
use gitmount_tests::servers::daemon::GitDaemon;
use gitmount_tests::servers::http::{Fault, HttpServer};
use gitmount_tests::servers::ssh::{Agent, KeyKind, Known, Sshd, new_key};
use gitmount_tests::servers::tls::TestCa;

fn clone(url: &str, with: impl FnOnce(&mut Command)) -> Result<Finished> {
    let dir = scratch::dir()?;
    let mut command = git();
    with(&mut command);
    command.args(["clone", "--quiet", "--bare", "--depth=1", url]).arg(dir.path().join("clone"));
    run_with(&mut command, &[], Duration::from_secs(20))
}

#[test]
fn both_comparisons_agree_on_every_fixture() -> Result<()> {
    let all: [(&str, Build); 8] = [
        ("names", names::names),
        ("deep", shape::deep),
        ("empty-tree", shape::empty_tree),
        ("sha256", shape::sha256),
        ("content", content::content),
        ("refs", refs::refs),
        ("deltas", storage::deltas),
        ("alternates", storage::alternates),
    ];
    for (name, build) in all {
        let repo = fixtures::get(name, build)?;
        let by_archive = archive::tree(&repo, "HEAD")?;
        compare::same(&by_archive, &objects::tree(&repo, "HEAD")?, "git ls-tree")?;
        ensure!(name == "empty-tree" || !by_archive.is_empty(), "{name} is empty");
    }
    Ok(())
}

#[test]
fn a_checkout_equals_the_archive_and_a_changed_one_does_not() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let dir = scratch::dir()?;
    let tree = dir.path().join("tree");
    fs::create_dir(&tree)?;
    let work_tree = format!("--work-tree={}", tree.display());
    let index = dir.path().join("index");
    run(repo.command([&work_tree, "read-tree", "HEAD"]).env("GIT_INDEX_FILE", &index))?.success()?;
    run(repo.command([&work_tree, "checkout-index", "-a"]).env("GIT_INDEX_FILE", &index))?.success()?;
    // checkout-index makes no directory for a submodule.
    fs::create_dir_all(tree.join("modules/sub"))?;
    compare::against_both(&tree, &repo, "HEAD")?;

    let count = |expected: &str| -> Result<()> {
        let said = compare::against_archive(&tree, &repo, "HEAD").expect_err("the tree was changed").to_string();
        ensure!(said.starts_with(expected), "{said}");
        Ok(())
    };
    fs::write(tree.join("extra"), "")?;
    count("1 differences")?;
    fs::remove_file(tree.join("one byte"))?;
    count("2 differences")?;
    fs::write(tree.join("links/target"), "another content\n")?;
    count("3 differences")?;
    fs::remove_file(tree.join("links/dangling"))?;
    std::os::unix::fs::symlink("other", tree.join("links/dangling"))?;
    count("4 differences")
}

#[test]
fn a_big_file_is_what_its_blocks_say() -> Result<()> {
    let at = big::BIG - 6000;
    let end = big::bytes(at, 6000);
    ensure!(end[6000 - 4096..6000 - 4088] == (big::BIG / 4096 - 1).to_be_bytes());
    ensure!(big::bytes(at + 1000, 5000) == end[1000..]);
    Ok(())
}

#[test]
fn names_are_all_there() -> Result<()> {
    let repo = fixtures::get("names", names::names)?;
    let tree = objects::tree(&repo, "HEAD")?;
    for name in names::all() {
        ensure!(matches!(tree.get(&name), Some(Entry::File { .. })), "{name:?}");
    }
    Ok(())
}

#[test]
fn https_serves_counts_and_refuses() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "1")])?;
    let ca = TestCa::new()?;
    let server = HttpServer::tls(dir.path(), &ca)?;
    let with_ca = |command: &mut Command| {
        command.env("GIT_SSL_CAINFO", ca.file());
    };
    let url = server.url("r.git");
    clone(&url, with_ca)?.success()?;
    let asked = server.take_requests();
    ensure!(asked.len() == 3 && asked[2].fetch && asked.iter().all(|a| a.status == 200), "{asked:?}");
    ensure!(clone(&url, |_| ())?.err().contains("certificate"), "an unknown authority is refused");
    ensure!(clone(&server.url("no.git"), with_ca)?.err().contains("not found"));

    server.require_login("user", "secret");
    ensure!(clone(&url, with_ca)?.err().contains("could not read Username"));
    let with_login = url.replace("https://", "https://user:secret@");
    clone(&with_login, with_ca)?.success()?;
    Ok(())
}

#[test]
fn http_misbehaves_as_told() -> Result<()> {
    let dir = scratch::dir()?;
    let noise = content::noise(200_000).iter().map(|b| format!("{b:02x}")).collect::<String>();
    fixtures::small(&dir.path().join("r.git"), &[("a", &noise)])?;
    let server = HttpServer::plain(dir.path())?;
    let url = server.url("r.git");
    for fault in [Fault::CutPack, Fault::HalfPack, Fault::CorruptPack, Fault::status(503), Fault::status(403)] {
        server.misbehave(fault.clone());
        let finished = clone(&url, |_| ())?;
        ensure!(!finished.status.success(), "{fault:?} was not noticed");
    }
    server.misbehave(Fault::StallPack(1000));
    let mut stalled = git();
    stalled.args(["clone", "--quiet", "--bare", &url]).arg(dir.path().join("stalled"));
    ensure!(run_with(&mut stalled, &[], Duration::from_millis(500)).is_err(), "the server did not stall");
    server.behave();
    clone(&url, |_| ())?.success()?;

    let other = HttpServer::plain(dir.path())?;
    other.misbehave(Fault::Redirect(server.base()));
    clone(&other.url("r.git"), |_| ())?.success()?;
    Ok(())
}

#[test]
fn git_daemon_serves() -> Result<()> {
    let dir = scratch::dir()?;
    fixtures::small(&dir.path().join("r.git"), &[("a", "1")])?;
    let server = GitDaemon::serve(dir.path())?;
    clone(&server.url("r.git"), |_| ())?.success()?;
    ensure!(!clone(&server.url("no.git"), |_| ())?.status.success());
    Ok(())
}

#[test]
fn sshd_serves_with_each_host_key_and_an_agent() -> Result<()> {
    let dir = scratch::dir()?;
    let repo: Repo = fixtures::small(&dir.path().join("r.git"), &[("a", "1")])?;
    let key = dir.path().join("id");
    new_key(&key, KeyKind::Ed25519, "")?;
    let server = Sshd::start()?;
    server.authorize(&key)?;
    let agent = Agent::start()?;
    agent.add(&key)?;
    let url = server.url(repo.path())?;
    for (kind, how) in [(KeyKind::Ecdsa, Known::Plain), (KeyKind::Rsa, Known::Hashed), (KeyKind::Ed25519, Known::WithoutPort)] {
        let known = dir.path().join("known_hosts");
        fs::write(&known, server.known_host(kind, how)?)?;
        let ssh = format!("ssh -F none -o UserKnownHostsFile={} -o StrictHostKeyChecking=yes -o BatchMode=yes", known.display());
        let with_ssh = |command: &mut Command| {
            command.env("GIT_SSH_COMMAND", &ssh).env("SSH_AUTH_SOCK", agent.socket());
        };
        clone(&url, with_ssh)?.success()?;
    }
    ensure!(server.log()?.contains("Accepted publickey"), "{}", server.log()?);
    Ok(())
}
