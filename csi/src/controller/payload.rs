//! What a push says: which repository by all of its URLs, which refs, which commits. Only the fields that are needed are read (`kept`);
//! anything that is missing or of another type is passed over.

mod kept;

use serde_json::Value;

use super::forge::Forge;
use super::repository::Repository;

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Refs moved.
    Push(Push),
    /// Anything else: a test of the connection, or an event that moves no ref.
    Other,
}

/// A push.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Push {
    /// The repository, as each of its URLs names it.
    pub repositories: Vec<Repository>,
    /// Full names, each with its new commit where that is known and not zeros.
    pub refs: Vec<(String, Option<String>)>,
    /// The default branch, where the forge says it.
    pub default_branch: Option<String>,
}

/// Why a body is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadError {
    /// It is no JSON.
    #[error("the body is no JSON: choose the content type application/json")]
    Json,
    /// It is a push that names no repository, or no ref.
    #[error("the push names no {0}")]
    Missing(&'static str),
}

/// Reads a body that was verified.
///
/// # Errors
/// When it is not what such a forge sends.
pub fn parse(forge: Forge, event: &str, body: &[u8]) -> Result<Message, PayloadError> {
    let json = kept::parse(body).map_err(|_| PayloadError::Json)?;
    let push = match (forge, event) {
        (Forge::GitHub | Forge::Gitea | Forge::Forgejo | Forge::Gogs, "push") => like_github(&json),
        (Forge::GitLab, "Push Hook" | "Tag Push Hook" | "System Hook") if is_gitlab_push(event, &json) => gitlab(&json),
        (Forge::Bitbucket, "repo:push") => bitbucket_cloud(&json),
        (Forge::Bitbucket, "repo:refs_changed") => bitbucket_server(&json),
        (Forge::Azure, _) if json["eventType"] == "git.push" => azure(&json),
        (Forge::Generic, _) => generic(&json),
        _ => return Ok(Message::Other),
    };
    if push.repositories.is_empty() {
        return Err(PayloadError::Missing("repository"));
    }
    if push.refs.is_empty() {
        return Err(PayloadError::Missing("ref"));
    }
    Ok(Message::Push(push))
}

fn text(value: &Value) -> Option<String> {
    value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn commit(value: &Value) -> Option<String> {
    text(value).filter(|id| [40, 64].contains(&id.len()) && id.bytes().all(|b| b.is_ascii_hexdigit()) && id.bytes().any(|b| b != b'0'))
}

fn repositories<'a>(urls: impl IntoIterator<Item = &'a Value>) -> Vec<Repository> {
    let mut found: Vec<Repository> = vec![];
    for repository in urls.into_iter().filter_map(text).filter_map(|url| Repository::parse(&url)) {
        if !found.contains(&repository) {
            found.push(repository);
        }
    }
    found
}

fn one_ref(name: &Value, after: &Value) -> Vec<(String, Option<String>)> {
    text(name).map(|name| (name, commit(after))).into_iter().collect()
}

fn like_github(json: &Value) -> Push {
    let repository = &json["repository"];
    Push {
        repositories: repositories(["clone_url", "ssh_url", "git_url", "html_url", "url"].map(|key| &repository[key])),
        refs: one_ref(&json["ref"], &json["after"]),
        default_branch: text(&repository["default_branch"]),
    }
}

/// System hooks tell of everything that happens, much of it without a kind.
fn is_gitlab_push(event: &str, json: &Value) -> bool {
    json["object_kind"].as_str().map_or(event != "System Hook", |kind| kind == "push" || kind == "tag_push")
}

fn gitlab(json: &Value) -> Push {
    let (project, repository) = (&json["project"], &json["repository"]);
    let urls = ["git_http_url", "git_ssh_url", "http_url", "ssh_url", "web_url"].map(|key| &project[key]);
    let more = ["git_http_url", "git_ssh_url", "url", "homepage"].map(|key| &repository[key]);
    Push {
        repositories: repositories(urls.into_iter().chain(more)),
        refs: one_ref(&json["ref"], &json["after"]),
        default_branch: text(&project["default_branch"]),
    }
}

fn bitbucket_cloud(json: &Value) -> Push {
    let repository = &json["repository"];
    let links = &repository["links"];
    let refs = list(&json["push"]["changes"]).filter_map(|change| {
        // A deleted ref has no new state.
        let state = if change["new"].is_object() { &change["new"] } else { &change["old"] };
        let kind = if state["type"] == "tag" { "tags" } else { "heads" };
        Some((format!("refs/{kind}/{}", text(&state["name"])?), commit(&change["new"]["target"]["hash"])))
    });
    Push {
        repositories: repositories(list(&links["clone"]).map(|link| &link["href"]).chain([&links["html"]["href"]])),
        refs: refs.collect(),
        default_branch: text(&repository["mainbranch"]["name"]),
    }
}

fn bitbucket_server(json: &Value) -> Push {
    let links = &json["repository"]["links"];
    let refs = list(&json["changes"]).filter_map(|change| Some((text(&change["ref"]["id"])?, commit(&change["toHash"]))));
    Push { repositories: repositories(list(&links["clone"]).map(|link| &link["href"])), refs: refs.collect(), default_branch: None }
}

fn azure(json: &Value) -> Push {
    let resource = &json["resource"];
    let repository = &resource["repository"];
    let refs = list(&resource["refUpdates"]).filter_map(|update| Some((text(&update["name"])?, commit(&update["newObjectId"]))));
    Push {
        repositories: repositories(["remoteUrl", "sshUrl", "webUrl"].map(|key| &repository[key])),
        refs: refs.collect(),
        default_branch: text(&repository["defaultBranch"]),
    }
}

fn generic(json: &Value) -> Push {
    Push { repositories: repositories([&json["url"]]), refs: one_ref(&json["ref"], &json["commit"]), default_branch: None }
}

#[cfg(test)]
mod tests;
