//! What the daemon tells of, made into events on pods and claims and into log lines.
//!
//! Promises: one log line when a volume's health changes, which ends with when a demand last named it and when it last pulled.

use std::time::Duration;

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::event::Kind;

use crate::daemon::Daemon;
use crate::events::{Object, Reason, Recorder};

/// How long to wait before asking a daemon again that does not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Watches for ever.
pub async fn run(daemon: Daemon, recorder: Recorder) {
    let mut said = false;
    loop {
        match daemon.watch().await {
            Ok(mut stream) => {
                if std::mem::take(&mut said) {
                    tracing::info!("the daemon answers again");
                }
                while let Ok(Some(event)) = stream.message().await {
                    tell(&event, &recorder);
                }
            }
            Err(error) if !said => {
                said = true;
                tracing::warn!(%error, "events of volumes are missed until it answers");
            }
            Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// The event that is posted for one of the daemon's. A publish tells what is said in its answer itself.
fn reason(kind: Kind) -> Option<Reason> {
    match kind {
        Kind::FetchFailed => Some(Reason::FetchFailed),
        Kind::FetchRecovered => Some(Reason::FetchRecovered),
        Kind::Notice => Some(Reason::Notice),
        Kind::Replaced => Some(Reason::Replaced),
        Kind::Unspecified | Kind::Watching | Kind::Published | Kind::Unpublished | Kind::Switched | Kind::Stale | Kind::Credential => None,
    }
}

fn tell(event: &proto::Event, recorder: &Recorder) {
    for volume in &event.volumes {
        let volume_name = format!("{}/{}", volume.namespace, volume.spec_name);
        if matches!(event.kind(), Kind::FetchFailed | Kind::FetchRecovered | Kind::Stale) {
            tracing::info!(
                volume = volume_name,
                pod = volume.pod,
                url = event.url,
                r#ref = event.r#ref,
                "{}; last demanded {}, last pulled {}",
                event.message,
                time(event.last_demand_ms),
                time(event.last_success_ms)
            );
        }
    }
    if let Some(reason) = reason(event.kind()) {
        // Many pods of one claim: the claim is told once.
        let mut objects: Vec<Object> = vec![];
        for object in event.volumes.iter().flat_map(Object::of) {
            if !objects.contains(&object) {
                objects.push(object);
            }
        }
        recorder.tell(objects, reason, &format!("{} at {}: {}", event.url, event.r#ref, event.message));
    }
}

/// A time as people and programs read it.
pub(crate) fn time(millis: Option<u64>) -> String {
    millis
        .and_then(|millis| jiff::Timestamp::from_millisecond(i64::try_from(millis).ok()?).ok())
        .map_or_else(|| "never".to_owned(), |time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume(pod: &str) -> proto::Volume {
        proto::Volume {
            namespace: "sites".into(),
            pod: pod.into(),
            pod_uid: format!("uid of {pod}"),
            claim: "data".into(),
            claim_uid: "c".into(),
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn a_failed_fetch_is_told_on_every_pod_and_once_on_the_claim() {
        let (recorder, mut told) = Recorder::collected();
        let event = proto::Event {
            kind: Kind::FetchFailed.into(),
            message: "the host is away".into(),
            url: "https://example.com/a.git".into(),
            r#ref: "main".into(),
            volumes: vec![volume("a"), volume("b")],
            ..Default::default()
        };
        tell(&event, &recorder);
        let mut names = vec![];
        while let Ok(told) = told.try_recv() {
            assert_eq!((told.reason, told.message.contains("the host is away")), (Reason::FetchFailed, true));
            names.push(told.object.name);
        }
        assert_eq!(names, ["a", "data", "b"]);
    }

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(time(Some(1_700_000_000_123)), "2023-11-14T22:13:20Z");
        assert_eq!(time(None), "never");
    }
}
