//! A real forge: Gitea over HTTPS and with its own SSH server, on the address that pods reach, with users, tokens, deploy keys and webhooks
//! by its REST API. It is started when a test asks for it, belongs to the cluster, and ends with it.
//!
//! No password and no token of a test gets onto a command line, since tests look for them there.

use std::fs;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::build::Component;
use super::pki::{Authority, random};
use super::process::until;
use super::{Cluster, Daemon};
use crate::git::{Repo, git};
use crate::run::{self, command, run_with};
use crate::scratch;

const HTTPS: u16 = 3000;
const SSH: u16 = 3022;
const ADMIN: &str = "forge-admin";
const START: Duration = Duration::from_secs(120);

/// The cluster's forge.
#[derive(Debug)]
pub struct Forge {
    dir: PathBuf,
    host: String,
    /// The administrator, who may do everything.
    pub admin: User,
}

/// An account of the forge.
#[derive(Debug, Clone)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Its password.
    pub password: String,
}

impl Forge {
    /// The one that runs, or a new one.
    pub fn get(cluster: &Cluster) -> Result<Forge> {
        let programs = Component::Gitea.programs()?;
        let _lock = scratch::exclusive(&format!("cluster{}-forge", cluster.layout.network().slot()))?;
        let dir = cluster.dir().join("forge");
        let daemon = cluster.layout.daemon("gitea");
        let secret = dir.join("admin");
        if daemon.pid().is_none() || !secret.exists() {
            daemon.end(nix::sys::signal::Signal::SIGKILL)?;
            start(cluster, &programs, &dir, &daemon).with_context(|| format!("Gitea did not start: {}", daemon.tail()))?;
        }
        let admin = User { name: ADMIN.into(), password: fs::read_to_string(secret)? };
        Ok(Forge { dir, host: cluster.host().to_string(), admin })
    }

    /// Its base URL.
    pub fn url(&self) -> String {
        format!("https://{}:{HTTPS}", self.host)
    }

    /// The URL of a repository (`owner/name`) over HTTPS.
    pub fn https(&self, repository: &str) -> String {
        format!("{}/{repository}.git", self.url())
    }

    /// The URL of a repository over SSH.
    pub fn ssh(&self, repository: &str) -> String {
        format!("ssh://git@{}:{SSH}/{repository}.git", self.host)
    }

    /// The certificate of its authority, as PEM and as a file.
    pub fn ca(&self) -> Result<(String, PathBuf)> {
        let file = self.dir.join("pki/ca.crt");
        Ok((fs::read_to_string(&file)?, file))
    }

    /// Lines for `known_hosts` with its host keys.
    pub fn known_hosts(&self) -> Result<String> {
        run::require("ssh-keyscan", "openssh-client")?;
        let lines = run::run(command("ssh-keyscan").args(["-p", &SSH.to_string(), &self.host]))?.success()?.out();
        ensure!(!lines.trim().is_empty(), "the forge shows no host key");
        Ok(lines)
    }

    /// A new account, whose name begins with `prefix`.
    pub fn create_user(&self, prefix: &str) -> Result<User> {
        let user = User { name: format!("{prefix}-{}", &random()?[..8]), password: random()? };
        let body = json!({
            "username": user.name, "password": user.password, "email": format!("{}@example.com", user.name), "must_change_password": false,
        });
        self.call(&self.admin, "POST", "/admin/users", Some(&body))?;
        Ok(user)
    }

    /// An access token that reads repositories, or also writes them; `name` is what it is revoked by.
    pub fn create_token(&self, user: &User, name: &str, write: bool) -> Result<String> {
        let scope = if write { "write:repository" } else { "read:repository" };
        let token = self.call(user, "POST", &format!("/users/{}/tokens", user.name), Some(&json!({"name": name, "scopes": [scope]})))?;
        Ok(token["sha1"].as_str().context("the forge gave no token")?.to_owned())
    }

    /// Revokes a token.
    pub fn revoke_token(&self, user: &User, name: &str) -> Result<()> {
        self.call(user, "DELETE", &format!("/users/{}/tokens/{name}", user.name), None).map(drop)
    }

    /// A new, empty repository whose default branch is `main`; gives `owner/name`.
    pub fn create_repository(&self, owner: &User, prefix: &str, private: bool) -> Result<String> {
        let name = format!("{prefix}-{}", &random()?[..8]);
        let body = json!({"name": name, "private": private, "default_branch": "main"});
        self.call(&self.admin, "POST", &format!("/admin/users/{}/repos", owner.name), Some(&body))?;
        Ok(format!("{}/{name}", owner.name))
    }

    /// Lets the holder of an SSH key read a repository; gives what it is removed by. `public` is the line of the `.pub` file.
    pub fn add_deploy_key(&self, repository: &str, public: &str) -> Result<u64> {
        let body = json!({"title": random()?, "key": public.trim(), "read_only": true});
        let key = self.call(&self.admin, "POST", &format!("/repos/{repository}/keys"), Some(&body))?;
        key["id"].as_u64().context("the forge gave no id of the key")
    }

    /// Takes a deploy key away.
    pub fn remove_deploy_key(&self, repository: &str, key: u64) -> Result<()> {
        self.call(&self.admin, "DELETE", &format!("/repos/{repository}/keys/{key}"), None).map(drop)
    }

    /// Has every push to a repository posted to `url`, signed with `secret`.
    pub fn add_webhook(&self, repository: &str, url: &str, secret: &str) -> Result<u64> {
        let config = json!({"url": url, "content_type": "json", "secret": secret});
        let body = json!({"type": "gitea", "active": true, "events": ["push"], "config": config});
        let hook = self.call(&self.admin, "POST", &format!("/repos/{repository}/hooks"), Some(&body))?;
        hook["id"].as_u64().context("the forge gave no id of the webhook")
    }

    /// Pushes what `from` has on its branches to a repository, as the administrator.
    pub fn push(&self, from: &Repo, repository: &str) -> Result<()> {
        let login = STANDARD.encode(format!("{}:{}", self.admin.name, self.admin.password));
        let mut push = git();
        push.arg("-C").arg(from.path()).args(["push", "--quiet", "--force", &self.https(repository), "refs/heads/*:refs/heads/*"]);
        let settings =
            [("http.extraHeader", format!("Authorization: Basic {login}")), ("http.sslCAInfo", self.ca()?.1.display().to_string())];
        push.env("GIT_CONFIG_COUNT", settings.len().to_string());
        for (number, (name, value)) in settings.iter().enumerate() {
            push.env(format!("GIT_CONFIG_KEY_{number}"), name).env(format!("GIT_CONFIG_VALUE_{number}"), value);
        }
        run::run(&mut push)?.success().map(drop)
    }

    /// Calls the REST API as `user`; gives the answer, `null` when it is empty.
    pub fn call(&self, user: &User, method: &str, path: &str, body: Option<&Value>) -> Result<Value> {
        let quote = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
        let mut config = format!("user = {}\n", quote(&format!("{}:{}", user.name, user.password)));
        if let Some(body) = body {
            config.push_str(&format!("header = \"Content-Type: application/json\"\ndata-binary = {}\n", quote(&body.to_string())));
        }
        let mut curl = command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "60", "--write-out", "\n%{http_code}", "--request", method, "--cacert"]);
        curl.arg(self.ca()?.1).args(["--config", "-"]).arg(format!("{}/api/v1{path}", self.url()));
        let answer = run_with(&mut curl, config.as_bytes(), run::DEADLINE)?.success()?.out();
        let (content, status) = answer.rsplit_once('\n').context("curl writes the status at the end")?;
        if !status.starts_with('2') {
            bail!("the forge answered {method} {path} with {status}: {content}");
        }
        if content.trim().is_empty() { Ok(Value::Null) } else { Ok(serde_json::from_str(content)?) }
    }
}

fn start(cluster: &Cluster, programs: &Path, dir: &Path, daemon: &Daemon) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir)?;
    }
    fs::create_dir_all(dir.join("home"))?;
    let host = cluster.host().to_string();
    let pki = dir.join("pki");
    Authority::new(&pki)?.sign(&pki, "gitea", &[&host])?;
    let (root, static_root) = (dir.display(), programs.display());
    let config = format!(
        "I_AM_BEING_UNSAFE_RUNNING_AS_ROOT = true\nRUN_USER = root\nWORK_PATH = {root}\n\
         [server]\nSTATIC_ROOT_PATH = {static_root}\nPROTOCOL = https\nHTTP_ADDR = {host}\nHTTP_PORT = {HTTPS}\n\
         ROOT_URL = https://{host}:{HTTPS}/\nCERT_FILE = {root}/pki/gitea.crt\nKEY_FILE = {root}/pki/gitea.key\n\
         START_SSH_SERVER = true\nBUILTIN_SSH_SERVER_USER = git\nSSH_DOMAIN = {host}\nSSH_LISTEN_HOST = {host}\nSSH_LISTEN_PORT = {SSH}\n\
         SSH_PORT = {SSH}\nOFFLINE_MODE = true\n\
         [database]\nDB_TYPE = sqlite3\nPATH = {root}/gitea.db\n\
         [security]\nINSTALL_LOCK = true\nPASSWORD_HASH_ALGO = pbkdf2$1000$50\n\
         [webhook]\nALLOWED_HOST_LIST = *\n\
         [log]\nLEVEL = Warn\n"
    );
    let file = dir.join("app.ini");
    fs::write(&file, config)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    let gitea = programs.join("gitea");
    let words = [gitea.as_os_str(), "web".as_ref(), "--config".as_ref(), file.as_os_str()];
    daemon.start(&words, &cluster.layout.path(), &cluster.layout.control_cgroup())?;
    until("listening for HTTPS and SSH", START, Some(daemon), || {
        Ok((TcpStream::connect((host.as_str(), HTTPS)).is_ok() && TcpStream::connect((host.as_str(), SSH)).is_ok()).then_some(()))
    })?;
    // The one password that a command line shows, for a moment, before any test.
    let first = random()?;
    let mut create = command(&gitea);
    create.args(["admin", "user", "create", "--config"]).arg(&file).env("HOME", dir.join("home"));
    create.args(["--username", ADMIN, "--email", "admin@example.com", "--admin", "--must-change-password=false", "--password", &first]);
    run::run(&mut create)?.success()?;
    let secret = dir.join("admin");
    fs::write(&secret, &first)?;
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600))?;
    Ok(())
}
