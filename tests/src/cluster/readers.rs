//! Pods that look at a git volume without pause and check every byte, while something is done to the driver below them.
//!
//! The tree is one whose files carry their own checksum, so that a pod can tell a wrong byte from a new commit. A round of a reader lists a
//! directory, reads every file by its path, one from its working directory, and one that it holds open since it started. What a reader has
//! seen is read from its container's files, so it is known also while kubelet and containerd are away.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::process::until;
use super::{Cluster, pods};
use crate::git::Repo;
use crate::import::Import;

/// Where the pods have the volume.
const AT: &str = "/volume";
/// Files below `d`; even ones change with every commit.
const FILES: usize = 8;
/// A round that takes longer is written down.
const SLOW: &str = "10";

/// What a reader's container runs.
const SCRIPT: &str = r#"
fail() { echo "round $n: $*" >> /tmp/errors; }
now() { read -r up _ < /proc/uptime; up=${up%.*}${up#*.}; }
check() {
    { read -r want && got=$(sha256sum); } < "$1" 2>>/tmp/errors || fail "$1 cannot be read"
    [ "$want" = "${got%% *}" ] || fail "$1 has wrong bytes: $got instead of $want"
}
n=0
cd $AT/d || exit 1
exec 3< ../held
held=$(sha256sum < /proc/self/fd/3)
while :; do
    now; begin=$up
    read -r version < $AT/version || fail "version cannot be read"
    for i in $(seq $FILES); do check $AT/d/$i; done
    check ./1
    check $AT/big
    count=$(ls $AT/d 2>>/tmp/errors | wc -l)
    [ "$count" = $FILES ] || fail "$count names are listed"
    [ "$held" = "$(sha256sum < /proc/self/fd/3)" ] || fail "the file that is held open has changed"
    now
    n=$((n + 1))
    [ $((up - begin)) -lt $SLOW ] || echo "$begin $((up - begin))" >> /tmp/slow
    echo "$n $version $up" > /tmp/round.new && mv /tmp/round.new /tmp/round
    usleep 20000
done
"#;

/// A repository of files that carry their checksums.
#[derive(Debug)]
pub struct Tree {
    repo: Repo,
    version: u32,
}

impl Tree {
    /// A new bare one, with one commit.
    pub fn new(path: &Path) -> Result<Self> {
        let mut tree = Tree { repo: Repo::init_bare(path)?, version: 0 };
        tree.push()?;
        Ok(tree)
    }

    /// The repository.
    pub fn repo(&self) -> &Repo {
        &self.repo
    }

    /// Adds a commit, and gives its number.
    pub fn push(&mut self) -> Result<u32> {
        self.push_with(&[])
    }

    /// The same, with another file in it.
    pub fn push_with(&mut self, more: &[(&str, &[u8])]) -> Result<u32> {
        self.version += 1;
        let version = self.version;
        let mut import = Import::into(&self.repo)?;
        import.commit("refs/heads/main", &format!("Version {version}"))?;
        import.file(b"version", format!("{version}\n"))?;
        import.file(b"held", format!("held of {version}\n"))?;
        import.file(b"big", checked(version, 3 << 20))?;
        for number in 1..=FILES {
            let of = if number % 2 == 0 { version } else { 0 };
            import.file(format!("d/{number}").as_bytes(), checked(of, 100 << (number + number % 3)))?;
        }
        for (path, content) in more {
            import.file(path.as_bytes(), content)?;
        }
        import.finish()?;
        Ok(version)
    }
}

/// `size` bytes of a version, after a line with their checksum.
fn checked(version: u32, size: usize) -> Vec<u8> {
    // What does not compress, the same in every run.
    let mut state = version.wrapping_mul(2_654_435_761) ^ u32::try_from(size).unwrap_or(1) | 1;
    let body: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    })
    .take(size)
    .collect();
    [format!("{}\n", super::hex(&Sha256::digest(&body))).into_bytes(), body].concat()
}

/// A pod that reads this volume.
pub fn pod(namespace: &str, name: &str, node: &str, volume: &Value) -> Value {
    let script = SCRIPT.replace("$AT", AT).replace("$FILES", &FILES.to_string()).replace("$SLOW", SLOW);
    pods::Pod::new(namespace, name, node).volume("volume", volume.clone()).script(&script).object()
}

/// A running reader.
#[derive(Debug)]
pub struct Reader {
    name: String,
    root: PathBuf,
}

/// The last round of a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Round {
    /// How many there were.
    pub number: u64,
    /// The commit that was there when it began.
    pub version: u32,
    /// When it ended, in hundredths of a second since the machine was started.
    pub ended: u64,
}

impl Reader {
    /// The one in a pod that is Ready.
    pub fn of(cluster: &Cluster, namespace: &str, pod: &str) -> Result<Self> {
        let pid = cluster.pid_of(namespace, pod, "c")?;
        let node = cluster.node_of(namespace, pod)?.name();
        Ok(Reader { name: format!("{pod} on {node}"), root: format!("/proc/{pid}/root/tmp").into() })
    }

    /// Its name, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its last round; `None` before the first.
    ///
    /// # Errors
    /// When its container has ended.
    pub fn round(&self) -> Result<Option<Round>> {
        ensure!(self.root.exists(), "the reader {} has ended", self.name);
        let Ok(text) = fs::read_to_string(self.root.join("round")) else { return Ok(None) };
        let numbers: Vec<u64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>().with_context(|| text.clone())?;
        let [number, version, ended] = numbers[..] else { anyhow::bail!("a reader wrote {text:?}") };
        Ok(Some(Round { number, version: u32::try_from(version)?, ended }))
    }

    /// What went wrong so far.
    pub fn errors(&self) -> String {
        fs::read_to_string(self.root.join("errors")).unwrap_or_default()
    }

    /// Waits until it has been through whole rounds of this commit.
    ///
    /// # Errors
    /// After `deadline`, or when something went wrong in any round.
    pub fn wait(&self, version: u32, deadline: Duration) -> Result<()> {
        let mut first = None;
        let seen = until(&format!("version {version} at {}", self.name), deadline, None, || {
            let Some(round) = self.round()?.filter(|round| round.version == version) else { return Ok(None) };
            let first = *first.get_or_insert(round.number);
            Ok((round.number >= first + 2).then_some(()))
        });
        let errors = self.errors();
        ensure!(errors.is_empty(), "the reader {} has seen: {errors}", self.name);
        seen.with_context(|| format!("its last round is {:?}", self.round()))
    }

    /// The longest round that ended after `since` (of [`uptime`]); rounds of less than a tenth of a second are not counted.
    pub fn longest(&self, since: u64) -> Result<Duration> {
        let slow = fs::read_to_string(self.root.join("slow")).unwrap_or_default();
        let rounds = slow.lines().filter_map(|line| {
            let (begin, took) = line.split_once(' ')?;
            Some((begin.parse::<u64>().ok()?, took.parse::<u64>().ok()?))
        });
        let longest = rounds.filter(|(begin, took)| begin + took >= since).map(|(_, took)| took).max();
        Ok(Duration::from_millis(longest.unwrap_or(0) * 10))
    }
}

/// Hundredths of a second since the machine was started.
pub fn uptime() -> Result<u64> {
    let text = fs::read_to_string("/proc/uptime")?;
    let first = text.split_whitespace().next().context("/proc/uptime has two numbers")?;
    Ok(first.replace('.', "").parse()?)
}
