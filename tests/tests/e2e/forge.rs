//! The forge itself: private repositories by token and by deploy key until those are revoked, and signed webhooks.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::{Cluster, Forge};
use gitmount_tests::git::{Repo, git};
use gitmount_tests::import::Import;
use gitmount_tests::run::run;
use gitmount_tests::scratch;
use gitmount_tests::servers::ssh::{KeyKind, new_key, public};

/// A repository with one commit of `text`.
fn source(dir: &std::path::Path, text: &str) -> Result<Repo> {
    let repo = Repo::init_bare(dir.join("source.git"))?;
    let mut import = Import::into(&repo)?;
    import.commit("refs/heads/main", "One")?;
    import.file(b"greeting", text)?;
    import.finish()?;
    Ok(repo)
}

#[test]
fn a_private_repository_is_read_by_a_token_until_it_is_revoked() -> Result<()> {
    let forge = Forge::get(Cluster::get()?)?;
    let dir = scratch::dir()?;
    let owner = forge.create_user("owner")?;
    let repository = forge.create_repository(&owner, "private", true)?;
    forge.push(&source(dir.path(), "by token\n")?, &repository)?;
    let token = forge.create_token(&owner, "t", false)?;
    let list = |token: &str| {
        let helper = format!("!f() {{ echo username=git; echo password={token}; }}; f");
        let ca = forge.ca()?.1;
        let mut list = git();
        list.env("GIT_SSL_CAINFO", ca).args(["-c", &format!("credential.helper={helper}"), "ls-remote", &forge.https(&repository)]);
        run(&mut list)
    };
    ensure!(list(&token)?.success()?.out().contains("refs/heads/main"));
    ensure!(list("wrong")?.code() != 0);
    forge.revoke_token(&owner, "t")?;
    ensure!(list(&token)?.code() != 0, "a revoked token still works");
    Ok(())
}

#[test]
fn a_private_repository_is_read_by_a_deploy_key_until_it_is_removed() -> Result<()> {
    let forge = Forge::get(Cluster::get()?)?;
    let dir = scratch::dir()?;
    let owner = forge.create_user("owner")?;
    let repository = forge.create_repository(&owner, "private", true)?;
    forge.push(&source(dir.path(), "by key\n")?, &repository)?;
    let key = dir.path().join("key");
    new_key(&key, KeyKind::Ed25519, "")?;
    let known = dir.path().join("known");
    std::fs::write(&known, forge.known_hosts()?)?;
    let id = forge.add_deploy_key(&repository, &std::fs::read_to_string(public(&key))?)?;
    let ssh = format!("ssh -F none -o IdentitiesOnly=yes -o UserKnownHostsFile={} -i {}", known.display(), key.display());
    let list = || run(git().env("GIT_SSH_COMMAND", &ssh).args(["ls-remote", &forge.ssh(&repository)]));
    ensure!(list()?.success()?.out().contains("refs/heads/main"));
    forge.remove_deploy_key(&repository, id)?;
    ensure!(list()?.code() != 0, "a removed key still works");
    Ok(())
}

#[test]
fn a_push_is_posted_with_a_signature() -> Result<()> {
    let cluster = Cluster::get()?;
    let forge = Forge::get(cluster)?;
    let dir = scratch::dir()?;
    let owner = forge.create_user("owner")?;
    let repository = forge.create_repository(&owner, "hooked", false)?;
    let listener = TcpListener::bind((cluster.host(), 0))?;
    forge.add_webhook(&repository, &format!("http://{}/hook", listener.local_addr()?), "a secret")?;
    let posted = std::thread::spawn(move || -> Result<String> {
        let (mut stream, _) = listener.accept()?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let (mut text, mut piece) = (Vec::new(), [0; 4096]);
        // Gitea's body ends with the object's last brace.
        while !text.ends_with(b"}") {
            let read = stream.read(&mut piece)?;
            ensure!(read > 0, "the request ended early");
            text.extend(&piece[..read]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    });
    forge.push(&source(dir.path(), "hooked\n")?, &repository)?;
    let posted = posted.join().map_err(|_| anyhow::anyhow!("the server panicked"))??;
    let (head, body) = posted.split_once("\r\n\r\n").context("a request has a head")?;
    ensure!(head.starts_with("POST /hook ") && head.contains("X-Gitea-Signature: "), "{head}");
    ensure!(body.contains("refs/heads/main"), "{body}");
    Ok(())
}
