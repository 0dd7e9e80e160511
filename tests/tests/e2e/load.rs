//! The webhook controller with many volumes and many requests: each push marks the volumes that follow it, and no others, and the memory stays
//! bounded. What it took is printed, and decides nothing.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::pods::{Claim, list, secret};
use gitmount_tests::cluster::webhooks::{EXPECTED, Hook, REQUESTED};
use gitmount_tests::cluster::{Cluster, NAMESPACE, Namespace, condition};
use gitmount_tests::run::wait_for;
use gitmount_tests::servers::http_get;
use serde_json::Value;

use super::payloads::{AFTER, Event, FORGES};

const DEADLINE: Duration = Duration::from_secs(300);
const KEY: &str = "the string that the forges were given";
/// Requests, and the time between two of them: a hundred a second, for ten seconds.
const REQUESTS: usize = 1000;
const BETWEEN: Duration = Duration::from_millis(10);
/// Those who send. As long as answers take less than this many times [`BETWEEN`], they keep up.
const SENDERS: usize = 32;
/// Objects that are applied together.
const BATCH: usize = 50;
/// What the volumes of each repository follow; nobody pushes to the last one.
const FOLLOWED: [&str; 4] = ["main", "main", "stable", "quiet"];
/// What is pushed to, in turn.
const PUSHED: [&str; 2] = ["main", "stable"];
/// The forges, by their place in [`FORGES`], each with the name of its repository there.
const MIXED: [(usize, &str); 3] = [(0, "Codertocat/Hello-World"), (1, "mike/diaspora"), (2, "team/site")];

/// How many volumes there are.
fn volumes() -> usize {
    if std::env::var_os("GITMOUNT_TORTURE").is_some() { 1000 } else { 200 }
}

fn forge(repository: usize) -> (usize, &'static str, String) {
    let (place, name) = MIXED[repository % MIXED.len()];
    (place, name, format!("load/r{repository}"))
}

/// The claim of a volume: the volumes of a repository come one after the other.
fn claim(namespace: &str, number: usize) -> Claim {
    let (place, name, own) = forge(number / FOLLOWED.len());
    let url = FORGES[place].1.replace(name, &own);
    let attributes = [("url", url.as_str()), ("ref", FOLLOWED[number % FOLLOWED.len()]), ("pull", "on-demand"), ("webhookSecret", "hook")];
    Claim::new(namespace, &format!("v{number}"), &attributes)
}

/// A push, when it was sent, and when it was answered.
#[derive(Debug, Clone)]
struct Push {
    number: usize,
    repository: usize,
    branch: &'static str,
    sent: Instant,
    answered: Instant,
    tries: usize,
}

impl Push {
    fn commit(number: usize) -> String {
        format!("{:040x}", number + 1)
    }

    /// Sends one to a controller, again when that asks for it.
    fn send(number: usize, repositories: usize, (address, path): (&str, &str)) -> Result<Push> {
        let (repository, branch) = (number % repositories, PUSHED[number / repositories % PUSHED.len()]);
        let (place, name, own) = forge(repository);
        let Hook { proof, headers, body } = FORGES[place].2(Event::Push);
        let body = body.to_string().replace(name, &own).replace(AFTER, &Push::commit(number));
        let body: Value = serde_json::from_str(&body.replace("refs/heads/main", &format!("refs/heads/{branch}")))?;
        let (hook, sent) = (Hook { proof, headers, body }, Instant::now());
        let mut tries = 0;
        let answer = wait_for("an answer", DEADLINE, || {
            tries += 1;
            Some(hook.post(address, path, KEY)).filter(|answer| answer.as_ref().map_or(true, |answer| answer.0 != 503))
        })??;
        let marked = FOLLOWED.iter().filter(|followed| **followed == branch).count();
        ensure!(answer == (200, format!("marked {marked}")), "push {number} was answered {answer:?}");
        Ok(Push { number, repository, branch, sent, answered: Instant::now(), tries })
    }
}

/// A number out of what a controller counts.
fn counted(address: &str, series: &str) -> Result<usize> {
    let metrics = http_get(&address.replace(":8080", ":9810"), "/metrics")?;
    let value = metrics.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.with_context(|| format!("{series} in {metrics}"))
}

/// The controllers that are ready: their pods and addresses.
fn controllers(cluster: &Cluster) -> Result<Vec<(String, String)>> {
    let of = |pod: &Value| Some((pod["metadata"]["name"].as_str()?.to_owned(), format!("{}:8080", pod["status"]["podIP"].as_str()?)));
    Ok(cluster.controllers()?.iter().filter(|pod| condition(pod, "Ready") == Some("True")).filter_map(of).collect())
}

#[test]
fn every_push_of_a_thousand_marks_its_volumes_and_memory_stays_bounded() -> Result<()> {
    let cluster = Cluster::get()?;
    // Alone, since others' volumes and requests would count, too.
    let namespace = Namespace::alone(cluster, "load")?;
    let driver = cluster.usual_driver(&namespace)?;
    cluster.controller()?;
    let (k, ns, total) = (&cluster.kubectl, namespace.name(), volumes());
    let repositories = total / FOLLOWED.len();
    k.apply_object(&secret(ns, "hook", &[("secret", KEY)]))?;
    let began = Instant::now();
    let numbers: Vec<usize> = (0..total).collect();
    for batch in numbers.chunks(BATCH) {
        k.apply_object(&list(&batch.iter().map(|number| claim(ns, *number).object()).collect::<Vec<_>>()))?;
    }
    let applied = began.elapsed();
    cluster.wait_bound(ns)?;
    println!("{total} volumes: applied after {:.1} s, bound after {:.1} s", applied.as_secs_f64(), began.elapsed().as_secs_f64());

    // A watch tells in order: who knows a volume that was bound after all others knows them all.
    k.apply_object(&claim(ns, total + FOLLOWED.len()).object())?;
    cluster.wait_bound(ns)?;
    let (controllers, path) = (controllers(cluster)?, format!("/webhook/{ns}/hook"));
    let (place, name, own) = forge(repositories + 1);
    let mut last = FORGES[place].2(Event::Push);
    last.body = serde_json::from_str(&last.body.to_string().replace(name, &own))?;
    for (_, address) in &controllers {
        let marks = || (last.post(address, &path, KEY).ok()? == (200, "marked 1".to_owned())).then_some(());
        wait_for("a controller that knows all volumes", DEADLINE, marks)?;
    }
    let series = ["git_csi_webhook_marked_total ", "git_csi_webhook_requests_total{result=\"marked\"} "];
    let count = |series: &str| controllers.iter().map(|(_, address)| counted(address, series)).sum::<Result<usize>>();
    let (before, [marked, asked]) = (cluster.annotations(ns)?, [count(series[0])?, count(series[1])?]);

    let (next, pushes, start) = (AtomicUsize::new(0), Mutex::new(vec![]), Instant::now());
    std::thread::scope(|scope| -> Result<()> {
        let send = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= REQUESTS {
                    return Ok(());
                }
                let due = start + BETWEEN * u32::try_from(number)?;
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                let (_, address) = &controllers[number % controllers.len()];
                let push = Push::send(number, repositories, (address, &path))?;
                pushes.lock().expect("nobody panics with it").push(push);
            }
        };
        let senders: Vec<_> = (0..SENDERS).map(|_| scope.spawn(send)).collect();
        senders.into_iter().try_for_each(|sender| sender.join().expect("it does not panic"))
    })?;
    let took = start.elapsed();
    let pushes = pushes.into_inner().expect("nobody panics with it");
    let mut latencies: Vec<u128> = pushes.iter().map(|push| (push.answered - push.sent).as_millis()).collect();
    latencies.sort_unstable();
    let part = |percent: usize| latencies[(latencies.len() - 1) * percent / 100];
    println!(
        "{REQUESTS} requests in {:.1} s; answered after {} ms (half of them), {} ms (99 of 100), {} ms (all)",
        took.as_secs_f64(),
        part(50),
        part(99),
        part(100)
    );

    check(&pushes, &before, &cluster.annotations(ns)?, ns)?;
    let tries: usize = pushes.iter().map(|push| push.tries).sum();
    println!("{} requests were sent again, as they were told to be", tries - REQUESTS);
    ensure!(count(series[1])? == asked + REQUESTS, "requests that marked are counted");
    let wanted: usize = pushes.iter().map(|push| FOLLOWED.iter().filter(|followed| **followed == push.branch).count()).sum();
    ensure!(count(series[0])? == marked + wanted, "marks are counted");
    for (pod, _) in &controllers {
        bounded(cluster, pod, "controller")?;
    }
    bounded(cluster, &driver.pod("node", "node1")?, "csi")
}

type Marks = BTreeMap<String, BTreeMap<String, String>>;

/// Each volume has the demand of a push that may have been its last one, and nothing else is marked.
fn check(pushes: &[Push], before: &Marks, after: &Marks, namespace: &str) -> Result<()> {
    for number in 0..volumes() {
        let volume = claim(namespace, number).volume();
        let (was, is) = (&before[&volume], &after[&volume]);
        let (repository, followed) = (number / FOLLOWED.len(), FOLLOWED[number % FOLLOWED.len()]);
        let own: Vec<&Push> = pushes.iter().filter(|push| (push.repository, push.branch) == (repository, followed)).collect();
        if own.is_empty() {
            ensure!(followed == "quiet" && was == is, "{volume} follows {followed}, to which nobody pushed: {was:?} {is:?}");
            continue;
        }
        // Of pushes at the same time any may be the last, but none is that was answered before another was sent.
        let last = own.iter().filter(|push| !own.iter().any(|later| later.sent > push.answered));
        let commits: Vec<String> = last.map(|push| Push::commit(push.number)).collect();
        ensure!(is.get(EXPECTED).is_some_and(|commit| commits.contains(commit)), "{volume}: one of {commits:?} was lost: {is:?}");
        ensure!(is.get(REQUESTED) > was.get(REQUESTED), "{volume}: {was:?} {is:?}");
    }
    ensure!(before.len() == after.len());
    Ok(())
}

/// A container has not run out of the memory that its chart gives it.
fn bounded(cluster: &Cluster, pod: &str, container: &str) -> Result<()> {
    let object = cluster.kubectl.json(&["get", "pod", pod, "-n", NAMESPACE])?;
    let named = |list: &str| object.pointer(list)?.as_array()?.iter().find(|one| one["name"] == container).cloned();
    let status = named("/status/containerStatuses").context("a status")?;
    let limit = named("/spec/containers").and_then(|own| own["resources"]["limits"]["memory"].as_str()?.strip_suffix("Mi")?.parse().ok());
    let limit: u64 = limit.context("a limit in MiB")?;
    let proc = std::fs::read_to_string(format!("/proc/{}/status", cluster.pid_of(NAMESPACE, pod, container)?))?;
    let most = proc.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().trim_end_matches(" kB").parse::<u64>().ok());
    let most = most.context("a peak")?;
    println!("{container} of {pod} took {:.1} MiB at most, of {limit}", most as f64 / 1024.0);
    ensure!(most < limit << 10 && status["restartCount"] == 0, "{container} of {pod} took {most} KiB: {status}");
    Ok(())
}
