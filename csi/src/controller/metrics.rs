//! What was asked of the controller, and what came of it.

use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
#[allow(non_camel_case_types)]
pub enum Result {
    /// It was verified, and its volumes were marked (or there are none).
    marked,
    /// It was verified, and is about nothing that moves a ref.
    ignored,
    /// It did not show that it knows the Secret.
    refused,
    /// Its body is not what a forge sends.
    malformed,
    /// Its body is too large, or came too slowly.
    limited,
    /// The API server did not do what it was asked for.
    failed,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    result: Result,
}

impl Result {
    const ALL: [Result; 6] = [Result::marked, Result::ignored, Result::refused, Result::malformed, Result::limited, Result::failed];
}

/// The counters.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    requests: Family<Labels, Counter>,
    marked: Counter,
}

impl Default for Metrics {
    fn default() -> Self {
        let (mut registry, requests, marked) = (Registry::default(), Family::<Labels, Counter>::default(), Counter::default());
        registry.register("git_csi_webhook_requests", "Requests of webhooks, by what came of them", requests.clone());
        registry.register("git_csi_webhook_marked", "Volumes that were marked for a webhook", marked.clone());
        // There from the start: of a counter that appears with its first request, an alert sees no increase.
        for result in Result::ALL {
            drop(requests.get_or_create(&Labels { result }));
        }
        Metrics { registry, requests, marked }
    }
}

impl Metrics {
    /// A request came to its end.
    pub fn request(&self, result: Result, marked: usize) {
        self.requests.get_or_create(&Labels { result }).inc();
        self.marked.inc_by(marked as u64);
    }

    /// As Prometheus reads them.
    ///
    /// # Errors
    /// None that is known.
    pub fn render(&self) -> std::result::Result<String, std::fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_names_are_the_documented_ones() {
        let metrics = Metrics::default();
        metrics.request(Result::marked, 3);
        metrics.request(Result::refused, 0);
        let text = metrics.render().unwrap();
        for line in [
            "git_csi_webhook_requests_total{result=\"marked\"} 1",
            "git_csi_webhook_requests_total{result=\"refused\"} 1",
            "git_csi_webhook_requests_total{result=\"ignored\"} 0",
            "git_csi_webhook_requests_total{result=\"malformed\"} 0",
            "git_csi_webhook_requests_total{result=\"limited\"} 0",
            "git_csi_webhook_requests_total{result=\"failed\"} 0",
            "git_csi_webhook_marked_total 3",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} in {text}");
        }
    }
}
