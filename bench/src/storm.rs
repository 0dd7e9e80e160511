//! When many nodes fetch one repository, on a simulated clock and without sockets: after a push, at once or spread, and after an outage.
//!
//! Each node runs what decides in the product: the demands of the node plugin ([`Book`], [`Spread`]) and the daemon's schedule ([`Groups`]).
//! Nodes know nothing of each other, so they are simulated one after the other.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use gitmount_csi::demands::book::{Book, Demand as Annotation};
use gitmount_csi::demands::spread::Spread;
use gitmount_fsd::daemon::policy::Pull;
use gitmount_fsd::daemon::schedule::Random as _;
use gitmount_fsd::daemon::schedule::groups::{Demand, GroupId, Groups, Rules};
use gitmount_proto::fsd::v1 as fsd;

use crate::plot::{self, Bar};
use crate::random::Random;

/// The only repository.
const URL: &str = "https://git.example.com/data.git";

/// When the push comes; the nodes have fetched by then.
const PUSH: Duration = Duration::from_secs(120);

/// How long the outage lasts, and how soon before the push it begins: the worst case, since all nodes fail in step.
const OUTAGE: Duration = Duration::from_secs(600);
const BEFORE: Duration = Duration::from_secs(1);

/// How long after it a node may still wait, at most: the longest wait between two tries.
const LONGEST: Duration = Duration::from_secs(300);

/// How far apart the marks of one push are, and how late a node may see one.
const MARKS: Duration = Duration::from_millis(20);
const LATENCY: Duration = Duration::from_millis(50);

/// What the wall clock shows at the start, in milliseconds.
const EPOCH: u64 = 1_800_000_000_000;

/// The nodes.
#[derive(Debug, Clone)]
pub(crate) struct Fleet {
    /// How many.
    pub(crate) nodes: u32,
    /// Volumes of the repository on each.
    pub(crate) volumes: u32,
    /// For the random times.
    pub(crate) seed: u64,
}

/// What happens to them.
#[derive(Debug, Clone)]
struct Weather {
    pull: Pull,
    spread: Duration,
    outage: Range<Duration>,
    end: Duration,
}

impl Weather {
    fn push(spread: Duration) -> Self {
        Weather { pull: Pull::OnDemand, spread, outage: Duration::ZERO..Duration::ZERO, end: PUSH + spread + Duration::from_secs(60) }
    }

    fn outage(pull: Pull) -> Self {
        let outage = PUSH - BEFORE..PUSH - BEFORE + OUTAGE;
        let end = outage.end + LONGEST + Duration::from_secs(30);
        Weather { pull, spread: Duration::ZERO, outage, end }
    }
}

/// One fetch.
#[derive(Debug, Clone, Copy)]
struct Fetch {
    node: u32,
    start: Duration,
    #[cfg_attr(not(test), expect(dead_code, reason = "the tests measure waits from it"))]
    end: Duration,
    worked: bool,
}

#[derive(Debug)]
enum Event {
    /// The first volume of a new node.
    Mounted,
    /// A volume was marked.
    Marked(u32, Annotation),
    /// The plugin tells the daemon of a demand.
    Told,
    Ended(Fetch),
    Woken,
}

struct Node<'a> {
    number: u32,
    weather: &'a Weather,
    base: Instant,
    groups: Groups,
    group: GroupId,
    book: Book,
    spread: Spread,
    random: Random,
    views: Vec<fsd::View>,
    events: BTreeMap<(Duration, u64), Event>,
    queued: u64,
    fetches: Vec<Fetch>,
}

impl<'a> Node<'a> {
    fn new(number: u32, fleet: &Fleet, weather: &'a Weather) -> Self {
        let base = Instant::now();
        let mut groups = Groups::new(Rules { interval: Duration::from_secs(10), workers: 16 });
        let group = groups.add(URL, "git.example.com");
        let view = |volume: u32| {
            let volume = fsd::Volume { spec_name: name(volume), persistent: true, ..Default::default() };
            fsd::View { url: URL.into(), volumes: vec![volume], ..Default::default() }
        };
        for volume in 0..fleet.volumes {
            groups.join(group, u64::from(volume), weather.pull, base);
        }
        let mut node = Node {
            number,
            weather,
            base,
            groups,
            group,
            book: Book::default(),
            spread: Spread::new(weather.spread),
            random: Random::new(fleet.seed ^ (u64::from(number) << 32)),
            views: (0..fleet.volumes).map(view).collect(),
            events: BTreeMap::new(),
            queued: 0,
            fetches: vec![],
        };
        let mounted = node.random.between(Duration::ZERO, PUSH / 2);
        node.queue(mounted, Event::Mounted);
        for volume in 0..fleet.volumes {
            // 32 are written at the same time.
            let at = PUSH + MARKS * (volume / 32) + MARKS.mul_f64(f64::from(volume % 32) / 32.0);
            let value = jiff::Timestamp::from_millisecond(wall(at).cast_signed()).unwrap_or_default().to_string();
            let seen = at + node.random.between(Duration::ZERO, LATENCY);
            node.queue(seen, Event::Marked(volume, Annotation { value, commit: None }));
        }
        node
    }

    fn queue(&mut self, at: Duration, event: Event) {
        self.queued += 1;
        self.events.insert((at, self.queued), event);
    }

    fn run(mut self) -> Vec<Fetch> {
        while let Some(((now, _), event)) = self.events.pop_first() {
            if now > self.weather.end {
                break;
            }
            self.take(now, event);
            let next = self.groups.next(self.base + now);
            for _ in next.start {
                self.begin(now);
            }
            if let Some(wake) = next.wake {
                self.queue(wake - self.base, Event::Woken);
            }
        }
        self.fetches
    }

    fn take(&mut self, now: Duration, event: Event) {
        let time = self.base + now;
        match event {
            Event::Mounted => drop(self.groups.demand(self.group, Demand::Urgent, time)),
            Event::Marked(volume, demand) => {
                let volume = name(volume);
                if self.book.annotated(&volume, Some(demand))
                    && let Some(act) = self.book.due(&volume, &self.views)
                {
                    for url in act.urls {
                        let planned = self.spread.plan(&url, time, self.random.unit());
                        if !planned.shared {
                            self.queue(now + planned.wait, Event::Told);
                        }
                    }
                }
            }
            // The daemon takes it for each view of the repository.
            Event::Told => {
                for _ in 0..self.views.len() {
                    self.groups.demand(self.group, Demand::Noted, time);
                }
            }
            Event::Ended(fetch) => {
                self.fetches.push(fetch);
                if fetch.worked {
                    self.views.iter_mut().for_each(|view| view.last_success_ms = Some(wall(fetch.start)));
                    self.groups.worked(self.group, time, &mut self.random);
                } else {
                    self.groups.failed(self.group, time, None, &mut self.random);
                }
            }
            Event::Woken => {}
        }
    }

    fn begin(&mut self, start: Duration) {
        let worked = !self.weather.outage.contains(&start);
        // A host that is away refuses at once.
        let (low, high) = if worked { (200, 500) } else { (1, 2) };
        let end = start + self.random.between(Duration::from_millis(low), Duration::from_millis(high));
        self.queue(end, Event::Ended(Fetch { node: self.number, start, end, worked }));
    }
}

fn name(volume: u32) -> String {
    format!("volume-{volume}")
}

fn wall(at: Duration) -> u64 {
    EPOCH + u64::try_from(at.as_millis()).unwrap_or(u64::MAX)
}

/// Every fetch of every node, in the order of their starts.
fn simulate(fleet: &Fleet, weather: &Weather) -> Vec<Fetch> {
    let mut fetches: Vec<Fetch> = (0..fleet.nodes).flat_map(|number| Node::new(number, fleet, weather).run()).collect();
    fetches.sort_by_key(|fetch| (fetch.start, fetch.node));
    fetches
}

/// Fetches of each second of a time, those that worked and the others.
fn per_second(fetches: &[Fetch], time: &Range<Duration>) -> Vec<Bar> {
    let mut bars = vec![Bar::default(); usize::try_from((time.end - time.start).as_secs() + 1).unwrap_or(0)];
    for fetch in fetches.iter().filter(|fetch| time.contains(&fetch.start)) {
        let second = usize::try_from((fetch.start - time.start).as_secs()).unwrap_or(usize::MAX);
        if let Some(bar) = bars.get_mut(second) {
            if fetch.worked { bar.good += 1 } else { bar.bad += 1 }
        }
    }
    bars
}

fn peak(bars: &[Bar]) -> u32 {
    bars.iter().map(|bar| bar.good + bar.bad).max().unwrap_or(0)
}

/// How many fetches each node makes within a time: the fewest and the most.
fn per_node(fleet: &Fleet, fetches: &[Fetch], time: &Range<Duration>) -> (u32, u32) {
    let mut count = vec![0; fleet.nodes as usize];
    fetches.iter().filter(|fetch| time.contains(&fetch.start)).for_each(|fetch| count[fetch.node as usize] += 1);
    (count.iter().min().copied().unwrap_or(0), count.iter().max().copied().unwrap_or(0))
}

/// Simulates both, prints the figures, and writes the plots.
pub(crate) fn run(fleet: &Fleet, spread: Duration, out: &Path) -> Result<()> {
    std::fs::create_dir_all(out).with_context(|| out.display().to_string())?;
    println!("{} nodes, {} volumes of one repository on each\n", fleet.nodes, fleet.volumes);
    println!("| scenario | fetches a node | most in a second | first to last |");
    println!("|---|---|---|---|");
    let row = |title: &str, file: &str, fetches: &[Fetch], time: Range<Duration>, shown: Range<Duration>| -> Result<()> {
        let (fewest, most) = per_node(fleet, fetches, &time);
        let starts = || fetches.iter().map(|fetch| fetch.start).filter(|start| time.contains(start));
        let took = starts().max().unwrap_or_default().saturating_sub(starts().min().unwrap_or_default());
        println!("| {title} | {fewest} to {most} | {} | {:.1} s |", peak(&per_second(fetches, &time)), took.as_secs_f64());
        if file.is_empty() {
            return Ok(());
        }
        let path = out.join(file);
        std::fs::write(&path, plot::png(&per_second(fetches, &shown))?).with_context(|| path.display().to_string())
    };
    for (title, file, spread) in [
        ("a push, at once".to_owned(), "storm-push.png", Duration::ZERO),
        (format!("a push, spread over {spread:?}"), "storm-spread.png", spread),
    ] {
        let weather = Weather::push(spread);
        let fetches = simulate(fleet, &weather);
        row(&title, file, &fetches, PUSH..weather.end, PUSH..PUSH + spread.max(Duration::from_secs(30)))?;
    }
    for (pull, title, file) in
        [(Pull::OnDemand, "on-demand", "storm-outage.png"), (Pull::Every(LONGEST), "every 5 minutes", "storm-outage-polled.png")]
    {
        let weather = Weather::outage(pull);
        let fetches = simulate(fleet, &weather);
        let (outage, all) = (weather.outage.clone(), weather.outage.start..weather.end);
        row(&format!("a push into an outage of {OUTAGE:?}, {title}: during it"), file, &fetches, outage, all)?;
        row(&format!("the same, {title}: after it"), "", &fetches, weather.outage.end..weather.end, PUSH..PUSH)?;
    }
    println!(
        "\nPlots of fetches per second in {}: green worked, red failed; seconds to the right, from the push (or the outage's start).",
        out.display()
    );
    Ok(())
}

#[cfg(test)]
mod tests;
