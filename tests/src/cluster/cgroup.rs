//! A cgroup for everything that a cluster starts: nothing can leave it by forking, so what is in it is what must end with the cluster.
//! Version 1 (where a kubelet needs the directory in every hierarchy) and version 2.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::run;

const ROOT: &str = "/sys/fs/cgroup";
/// The hierarchies of version 1 that a kubelet uses.
const HIERARCHIES: [&str; 9] = ["pids", "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "systemd"];

/// One cgroup, by its path below the root.
#[derive(Debug, Clone)]
pub(super) struct Cgroup {
    path: String,
}

impl Cgroup {
    pub(super) fn new(path: &str) -> Self {
        Cgroup { path: path.to_owned() }
    }

    /// Its path as a kubelet is told.
    pub(super) fn path(&self) -> String {
        format!("/{}", self.path)
    }

    /// Makes it in every hierarchy that there is.
    pub(super) fn make(&self) -> Result<()> {
        for root in roots() {
            let dir = root.join(&self.path);
            fs::create_dir_all(&dir).with_context(|| {
                format!("the cgroup {} could not be made: the cluster needs root and a writable /sys/fs/cgroup", dir.display())
            })?;
            // A cpuset takes no process before it has both.
            for ancestor in dir.ancestors().take_while(|dir| *dir != root).collect::<Vec<_>>().into_iter().rev() {
                let parent = ancestor.parent().unwrap_or(&root);
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    if root.ends_with("cpuset") {
                        fs::write(ancestor.join(file), fs::read(parent.join(file))?)?;
                    }
                }
                if unified() {
                    for controller in ["cpu", "cpuset", "memory", "pids", "io", "hugetlb"] {
                        // Not every kernel has each; the kubelet names those that it misses.
                        let _ = fs::write(parent.join("cgroup.subtree_control"), format!("+{controller}"));
                    }
                }
            }
        }
        Ok(())
    }

    /// Puts a process into it, and with it what the process will fork.
    pub(super) fn add(&self, pid: i32) -> Result<()> {
        let dir = counted().context("there is no cgroup hierarchy")?.join(&self.path);
        fs::write(dir.join("cgroup.procs"), pid.to_string()).with_context(|| format!("{} takes no process", dir.display()))
    }

    /// Every process in it and below.
    pub(super) fn processes(&self) -> Vec<i32> {
        let mut found = Vec::new();
        if let Some(root) = counted() {
            for dir in tree(&root.join(&self.path)) {
                let list = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                found.extend(list.lines().filter_map(|line| line.parse::<i32>().ok()).filter(|pid| *pid > 0));
            }
        }
        found
    }

    /// Kills everything in it and removes it.
    pub(super) fn end(&self) -> Result<()> {
        let deadline = Duration::from_secs(60);
        let gone = run::wait_for(&format!("the end of all processes in the cgroup {}", self.path), deadline, || {
            let processes = self.processes();
            for pid in &processes {
                // What is gone meanwhile is what is wanted.
                let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
            }
            processes.is_empty().then_some(())
        });
        gone.with_context(|| format!("these do not end: {:?}", self.processes()))?;
        for root in roots() {
            for dir in tree(&root.join(&self.path)).into_iter().rev() {
                // A dying process may hold it for a moment.
                let _ = run::wait_for("the end of a cgroup", Duration::from_secs(5), || {
                    (fs::remove_dir(&dir).is_ok() || !dir.exists()).then_some(())
                });
            }
            ensure!(!root.join(&self.path).exists(), "the cgroup {} cannot be removed", root.join(&self.path).display());
        }
        Ok(())
    }
}

/// Leaves a process, and what shares its cgroup, no more memory than it has now and a bit: the kernel kills it when it needs more.
pub fn starve(pid: i32) -> Result<()> {
    const STEP: u64 = 1 << 20;
    let list = fs::read_to_string(format!("/proc/{pid}/cgroup"))?;
    let kind = if unified() { "" } else { "memory" };
    let path = list.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        fields.next()?.split(',').any(|name| name == kind).then(|| fields.next()).flatten()
    });
    let path = path.with_context(|| format!("the process {pid} is in no cgroup that limits memory: {list}"))?;
    let root = if unified() { PathBuf::from(ROOT) } else { Path::new(ROOT).join("memory") };
    let file = root.join(path.trim_start_matches('/')).join(if unified() { "memory.max" } else { "memory.limit_in_bytes" });
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let own = status.lines().find_map(|line| line.strip_prefix("RssAnon:")?.split_whitespace().next()?.parse::<u64>().ok());
    let own = own.with_context(|| format!("the process {pid} has no memory: {status}"))? << 10;
    // Version 1 refuses what is less than what cannot be reclaimed.
    let taken = (1..=64).find(|steps| fs::write(&file, (own + steps * STEP).to_string()).is_ok());
    ensure!(taken.is_some(), "{} takes no limit near {own}", file.display());
    Ok(())
}

fn unified() -> bool {
    Path::new(ROOT).join("cgroup.controllers").exists()
}

/// Where hierarchies are mounted.
fn roots() -> Vec<PathBuf> {
    if unified() {
        return vec![PathBuf::from(ROOT)];
    }
    HIERARCHIES.iter().map(|name| Path::new(ROOT).join(name)).filter(|dir| dir.join("cgroup.procs").exists()).collect()
}

/// The hierarchy by which processes are found.
fn counted() -> Option<PathBuf> {
    roots().into_iter().next()
}

/// The directory and all below, each before those in it.
fn tree(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    if !dir.is_dir() {
        return all;
    }
    all.push(dir.to_owned());
    let mut next = 0;
    while next < all.len() {
        let entries = fs::read_dir(&all[next]).into_iter().flatten().flatten();
        all.extend(entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()));
        next += 1;
    }
    all
}
