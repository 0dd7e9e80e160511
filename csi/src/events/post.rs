//! Posts events, one after the other, in the order in which they were told.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::mpsc;

use super::Told;
use super::aggregate::{Aggregate, Step};

/// What events say they come from.
const COMPONENT: &str = "git.liken.sh";

/// Tries of one event; while the API server is away events wait in the queue.
const TRIES: u32 = 5;

/// How long one try may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Posts until there is no recorder any more.
pub(super) async fn run(client: Option<Client>, node: String, mut queue: mpsc::Receiver<Told>) {
    let mut aggregate = Aggregate::default();
    while let Some(told) = queue.recv().await {
        let Told { object, reason, message } = &told;
        tracing::info!(reason = reason.name(), object = format!("{} {}/{}", object.kind, object.namespace, object.name), "{message}");
        let Some(client) = &client else { continue };
        let name = name(&object.name);
        let mut wait = Duration::from_millis(500);
        for attempt in 1..=TRIES {
            let posted = tokio::time::timeout(LIMIT, post(client, &node, &mut aggregate, &told, &name)).await;
            let (error, last) = match posted {
                Ok(Ok(())) => break,
                Ok(Err(error)) => (error.to_string(), is_final(&error)),
                Err(_) => ("the API server does not answer".to_owned(), false),
            };
            if attempt == TRIES || last {
                tracing::warn!(error, reason = reason.name(), "an event cannot be posted");
                break;
            }
            tokio::time::sleep(wait).await;
            wait *= 2;
        }
    }
}

async fn post(client: &Client, node: &str, aggregate: &mut Aggregate, told: &Told, name: &str) -> kube::Result<()> {
    let events: Api<Event> = Api::namespaced(client.clone(), &told.object.namespace);
    let now = Instant::now();
    if let Step::Count { name: posted, count } = aggregate.step(told, now) {
        let patch = json!({ "count": count, "lastTimestamp": stamp() });
        match events.patch(&posted, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => {
                aggregate.posted(told.clone(), posted, count, now);
                return Ok(());
            }
            // It has outlived its hour at the API server: a new one takes its place.
            Err(kube::Error::Api(status)) if status.code == 404 => aggregate.forget(told),
            Err(error) => return Err(error),
        }
    }
    match events.create(&PostParams::default(), &event(node, told, name)).await {
        Ok(_) => {}
        // An earlier try was posted, only its answer was lost.
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(error),
    }
    aggregate.posted(told.clone(), name.to_owned(), 1, now);
    Ok(())
}

/// Whether the API server will not take it another time either: the namespace is gone or ends, or its quota has no place. Others' events wait.
/// What only the rights forbid may be allowed a moment later: after an installation they take effect one by one.
fn is_final(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    match status.code {
        401 | 408 | 409 | 429 => false,
        403 => ["exceeded quota", "being terminated"].iter().any(|why| status.message.contains(why)),
        code => (400..500).contains(&code),
    }
}

/// A name that no other event of the object has. One event keeps it for all its tries.
fn name(object: &str) -> String {
    // The API server takes 253 characters, in parts that end with a letter or a digit.
    let start = object.get(..236).unwrap_or(object).trim_end_matches(['-', '.']);
    format!("{start}.{:016x}", fastrand::u64(..))
}

fn stamp() -> Time {
    Time(jiff::Timestamp::now())
}

fn event(node: &str, told: &Told, name: &str) -> Event {
    let Told { object, reason, message } = told;
    Event {
        metadata: ObjectMeta { name: Some(name.to_owned()), namespace: Some(object.namespace.clone()), ..Default::default() },
        involved_object: ObjectReference {
            api_version: Some("v1".into()),
            kind: Some(object.kind.into()),
            name: Some(object.name.clone()),
            namespace: Some(object.namespace.clone()),
            uid: Some(object.uid.clone()),
            ..Default::default()
        },
        reason: Some(reason.name().into()),
        message: Some(message.clone()),
        type_: Some(reason.kind().into()),
        source: Some(EventSource { component: Some(COMPONENT.into()), host: Some(node.into()) }),
        first_timestamp: Some(stamp()),
        last_timestamp: Some(stamp()),
        count: Some(1),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_api_server_will_never_take_is_not_tried_again() {
        let says = |code: u16, message: &str| kube::Error::Api(Box::new(kube::core::Status::failure(message, "Reason").with_code(code)));
        for (codes, expected) in [(&[400, 404, 422][..], true), (&[401, 403, 408, 409, 429, 500, 503], false)] {
            assert!(codes.iter().all(|code| is_final(&says(*code, "why")) == expected), "{codes:?}");
        }
        let ending = "events \"e\" is forbidden: unable to create new content in namespace a because it is being terminated";
        let full = "events \"e\" is forbidden: exceeded quota: q, requested: count/events=1, used: count/events=1, limited: count/events=1";
        assert!(is_final(&says(403, ending)) && is_final(&says(403, full)));
        assert!(!is_final(&kube::Error::Service("it is away".into())));
    }

    #[test]
    fn names_are_what_the_api_server_takes() {
        for object in ["web-0", "data", &"a".repeat(253), &format!("{}-.b", "a".repeat(234))] {
            let (one, other) = (name(object), name(object));
            assert!(one != other && one.len() <= 253, "{one}");
            let ends =
                |part: &str| part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.ends_with(|c: char| c.is_ascii_alphanumeric());
            assert!(one.split('.').all(ends), "{one}");
        }
    }
}
