//! What goes on across a switch: mounts below and beside, working directories, maps, half-read listings; and a path that both commits have
//! is never missing.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::git::Repo;
use gitmount_tests::import::{Import, Mode};
use gitmount_tests::mount::Account;
use gitmount_tests::run::{command, start, wait_for};
use gitmount_tests::scratch;
use gitmount_tests::upstream::{MAIN, Upstream, put};
use nix::mount::{MntFlags, MsFlags, mount, umount2};

/// A bind mount, taken away when dropped.
struct Bind(PathBuf);

impl Bind {
    fn new(what: &Path, target: &Path) -> Result<Self> {
        mount(Some(what), target, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
        Ok(Bind(target.to_owned()))
    }
}

impl Drop for Bind {
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
    }
}

#[test]
fn a_bind_mount_of_a_directory_follows_and_is_dead_once_the_directory_is_removed() -> Result<()> {
    scratch::require_root()?;
    let upstream = Upstream::new(|import| put(import, &[("d/sub/f", "1"), ("d/other", "1"), ("gone/f", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let (sub, gone) = (account.mount_point()?, account.mount_point()?);
    let _sub = Bind::new(&mounted.join("d/sub"), &sub)?;
    let _gone = Bind::new(&mounted.join("gone"), &gone)?;
    for n in 2..6 {
        upstream.switch(&mounted, |import| put(import, &[("d/sub/f", &n.to_string()), (&format!("d/sub/new-{n}"), "")]))?;
        ensure!(fs::read_to_string(sub.join("f"))? == n.to_string() && sub.join(format!("new-{n}")).exists());
        compare::same(&compare::directory(&sub)?, &compare::directory(&mounted.join("d/sub"))?, "the mount itself")?;
    }
    upstream.switch(&mounted, |import| import.delete(b"gone").map(drop))?;
    ensure!(fs::read_to_string(gone.join("f")).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound));
    upstream.switch(&mounted, |import| put(import, &[("gone/f", "2")]))?;
    ensure!(mounted.text("gone/f")? == "2" && !gone.join("f").exists(), "a directory that comes back is another one");
    Ok(())
}

#[test]
fn mounts_below_stay_whatever_changes_around_them() -> Result<()> {
    scratch::require_root()?;
    let upstream = Upstream::new(|import| put(import, &[("d/here/f", "1"), ("d/x", "1"), ("file", "1"), ("top/f", "1")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let below = scratch::dir()?;
    fs::write(below.path().join("mine"), "mine")?;
    let _directory = Bind::new(below.path(), &mounted.join("d/here"))?;
    let _top = Bind::new(below.path(), &mounted.join("top"))?;
    let _file = Bind::new(&below.path().join("mine"), &mounted.join("file"))?;
    for n in 2..6 {
        upstream.move_on(&mounted, |import| {
            put(import, &[("d/here/f", &n.to_string()), (&format!("d/y{n}"), ""), ("d/x", &n.to_string())])?;
            put(import, &[("top/f", &n.to_string()), (&format!("z{n}"), "")])
        })?;
        ensure!(mounted.text("d/here/mine")? == "mine" && mounted.text("top/mine")? == "mine" && mounted.text("file")? == "mine");
        ensure!(mounted.text("d/x")? == n.to_string() && mounted.join(format!("d/y{n}")).exists());
    }
    Ok(())
}

/// Maps a file, says a line, waits for one, and prints what the map holds then.
const MAP: &str = r#"
import mmap, sys
file = open(sys.argv[1], "rb")
held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
file.close()
first = held[0]
print("mapped", flush=True)
sys.stdin.readline()
sys.stdout.buffer.write(held[:])
"#;

#[test]
fn a_map_keeps_its_bytes_also_where_it_was_not_touched() -> Result<()> {
    let old: String = (0..200_000).map(|n| format!("{n:07}\n")).collect();
    let upstream = Upstream::new(|import| put(import, &[("changed", &old), ("d/removed", &old)]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let map = |path: &str| -> Result<std::process::Child> {
        let mut python = command("python3");
        python.args(["-c", MAP]).arg(mounted.join(path));
        let mut child = start(python.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let mut line = [0; 7];
        std::io::Read::read_exact(child.stdout.as_mut().context("stdout was asked for")?, &mut line)?;
        Ok(child)
    };
    let maps = [map("changed")?, map("d/removed")?];
    upstream.switch(&mounted, |import| import.file(b"changed", "new")?.delete(b"d").map(drop))?;
    let _lock = scratch::exclusive("kernel-caches")?;
    if nix::unistd::geteuid().is_root() {
        scratch::drop_caches(true)?;
    }
    for mut child in maps {
        drop(child.stdin.take());
        ensure!(child.wait_with_output()?.stdout == old.as_bytes(), "a mapped file changed");
    }
    ensure!(mounted.text("changed")? == "new");
    Ok(())
}

#[test]
fn a_listing_that_is_half_read_goes_on_as_it_began() -> Result<()> {
    const FILES: usize = 5000;
    let name = |n: usize| format!("d/{n:04}-with-a-name-that-fills-pages");
    let upstream = Upstream::new(|import| (0..FILES).try_for_each(|n| import.file(name(n).as_bytes(), "1").map(drop)))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    // One listing that the kernel has not seen before, one that it has cached.
    for round in 0..2 {
        let mut listing = fs::read_dir(mounted.join("d"))?;
        let mut seen = BTreeSet::new();
        for _ in 0..10 {
            seen.insert(listing.next().context("the listing ends early")??.file_name());
        }
        let (odd, even) = (format!("d/{round}-odd"), format!("d/{round}-even"));
        upstream.move_on(&mounted, |import| {
            // Everything moves by half: names go from the front and come in between.
            (0..FILES).filter(|n| n % 3 == round).try_for_each(|n| import.delete(name(n).as_bytes()).map(drop))?;
            put(import, &[(&odd, ""), (&even, "")])
        })?;
        for entry in listing {
            ensure!(seen.insert(entry?.file_name()), "a name is listed twice");
        }
        let expected = FILES - if round == 1 { FILES.div_ceil(3) - 2 } else { 0 };
        ensure!(seen.len() == expected, "{} names in place of {expected}", seen.len());
        let now: BTreeSet<_> = fs::read_dir(mounted.join("d"))?.map(|e| Ok(e?.file_name())).collect::<Result<_>>()?;
        ensure!(now.len() == FILES - (0..FILES).filter(|n| n % 3 <= round).count() + 2 * (round + 1), "{}", now.len());
    }
    Ok(())
}

#[test]
fn times_move_forward_when_and_only_when_the_content_changed() -> Result<()> {
    let upstream = Upstream::new(|import| {
        put(import, &[("content", "1"), ("mode", "1"), ("same", "1"), ("d/same", "1"), ("d/content", "1"), ("e/f/same", "1")])?;
        import.entry(Mode::Symlink, b"link", b"same")?;
        Ok(())
    })?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    let paths = ["content", "mode", "same", "d/same", "d/content", "e/f/same", "link", "d", "e", "e/f"];
    let times = || -> Result<Vec<i64>> { paths.iter().map(|p| Ok(mounted.join(p).symlink_metadata()?.mtime())).collect() };
    let mut before = times()?;
    // Which of them each step changes; a directory changes with what is in it.
    type Step<'a> = (&'a dyn Fn(&mut Import) -> Result<()>, &'a [&'a str]);
    let steps: [Step<'_>; 6] = [
        (&|i| put(i, &[("content", "2")]), &["content"]),
        (&|i| i.entry(Mode::Executable, b"mode", b"1").map(drop), &["mode"]),
        (&|i| put(i, &[("d/content", "2")]), &["d/content", "d"]),
        (&|i| i.entry(Mode::Symlink, b"link", b"mode").map(drop), &["link"]),
        (&|i| put(i, &[("content", "1"), ("elsewhere/new", "")]), &["content"]),
        (&|i| put(i, &[("e/f/new", "")]), &["e", "e/f"]),
    ];
    for (change, changed) in steps {
        upstream.move_on(&mounted, change)?;
        let after = times()?;
        for (path, (old, new)) in paths.iter().zip(before.iter().zip(&after)) {
            ensure!(if changed.contains(path) { new > old } else { new == old }, "{path} went from {old} to {new}, changed: {changed:?}");
        }
        before = after;
    }
    upstream.move_on(&mounted, |_| Ok(()))?;
    ensure!(times()? == before, "an empty commit changes no time");
    Ok(())
}

#[test]
fn a_case_only_rename_and_back() -> Result<()> {
    let upstream = Upstream::new(|import| put(import, &[("Name", "1"), ("Dir/Inner", "1"), ("z", "")]))?;
    let account = Account::new()?;
    let mounted = account.mount(&upstream.url(), &[])?;
    compare::against_both(mounted.path(), &upstream.repo, MAIN)?;
    for (from, to) in [("Name", "name"), ("name", "NAME"), ("NAME", "Name")] {
        ensure!(!mounted.join(to).exists());
        upstream.switch(&mounted, |import| import.rename(from.as_bytes(), to.as_bytes()).map(drop))?;
        ensure!(mounted.join(to).exists() && !mounted.join(from).exists());
    }
    upstream.switch(&mounted, |import| import.rename(b"Dir/Inner", b"dir/inner").map(drop))?;
    ensure!(mounted.text("dir/inner")? == "1" && !mounted.join("Dir").exists());
    Ok(())
}

/// Moves a local branch to and fro among commits, while threads use a path that all of them have.
fn never_missing(options: &[&str]) -> Result<()> {
    let switches = if std::env::var_os("GITMOUNT_TORTURE").is_some() { 5000 } else { 250 };
    let dir = scratch::dir()?;
    let repo = Repo::init_bare(dir.path().join("r.git"))?;
    let mut ids = vec![];
    for n in 0..8 {
        let mut import = Import::into(&repo)?;
        import.commit(MAIN, "Next")?;
        let mut files = vec![("a/b/file".to_owned(), n.to_string()), ("a/b/same".to_owned(), "same".to_owned())];
        files.push((format!("a/only-{n}"), String::new()));
        files.push((format!("a/b/only-{n}"), String::new()));
        for (path, content) in &files {
            import.file(path.as_bytes(), content)?;
        }
        if n > 0 {
            import.delete(format!("a/only-{}", n - 1).as_bytes())?.delete(format!("a/b/only-{}", n - 1).as_bytes())?;
        }
        import.finish()?;
        ids.push(repo.id(MAIN)?);
    }
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[&["--ref", MAIN][..], options].concat())?;
    let (stop, looks) = (AtomicBool::new(false), AtomicU64::new(0));
    let root = mounted.path();
    let look = || -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            for path in ["a", "a/b", "a/b/file", "a/b/same"] {
                root.join(path).metadata().with_context(|| format!("stat of {path}"))?;
            }
            let mut text = String::new();
            let mut file = File::open(root.join("a/b/file")).context("open of a/b/file")?;
            std::io::Read::read_to_string(&mut file, &mut text).context("read of a/b/file")?;
            ensure!(text.parse().is_ok_and(|n: usize| n < 8), "a/b/file holds {text:?}");
            ensure!(fs::read_to_string(root.join("a/b/same")).context("read of a/b/same")? == "same");
            looks.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3).map(|_| scope.spawn(look)).collect();
        let moved = (0..switches).try_for_each(|n| {
            let id = &ids[(n * 3) % ids.len()];
            repo.point(MAIN, id)?;
            mounted.wait_for_commit(id, Duration::from_secs(20))
        });
        // At least something was looked at in between.
        let looked = wait_for("the readers", Duration::from_secs(20), || (looks.load(Ordering::Relaxed) > 100).then_some(()));
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().map_err(|_| anyhow::anyhow!("a reader panicked"))??;
        }
        moved.and(looked)
    })
}

#[test]
fn a_path_of_both_commits_is_never_missing() -> Result<()> {
    never_missing(&[])
}

#[test]
fn nor_is_it_with_plain_invalidation() -> Result<()> {
    never_missing(&["--without-kernel", "expire-only"])
}
