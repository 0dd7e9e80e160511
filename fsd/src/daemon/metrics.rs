//! What is measured of a daemon, in the format of Prometheus. Series of views that are gone disappear with them.
//!
//! `git_csi_volume_abnormal` and `git_csi_demanded_pulls_total` are named for the volumes that views were published for; the names
//! beginning with `gitmount_` are for everything.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::engine::Engine;
use super::health::State;
use super::shown::{Shown, lock};
use crate::view::Switched;

pub mod http;

type Labels = Vec<(&'static str, String)>;

/// All metrics.
#[derive(Debug)]
pub struct Metrics {
    registry: Mutex<Registry>,
    fetches: Family<Labels, Histogram, fn() -> Histogram>,
    switches: Histogram,
    bytes: Counter,
    refused: Counter,
}

/// Seconds, from a poll on the next desk to a clone over a thin line.
fn fetch_times() -> Histogram {
    Histogram::new([0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0])
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let metrics = Metrics {
            fetches: Family::new_with_constructor(fetch_times),
            switches: Histogram::new([0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]),
            bytes: Counter::default(),
            refused: Counter::default(),
            registry: Mutex::default(),
        };
        let help = "Time of a fetch, by whether it worked";
        registry.register_with_unit("gitmount_fetch_duration", help, Unit::Seconds, metrics.fetches.clone());
        let help = "Time from a fetched commit to the tree that shows it";
        registry.register_with_unit("gitmount_switch_duration", help, Unit::Seconds, metrics.switches.clone());
        registry.register_with_unit("gitmount_fetched", "What hosts have sent in packs", Unit::Bytes, metrics.bytes.clone());
        registry.register("gitmount_refused_credentials", "Fetches whose credential the host refused", metrics.refused.clone());
        *lock(&metrics.registry) = registry;
        metrics
    }
}

impl Metrics {
    /// From now on the views of `engine` are part of it.
    pub fn include(&self, engine: &Arc<Engine>) {
        lock(&self.registry).register_collector(Box::new(Views(Arc::downgrade(engine))));
    }

    /// A fetch ended.
    pub fn fetched(&self, worked: bool, took: Duration, bytes: u64) {
        let result = if worked { "worked" } else { "failed" };
        self.fetches.get_or_create(&vec![("result", result.to_owned())]).observe(took.as_secs_f64());
        self.bytes.inc_by(bytes);
    }

    /// A view moved.
    pub fn switched(&self, switched: &Switched) {
        self.switches.observe(switched.took.as_secs_f64());
    }

    /// A host refused a credential.
    pub fn refused(&self) {
        self.refused.inc();
    }

    /// Everything, as Prometheus reads it.
    ///
    /// # Errors
    /// None that is known.
    pub fn render(&self) -> Result<String, fmt::Error> {
        let mut rendered = String::new();
        text::encode(&mut rendered, &lock(&self.registry))?;
        Ok(rendered)
    }
}

/// The series of the views that there are at the moment.
#[derive(Debug)]
struct Views(Weak<Engine>);

impl Collector for Views {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(engine) = self.0.upgrade() else { return Ok(()) };
        let views = engine.shown();
        let mut gauge = |name: &str, help: &str, values: Vec<(Labels, f64)>| -> fmt::Result {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            values.iter().try_for_each(|(labels, value)| ConstGauge::new(*value).encode(family.encode_family(labels)?))
        };
        gauge("gitmount_store_bytes", "The store on disk, when it was looked at last", vec![(vec![], engine.store_bytes() as f64)])?;
        let limit = engine.store_limit().map(|limit| (vec![], limit as f64));
        gauge("gitmount_store_limit_bytes", "What the store may take", limit.into_iter().collect())?;
        gauge("gitmount_view_abnormal", "1 after a stale publish or a failed fetch, until one works", each(&views, abnormal))?;
        gauge("gitmount_view_since_success_seconds", "Time since the start of the last fetch that worked", each_known(&views, since))?;
        let commits = views.iter().filter_map(|view| {
            let commit = view.commit()?;
            Some(([labels(view), vec![("commit", commit.to_string())]].concat(), 1.0))
        });
        gauge("gitmount_view_commit", "The commit that is shown", commits.collect())?;
        let abnormal_volumes = views.iter().flat_map(|view| volumes(view).into_iter().map(|labels| (labels, abnormal(view))));
        let caches = [("trees", engine.caches().trees().used()), ("blobs", engine.caches().blobs().used())];
        let cache = |name: &str| vec![("cache", name.to_owned())];
        let kept = caches.iter().map(|(name, used)| (cache(name), used.bytes as f64));
        gauge("gitmount_cache_bytes", "What is kept in memory for all views, by kind", kept.collect())?;
        gauge("git_csi_volume_abnormal", "1 after a stale publish or a failed fetch, until one works", abnormal_volumes.collect())?;

        let mut counter = |name: &str, help: &str, values: Vec<(Labels, u64)>| -> fmt::Result {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
            values.iter().try_for_each(|(labels, value)| ConstCounter::new(*value).encode(family.encode_family(labels)?))
        };
        let requests = views.iter().flat_map(|view| {
            let counts = view.mount().map(|mount| mount.requests()).unwrap_or_default();
            counts.into_iter().map(|(name, count)| ([labels(view), vec![("operation", name.to_owned())]].concat(), count))
        });
        counter("gitmount_fuse_requests", "Requests of the kernel, by operation", requests.collect())?;
        let asked = caches.iter().flat_map(|(name, used)| {
            let by_result = |result: &str| [cache(name), vec![("result", result.to_owned())]].concat();
            [(by_result("hit"), used.hits), (by_result("miss"), used.misses)]
        });
        counter("gitmount_cache_requests", "What readers needed, by whether it was kept in memory", asked.collect())?;
        let demanded = views.iter().flat_map(|view| volumes(view).into_iter().map(|labels| (labels, *lock(&view.demanded_pulls))));
        counter("git_csi_demanded_pulls", "Fetches that worked and answered a demand", demanded.collect())?;

        let help = "Time from reading a request of the kernel to its answer, together, by operation";
        let mut family = encoder.encode_descriptor("gitmount_fuse_request_seconds", help, None, MetricType::Counter)?;
        for view in &views {
            for (name, time) in view.mount().map(|mount| mount.request_times()).unwrap_or_default() {
                let labels = [labels(view), vec![("operation", name.to_owned())]].concat();
                ConstCounter::new(time.as_secs_f64()).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

fn each(views: &[Arc<Shown>], value: impl Fn(&Shown) -> f64) -> Vec<(Labels, f64)> {
    views.iter().map(|view| (labels(view), value(view))).collect()
}

fn each_known(views: &[Arc<Shown>], value: impl Fn(&Shown) -> Option<f64>) -> Vec<(Labels, f64)> {
    views.iter().filter_map(|view| Some((labels(view), value(view)?))).collect()
}

fn labels(view: &Shown) -> Labels {
    vec![("view", view.id.clone()), ("url", view.spec.url.to_string()), ("ref", view.spec.reference.to_string())]
}

fn volumes(view: &Shown) -> Vec<Labels> {
    let targets = view.targets();
    let mut volumes: Vec<Labels> = targets
        .iter()
        .map(|target| target.volume())
        .filter(|volume| !volume.name.is_empty())
        .map(|volume| vec![("namespace", volume.namespace), ("volume", volume.name)])
        .collect();
    volumes.sort();
    volumes.dedup();
    volumes
}

fn abnormal(view: &Shown) -> f64 {
    if lock(&view.health).state == State::Ok { 0.0 } else { 1.0 }
}

fn since(view: &Shown) -> Option<f64> {
    let last = lock(&view.health).last_success?;
    SystemTime::now().duration_since(last).ok().map(|since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happened_is_rendered() {
        let metrics = Metrics::default();
        metrics.fetched(true, Duration::from_millis(20), 1000);
        metrics.fetched(false, Duration::from_secs(5), 0);
        metrics.refused();
        let text = metrics.render().unwrap();
        for line in [
            "gitmount_fetch_duration_seconds_count{result=\"worked\"} 1",
            "gitmount_fetch_duration_seconds_count{result=\"failed\"} 1",
            "gitmount_fetched_bytes_total 1000",
            "gitmount_refused_credentials_total 1",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is missing in {text}");
        }
    }
}
