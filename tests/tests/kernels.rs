//! What is different on older kernels, each feature left out by a hidden option: the content and the switch stay as they are.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::import::Mode;
use gitmount_tests::mount::{Account, Mounted, is_mounted};
use gitmount_tests::run::{command, run};
use gitmount_tests::scratch;
use gitmount_tests::upstream::{MAIN, Upstream, put};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

const ALL: &str = "readdirplus,no-open,cache-symlinks,no-opendir,expire-only,resend,allow-idmap";

fn upstream() -> Result<Upstream> {
    Upstream::new(|import| {
        put(import, &[("a", "1"), ("d/changed", "1"), ("d/same", "1"), ("d/sub/deep", "1"), ("e/only", "1"), ("turns", "file")])?;
        for n in 0..50 {
            import.file(format!("many/{n:02}").as_bytes(), format!("{n}"))?;
        }
        import.entry(Mode::Symlink, b"link", b"d/changed")?.entry(Mode::Executable, b"run", b"#!/bin/sh\n")?;
        Ok(())
    })
}

/// Every kind of change, twice.
fn switches(upstream: &Upstream, mounted: &Mounted<'_>) -> Result<()> {
    compare::against_both(mounted.path(), &upstream.repo, MAIN)?;
    ensure!(!mounted.join("new").exists() && !mounted.join("d/new").exists());
    let inode = |path: &str| -> Result<u64> { Ok(std::os::unix::fs::MetadataExt::ino(&mounted.join(path).metadata()?)) };
    let (dir, same) = (inode("d")?, inode("d/same")?);
    upstream.switch(mounted, |import| {
        put(import, &[("a", "2"), ("d/changed", "two"), ("new", "1"), ("d/new", "1")])?;
        import.delete(b"e")?.delete(b"turns")?.file(b"turns/inside", "1")?.delete(b"link")?.entry(Mode::Symlink, b"link", b"a")?;
        Ok(())
    })?;
    ensure!(mounted.text("link")? == "2" && inode("d")? == dir && inode("d/same")? == same);
    upstream.switch(mounted, |import| {
        import.delete(b"turns")?.file(b"turns", "file again")?.file(b"d/changed", "3")?.delete(b"new")?.file(b"e/only", "back")?;
        Ok(())
    })?;
    ensure!(mounted.text("d/changed")? == "3" && !mounted.join("new").exists());
    Ok(())
}

/// A mount without `features`, which says in one sentence each what is missing.
fn degraded<'a>(account: &'a Account, upstream: &Upstream, features: &str) -> Result<Mounted<'a>> {
    let (mounted, log) = account.mount_in_front(&upstream.url(), &["--allow-other", "--without-kernel", features])?;
    let said = fs::read_to_string(log)?;
    let guide = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/kernels.md"))?;
    for feature in features.split(',') {
        let line = guide.lines().find_map(|line| line.strip_prefix(&format!("- `{feature}`: ")));
        let sentence = line.with_context(|| format!("the guide has no sentence for {feature}"))?;
        ensure!(said.matches(sentence).count() == 1, "not said once: {sentence}\n{said}");
    }
    Ok(mounted)
}

/// Messages of one kind that a second walk over everything costs.
fn again(mounted: &Mounted<'_>, operation: &str) -> Result<u64> {
    compare::directory(mounted.path())?;
    let sent = mounted.messages_of(|| compare::directory(mounted.path()).map(drop))?;
    Ok(sent.get(operation).copied().unwrap_or_default())
}

#[test]
fn without_readdirplus_names_are_looked_up_one_by_one() -> Result<()> {
    let (upstream, account) = (upstream()?, Account::new()?);
    let mounted = degraded(&account, &upstream, "readdirplus")?;
    let sent = mounted.messages_of(|| compare::directory(mounted.path()).map(drop))?;
    let of = |name: &str| sent.get(name).copied().unwrap_or_default();
    ensure!(of("readdirplus") == 0 && of("readdir") > 0 && of("lookup") >= 59, "{sent:?}");
    ensure!(again(&mounted, "lookup")? == 0, "names are kept all the same");
    switches(&upstream, &mounted)
}

#[test]
fn without_no_open_each_open_is_a_message() -> Result<()> {
    let (upstream, account) = (upstream()?, Account::new()?);
    let mounted = degraded(&account, &upstream, "no-open")?;
    ensure!(again(&mounted, "open")? >= 56 && again(&mounted, "read")? == 0, "contents are kept all the same");
    switches(&upstream, &mounted)
}

#[test]
fn without_cached_links_each_use_is_a_message() -> Result<()> {
    let (upstream, account) = (upstream()?, Account::new()?);
    let mounted = degraded(&account, &upstream, "cache-symlinks")?;
    ensure!(again(&mounted, "readlink")? >= 1);
    switches(&upstream, &mounted)
}

#[test]
fn without_no_opendir_each_listing_is_a_message_and_its_lines_are_kept() -> Result<()> {
    let (upstream, account) = (upstream()?, Account::new()?);
    let mounted = degraded(&account, &upstream, "no-opendir")?;
    ensure!(again(&mounted, "opendir")? >= 5 && again(&mounted, "readdirplus")? == 0 && again(&mounted, "readdir")? == 0);
    switches(&upstream, &mounted)
}

#[test]
fn without_expire_only_mounts_below_changed_names_go_and_those_on_directories_stay() -> Result<()> {
    scratch::require_root()?;
    let (upstream, account) = (upstream()?, Account::new()?);
    let mounted = degraded(&account, &upstream, "expire-only")?;
    let below = scratch::dir()?;
    fs::write(below.path().join("mine"), "mine")?;
    let (directory, file) = (mounted.join("d/sub"), mounted.join("d/changed"));
    mount(Some(below.path()), &directory, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    mount(Some(&below.path().join("mine")), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    let moved = upstream.move_on(&mounted, |import| put(import, &[("d/changed", "2"), ("d/sub/deep", "2"), ("d/sub/new", "2")]));
    let found = moved.and_then(|_| Ok((fs::read_to_string(directory.join("mine"))?, fs::read_to_string(&file)?)));
    umount2(&directory, MntFlags::MNT_DETACH)?;
    let (on_directory, on_file) = found?;
    ensure!(on_directory == "mine", "a mount on a directory that stays one is gone");
    ensure!(on_file == "2" && !is_mounted(&file)?, "the guide says that a mount on a changed file goes: {on_file}");
    switches(&upstream, &mounted)
}

#[test]
fn without_resend_a_mount_works_as_ever() -> Result<()> {
    let (upstream, account) = (upstream()?, Account::new()?);
    let mounted = degraded(&account, &upstream, "resend")?;
    switches(&upstream, &mounted)
}

/// Makes a copy of the mount with mapped owners, as a container runtime does; says "mapped" or the error's number.
const MAP: &str = r#"
import ctypes, os, subprocess, sys
OPEN_TREE, MOUNT_SETATTR = 428, 442
CLONE, EMPTY_PATH, IDMAP = 1, 0x1000, 0x100000
child = subprocess.Popen(["unshare", "--user", "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
child.stdin.write(b"x"); child.stdin.flush(); child.stdout.read(1)
for name in "uid_map", "gid_map":
    with open(f"/proc/{child.pid}/{name}", "w") as file:
        file.write("0 100000 65536")
namespace = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY)
call = ctypes.CDLL(None, use_errno=True).syscall
tree = call(OPEN_TREE, -100, os.fsencode(sys.argv[1]), CLONE)
attributes = (ctypes.c_uint64 * 4)(IDMAP, 0, 0, namespace)
done = call(MOUNT_SETATTR, tree, b"", EMPTY_PATH, attributes, ctypes.sizeof(attributes))
error = ctypes.get_errno()
child.stdin.close(); child.wait()
print("mapped", os.stat(f"/proc/self/fd/{tree}/a").st_uid if done == 0 else "") if done == 0 else print("error", error)
"#;

#[test]
fn without_allow_idmap_no_owner_can_be_mapped() -> Result<()> {
    scratch::require_root()?;
    let (upstream, account) = (upstream()?, Account::new()?);
    let map =
        |mounted: &Mounted<'_>| Ok::<_, anyhow::Error>(run(command("python3").args(["-c", MAP]).arg(mounted.path()))?.success()?.out());
    let mounted = degraded(&account, &upstream, "allow-idmap")?;
    ensure!(map(&mounted)? == "error 22\n", "{}", map(&mounted)?);
    switches(&upstream, &mounted)?;
    let (whole, log) = account.mount_in_front(&upstream.url(), &["--allow-other"])?;
    let offered = !fs::read_to_string(log)?.contains("FUSE_ALLOW_IDMAP");
    ensure!(!offered || map(&whole)? == "mapped 100000\n", "{}", map(&whole)?);
    Ok(())
}

#[test]
fn without_anything_the_tree_and_its_switches_are_the_same() -> Result<()> {
    let (upstream, account) = (upstream()?, Account::new()?);
    let mounted = degraded(&account, &upstream, ALL)?;
    let first = mounted.commit()?;
    switches(&upstream, &mounted)?;
    compare::against_both(&mounted.join(format!(".gitmount/commit/{first}")), &upstream.repo, &first)?;
    Ok(())
}

#[test]
fn an_unknown_feature_is_refused_and_the_option_is_hidden() -> Result<()> {
    let account = Account::new()?;
    let dir = account.mount_point()?;
    let dir = dir.to_string_lossy();
    account.refused(["mount", "--without-kernel", "no-open,x", "https://example.com/r", &dir], 2, &["\"x\"", "readdirplus"])?;
    ensure!(!account.run(["mount", "--help"])?.out().contains("without-kernel"));
    Ok(())
}
