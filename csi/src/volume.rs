//! A publish as the kubelet asks for it, parsed: every attribute is checked here, once, and refused with its name and a right value.
//!
//! - [`credential`]: what of a Secret is presented to the host.
//! - [`target`]: what a target path says of its volume.
//!
//! Values whose meaning is the daemon's (`url`, `ref`, `pull`…) are passed on as text, and refused there in the same way.

pub mod credential;
pub mod target;

use std::collections::HashMap;

use gitmount_proto::csi::v1::volume_capability::{AccessType, access_mode::Mode};
use gitmount_proto::csi::v1::{NodePublishVolumeRequest, VolumeCapability};
use gitmount_proto::fsd::v1 as fsd;

/// The attributes that there are.
const ATTRIBUTES: [&str; 8] = ["url", "ref", "path", "pull", "depth", "offline", "webhookSecret", "notify"];

/// What keys of the kubelet's own begin with.
const KUBELET: &str = "csi.storage.k8s.io/";

/// Longer values are no attributes.
const LONGEST: usize = 4096;

/// Why a request is refused: one sentence that names what is wrong and shows what is right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Refusal {
    fn new(message: impl Into<String>) -> Self {
        Refusal(message.into())
    }
}

/// Where a volume is published for whom.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Pod {
    /// Its name; empty when the kubelet did not tell.
    pub name: String,
    /// Its namespace.
    pub namespace: String,
    /// Its uid.
    pub uid: String,
}

/// How a volume came to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Written into the pod.
    Inline,
    /// Through a claim.
    Claim,
}

/// A volume's attributes.
#[derive(Debug, Clone, PartialEq)]
pub struct Volume {
    /// Inline or by claim.
    pub form: Form,
    /// What is shown.
    pub view: fsd::ViewSpec,
}

/// For whom a request is, from what `podInfoOnMount` adds to the attributes.
pub fn pod(context: &HashMap<String, String>) -> Pod {
    let value = |key: &str| context.get(&format!("{KUBELET}{key}")).cloned().unwrap_or_default();
    Pod { name: value("pod.name"), namespace: value("pod.namespace"), uid: value("pod.uid") }
}

/// How the volume of a request came to its pod.
pub fn form(context: &HashMap<String, String>) -> Form {
    match context.get(&format!("{KUBELET}ephemeral")).map(String::as_str) {
        Some("true") => Form::Inline,
        _ => Form::Claim,
    }
}

impl Volume {
    /// Checks what a publish asks for.
    ///
    /// # Errors
    /// What is wrong.
    pub fn parse(request: &NodePublishVolumeRequest) -> Result<Self, Refusal> {
        let form = form(&request.volume_context);
        let volume = Volume { form, view: attributes(&request.volume_context, form)? };
        capability(request.volume_capability.as_ref(), form)?;
        if !request.readonly {
            return Err(Refusal::new(match form {
                Form::Inline => "the volume is read-only: set `readOnly: true` below `csi` in the pod's volume",
                Form::Claim => "the volume is read-only: set `readOnly: true` below `persistentVolumeClaim` in the pod's volume",
            }));
        }
        Ok(volume)
    }
}

fn attributes(context: &HashMap<String, String>, form: Form) -> Result<fsd::ViewSpec, Refusal> {
    let mut names: Vec<&str> = context.keys().map(String::as_str).filter(|name| !name.starts_with(KUBELET)).collect();
    // The first that is wrong is always the same one, so that retries are one event.
    names.sort_unstable();
    for name in names {
        if !ATTRIBUTES.contains(&name) {
            return Err(Refusal::new(unknown(name)));
        }
        let value = &context[name];
        if value.len() > LONGEST || value.chars().any(char::is_control) {
            return Err(Refusal::new(format!("attribute {name:?} is too long or has control characters: give one line")));
        }
        if value.is_empty() && name != "path" {
            return Err(Refusal::new(format!("attribute {name:?} is empty: give {}, or leave it out", example(name))));
        }
    }
    let value = |name: &str| context.get(name).cloned().unwrap_or_default();
    if value("url").is_empty() {
        return Err(Refusal::new(format!("attribute \"url\" is missing: give {}", example("url"))));
    }
    if form == Form::Inline {
        if value("pull") == "on-demand" {
            return Err(Refusal::new(
                "attribute \"pull\" is \"on-demand\", but nothing can demand an inline volume: give a duration such as \"5m\", or use a claim",
            ));
        }
        if context.contains_key("webhookSecret") {
            return Err(Refusal::new(
                "attribute \"webhookSecret\" is for claims, a webhook cannot reach an inline volume: leave it out, or use a claim",
            ));
        }
    }
    if context.contains_key("webhookSecret") && !is_secret_name(&value("webhookSecret")) {
        return Err(Refusal::new(format!(
            "attribute \"webhookSecret\" {:?} is no name of a Secret: give one such as \"data-webhook\"",
            value("webhookSecret")
        )));
    }
    Ok(fsd::ViewSpec {
        url: value("url"),
        r#ref: value("ref"),
        path: value("path").into_bytes(),
        pull: value("pull"),
        depth: value("depth"),
        offline: value("offline"),
        notify: value("notify"),
    })
}

fn example(name: &str) -> &'static str {
    match name {
        "url" => "something like \"https://git.example.com/team/repo.git\"",
        "ref" => "a branch or tag such as \"main\"",
        "pull" => "a duration such as \"5m\"",
        "depth" => "a number of commits such as \"1\"",
        "offline" => "\"refuse\" or \"allowStale\"",
        "notify" => "\"none\" or \"inotify\"",
        _ => "a value",
    }
}

fn unknown(name: &str) -> String {
    // A name may be as long as an object: what is shown of it fits into an event.
    let name: &str = &name.chars().take(60).collect::<String>();
    let all = ATTRIBUTES.join(", ");
    match ATTRIBUTES.iter().find(|known| resembles(known, name)) {
        Some(meant) => format!("attribute {name:?} is unknown: give \"{meant}\" (there are {all})"),
        None => format!("attribute {name:?} is unknown: there are {all}"),
    }
}

/// Whether somebody who wrote `given` may have meant `known`.
fn resembles(known: &str, given: &str) -> bool {
    let (known, given) = (known.to_lowercase(), given.to_lowercase());
    known == given || (given.len() > 2 && (known.starts_with(&given) || given.starts_with(&known)))
}

fn is_secret_name(name: &str) -> bool {
    let inside = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 253 && name.chars().all(inside) && edge(name.chars().next()) && edge(name.chars().next_back())
}

fn capability(capability: Option<&VolumeCapability>, form: Form) -> Result<(), Refusal> {
    let Some(capability) = capability else { return Ok(()) };
    if let Some(AccessType::Block(_)) = &capability.access_type {
        return Err(Refusal::new("a repository is no block device: set `volumeMode: Filesystem`"));
    }
    if let Some(AccessType::Mount(mount)) = &capability.access_type
        && let Some(flag) = mount.mount_flags.iter().find(|flag| *flag != "ro")
    {
        return Err(Refusal::new(format!("mount option {flag:?} means nothing for a git volume: leave `mountOptions` out")));
    }
    let mode = capability.access_mode.as_ref().map(|access| access.mode()).unwrap_or_default();
    let reads = matches!(mode, Mode::MultiNodeReaderOnly | Mode::SingleNodeReaderOnly | Mode::Unknown);
    if form == Form::Claim && !reads {
        return Err(Refusal::new("the volume is read-only: set `accessModes: [ReadOnlyMany]` on the PersistentVolume and on the claim"));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
