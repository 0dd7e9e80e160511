//! One `gitmount` with a home, store and runtime directory of its own, so that nothing of the machine's user shows in a test.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

pub(super) struct Bench {
    dir: tempfile::TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: i32,
    pub(super) out: String,
    pub(super) err: String,
}

impl Bench {
    pub(super) fn new() -> Self {
        let bench = Bench { dir: tempfile::tempdir().unwrap() };
        std::fs::create_dir(bench.path("home")).unwrap();
        std::fs::create_dir(bench.path("mnt")).unwrap();
        bench
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().unwrap().join(name)
    }

    /// An empty directory to mount on.
    pub(super) fn mnt(&self) -> PathBuf {
        self.path("mnt")
    }

    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gitmount"));
        command
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", self.path("home"))
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("GITMOUNT_RUNTIME_DIR", self.path("run"))
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
        command
    }

    pub(super) fn run<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Ended {
        let output: Output = self.command().args(args).output().unwrap();
        Ended {
            code: output.status.code().unwrap(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Runs `gitmount mount` with `args` and the empty directory, which must fail and leave nothing behind.
    pub(super) fn refused(&self, args: &[&str]) -> Ended {
        let mnt = self.mnt();
        let ended = self.run(["mount".as_ref()].into_iter().chain(args.iter().map(OsStr::new)).chain([mnt.as_os_str()]));
        ended.is_one_sentence();
        assert_eq!(std::fs::read_dir(&mnt).unwrap().count(), 0, "something was mounted");
        ended
    }
}

impl Ended {
    /// Every error is one line that says whose it is, on stderr alone.
    pub(super) fn is_one_sentence(&self) {
        assert_ne!(self.code, 0, "{self:?}");
        assert!(self.out.is_empty() && self.err.lines().count() == 1, "{self:?}");
        assert!(self.err.starts_with("gitmount: ") && !self.err.trim_end().ends_with('.'), "{self:?}");
    }

    pub(super) fn says(&self, code: i32, texts: &[&str]) {
        self.is_one_sentence();
        assert_eq!(self.code, code, "{self:?}");
        for text in texts {
            assert!(self.err.contains(text), "{text:?} is not in {self:?}");
        }
    }
}

/// Runs git, which has to work.
pub(super) fn git(dir: &Path, args: &[&str]) {
    let done = Command::new("git")
        .args(["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main", "-C"])
        .arg(dir)
        .args(args)
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(done.success(), "git {args:?}");
}
