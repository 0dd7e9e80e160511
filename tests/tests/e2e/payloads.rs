//! Webhooks of the shapes that forges document, each signed in its forge's way and sent to the real controller: a push marks the volumes that
//! follow it, in the namespace of the Secret and in no other, and what a request is signed for cannot be exchanged.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use gitmount_tests::cluster::pods::{Claim, list, secret};
use gitmount_tests::cluster::webhooks::{EXPECTED, Hook, Proof, REQUESTED};
use gitmount_tests::cluster::{Cluster, Namespace};
use serde_json::{Value, json};

const KEY: &str = "the string that the forge was given";
pub(super) const AFTER: &str = "6113728f27ae82c7b1a177c8d03f9e96e0adf246";
const BEFORE: &str = "95790bf891e76fee5e1747ab589903a6a1f80f22";
const NONE: &str = "0000000000000000000000000000000000000000";

const SHA256: Proof = Proof::Signature("X-Hub-Signature-256", "sha256=");

/// What happens at a forge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    Push,
    Tag,
    Delete,
    /// Something that moves no ref.
    Other,
}

impl Event {
    fn name(self) -> &'static str {
        if self == Event::Tag { "refs/tags/v1.0.0" } else { "refs/heads/main" }
    }

    fn short(self) -> &'static str {
        if self == Event::Tag { "v1.0.0" } else { "main" }
    }

    fn ids(self) -> (&'static str, &'static str) {
        match self {
            Event::Tag => (NONE, AFTER),
            Event::Delete => (BEFORE, NONE),
            Event::Push | Event::Other => (BEFORE, AFTER),
        }
    }
}

/// A forge: its name, a URL of the repository as a volume has it, and what it sends.
pub(super) type Forge = (&'static str, &'static str, fn(Event) -> Hook);

pub(super) const FORGES: [Forge; 7] = [
    ("github", "git@github.com:Codertocat/Hello-World.git", github),
    ("gitlab", "https://gitlab.example.com/mike/diaspora.git", gitlab),
    ("forgejo", "ssh://git@code.example.com:2222/team/site.git", forgejo),
    ("bitbucket-cloud", "https://bitbucket.org/team_name/repo_name.git", bitbucket_cloud),
    ("bitbucket-server", "ssh://git@bitbucket.example.com:7999/proj/repository.git", bitbucket_server),
    ("azure", "https://dev.azure.com/fabrikam/Fabrikam-Fiber-Git/_git/Fabrikam-Fiber-Git", azure),
    ("generic", "https://git.example.org/data/franchises.git", generic),
];

fn github(event: Event) -> Hook {
    let repository = json!({
        "id": 186_853_002, "name": "Hello-World", "full_name": "Codertocat/Hello-World", "private": false,
        "html_url": "https://github.com/Codertocat/Hello-World", "url": "https://github.com/Codertocat/Hello-World",
        "git_url": "git://github.com/Codertocat/Hello-World.git", "ssh_url": "git@github.com:Codertocat/Hello-World.git",
        "clone_url": "https://github.com/Codertocat/Hello-World.git", "default_branch": "main",
    });
    let (before, after) = event.ids();
    let (name, body) = match event {
        Event::Other => {
            ("ping", json!({"zen": "Anything added dilutes everything else.", "hook_id": 1, "hook": {}, "repository": repository}))
        }
        _ => {
            let moved = (event == Event::Tag, event == Event::Delete);
            let body = json!({
                "ref": event.name(), "before": before, "after": after, "created": moved.0, "deleted": moved.1, "forced": false,
                "repository": repository, "pusher": {"name": "Codertocat"}, "commits": [], "head_commit": null,
            });
            ("push", body)
        }
    };
    Hook { proof: SHA256, headers: vec![("X-GitHub-Event", name), ("X-GitHub-Delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")], body }
}

fn gitlab(event: Event) -> Hook {
    let (before, after) = event.ids();
    let (header, kind) = match event {
        Event::Tag => ("Tag Push Hook", "tag_push"),
        Event::Other => ("Note Hook", "note"),
        Event::Push | Event::Delete => ("Push Hook", "push"),
    };
    let body = json!({
        "object_kind": kind, "event_name": kind, "before": before, "after": after, "ref": event.name(),
        "checkout_sha": if event == Event::Delete { Value::Null } else { after.into() }, "user_id": 4, "project_id": 15,
        "project": {
            "id": 15, "name": "Diaspora", "web_url": "http://gitlab.example.com/mike/diaspora",
            "git_ssh_url": "git@gitlab.example.com:mike/diaspora.git", "git_http_url": "http://gitlab.example.com/mike/diaspora.git",
            "path_with_namespace": "mike/diaspora", "default_branch": "main", "homepage": "http://gitlab.example.com/mike/diaspora",
        },
        "repository": {
            "name": "Diaspora", "url": "git@gitlab.example.com:mike/diaspora.git", "homepage": "http://gitlab.example.com/mike/diaspora",
            "git_http_url": "http://gitlab.example.com/mike/diaspora.git", "git_ssh_url": "git@gitlab.example.com:mike/diaspora.git",
        },
        "commits": [], "total_commits_count": 0,
    });
    Hook { proof: Proof::Token("X-Gitlab-Token"), headers: vec![("X-Gitlab-Event", header)], body }
}

fn forgejo(event: Event) -> Hook {
    let (before, after) = event.ids();
    let name = if event == Event::Other { "issues" } else { "push" };
    let body = json!({
        "ref": event.name(), "before": before, "after": after, "compare_url": "", "commits": [], "total_commits": 0, "head_commit": null,
        "repository": {
            "id": 140, "name": "site", "full_name": "team/site", "html_url": "https://code.example.com/team/site",
            "ssh_url": "ssh://git@code.example.com:2222/team/site.git", "clone_url": "https://code.example.com/team/site.git",
            "default_branch": "main",
        },
        "pusher": {"login": "someone"}, "sender": {"login": "someone"},
    });
    // It sends the headers of those that it comes from, too.
    let headers = vec![("X-Forgejo-Event", name), ("X-Gitea-Event", name), ("X-Gogs-Event", name), ("X-GitHub-Event", name)];
    Hook { proof: Proof::Signature("X-Forgejo-Signature", ""), headers, body }
}

fn bitbucket_cloud(event: Event) -> Hook {
    let kind = if event == Event::Tag { "tag" } else { "branch" };
    let state = |hash: &str| json!({"type": kind, "name": event.short(), "target": {"type": "commit", "hash": hash}});
    let (old, new) = match event {
        Event::Tag => (Value::Null, state(AFTER)),
        Event::Delete => (state(BEFORE), Value::Null),
        Event::Push | Event::Other => (state(BEFORE), state(AFTER)),
    };
    let repository = json!({
        "type": "repository", "full_name": "team_name/repo_name", "name": "repo_name", "scm": "git", "is_private": true,
        "links": {
            "self": {"href": "https://api.bitbucket.org/2.0/repositories/team_name/repo_name"},
            "html": {"href": "https://bitbucket.org/team_name/repo_name"},
        },
    });
    let closed = [old.is_null(), new.is_null()];
    let change =
        json!({"old": old, "new": new, "created": closed[0], "closed": closed[1], "forced": false, "commits": [], "truncated": false});
    let (name, body) = match event {
        Event::Other => ("issue:created", json!({"repository": repository, "issue": {"id": 1}})),
        _ => ("repo:push", json!({"actor": {}, "repository": repository, "push": {"changes": [change]}})),
    };
    Hook { proof: Proof::Signature("X-Hub-Signature", "sha256="), headers: vec![("X-Event-Key", name)], body }
}

fn bitbucket_server(event: Event) -> Hook {
    let (from, to) = event.ids();
    let kind = if event == Event::Tag { "TAG" } else { "BRANCH" };
    let what = match event {
        Event::Tag => "ADD",
        Event::Delete => "DELETE",
        Event::Push | Event::Other => "UPDATE",
    };
    let change = json!({
        "ref": {"id": event.name(), "displayId": event.short(), "type": kind}, "refId": event.name(), "fromHash": from, "toHash": to, "type": what,
    });
    let repository = json!({
        "slug": "repository", "id": 84, "name": "repository", "scmId": "git", "project": {"key": "PROJ"},
        "links": {
            "clone": [
                {"href": "ssh://git@bitbucket.example.com:7999/proj/repository.git", "name": "ssh"},
                {"href": "https://bitbucket.example.com/scm/proj/repository.git", "name": "http"},
            ],
            "self": [{"href": "https://bitbucket.example.com/projects/PROJ/repos/repository/browse"}],
        },
    });
    let (name, body) = match event {
        Event::Other => ("diagnostics:ping", json!({"test": true})),
        _ => ("repo:refs_changed", json!({"eventKey": "repo:refs_changed", "repository": repository, "changes": [change]})),
    };
    Hook { proof: Proof::Signature("X-Hub-Signature", "sha256="), headers: vec![("X-Event-Key", name)], body }
}

fn azure(event: Event) -> Hook {
    let (old, new) = event.ids();
    let body = json!({
        "subscriptionId": "00000000-0000-0000-0000-000000000000", "notificationId": 1, "id": "03c164c2-8912-4d5e-8009-3707d5f83734",
        "eventType": if event == Event::Other { "build.complete" } else { "git.push" }, "publisherId": "tfs", "resourceVersion": "1.0",
        "resource": {
            "commits": [], "refUpdates": [{"name": event.name(), "oldObjectId": old, "newObjectId": new}],
            "repository": {
                "id": "278d5cd2-584d-4b63-824a-2ba458937249", "name": "Fabrikam-Fiber-Git", "defaultBranch": "refs/heads/main",
                "remoteUrl": "https://fabrikam@dev.azure.com/fabrikam/Fabrikam-Fiber-Git/_git/Fabrikam-Fiber-Git",
            },
            "pushId": 14,
        },
    });
    Hook { proof: Proof::Password, headers: vec![], body }
}

fn generic(event: Event) -> Hook {
    let mut body = json!({"url": "https://git.example.org/data/franchises.git", "ref": event.name()});
    match event {
        Event::Push | Event::Tag => body["commit"] = AFTER.into(),
        Event::Other => body["ref"] = "refs/notes/commits".into(),
        Event::Delete => {}
    }
    Hook { proof: Proof::Signature("X-Gitmount-Signature-256", "sha256="), headers: vec![], body }
}

type Marks = BTreeMap<String, BTreeMap<String, String>>;

/// The claims whose volumes are marked otherwise than before.
fn moved(before: &Marks, after: &Marks, namespace: &str) -> Vec<String> {
    let differs = |(name, own): &(&String, &BTreeMap<String, String>)| before.get(*name) != Some(own);
    after.iter().filter(differs).map(|(name, _)| name.trim_start_matches(&format!("{namespace}-")).to_owned()).collect()
}

#[test]
fn every_forges_pushes_mark_what_follows_them_and_nothing_else() -> Result<()> {
    let cluster = Cluster::get()?;
    let namespace = Namespace::new(cluster, "payload")?;
    let _driver = cluster.usual_driver(&namespace)?;
    let other = namespace.another("payload")?;
    let address = cluster.controller()?.address;
    // The other namespace has a Secret of the same name and value.
    let mut objects = vec![];
    for space in [&namespace, &other] {
        objects.push(secret(space.name(), "hook", &[("secret", KEY)]));
        for (forge, url, _) in FORGES {
            for (name, followed) in [("branch", "main"), ("tag", "v1.0.0")] {
                let attributes = [("url", url), ("ref", followed), ("pull", "on-demand"), ("webhookSecret", "hook")];
                objects.push(Claim::new(space.name(), &format!("{forge}-{name}"), &attributes).object());
            }
        }
    }
    cluster.kubectl.apply_object(&list(&objects))?;
    cluster.wait_bound(namespace.name())?;
    cluster.wait_bound(other.name())?;
    let path = format!("/webhook/{}/hook", namespace.name());
    let foreign = cluster.annotations(other.name())?;
    for (forge, _, hook) in FORGES {
        let (push, branch, tag) = (hook(Event::Push), format!("{forge}-branch"), format!("{forge}-tag"));
        let marks = || cluster.annotations(namespace.name());
        // The watch of the controller may be a moment behind.
        let seen = || Some(push.post(&address, &path, KEY).ok()? == (200, "marked 1".to_owned())).filter(|marked| *marked).map(drop);
        let before = marks()?;
        gitmount_tests::run::wait_for(&format!("a push of {forge} that marks"), gitmount_tests::run::DEADLINE, seen)?;
        let pushed = marks()?;
        ensure!(moved(&before, &pushed, namespace.name()) == [branch.clone()], "{forge}: {before:#?} {pushed:#?}");
        let of = |marks: &Marks, claim: &str, key: &str| marks[&format!("{}-{claim}", namespace.name())].get(key).cloned();
        ensure!(
            of(&pushed, &branch, EXPECTED).as_deref() == Some(AFTER) && of(&pushed, &branch, REQUESTED).is_some(),
            "{forge}: {pushed:#?}"
        );

        // What was signed for one body is no proof of another.
        let (other_body, right) = (hook(Event::Delete).body.to_string(), push.body.to_string());
        let replayed = match push.proof {
            Proof::Signature(..) => push.post_as(&address, &path, &push.proof.header(KEY, right.as_bytes()), other_body.as_bytes())?,
            Proof::Token(_) | Proof::Password => push.post(&address, &path, &KEY[1..])?,
        };
        ensure!(replayed.0 == 403, "{forge}: {replayed:?}");
        let wrong = push.post(&address, &path, "another string")?;
        ensure!(wrong == replayed, "{forge}: {wrong:?}");
        let elsewhere = hook(Event::Other).post(&address, &path, KEY)?;
        ensure!(elsewhere == (200, "marked 0".to_owned()), "{forge}: {elsewhere:?}");
        ensure!(marks()? == pushed, "{forge}: nothing of this marks");

        let tagged = hook(Event::Tag).post(&address, &path, KEY)?;
        ensure!(tagged == (200, "marked 1".to_owned()), "{forge}: {tagged:?}");
        let tags = marks()?;
        ensure!(moved(&pushed, &tags, namespace.name()) == [tag], "{forge}: {pushed:#?} {tags:#?}");
        let deleted = hook(Event::Delete).post(&address, &path, KEY)?;
        ensure!(deleted == (200, "marked 1".to_owned()), "{forge}: {deleted:?}");
        let gone = marks()?;
        ensure!(moved(&tags, &gone, namespace.name()) == [branch.clone()], "{forge}: {tags:#?} {gone:#?}");
        ensure!(of(&gone, &branch, EXPECTED).is_none(), "{forge}: a deleted branch has no commit to wait for: {gone:#?}");
    }
    ensure!(cluster.annotations(other.name())? == foreign, "another namespace's volumes are marked");
    Ok(())
}
