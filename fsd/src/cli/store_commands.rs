//! `gitmount verify` and `gitmount gc`: the store's own upkeep.

use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use gitmount_store::maintenance;
use gitmount_store::repository::Repository;
use gitmount_store::store::{Store, StoreOptions};
use gitmount_store::url::{RepoUrl, UrlPolicy};
use indicatif::HumanBytes;

use super::args::{GcArgs, VerifyArgs};
use super::exit::{CliError, Result};
use super::mounts;
use super::plan::{is_local, store_options, text};
use super::progress::Bar;
use super::through;

/// What is in a store was allowed when it was fetched.
fn any_url() -> UrlPolicy {
    UrlPolicy { allow_http: true, allow_file: true, hosts: vec![] }
}

/// Checks a repository's objects; problems go to stdout, one a line.
pub fn verify(args: &VerifyArgs) -> Result<()> {
    let mut options = store_options(&args.store)?;
    let url = if is_local(&args.what) {
        let (url, store) = mounted(Path::new(&args.what), args.socket.socket.as_deref())?;
        // What the mount is served from, whatever the environment says.
        options.root = store;
        url
    } else {
        text(&args.what, "URL")?.to_owned()
    };
    let repository = stored(options, &url)?;
    let bar = Bar::new();
    bar.spin(format!("verifying {url}"));
    let report = maintenance::verify(&repository, &AtomicBool::new(false));
    bar.finish();
    let report = report?;
    for problem in &report.problems {
        println!("{problem}");
    }
    match report.problems.len() {
        0 if report.objects == 0 => {
            Err(CliError::not_found(format!("{url} has no objects: nothing was ever fetched from it, so look whether the URL is right")))
        }
        0 => {
            println!("{url}: {} objects checked, all are well", report.objects);
            Ok(())
        }
        n => Err(CliError::other(format!("{url} has {n} broken objects or packs: the next pull or mount fetches them again"))),
    }
}

/// The URL and the store of what is mounted at `dir`.
fn mounted(dir: &Path, daemon: Option<&Path>) -> Result<(String, PathBuf)> {
    let (target, views) = match daemon {
        Some(socket) => (through::target(dir)?, through::views(socket)?),
        None => {
            let target = mounts::target(dir)?;
            let views = mounts::live(&target)?.status()?.views;
            (target, views)
        }
    };
    let view = views.into_iter().find(|v| v.mounts.iter().any(|m| m.as_slice() == target.as_os_str().as_encoded_bytes()));
    let Some(view) = view else {
        return Err(CliError::not_found(format!("{} is no gitmount mount: `gitmount status` lists those there are", target.display())));
    };
    if view.store.is_empty() {
        return Err(CliError::usage(format!(
            "{} is served from the local repository itself: check it with `git -C {} fsck`",
            target.display(),
            view.url
        )));
    }
    Ok((view.url, PathBuf::from(std::ffi::OsString::from_vec(view.store))))
}

/// Opens a repository that is in the store already.
fn stored(options: StoreOptions, url: &str) -> Result<Arc<Repository>> {
    let url = RepoUrl::parse(url, &any_url())?;
    let root = options.root.clone();
    let missing = || CliError::not_found(format!("{url} is not in the store {}: mount it first, or give its --store", root.display()));
    if !root.is_dir() {
        return Err(missing());
    }
    let store = Store::open(options)?;
    let known = store.list()?.iter().any(|(text, _)| RepoUrl::parse(text, &any_url()).is_ok_and(|u| u.normalized() == url.normalized()));
    if !known {
        return Err(missing());
    }
    Ok(store.repository(&url)?)
}

/// Removes what nothing needs, of one repository or of all.
pub fn gc(args: &GcArgs) -> Result<()> {
    let options = store_options(&args.store)?;
    if let Some(url) = &args.drop {
        return remove(options, url);
    }
    if let Some(url) = &args.url {
        return collect(url, &*stored(options, url)?);
    }
    if !options.root.is_dir() {
        // Nothing was ever fetched.
        return Ok(());
    }
    let store = Store::open(options)?;
    for url in store.remove_empty()? {
        println!("{url}: removed, nothing was ever fetched from it");
    }
    let mut failed = None;
    for (text, _) in store.list()? {
        // One broken repository does not keep the others from being collected.
        let result = RepoUrl::parse(&text, &any_url())
            .and_then(|url| store.repository(&url))
            .map_err(CliError::from)
            .and_then(|repository| collect(&text, &repository));
        if let Err(error) = result {
            eprintln!("{}", error.line());
            failed = Some(error.code);
        }
    }
    match failed {
        None => Ok(()),
        Some(code) => Err(CliError { code, message: "not every repository could be collected".into() }),
    }
}

/// Removes a repository as a whole.
fn remove(options: StoreOptions, url: &str) -> Result<()> {
    let url = RepoUrl::parse(url, &any_url())?;
    let root = options.root.clone();
    if !root.is_dir() || !Store::open(options)?.drop_repository(&url)? {
        return Err(CliError::not_found(format!("{url} is not in the store {}: `gitmount gc` lists what is", root.display())));
    }
    println!("{url}: removed");
    Ok(())
}

fn collect(url: &str, repository: &Repository) -> Result<()> {
    let bar = Bar::new();
    bar.spin(format!("collecting {url}"));
    let report = maintenance::gc(repository, &AtomicBool::new(false));
    bar.finish();
    let report = report?;
    let (before, after) = (HumanBytes(report.bytes_before), HumanBytes(report.bytes_after));
    let packs = |n: usize| if n == 1 { "1 pack".to_owned() } else { format!("{n} packs") };
    println!("{url}: {before} in {} -> {after} in {}", packs(report.packs_before), packs(report.packs_after));
    Ok(())
}
