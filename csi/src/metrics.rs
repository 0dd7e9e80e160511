//! `/metrics`, `/healthz` and `/readyz`. What is said of volumes is made anew from the daemon's status each time, so a series ends with its
//! volume; while the daemon does not answer it is what it said last.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use gitmount_proto::fsd::v1 as fsd;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::health::{self, Health};
use crate::http::{self, Limits};

/// What Prometheus expects of its text format.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Who scrapes, and the kubelet.
pub const LIMITS: Limits = Limits { connections: 32, life: Duration::from_secs(60) };

/// How long a request may take.
const LIMIT: Duration = Duration::from_secs(5);

/// What the answers are made of.
#[derive(Debug, Clone)]
pub struct Source {
    /// What the daemon said last.
    pub health: Arc<Health>,
    /// Whether the kubelet has registered the driver.
    pub registered: Arc<AtomicBool>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, EncodeLabelSet)]
struct Labels {
    namespace: String,
    volume: String,
}

/// What is known of a volume: of several pods' in one namespace with equal names, the worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Row {
    abnormal: bool,
    demanded: u64,
}

/// Serves until the runtime ends.
///
/// # Errors
/// When the address cannot be listened on.
pub async fn serve(address: SocketAddr, source: Source) -> std::io::Result<()> {
    let router = Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .with_state(source);
    http::serve(address, router, LIMITS).await
}

async fn metrics(State(source): State<Source>) -> Response {
    let Ok(seen) = tokio::time::timeout(LIMIT, source.health.look()).await else {
        return (StatusCode::SERVICE_UNAVAILABLE, "the daemon does not answer\n").into_response();
    };
    match render(&seen.views, seen.away.is_none()) {
        Ok(text) => ([(header::CONTENT_TYPE, FORMAT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn ready(State(source): State<Source>) -> (StatusCode, String) {
    if !source.registered.load(Ordering::SeqCst) {
        return (StatusCode::SERVICE_UNAVAILABLE, "the kubelet has not registered the driver\n".into());
    }
    match source.health.look().await.away {
        None => (StatusCode::OK, "ok\n".into()),
        Some(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

fn rows(views: &[fsd::View]) -> BTreeMap<Labels, Row> {
    let mut rows: BTreeMap<Labels, Row> = BTreeMap::new();
    for view in views {
        for volume in view.volumes.iter().filter(|volume| !volume.pod.is_empty()) {
            let labels = Labels { namespace: volume.namespace.clone(), volume: volume.spec_name.clone() };
            let row = rows.entry(labels).or_default();
            row.abnormal |= health::trouble(view).is_some();
            row.demanded = row.demanded.max(view.demanded_pulls);
        }
    }
    rows
}

fn render(views: &[fsd::View], answers: bool) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::default();
    let up = Gauge::<i64>::default();
    up.set(i64::from(answers));
    registry.register("git_csi_daemon_up", "Whether the daemon of this node answers", up);
    let abnormal = Family::<Labels, Gauge>::default();
    let demanded = Family::<Labels, Counter>::default();
    for (labels, row) in rows(views) {
        abnormal.get_or_create(&labels).set(i64::from(row.abnormal));
        demanded.get_or_create(&labels).inc_by(row.demanded);
    }
    registry.register("git_csi_volume_abnormal", "1 after a stale publish or a failed fetch, until a fetch works", abnormal);
    registry.register("git_csi_demanded_pulls", "Pulls that a demand started", demanded);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(state: fsd::State, names: &[(&str, &str)], demanded_pulls: u64) -> fsd::View {
        let volume = |(namespace, name): &(&str, &str)| fsd::Volume {
            namespace: (*namespace).into(),
            spec_name: (*name).into(),
            pod: "p".into(),
            ..Default::default()
        };
        fsd::View { state: state.into(), volumes: names.iter().map(volume).collect(), demanded_pulls, ..Default::default() }
    }

    #[test]
    fn series_are_those_of_the_volumes_that_there_are() {
        let views = [view(fsd::State::Stale, &[("sites", "data")], 2), view(fsd::State::Ok, &[("sites", "other"), ("b", "data")], 0)];
        let text = render(&views, true).unwrap();
        for line in [
            "git_csi_volume_abnormal{namespace=\"sites\",volume=\"data\"} 1",
            "git_csi_volume_abnormal{namespace=\"sites\",volume=\"other\"} 0",
            "git_csi_demanded_pulls_total{namespace=\"sites\",volume=\"data\"} 2",
            "git_csi_daemon_up 1",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
        assert!(!render(&[], false).unwrap().contains("sites"));
    }

    #[test]
    fn of_equal_names_the_worst_counts_and_mounts_by_hand_have_no_series() {
        let mut by_hand = view(fsd::State::Failing, &[("n", "v")], 0);
        by_hand.volumes[0].pod.clear();
        let rows = rows(&[view(fsd::State::Ok, &[("n", "data")], 1), view(fsd::State::Gone, &[("n", "data")], 3), by_hand]);
        let all: Vec<_> = rows.into_values().collect();
        assert_eq!(all, [Row { abnormal: true, demanded: 3 }]);
    }
}
