//! What a view shows, parsed from the control protocol: every value is checked here, once, and refused with the attribute's name.

use std::fmt;

use gitmount_proto::fsd::v1 as proto;
use gitmount_store::error::Result;
use gitmount_store::path::RepoPath;
use gitmount_store::refspec::RefSpec;
use gitmount_store::url::{RepoUrl, UrlPolicy};
use gitmount_store::{Fault, StoreError};
use serde::{Deserialize, Serialize};

use super::policy::{Offline, Pull};

/// Whether changes raise inotify events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Notify {
    /// They do not.
    #[default]
    None,
    /// They do.
    Inotify,
}

/// Everything that decides what a view shows, but for the credential. Two specs are equal when they may share a mount.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The repository.
    pub url: RepoUrl,
    /// What is followed.
    pub reference: RefSpec,
    /// The sub-directory that is the root.
    pub path: RepoPath,
    /// When to look for news.
    pub pull: Pull,
    /// Commits of history; 0 for all.
    pub depth: u32,
    /// What to do when the host does not answer at the start.
    pub offline: Offline,
    /// Whether changes raise inotify events.
    pub notify: Notify,
}

impl Spec {
    /// Checks what was asked for.
    ///
    /// # Errors
    /// `Usage`, with the name of the attribute that is wrong and a right value.
    pub fn parse(view: &proto::ViewSpec, policy: &UrlPolicy) -> Result<Self> {
        let text = |value: &str, default: &'static str| if value.is_empty() { default.to_owned() } else { value.to_owned() };
        if view.url.is_empty() {
            return Err(usage("url is missing: give something like \"https://git.example.com/team/repo.git\""));
        }
        let depth = text(&view.depth, "1");
        Ok(Spec {
            url: RepoUrl::parse(&view.url, policy)?,
            reference: RefSpec::parse(&text(&view.r#ref, "HEAD"))?,
            path: RepoPath::parse(&view.path)?,
            pull: text(&view.pull, "5m").parse()?,
            depth: depth
                .parse()
                .map_err(|_| usage(format!("depth {depth:?} is no number of commits: give 1 or more, or 0 for the whole history")))?,
            offline: match text(&view.offline, "refuse").as_str() {
                "refuse" => Offline::Refuse,
                "allowStale" => Offline::AllowStale,
                other => return Err(usage(format!("offline {other:?} is unknown: give \"refuse\" or \"allowStale\""))),
            },
            notify: match text(&view.notify, "none").as_str() {
                "none" => Notify::None,
                "inotify" => Notify::Inotify,
                other => return Err(usage(format!("notify {other:?} is unknown: give \"none\" or \"inotify\""))),
            },
        })
    }

    /// The same as it travels and is written down: parsing it gives an equal spec.
    pub fn to_proto(&self) -> proto::ViewSpec {
        proto::ViewSpec {
            url: self.url.to_string(),
            r#ref: self.reference.to_string(),
            path: self.path.as_bstr().to_vec(),
            pull: self.pull.to_string(),
            depth: self.depth.to_string(),
            offline: match self.offline {
                Offline::Refuse => "refuse".into(),
                Offline::AllowStale => "allowStale".into(),
            },
            notify: match self.notify {
                Notify::None => "none".into(),
                Notify::Inotify => "inotify".into(),
            },
        }
    }

    /// The host, for what is counted by host.
    pub fn host(&self) -> String {
        let (host, port) = (self.url.host(), self.url.port().unwrap_or(self.url.scheme().default_port()));
        format!("{host}:{port}")
    }

    fn key(&self) -> (String, &RefSpec, &[u8], Pull, u32, Offline, Notify) {
        (self.url.normalized(), &self.reference, self.path.as_bstr(), self.pull, self.depth, self.offline, self.notify)
    }
}

impl PartialEq for Spec {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Spec {}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.url, self.reference)?;
        if !self.path.is_root() {
            write!(f, ", path {}", self.path.as_bstr())?;
        }
        Ok(())
    }
}

fn usage(message: impl Into<String>) -> StoreError {
    StoreError::new(Fault::Usage, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(url: &str) -> proto::ViewSpec {
        proto::ViewSpec { url: url.into(), ..Default::default() }
    }

    #[test]
    fn what_is_left_out_has_the_documented_default() {
        let spec = Spec::parse(&view("https://example.com/a.git"), &UrlPolicy::default()).unwrap();
        let full = proto::ViewSpec {
            r#ref: "HEAD".into(),
            pull: "5m".into(),
            depth: "1".into(),
            offline: "refuse".into(),
            notify: "none".into(),
            ..view("https://example.com/a.git")
        };
        assert_eq!(spec.to_proto(), full);
        assert_eq!(Spec::parse(&full, &UrlPolicy::default()).unwrap(), spec);
    }

    #[test]
    fn spellings_of_one_url_are_one_view_and_any_other_difference_is_another() {
        let parse = |view: &proto::ViewSpec| Spec::parse(view, &UrlPolicy::default()).unwrap();
        let base = view("https://example.com/a.git");
        assert_eq!(parse(&base), parse(&view("https://example.com:443/a.git/")));
        for other in [
            proto::ViewSpec { r#ref: "v1".into(), ..base.clone() },
            proto::ViewSpec { path: b"docs".to_vec(), ..base.clone() },
            proto::ViewSpec { pull: "30s".into(), ..base.clone() },
            proto::ViewSpec { depth: "0".into(), ..base.clone() },
            proto::ViewSpec { offline: "allowStale".into(), ..base.clone() },
            proto::ViewSpec { notify: "inotify".into(), ..base.clone() },
        ] {
            assert_ne!(parse(&base), parse(&other), "{other:?}");
        }
    }

    #[test]
    fn a_bad_value_is_refused_by_its_attribute_with_a_right_one() {
        let base = view("https://example.com/a.git");
        for (bad, words) in [
            (view(""), ["url", "https://"]),
            (view("http://example.com/a.git"), ["url", "http"]),
            (proto::ViewSpec { r#ref: "a..b".into(), ..base.clone() }, ["ref", "main"]),
            (proto::ViewSpec { path: b"../x".to_vec(), ..base.clone() }, ["path", ".."]),
            (proto::ViewSpec { pull: "5".into(), ..base.clone() }, ["pull", "5m"]),
            (proto::ViewSpec { depth: "-1".into(), ..base.clone() }, ["depth", "0 for"]),
            (proto::ViewSpec { offline: "yes".into(), ..base.clone() }, ["offline", "allowStale"]),
            (proto::ViewSpec { notify: "yes".into(), ..base }, ["notify", "inotify"]),
        ] {
            let error = Spec::parse(&bad, &UrlPolicy::default()).unwrap_err();
            assert_eq!(error.fault(), Fault::Usage);
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        }
    }
}
