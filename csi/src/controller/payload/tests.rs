//! Payloads of the documented shapes, and wrong ones.

use super::*;
use serde_json::json;

const AFTER: &str = "0123456789012345678901234567890123456789";

fn push(forge: Forge, event: &str, body: Value) -> Push {
    match parse(forge, event, body.to_string().as_bytes()) {
        Ok(Message::Push(push)) => push,
        other => panic!("{other:?}"),
    }
}

fn is(push: &Push, repository: &str, refs: &[&str]) {
    assert!(push.repositories.iter().any(|one| one.to_string() == repository), "{push:?}");
    assert_eq!(push.refs.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), refs);
}

#[test]
fn github_and_those_like_it() {
    let body = json!({
        "ref": "refs/heads/main", "before": "00", "after": AFTER,
        "repository": {
            "clone_url": "https://github.com/Codertocat/Hello-World.git", "ssh_url": "git@github.com:Codertocat/Hello-World.git",
            "url": "https://github.com/Codertocat/Hello-World", "default_branch": "main",
        },
    });
    for forge in [Forge::GitHub, Forge::Gitea, Forge::Forgejo, Forge::Gogs] {
        let push = push(forge, "push", body.clone());
        is(&push, "github.com/codertocat/hello-world", &["refs/heads/main"]);
        assert_eq!((push.default_branch.as_deref(), push.refs[0].1.as_deref()), (Some("main"), Some(AFTER)));
        assert_eq!(push.repositories.len(), 1, "all URLs are of one");
    }
    assert_eq!(parse(Forge::GitHub, "ping", br#"{"zen": "x", "hook": {}}"#), Ok(Message::Other));
    assert_eq!(parse(Forge::Gitea, "issues", b"{}"), Ok(Message::Other));
}

#[test]
fn a_deleted_ref_has_no_commit() {
    let zeros = "0".repeat(40);
    let body = json!({"ref": "refs/heads/old", "after": zeros, "deleted": true, "repository": {"clone_url": "https://a.example/b/c.git"}});
    assert_eq!(push(Forge::GitHub, "push", body).refs, [("refs/heads/old".to_owned(), None)]);
}

#[test]
fn gitlab() {
    let body = json!({
        "object_kind": "tag_push", "ref": "refs/tags/v1.0.0", "after": AFTER,
        "project": {
            "git_ssh_url": "git@gitlab.example.com:jsmith/example.git", "git_http_url": "http://gitlab.example.com/jsmith/example.git",
            "default_branch": "main",
        },
        "repository": {"url": "ssh://git@gitlab.example.com/jsmith/example.git"},
    });
    for event in ["Push Hook", "Tag Push Hook", "System Hook"] {
        is(&push(Forge::GitLab, event, body.clone()), "gitlab.example.com/jsmith/example", &["refs/tags/v1.0.0"]);
    }
    for other in [json!({"object_kind": "merge_request"}), json!({"event_name": "project_create", "name": "example"})] {
        assert_eq!(parse(Forge::GitLab, "System Hook", other.to_string().as_bytes()), Ok(Message::Other), "{other}");
    }
}

#[test]
fn bitbucket_cloud_and_data_center() {
    let body = json!({
        "repository": {"links": {"html": {"href": "https://bitbucket.org/team/repo"}}, "mainbranch": {"name": "trunk"}},
        "push": {"changes": [
            {"new": {"type": "branch", "name": "main", "target": {"hash": AFTER}}},
            {"new": null, "old": {"type": "tag", "name": "v1"}},
        ]},
    });
    let cloud = push(Forge::Bitbucket, "repo:push", body);
    is(&cloud, "bitbucket.org/team/repo", &["refs/heads/main", "refs/tags/v1"]);
    assert_eq!((cloud.refs[0].1.as_deref(), cloud.refs[1].1.as_deref()), (Some(AFTER), None));
    let body = json!({
        "repository": {"links": {"clone": [{"name": "ssh", "href": "ssh://git@bb.example.com:7999/proj/repo.git"}]}},
        "changes": [{"ref": {"id": "refs/heads/main"}, "toHash": AFTER}],
    });
    is(&push(Forge::Bitbucket, "repo:refs_changed", body), "bb.example.com/proj/repo", &["refs/heads/main"]);
}

#[test]
fn azure_and_the_generic_form() {
    let body = json!({
        "eventType": "git.push",
        "resource": {
            "refUpdates": [{"name": "refs/heads/main", "newObjectId": AFTER}],
            "repository": {"remoteUrl": "https://dev.azure.com/org/project/_git/repo", "defaultBranch": "refs/heads/main"},
        },
    });
    is(&push(Forge::Azure, "", body), "dev.azure.com/org/project/_git/repo", &["refs/heads/main"]);
    assert_eq!(parse(Forge::Azure, "", br#"{"eventType": "build.complete"}"#), Ok(Message::Other));
    let body = json!({"url": "https://git.example.com/a/b.git", "ref": "refs/heads/main"});
    is(&push(Forge::Generic, "", body), "git.example.com/a/b", &["refs/heads/main"]);
}

#[test]
fn each_url_alone_names_the_repository() {
    let at = |forge, event: &str, pointer: &str, rest: &str| {
        let mut body = "\"https://a.example/b/c.git\"".to_owned();
        for name in pointer.rsplit('/') {
            body = if name == "0" { format!("[{body}]") } else { format!("{{\"{name}\": {body}}}") };
        }
        let mut body: Value = serde_json::from_str(&body).unwrap();
        merge(&mut body, serde_json::from_str(rest).unwrap());
        is(&push(forge, event, body), "a.example/b/c", &["refs/heads/main"]);
    };
    for key in ["clone_url", "ssh_url", "git_url", "html_url", "url"] {
        at(Forge::GitHub, "push", &format!("repository/{key}"), r#"{"ref": "refs/heads/main"}"#);
    }
    for key in ["git_http_url", "git_ssh_url", "http_url", "ssh_url", "web_url"] {
        at(Forge::GitLab, "Push Hook", &format!("project/{key}"), r#"{"ref": "refs/heads/main"}"#);
    }
    for key in ["git_http_url", "git_ssh_url", "url", "homepage"] {
        at(Forge::GitLab, "Push Hook", &format!("repository/{key}"), r#"{"ref": "refs/heads/main"}"#);
    }
    let changes = r#"{"push": {"changes": [{"new": {"name": "main"}}]}}"#;
    for path in ["html/href", "clone/0/href"] {
        at(Forge::Bitbucket, "repo:push", &format!("repository/links/{path}"), changes);
    }
    at(Forge::Bitbucket, "repo:refs_changed", "repository/links/clone/0/href", r#"{"changes": [{"ref": {"id": "refs/heads/main"}}]}"#);
    for key in ["remoteUrl", "sshUrl", "webUrl"] {
        let updates = r#"{"eventType": "git.push", "resource": {"refUpdates": [{"name": "refs/heads/main"}]}}"#;
        at(Forge::Azure, "", &format!("resource/repository/{key}"), updates);
    }
    at(Forge::Generic, "", "url", r#"{"ref": "refs/heads/main"}"#);
}

/// Adds members to an object.
fn merge(into: &mut Value, more: Value) {
    match (into, more) {
        (Value::Object(into), Value::Object(more)) => {
            more.into_iter().for_each(|(name, value)| merge(into.entry(name).or_insert(Value::Null), value));
        }
        (into, more) => *into = more,
    }
}

#[test]
fn what_is_malformed_is_refused_and_what_is_huge_is_passed_over() {
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in ["", "nonsense", "{", &deep, "\u{0}"] {
        assert_eq!(parse(Forge::GitHub, "push", body.as_bytes()), Err(PayloadError::Json), "{:.20}", body);
    }
    for body in [
        json!({}),
        json!([]),
        json!("push"),
        json!({"ref": 7, "repository": []}),
        json!({"ref": "refs/heads/main", "repository": {"clone_url": ["x"]}}),
        json!({"ref": "r".repeat(kept::LONGEST + 1), "repository": {"clone_url": "https://a.example/b"}}),
    ] {
        assert!(matches!(parse(Forge::GitHub, "push", body.to_string().as_bytes()), Err(PayloadError::Missing(_))), "{body:.100}");
    }
    let many: Vec<Value> = (0..kept::ELEMENTS + 50).map(|n| json!({"ref": {"id": format!("refs/heads/{n}")}})).collect();
    let body = json!({"repository": {"links": {"clone": [{"href": "https://a.example/b"}]}}, "changes": many});
    assert_eq!(push(Forge::Bitbucket, "repo:refs_changed", body).refs.len(), kept::ELEMENTS);
}
