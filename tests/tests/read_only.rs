//! Nothing can be written: every operation that would is EROFS, for root too, and nothing changes.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use anyhow::{Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, content};
use gitmount_tests::mount::Account;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag};
use nix::sys::stat::{Mode, SFlag};

fn from_nix<T>(result: nix::Result<T>) -> io::Result<()> {
    result.map(drop).map_err(io::Error::from)
}

fn set_attribute(path: &Path) -> io::Result<()> {
    xattr::set(path, "user.mine", b"1")
}

/// A write operation by its name.
type Operation<'a> = (&'a str, Box<dyn Fn() -> io::Result<()> + 'a>);

fn operations(root: &Path) -> Vec<Operation<'_>> {
    let at = move |name: &str| root.join(name);
    vec![
        ("open for writing", Box::new(move || OpenOptions::new().write(true).open(at("one byte")).map(drop))),
        ("open for reading and writing", Box::new(move || OpenOptions::new().read(true).write(true).open(at("one byte")).map(drop))),
        ("open for appending", Box::new(move || OpenOptions::new().append(true).open(at("one byte")).map(drop))),
        ("open and truncate", Box::new(move || File::create(at("one byte")).map(drop))),
        ("create", Box::new(move || File::create(at("new")).map(drop))),
        ("create exclusively", Box::new(move || File::create_new(at("sizes/new")).map(drop))),
        (
            "create unnamed",
            Box::new(move || OpenOptions::new().write(true).custom_flags(OFlag::O_TMPFILE.bits()).open(at("sizes")).map(drop)),
        ),
        ("mkdir", Box::new(move || fs::create_dir(at("new")))),
        ("rmdir", Box::new(move || fs::remove_dir(at("modules/sub")))),
        ("unlink a file", Box::new(move || fs::remove_file(at("one byte")))),
        ("unlink a link", Box::new(move || fs::remove_file(at("links/dangling")))),
        ("rename", Box::new(move || fs::rename(at("one byte"), at("other")))),
        ("rename over", Box::new(move || fs::rename(at("one byte"), at("empty")))),
        ("rename a directory", Box::new(move || fs::rename(at("sizes"), at("other")))),
        ("link", Box::new(move || fs::hard_link(at("one byte"), at("hard")))),
        ("symlink", Box::new(move || std::os::unix::fs::symlink("target", at("soft")))),
        ("chmod", Box::new(move || fs::set_permissions(at("one byte"), Permissions::from_mode(0o600)))),
        ("chmod a directory", Box::new(move || fs::set_permissions(at("sizes"), Permissions::from_mode(0o700)))),
        ("chown", Box::new(move || std::os::unix::fs::chown(at("one byte"), Some(1), Some(1)))),
        ("lchown", Box::new(move || std::os::unix::fs::lchown(at("links/dangling"), Some(1), Some(1)))),
        ("truncate", Box::new(move || from_nix(nix::unistd::truncate(&at("one byte"), 0)))),
        (
            "utimens",
            Box::new(move || {
                let time = nix::sys::time::TimeSpec::new(1, 0);
                let flag = nix::sys::stat::UtimensatFlags::FollowSymlink;
                from_nix(nix::sys::stat::utimensat(AT_FDCWD, &at("one byte"), &time, &time, flag))
            }),
        ),
        ("setxattr", Box::new(move || set_attribute(&at("one byte")))),
        ("setxattr on a directory", Box::new(move || set_attribute(&at("sizes")))),
        ("removexattr", Box::new(move || xattr::remove(at("one byte"), "user.git.oid"))),
        ("mknod", Box::new(move || from_nix(nix::sys::stat::mknod(&at("fifo"), SFlag::S_IFIFO, Mode::S_IRWXU, 0)))),
        ("mknod of a device", Box::new(move || from_nix(nix::sys::stat::mknod(&at("null"), SFlag::S_IFCHR, Mode::S_IRWXU, 0x103)))),
        ("bind a socket", Box::new(move || std::os::unix::net::UnixListener::bind(at("s")).map(drop))),
    ]
}

#[test]
fn every_write_operation_is_refused() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let mut wrong = Vec::new();
    for (name, operation) in operations(mounted.path()) {
        match operation() {
            Err(e) if e.raw_os_error() == Some(Errno::EROFS as i32) => {}
            other => wrong.push(format!("{name}: {other:?}")),
        }
    }
    ensure!(wrong.is_empty(), "not EROFS: {wrong:#?}");
    compare::against_both(mounted.path(), &repo, "HEAD")
}

#[test]
fn the_mount_says_that_it_is_read_only_and_gives_no_rights() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let table = fs::read_to_string("/proc/self/mounts")?;
    let dir = mounted.path().to_string_lossy();
    let line = table.lines().find(|line| line.split(' ').nth(1) == Some(&dir));
    let options = line.and_then(|line| line.split(' ').nth(3)).unwrap_or_default();
    for option in ["ro", "nosuid", "nodev"] {
        ensure!(options.split(',').any(|o| o == option), "{option} is missing in {options}");
    }
    let path = CString::new(mounted.join("one byte").as_os_str().as_bytes())?;
    ensure!(nix::unistd::access(path.as_c_str(), nix::unistd::AccessFlags::W_OK) == Err(Errno::EROFS));
    ensure!(nix::unistd::access(path.as_c_str(), nix::unistd::AccessFlags::R_OK) == Ok(()));
    Ok(())
}

#[test]
fn executables_run_from_the_mount() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    let mounted = account.mount(&repo.arg(), &[])?;
    let ran = gitmount_tests::run::run(&mut gitmount_tests::run::command(mounted.join("run.sh")))?.success()?;
    ensure!(ran.out() == "it runs\n");
    let refused = gitmount_tests::run::run(&mut gitmount_tests::run::command(mounted.join("one byte")));
    ensure!(refused.is_err(), "a file without the executable bit ran");
    Ok(())
}
