//! A repository with a file system over it; a recording stands in for the kernel's notifications.

use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use bstr::{BStr, BString};
use gitmount_fsd::fs::{Attr, FileSystem, FsError};
use gitmount_fsd::inode::NodeId;
use gitmount_fsd::view::switch::Kernel;
use gitmount_fsd::view::{View, ViewOptions};
use gitmount_store::local::LocalRepository;
use gitmount_store::path::RepoPath;

#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) expired: Mutex<Vec<(NodeId, BString)>>,
    pub(crate) invalidated: Mutex<Vec<NodeId>>,
}

impl Kernel for Recorder {
    fn expire(&self, parent: NodeId, name: &BStr) {
        self.expired.lock().expect("no panic").push((parent, name.to_owned()));
    }
    fn invalidate(&self, dir: NodeId) {
        self.invalidated.lock().expect("no panic").push(dir);
    }
}

pub(crate) struct Fixture {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) fs: FileSystem,
    pub(crate) repository: LocalRepository,
}

fn git(dir: &Path, args: &[&str]) {
    let identity = ["GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME", "GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"].map(|name| (name, "a"));
    let mut command = Command::new("git");
    command.args(args).current_dir(dir).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1").envs(identity);
    assert!(command.status().expect("git runs").success(), "git {args:?}");
}

impl Fixture {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        Self::at(files, "")
    }

    pub(crate) fn at(files: &[(&str, &str)], path: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        git(dir.path(), &["init", "-q", "-b", "main"]);
        commit(dir.path(), files, &[]);
        let repository = LocalRepository::discover(dir.path()).expect("a repository");
        let head = repository.resolve("HEAD").expect("a commit");
        let mut options = ViewOptions::new("main", dir.path().join("spool"));
        options.path = RepoPath::parse(path).expect("a path");
        let view = View::new(repository.objects(), head, options).expect("a view");
        Fixture { fs: FileSystem::new(view), dir, repository }
    }

    pub(crate) fn view(&self) -> &Arc<View> {
        self.fs.view()
    }

    pub(crate) fn switch(&self, write: &[(&str, &str)], remove: &[&str]) -> Recorder {
        commit(self.dir.path(), write, remove);
        let kernel = Recorder::default();
        let head = self.repository.resolve("HEAD").expect("a commit");
        self.view().switch_to(head, &kernel).expect("switches");
        kernel
    }

    pub(crate) fn walk(&self, path: &str) -> Result<Option<Attr>, FsError> {
        let mut attr = self.fs.attr(NodeId::ROOT)?;
        for name in path.split('/') {
            match self.fs.lookup(attr.node, name.into())? {
                Some(next) => attr = next,
                None => return Ok(None),
            }
        }
        Ok(Some(attr))
    }

    pub(crate) fn get(&self, path: &str) -> Attr {
        self.walk(path).expect("no error").unwrap_or_else(|| panic!("{path} is missing"))
    }

    pub(crate) fn read(&self, node: NodeId) -> Vec<u8> {
        let (give, take) = std::sync::mpsc::channel();
        self.fs.read(node, 0, 1 << 20, move |data| give.send(data.map(<[u8]>::to_vec)).expect("somebody waits"));
        take.recv().expect("an answer").expect("no error")
    }

    pub(crate) fn names(&self, dir: NodeId) -> Vec<String> {
        let mut names = vec![];
        let listed = self.fs.list(dir, 0, true, &mut |line| {
            names.push(line.name.to_string());
            true
        });
        listed.expect("lists");
        names.split_off(2)
    }
}

pub(crate) fn commit(dir: &Path, write: &[(&str, &str)], remove: &[&str]) {
    for name in remove {
        git(dir, &["rm", "-rqf", "--", name]);
    }
    for (name, content) in write {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().expect("below the work tree")).expect("directories");
        std::fs::write(path, content).expect("writes");
        git(dir, &["add", "--", name]);
    }
    git(dir, &["commit", "-qm", "next", "--allow-empty"]);
}
