//! Demands: the annotation `git.liken.sh/pull-requested-at` on a PersistentVolume makes every node that holds the volume pull.
//!
//! - [`book`]: which demand makes a node pull, decided without a clock and a network of its own.
//! - [`mod@spread`]: when it does.
//!
//! Promises: only the metadata of PersistentVolumes is watched; each value acts once; a demand that comes while the daemon is away acts when it
//! is back; a host that does not show yet what was pushed is asked again, a few times.

pub mod book;
pub mod spread;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use gitmount_proto::fsd::v1 as fsd;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;

use crate::daemon::Daemon;
use crate::health::Health;
use book::{Act, Book, Demand};
use spread::Spread;

/// The annotation that demands a pull: a time, RFC 3339.
pub const REQUESTED: &str = "git.liken.sh/pull-requested-at";

/// The annotation that says which commit is expected.
pub const EXPECTED: &str = "git.liken.sh/pull-expected-commit";

/// Messages that wait; the watch waits when there are more.
const QUEUE: usize = 256;

/// How often a daemon that is away is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// When a host that does not show the expected commit is asked again.
const REPOLLS: [Duration; 4] = [Duration::from_millis(500), Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(4)];

/// How often, and how long, the answer to a demand is waited for before that.
const LOOK: Duration = Duration::from_millis(500);
const LOOKS: u32 = 60;

/// What the task is told.
#[derive(Debug)]
enum Told {
    Annotated(String, Option<Demand>),
    Published(String),
    /// The names that there are; everything else is forgotten.
    Listed(HashSet<String>),
}

/// Tells the task of volumes that were published; a copy is cheap.
#[derive(Debug, Clone)]
pub struct Published(mpsc::Sender<Told>);

impl Published {
    /// A volume is published at a target where it was not: a demand may be newer than what was fetched for it.
    pub fn tell(&self, volume: &str) {
        let told = Told::Published(volume.to_owned());
        if let Err(mpsc::error::TrySendError::Full(told)) = self.0.try_send(told) {
            // As when all volumes are listed: it comes after them.
            let queue = self.0.clone();
            tokio::spawn(async move { queue.send(told).await });
        }
    }
}

/// Follows demands for ever; without a client there are none.
pub fn start(client: Option<Client>, daemon: Daemon, health: Arc<Health>, spread: Duration) -> Published {
    let (queue, told) = mpsc::channel(QUEUE);
    if let Some(client) = client {
        let queue = queue.clone();
        tokio::spawn(async move { watch(client, queue).await });
    }
    let spread = Spread::new(spread);
    let follower = Follower { daemon, health, spread, book: Book::default(), waiting: HashSet::new(), followed: HashMap::new() };
    tokio::spawn(follower.run(told));
    Published(queue)
}

async fn watch(client: Client, queue: mpsc::Sender<Told>) {
    let volumes: Api<PartialObjectMeta<PersistentVolume>> = Api::all(client);
    let mut stream = std::pin::pin!(watcher(volumes, watcher::Config::default()));
    let (mut said, mut listed, mut wait) = (false, HashSet::new(), Duration::from_millis(200));
    while let Some(event) = stream.next().await {
        let event = match event {
            Ok(event) => {
                if std::mem::take(&mut said) {
                    tracing::info!("PersistentVolumes are watched again");
                }
                wait = Duration::from_millis(200);
                event
            }
            Err(error) => {
                if !std::mem::replace(&mut said, true) {
                    tracing::warn!(%error, "PersistentVolumes cannot be watched: demands act when they can be again");
                }
                tokio::time::sleep(wait).await;
                wait = (wait * 2).min(Duration::from_secs(10));
                continue;
            }
        };
        let told = match event {
            Event::Init => {
                listed.clear();
                continue;
            }
            Event::InitApply(volume) => {
                listed.insert(volume.name_any());
                annotated(&volume)
            }
            Event::Apply(volume) => annotated(&volume),
            Event::Delete(volume) => Told::Annotated(volume.name_any(), None),
            Event::InitDone => Told::Listed(std::mem::take(&mut listed)),
        };
        if queue.send(told).await.is_err() {
            return;
        }
    }
}

fn annotated(volume: &PartialObjectMeta<PersistentVolume>) -> Told {
    let annotation = |name: &str| volume.annotations().get(name).cloned();
    let demand = annotation(REQUESTED).map(|value| Demand { value, commit: annotation(EXPECTED) });
    Told::Annotated(volume.name_any(), demand)
}

struct Follower {
    daemon: Daemon,
    health: Arc<Health>,
    spread: Spread,
    book: Book,
    /// Volumes to look at once the daemon answers.
    waiting: HashSet<String>,
    followed: HashMap<String, JoinHandle<()>>,
}

impl Follower {
    async fn run(mut self, mut told: mpsc::Receiver<Told>) {
        loop {
            let next = if self.waiting.is_empty() {
                told.recv().await.map(Some)
            } else {
                match tokio::time::timeout(AGAIN, told.recv()).await {
                    Ok(next) => next.map(Some),
                    Err(_) => Some(None),
                }
            };
            match next {
                None => return,
                Some(Some(Told::Annotated(volume, demand))) => {
                    if self.book.annotated(&volume, demand) {
                        self.waiting.insert(volume);
                    }
                }
                Some(Some(Told::Published(volume))) => drop(self.waiting.insert(volume)),
                Some(Some(Told::Listed(names))) => self.book.retain(&names),
                Some(None) => {}
            }
            if !self.waiting.is_empty() {
                self.act().await;
            }
        }
    }

    async fn act(&mut self) {
        // Not what was kept for a second: the demand is newer.
        let Ok(views) = self.health.ask().await else { return };
        for volume in std::mem::take(&mut self.waiting) {
            let Some(Act { urls, commit }) = self.book.due(&volume, &views) else { continue };
            let now = Instant::now();
            let mut longest = Duration::ZERO;
            for url in &urls {
                let planned = self.spread.plan(url, now, fastrand::f64());
                longest = longest.max(planned.wait);
                if !planned.shared {
                    let (daemon, url, name) = (self.daemon.clone(), url.clone(), volume.clone());
                    tokio::spawn(async move {
                        tokio::time::sleep(planned.wait).await;
                        demand(&daemon, &url, &name).await;
                    });
                }
            }
            self.followed.retain(|_, task| !task.is_finished());
            // Whether an older push was seen is of no interest any more.
            if let Some(older) = self.followed.remove(&volume) {
                older.abort();
            }
            let Some(commit) = commit else { continue };
            let (daemon, health, name) = (self.daemon.clone(), Arc::clone(&self.health), volume.clone());
            let (before, asked) = (commits(&views, &volume), jiff::Timestamp::now());
            let task = tokio::spawn(async move {
                tokio::time::sleep(longest).await;
                repoll(&daemon, &health, &name, &urls, &commit, &before, asked).await;
            });
            self.followed.insert(volume, task);
        }
    }
}

async fn demand(daemon: &Daemon, url: &str, volume: &str) {
    loop {
        match daemon.demand(url).await {
            Ok(views) => return tracing::info!(volume, url, views, "a demand"),
            Err(error) => tracing::warn!(volume, url, %error, "a demand waits for the daemon"),
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Asks a host again that does not show a commit yet, once the demand that came at `asked` was answered.
async fn repoll(daemon: &Daemon, health: &Health, volume: &str, urls: &[String], commit: &str, before: &[String], asked: jiff::Timestamp) {
    let asked = asked.as_millisecond();
    let news = |views: &[fsd::View]| {
        let now = commits(views, volume);
        now.iter().any(|shown| shown == commit) || now != before
    };
    for _ in 0..LOOKS {
        tokio::time::sleep(LOOK).await;
        let seen = health.look().await;
        if news(&seen.views) {
            return;
        }
        if of(&seen.views, volume).any(|view| view.last_success_ms.is_some_and(|at| i64::try_from(at).is_ok_and(|at| at >= asked))) {
            break;
        }
    }
    for wait in REPOLLS {
        tokio::time::sleep(wait).await;
        for url in urls {
            if let Err(error) = daemon.pull(url).await {
                tracing::warn!(volume, url, %error, "the host cannot be asked again");
            }
        }
        if health.ask().await.is_ok_and(|views| news(&views)) {
            return;
        }
    }
    tracing::info!(volume, commit, "the host does not show the pushed commit: the next pull finds it");
}

fn of<'a>(views: &'a [fsd::View], volume: &'a str) -> impl Iterator<Item = &'a fsd::View> {
    views.iter().filter(move |view| view.volumes.iter().any(|one| one.persistent && one.spec_name == volume))
}

fn commits(views: &[fsd::View], volume: &str) -> Vec<String> {
    let mut commits: Vec<String> = of(views, volume).map(|view| view.commit.clone()).collect();
    commits.sort_unstable();
    commits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn no_volume_that_is_published_is_passed_over_however_many_wait() {
        let (queue, mut told) = mpsc::channel(1);
        let published = Published(queue);
        let mut names: HashSet<String> = (0..10).map(|number| format!("v{number}")).collect();
        names.iter().for_each(|name| published.tell(name));
        while !names.is_empty() {
            let Some(Told::Published(name)) = told.recv().await else { panic!("something else") };
            assert!(names.remove(&name), "{name} was told twice");
        }
    }
}
