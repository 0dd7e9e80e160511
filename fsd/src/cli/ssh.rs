//! How this user logs in over SSH: what the agent, `ssh_config` and the files in `~/.ssh` offer, as OpenSSH would use them.

use std::path::{Path, PathBuf};

use gitmount_store::credential::{HostKeys, SshAuth};
use gitmount_store::url::RepoUrl;

use super::ssh_config::{self, HostConfig, Query, Tokens};

/// Key files that are tried when `ssh_config` names none.
const DEFAULT_KEYS: [&str; 3] = ["~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa"];

const USER_KNOWN_HOSTS: [&str; 2] = ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"];
const GLOBAL_KNOWN_HOSTS: [&str; 2] = ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"];

/// Who this user is.
#[derive(Debug, Clone)]
pub struct Person {
    /// Login name.
    pub name: String,
    /// Home directory.
    pub home: PathBuf,
    /// `$SSH_AUTH_SOCK`.
    pub agent: Option<PathBuf>,
}

/// The login for `url`, and what of the user's configuration it cannot honour, as sentences.
pub fn auth(url: &RepoUrl, person: &Person) -> (SshAuth, Vec<String>) {
    let query = Query { host: url.host(), user: url.user(), local_user: &person.name, home: &person.home };
    from_config(url.host(), url.user(), url.port(), &ssh_config::load(query), person)
}

fn from_config(host: &str, user: Option<&str>, port: Option<u16>, config: &HostConfig, person: &Person) -> (SshAuth, Vec<String>) {
    let login = user.or(config.user.as_deref()).unwrap_or(&person.name);
    let to_port = port.or(config.port).unwrap_or(22);
    let before = Tokens { home: &person.home, host, original: host, user: login, local_user: &person.name, port: to_port };
    let to_host = config.host_name.as_deref().map_or_else(|| host.to_owned(), |name| before.expand(name));
    let tokens = Tokens { host: &to_host, ..before };

    let key_files: Vec<PathBuf> = if config.identity_files.is_empty() {
        DEFAULT_KEYS.iter().map(|k| tokens.path(k)).collect()
    } else {
        config.identity_files.iter().filter(|k| *k != "none").map(|k| tokens.path(k)).collect()
    };
    let agent = match config.identity_agent.as_deref() {
        Some("none") => None,
        None | Some("SSH_AUTH_SOCK") => person.agent.clone(),
        Some(path) => Some(tokens.path(path)),
    };
    // The agent cannot be told to offer the listed keys only, so it is left out as a whole.
    let agent = agent.filter(|_| config.identities_only != Some(true));
    let files = |set: &Option<Vec<String>>, default: &[&str]| -> Vec<PathBuf> {
        match set {
            Some(files) => files.iter().filter(|f| *f != "none").map(|f| tokens.path(f)).collect(),
            None => default.iter().map(|f| tokens.path(f)).collect(),
        }
    };
    let mut known = files(&config.user_known_hosts, &USER_KNOWN_HOSTS);
    known.extend(files(&config.global_known_hosts, &GLOBAL_KNOWN_HOSTS));

    let warnings = config
        .proxy
        .map(|what| format!("{what} of host {host:?} in ssh_config is not supported: {to_host} is connected to directly"))
        .into_iter()
        .collect();
    let elsewhere = to_host != host || (port.is_none() && config.port.is_some());
    let auth = SshAuth {
        user: Some(login.to_owned()),
        key_files,
        keys_optional: true,
        agent,
        host_keys: HostKeys::Files(known),
        connect_to: elsewhere.then(|| (to_host.clone(), to_port)),
        ..SshAuth::default()
    };
    (auth, warnings)
}

/// Who runs this process: the home directory is `$HOME`, else the account's.
pub fn person() -> Person {
    let account = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).ok().flatten();
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    Person {
        name: account.as_ref().map_or_else(|| "git".to_owned(), |a| a.name.clone()),
        home: var("HOME").or_else(|| account.map(|a| a.dir)).unwrap_or_else(|| Path::new("/").to_owned()),
        agent: var("SSH_AUTH_SOCK"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> Person {
        Person { name: "me".into(), home: "/home/me".into(), agent: Some("/run/agent".into()) }
    }

    fn known(auth: &SshAuth) -> Vec<PathBuf> {
        match &auth.host_keys {
            HostKeys::Files(files) => files.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_configuration_the_defaults_of_openssh_hold() {
        let (auth, warnings) = from_config("example.com", None, None, &HostConfig::default(), &me());
        assert_eq!(auth.user.as_deref(), Some("me"));
        assert_eq!(auth.key_files[0], Path::new("/home/me/.ssh/id_ed25519"));
        assert_eq!(auth.key_files.len(), 3);
        assert_eq!((auth.agent.as_deref(), auth.connect_to.as_ref()), (Some(Path::new("/run/agent")), None));
        assert_eq!(known(&auth)[0], Path::new("/home/me/.ssh/known_hosts"));
        assert!(known(&auth).contains(&PathBuf::from("/etc/ssh/ssh_known_hosts")));
        assert!(warnings.is_empty());
    }

    #[test]
    fn configuration_moves_host_port_user_and_keys() {
        let config = HostConfig {
            host_name: Some("%h.example.com".into()),
            user: Some("deploy".into()),
            port: Some(2222),
            identity_files: vec!["~/.ssh/%h".into()],
            identities_only: Some(true),
            user_known_hosts: Some(vec!["~/kh".into()]),
            global_known_hosts: Some(vec!["none".into()]),
            ..HostConfig::default()
        };
        let (auth, _) = from_config("work", None, None, &config, &me());
        assert_eq!(auth.connect_to, Some(("work.example.com".into(), 2222)));
        assert_eq!(auth.user.as_deref(), Some("deploy"));
        assert_eq!(auth.key_files, [Path::new("/home/me/.ssh/work.example.com")]);
        assert_eq!(auth.agent, None);
        assert_eq!(known(&auth), [Path::new("/home/me/kh")]);
    }

    #[test]
    fn the_url_wins_over_configuration() {
        let config = HostConfig { user: Some("deploy".into()), port: Some(2222), ..HostConfig::default() };
        let (auth, _) = from_config("work", Some("git"), Some(7999), &config, &me());
        assert_eq!((auth.user.as_deref(), auth.connect_to), (Some("git"), None));
    }

    #[test]
    fn a_jump_host_is_said_to_be_unsupported() {
        let config = HostConfig { proxy: Some("ProxyJump"), ..HostConfig::default() };
        let (_, warnings) = from_config("work", None, None, &config, &me());
        assert!(warnings.len() == 1 && warnings[0].contains("ProxyJump of host \"work\""), "{warnings:?}");
    }
}
