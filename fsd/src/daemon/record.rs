//! What is written down of a view, `view.json`: everything but the credential. It has a version; the one before is read, too.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use gitmount_proto::fsd::v1 as proto;
use serde::{Deserialize, Serialize};

/// The version that is written.
const VERSION: u32 = 1;

/// One view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// The view's name in the state directory.
    #[serde(skip)]
    pub id: String,
    /// What it shows.
    pub view: View,
    /// Whether it needs a credential, which only a caller can bring again.
    pub private: bool,
    /// The commit that was shown when this was written.
    pub commit: String,
    /// The device of the mount: tells it from what a later boot mounts.
    pub device: Option<u64>,
    /// Where it is shown.
    pub targets: Vec<Target>,
}

/// The attributes, as users write them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    url: String,
    #[serde(rename = "ref")]
    reference: String,
    path: Bytes,
    pull: String,
    depth: String,
    offline: String,
    notify: String,
}

/// A place where it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    path: Bytes,
    /// Whether the directory was made for this, and goes with it.
    pub made: bool,
    /// Whether the bind mount is there; written without it first, so that a crash in between leaves no mount that nobody knows of.
    pub bound: bool,
    /// The device of a mount of ours that is still there in place of the view's, since somebody else's hides it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stuck: Option<u64>,
    /// For whom.
    #[serde(flatten)]
    volume: Volume,
}

/// For whom a target is; what an older release did not write down is empty.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
struct Volume {
    name: String,
    namespace: String,
    pod: String,
    pod_uid: String,
    spec_name: String,
    claim: String,
    claim_uid: String,
    staged_only: bool,
    persistent: bool,
}

/// Bytes that are mostly text: text where they are UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Bytes {
    Text(String),
    Raw(Vec<u8>),
}

impl Bytes {
    fn new(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|e| Bytes::Raw(e.into_bytes()), Bytes::Text)
    }

    fn to_vec(&self) -> Vec<u8> {
        match self {
            Bytes::Text(text) => text.as_bytes().to_vec(),
            Bytes::Raw(bytes) => bytes.clone(),
        }
    }
}

impl Record {
    /// A record of a view that is shown nowhere yet.
    pub fn new(id: &str, view: proto::ViewSpec, private: bool, commit: String) -> Self {
        Record { version: VERSION, id: id.to_owned(), view: View::new(view), private, commit, device: None, targets: vec![] }
    }

    /// Reads what was written for `id`.
    ///
    /// # Errors
    /// Why it cannot be read, as a sentence.
    pub fn read(id: &str, text: &[u8]) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(text).map_err(|e| format!("its record is broken ({e})"))?;
        if version != VERSION {
            return Err(format!("its record has version {version}, and this gitmount reads version {VERSION}"));
        }
        let record: Record = serde_json::from_slice(text).map_err(|e| format!("its record is broken ({e})"))?;
        Ok(Record { id: id.to_owned(), ..record })
    }
}

impl View {
    fn new(view: proto::ViewSpec) -> Self {
        let proto::ViewSpec { url, r#ref: reference, path, pull, depth, offline, notify } = view;
        View { url, reference, path: Bytes::new(path), pull, depth, offline, notify }
    }

    /// The attributes as the protocol has them.
    pub fn to_proto(&self) -> proto::ViewSpec {
        let View { url, reference, path, pull, depth, offline, notify } = self.clone();
        proto::ViewSpec { url, r#ref: reference, path: path.to_vec(), pull, depth, offline, notify }
    }
}

impl Target {
    /// A target that is not bound yet.
    pub fn new(path: &Path, made: bool, volume: proto::Volume) -> Self {
        let proto::Volume { name, namespace, pod, pod_uid, spec_name, claim, claim_uid, staged_only, persistent } = volume;
        let volume = Volume { name, namespace, pod, pod_uid, spec_name, claim, claim_uid, staged_only, persistent };
        Target { path: Bytes::new(path.as_os_str().as_bytes().to_vec()), made, bound: false, stuck: None, volume }
    }

    /// The directory, absolute.
    pub fn path(&self) -> PathBuf {
        PathBuf::from(std::ffi::OsString::from_vec(self.path.to_vec()))
    }

    /// The device of what is mounted there.
    pub fn device(&self, record: &Record) -> Option<u64> {
        self.stuck.or(record.device)
    }

    /// For whom.
    pub fn volume(&self) -> proto::Volume {
        let Volume { name, namespace, pod, pod_uid, spec_name, claim, claim_uid, staged_only, persistent } = self.volume.clone();
        proto::Volume { name, namespace, pod, pod_uid, spec_name, claim, claim_uid, staged_only, persistent }
    }

    /// Whether it is one of the volume with this handle.
    pub fn is_of(&self, handle: &str) -> bool {
        !handle.is_empty() && self.volume.name == handle
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A record with a bit of everything.
    pub(in crate::daemon) fn example() -> Record {
        let view = proto::ViewSpec { url: "https://example.com/a.git".into(), path: b"a\xff".to_vec(), ..Default::default() };
        let mut record = Record::new("id", view, true, "0123".into());
        record.targets.push(Target::new(
            Path::new("/mnt/a"),
            true,
            proto::Volume { name: "v".into(), namespace: "n".into(), ..Default::default() },
        ));
        record
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let record = example();
        let text = serde_json::to_vec(&record).unwrap();
        assert_eq!(Record::read("id", &text).unwrap(), record);
        assert_eq!(record.view.to_proto().path, b"a\xff");
    }

    /// What the first release wrote must be read by every later one up to the next version.
    #[test]
    fn version_one_is_read() {
        let text = br#"{"version":1,"view":{"url":"https://example.com/a.git","ref":"main","path":"docs","pull":"5m","depth":"1",
            "offline":"refuse","notify":"none"},"private":false,"commit":"0123","device":7,
            "targets":[{"path":"/mnt/a","made":true,"bound":true,"name":"v","namespace":"n"}]}"#;
        let record = Record::read("x", text).unwrap();
        assert_eq!((record.targets[0].path(), record.device), (PathBuf::from("/mnt/a"), Some(7)));
        assert!(Record::read("x", br#"{"version":2}"#).unwrap_err().contains("version 2"));
    }
}
