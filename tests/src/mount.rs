//! The `gitmount` command, run for an [`Account`] of the test's own: its home, store and runtime directory, nobody else's settings.
//!
//! A [`Mounted`] tree is unmounted when dropped, lazily if need be, and an account ends the processes that it still has, so that a
//! failing test leaves nothing behind.

mod binary;
mod status;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

pub use binary::{gitmount, gitmount_csi};
pub use status::{Requests, Status, since};

use crate::run::{self, Finished, run_with, wait_for};
use crate::scratch;

/// How long `gitmount` may take in a test that does not wait for a slow server.
const DEADLINE: Duration = Duration::from_secs(90);

/// Opens and closes a file of a mount: until one close was answered, the kernel asks about each, also about that of a file which a new
/// process inherits and closes when its program starts; while nobody serves the mount, no test could start one, not even its next server.
///
/// # Errors
/// When the directory has no file, or none that can be opened.
pub fn close_one(dir: &Path) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::File::open(entry.path())?;
            return Ok(());
        }
    }
    bail!("{} has no file", dir.display())
}

/// Somebody who uses `gitmount`.
#[derive(Debug)]
pub struct Account {
    dir: TempDir,
    program: PathBuf,
    store: PathBuf,
    env: Vec<(OsString, OsString)>,
    id: Option<(u32, u32)>,
    mounts: AtomicUsize,
}

impl Account {
    /// The account that runs the tests, with an empty home.
    pub fn new() -> Result<Self> {
        scratch::require_fuse()?;
        Self::with_program(gitmount()?, None)
    }

    /// The account `nobody`, which can mount only through `fusermount3`.
    pub fn unprivileged() -> Result<Self> {
        scratch::require_fuse()?;
        scratch::require_root()?;
        scratch::open_fuse_to_all()?;
        let nobody = nix::unistd::User::from_name("nobody")?.context("this test needs an account called nobody")?;
        let mut account = Self::with_program(gitmount()?, Some((nobody.uid.as_raw(), nobody.gid.as_raw())))?;
        // The directory the binary was built in may be closed to it.
        let copy = account.dir.path().join("gitmount");
        // By a process of its own: what another test starts meanwhile would inherit a descriptor that writes it ("Text file busy").
        run::run(run::command("cp").arg(&account.program).arg(&copy))?.success()?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755))?;
        account.program = copy;
        Ok(account)
    }

    fn with_program(program: PathBuf, id: Option<(u32, u32)>) -> Result<Self> {
        let dir = scratch::dir()?;
        let account = Account { store: dir.path().join("store"), dir, program, env: Vec::new(), id, mounts: AtomicUsize::new(0) };
        for path in [account.home(), account.home().join(".ssh"), account.runtime()] {
            fs::create_dir(&path)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            account.own(&path)?;
        }
        account.own(account.dir.path())?;
        Ok(account)
    }

    fn own(&self, path: &Path) -> Result<()> {
        match self.id {
            Some((uid, gid)) => Ok(chown(path, Some(uid), Some(gid))?),
            None => Ok(()),
        }
    }

    /// Its home directory.
    pub fn home(&self) -> PathBuf {
        self.dir.path().join("home")
    }

    /// Where the sockets of its mounts are.
    pub fn runtime(&self) -> PathBuf {
        self.dir.path().join("runtime")
    }

    /// Its store.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// Puts its store elsewhere.
    pub fn set_store(&mut self, path: impl Into<PathBuf>) {
        self.store = path.into();
    }

    /// Sets an environment variable of its commands.
    pub fn set_env(&mut self, name: impl Into<OsString>, value: impl Into<OsString>) {
        self.env.push((name.into(), value.into()));
    }

    /// Writes a file below its home, readable by itself alone.
    pub fn write_home(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.home().join(name);
        fs::write(&path, content)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
        self.own(&path)?;
        Ok(path)
    }

    /// A `gitmount` command line of it.
    pub fn command<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = run::command(&self.program);
        command
            .env("HOME", self.home())
            .env("GITMOUNT_RUNTIME_DIR", self.runtime())
            .env("GITMOUNT_STORE", &self.store)
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GIT_TERMINAL_PROMPT", "0")
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .current_dir(self.dir.path())
            .args(args);
        if let Some((uid, gid)) = self.id {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Runs `gitmount`, whatever its exit code.
    pub fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Result<Finished> {
        run_with(&mut self.command(args), &[], DEADLINE)
    }

    /// Runs a `gitmount` that must fail with the exit code `code` and one sentence on standard error that has all of `words` in it.
    pub fn refused<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>, code: i32, words: &[&str]) -> Result<Finished> {
        let finished = self.run(args)?;
        let said = finished.err();
        let about = format!("`{}` (exit code {}) said: {said}", finished.command, finished.code());
        ensure!(finished.code() == code, "the exit code is not {code}: {about}");
        ensure!(said.trim_end().lines().count() == 1, "an error is one line: {about}");
        for word in words {
            ensure!(said.to_lowercase().contains(&word.to_lowercase()), "{word:?} is missing: {about}");
        }
        for bad in ["panicked", "Error {", "Some(", "Kind("] {
            ensure!(!said.contains(bad), "{bad:?} is for programmers: {about}");
        }
        ensure!(finished.stdout.is_empty(), "errors go to standard error alone: {}", finished.out());
        Ok(finished)
    }

    /// A new empty directory to mount on.
    pub fn mount_point(&self) -> Result<PathBuf> {
        let number = self.mounts.fetch_add(1, Ordering::SeqCst) + 1;
        let path = self.dir.path().join(format!("mnt-{number}"));
        fs::create_dir(&path)?;
        self.own(&path)?;
        Ok(path)
    }

    /// Mounts `source` on a new directory with further options.
    ///
    /// # Errors
    /// When `gitmount mount` fails, with what it said, and when it says that all is well but nothing is mounted.
    pub fn mount(&self, source: &str, options: &[&str]) -> Result<Mounted<'_>> {
        let dir = self.mount_point()?;
        let mut args: Vec<OsString> = vec!["mount".into()];
        args.extend(options.iter().map(OsString::from));
        args.extend([source.into(), dir.clone().into_os_string()]);
        let mounted = Mounted { account: self, dir };
        self.run(args)?.success()?;
        ensure!(is_mounted(&mounted.dir)?, "gitmount ended with 0 but {} is no mount", mounted.dir.display());
        Ok(mounted)
    }

    /// Mounts as [`Account::mount`] in the foreground, and gives the file that it logs to.
    pub fn mount_in_front(&self, source: &str, options: &[&str]) -> Result<(Mounted<'_>, PathBuf)> {
        let dir = self.mount_point()?;
        let log = dir.with_extension("log");
        let mut command = self.command(["mount", "--foreground"]);
        command.args(options).arg(source).arg(&dir).stdin(Stdio::null()).stdout(Stdio::null()).stderr(fs::File::create(&log)?);
        let mut child = run::start(&mut command)?;
        let mounted = Mounted { account: self, dir };
        let served = wait_for("the mount", DEADLINE, || match child.try_wait() {
            Ok(None) => mounted.commit().is_ok().then_some(true),
            _ => Some(false),
        })?;
        ensure!(served, "`gitmount mount` ended: {}", fs::read_to_string(&log)?);
        Ok((mounted, log))
    }

    /// What `gitmount status --output json` says.
    pub fn status(&self) -> Result<Vec<Status>> {
        let finished = self.run(["status", "--output", "json"])?.success()?;
        serde_json::from_slice(&finished.stdout).with_context(|| format!("`{}` printed {}", finished.command, finished.out()))
    }

    /// The ids of the processes that were started for it and still live.
    pub fn processes(&self) -> Vec<i32> {
        let mark = format!("GITMOUNT_RUNTIME_DIR={}", self.runtime().display()).into_bytes();
        let all = fs::read_dir("/proc").into_iter().flatten().flatten();
        let ids = all.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()));
        ids.filter(|id| {
            let environment = fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|variable| variable == mark)
        })
        .collect()
    }

    /// Files in its store that a whole fetch would not leave: temporary packs and locks.
    pub fn leftovers(&self) -> Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        let mut dirs = vec![self.store.join("repos")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).into_iter().flatten() {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                if path.is_dir() {
                    dirs.push(path);
                } else if name.starts_with(".tmp") || name.starts_with("tmp_") || name == "shallow.lock" || name.ends_with(".keep") {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    /// Waits until no process of it lives.
    pub fn wait_until_idle(&self) -> Result<()> {
        wait_for("the end of all processes of the account", Duration::from_secs(10), || self.processes().is_empty().then_some(()))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for id in self.processes() {
            // It may end by itself at this moment.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(id), nix::sys::signal::Signal::SIGKILL);
        }
        for n in 1..=self.mounts.load(Ordering::SeqCst) {
            detach(&self.dir.path().join(format!("mnt-{n}")));
        }
    }
}

/// A tree that `gitmount` serves.
#[derive(Debug)]
pub struct Mounted<'a> {
    account: &'a Account,
    dir: PathBuf,
}

impl Mounted<'_> {
    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// A path below it.
    pub fn join(&self, path: impl AsRef<Path>) -> PathBuf {
        self.dir.join(path)
    }

    /// A file of it as text.
    pub fn text(&self, path: &str) -> Result<String> {
        fs::read_to_string(self.join(path)).with_context(|| format!("{path} cannot be read"))
    }

    /// The sorted names in a directory of it.
    pub fn names(&self, path: &str) -> Result<Vec<String>> {
        let listing = fs::read_dir(self.join(path)).with_context(|| format!("{path} cannot be listed"))?;
        let mut names = listing.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// An extended attribute of an entry; the root is `""`.
    pub fn attribute(&self, path: &str, name: &str) -> Result<String> {
        // `join("")` would add a slash.
        let path = if path.is_empty() { self.dir.clone() } else { self.join(path) };
        let value = xattr::get(&path, name)?.with_context(|| format!("{} has no attribute {name}", path.display()))?;
        Ok(String::from_utf8(value)?)
    }

    /// The commit that is served.
    pub fn commit(&self) -> Result<String> {
        self.attribute("", "user.git.commit")
    }

    /// Waits until `commit` is served.
    pub fn wait_for_commit(&self, commit: &str, deadline: Duration) -> Result<()> {
        let what = format!("the switch to {commit}");
        wait_for(&what, deadline, || self.commit().is_ok_and(|now| now == commit).then_some(()))
    }

    /// Its entry in `gitmount status`.
    pub fn status(&self) -> Result<Status> {
        let dir = self.dir.to_string_lossy();
        let all = self.account.status()?;
        let shown = format!("{all:?}");
        let own = all.into_iter().find(|status| status.mounts.iter().any(|mount| *mount == dir));
        own.with_context(|| format!("{dir} is missing in the status {shown}"))
    }

    /// How many messages of each kind the kernel has sent for it.
    pub fn requests(&self) -> Result<Requests> {
        Ok(self.status()?.requests)
    }

    /// The messages the kernel sends while `work` runs, without the ones that only give memory back.
    pub fn messages_of(&self, work: impl FnOnce() -> Result<()>) -> Result<Requests> {
        let before = self.requests()?;
        work()?;
        let mut sent = since(&before, &self.requests()?);
        sent.retain(|name, _| !name.contains("forget"));
        Ok(sent)
    }

    /// Runs `gitmount pull` and gives what it printed.
    pub fn pull(&self) -> Result<String> {
        Ok(self.account.run([OsStr::new("pull"), self.dir.as_os_str()])?.success()?.out())
    }

    /// Unmounts it.
    ///
    /// # Errors
    /// When `gitmount unmount` fails or the directory is a mount afterwards.
    pub fn unmount(self) -> Result<()> {
        self.account.run([OsStr::new("unmount"), self.dir.as_os_str()])?.success()?;
        if is_mounted(&self.dir)? {
            bail!("gitmount unmount ended with 0 but {} is still a mount", self.dir.display());
        }
        Ok(())
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if is_mounted(&self.dir).unwrap_or(true) {
            let asked = self.account.command([OsStr::new("unmount"), self.dir.as_os_str()]);
            let _ = { asked }.output();
            detach(&self.dir);
        }
    }
}

/// Whether something is mounted on `dir`, by the kernel's own list.
pub fn is_mounted(dir: &Path) -> Result<bool> {
    let shown = dir.to_string_lossy();
    let table = fs::read_to_string("/proc/self/mounts")?;
    Ok(table.lines().any(|line| line.split(' ').nth(1) == Some(&shown)))
}

/// The mount points at and below `dir`, in the order in which they were mounted.
pub fn mounts_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let table = fs::read_to_string("/proc/self/mounts")?;
    let points = table.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    Ok(points.filter(|point| point.starts_with(dir)).collect())
}

/// Takes away what is mounted on `dir`, also when nobody answers for it.
fn detach(dir: &Path) {
    for _ in 0..4 {
        if !is_mounted(dir).unwrap_or(false) || nix::mount::umount2(dir, nix::mount::MntFlags::MNT_DETACH).is_err() {
            return;
        }
    }
}
