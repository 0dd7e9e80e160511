//! From what the host lists to the ref that was asked for.

use crate::error::{Fault, Result, StoreError};
use crate::ids::ObjectId;
use crate::refspec::RefSpec;
use crate::transport::RemoteRef;
use crate::url::RepoUrl;

/// The ref that is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    /// Its full name; for HEAD the branch it stands for, where the host tells. `None` for a commit id.
    pub(super) ref_name: Option<String>,
    /// The object it names: a commit or an annotated tag.
    pub(super) id: ObjectId,
    /// What that peels to.
    pub(super) commit: ObjectId,
}

/// Takes the first of the spec's candidates that is listed.
///
/// # Errors
/// [`Fault::NotFound`], with a sentence that tells an empty repository from a missing ref.
pub(super) fn pick(spec: &RefSpec, url: &RepoUrl, listed: &[RemoteRef]) -> Result<Target> {
    let candidates = spec.candidates();
    let found = candidates.iter().find_map(|name| listed.iter().find(|listed| listed.name == *name));
    if let Some(found) = found {
        let ref_name = found.symref.as_ref().filter(|_| *spec == RefSpec::Head).unwrap_or(&found.name).clone();
        return Ok(Target { ref_name: Some(ref_name), id: found.id, commit: found.peeled.unwrap_or(found.id) });
    }
    let message = match spec {
        _ if listed.is_empty() => {
            format!("repository {url} is empty, or its HEAD and {spec:?} name nothing: push a commit to it first", spec = spec.to_string())
        }
        RefSpec::Head => format!("HEAD of {url} stands for a branch that does not exist: give a ref"),
        RefSpec::Name(name) => {
            format!("{url} has neither a branch nor a tag {name:?}: give one that exists, or a full name such as \"refs/pull/7/head\"")
        }
        RefSpec::Full(name) => format!("ref {name:?} does not exist in {url}: give one that exists"),
        RefSpec::Commit(commit) => format!("commit {commit} does not exist in {url}"),
    };
    Err(StoreError::new(Fault::NotFound, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::UrlPolicy;

    fn listed(name: &str, digit: &str, peeled: Option<&str>, symref: Option<&str>) -> RemoteRef {
        let id = |digit: &str| ObjectId::from_hex(digit.repeat(40).as_bytes()).expect("an id");
        RemoteRef { name: name.into(), id: id(digit), peeled: peeled.map(id), symref: symref.map(Into::into) }
    }

    fn choose(spec: &str, refs: &[RemoteRef]) -> Result<Target> {
        let url = RepoUrl::parse("https://example.com/a.git", &UrlPolicy::default()).expect("a URL");
        pick(&RefSpec::parse(spec).expect("a ref"), &url, refs)
    }

    #[test]
    fn a_branch_wins_over_a_tag_and_prefixes_do_not_match() {
        let refs = [
            listed("HEAD", "1", None, Some("refs/heads/main")),
            listed("refs/heads/v1", "2", None, None),
            listed("refs/heads/v10", "3", None, None),
            listed("refs/tags/v1", "4", Some("5"), None),
            listed("refs/tags/t", "6", Some("7"), None),
        ];
        assert_eq!(choose("v1", &refs).expect("found").ref_name.as_deref(), Some("refs/heads/v1"));
        assert_eq!(choose("HEAD", &refs).expect("found").ref_name.as_deref(), Some("refs/heads/main"));
        let tag = choose("t", &refs).expect("found");
        assert_eq!((tag.id, tag.commit), (refs[4].id, refs[4].peeled.expect("peeled")));
        assert_eq!(choose("refs/tags/v1", &refs).expect("found").id, refs[3].id);
        let missing = choose("v", &refs).expect_err("missing");
        assert_eq!(missing.fault(), Fault::NotFound);
        assert!(missing.to_string().contains("neither a branch nor a tag \"v\""), "{missing}");
    }

    #[test]
    fn an_empty_repository_is_called_empty() {
        let empty = choose("main", &[]).expect_err("empty");
        assert!(empty.fault() == Fault::NotFound && empty.to_string().contains("is empty"), "{empty}");
    }
}
