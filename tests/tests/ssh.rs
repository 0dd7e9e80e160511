//! SSH against OpenSSH: every kind of host key and user key, the agent, `~/.ssh/config`, `known_hosts` in all its forms.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use gitmount_tests::compare;
use gitmount_tests::fixtures::{self, refs};
use gitmount_tests::git::Repo;
use gitmount_tests::mount::Account;
use gitmount_tests::run::{command, run};
use gitmount_tests::servers::ssh::{Agent, KeyKind, Known, Sshd, known_host, new_key, public};

/// A server, an account that knows its host key, and a key of that account that is let in.
struct Setting {
    server: Sshd,
    account: Account,
    repo: Repo,
}

impl Setting {
    fn new(key: KeyKind) -> Result<Self> {
        let setting = Setting { server: Sshd::start()?, account: Account::new()?, repo: fixtures::get("refs", refs::refs)? };
        setting.know(&setting.server.known_host(KeyKind::Ed25519, Known::Plain)?)?;
        setting.server.authorize(&setting.key(&default_name(key), key)?)?;
        Ok(setting)
    }

    fn know(&self, lines: &str) -> Result<()> {
        self.account.write_home(".ssh/known_hosts", lines).map(drop)
    }

    /// A new key in the account's `~/.ssh`.
    fn key(&self, name: &str, kind: KeyKind) -> Result<PathBuf> {
        let path = self.account.home().join(".ssh").join(name);
        new_key(&path, kind, "")?;
        Ok(path)
    }

    fn url(&self) -> Result<String> {
        self.server.url(self.repo.path())
    }

    fn mounts(&self, url: &str) -> Result<()> {
        let mounted = self.account.mount(url, &["--ref", "main"]).with_context(|| self.server.log().unwrap_or_default())?;
        compare::against_both(mounted.path(), &self.repo, "refs/heads/main")?;
        mounted.unmount()
    }

    fn refused(&self, words: &[&str]) -> Result<()> {
        let dir = self.account.mount_point()?;
        self.account.refused(["mount", "--ref", "main", &self.url()?, &dir.to_string_lossy()], 4, words).map(drop)
    }
}

fn default_name(kind: KeyKind) -> String {
    format!("id_{}", format!("{kind:?}").to_lowercase())
}

#[test]
fn user_keys_of_every_kind_at_their_default_places() -> Result<()> {
    for kind in KeyKind::ALL {
        let setting = Setting::new(kind)?;
        setting.mounts(&setting.url()?).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

/// One of 512 keys of the curve P-256.
#[test]
fn a_user_key_whose_number_begins_with_zeros() -> Result<()> {
    let setting = Setting::new(KeyKind::Rsa)?;
    let key = setting.account.home().join(".ssh/id_ecdsa");
    setting.account.write_home(".ssh/id_ecdsa", include_str!("../../fsd/store/src/transport/ssh/auth/short-number.key"))?;
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600))?;
    let public = run(command("ssh-keygen").arg("-yf").arg(&key))?.success()?.out();
    setting.account.write_home(".ssh/id_ecdsa.pub", &public)?;
    fs::remove_file(setting.account.home().join(".ssh/id_rsa"))?;
    setting.server.authorize(&key)?;
    setting.mounts(&setting.url()?)
}

#[test]
fn host_keys_of_every_kind_in_every_form() -> Result<()> {
    let setting = Setting::new(KeyKind::Ed25519)?;
    for kind in KeyKind::ALL {
        for how in [Known::Plain, Known::Hashed, Known::WithoutPort] {
            // Only this one is known: the server must be asked for it.
            setting.know(&setting.server.known_host(kind, how)?)?;
            setting.mounts(&setting.url()?).with_context(|| format!("{kind:?} {how:?}"))?;
        }
    }
    Ok(())
}

#[test]
fn known_hosts_with_tabs_comments_wildcards_markers_and_nonsense() -> Result<()> {
    let setting = Setting::new(KeyKind::Ed25519)?;
    let right = setting.server.known_host(KeyKind::Rsa, Known::Plain)?;
    let (host, key) = right.split_once(' ').context("a line has a host and a key")?;
    let port = setting.server.port();
    for line in [
        format!("{host}\t{}\tcomment of two words\n", key.trim_end().replace(' ', "\t")),
        format!("# a comment\n\n  \nnonsense\n{host} ssh-rsa AAAAnonsense\n{right}"),
        format!("other.example,{host} {key}"),
        format!("[127.0.0.*]:{port} {key}"),
        format!("!other.example,[127.0.0.?]:{port} {key}"),
    ] {
        setting.know(&line)?;
        setting.mounts(&setting.url()?).with_context(|| line.clone())?;
    }
    for line in [format!("!{host},[127.0.0.*]:{port} {key}"), format!("@revoked {host} {key}{host} {key}"), String::new()] {
        setting.know(&line)?;
        setting.refused(&["key", "known_hosts"]).with_context(|| line.clone())?;
    }
    Ok(())
}

#[test]
fn another_host_key_is_refused() -> Result<()> {
    let setting = Setting::new(KeyKind::Ed25519)?;
    let other = setting.key("other-host", KeyKind::Ed25519)?;
    setting.know(&known_host(&fs::read_to_string(public(&other))?, setting.server.port(), Known::Plain)?)?;
    setting.refused(&["another key", "127.0.0.1", "known_hosts"])?;
    ensure!(!setting.server.log()?.contains("Accepted"), "a login was sent to a host that was not known");
    Ok(())
}

#[test]
fn an_agent_with_a_key_that_no_file_has() -> Result<()> {
    for kind in KeyKind::ALL {
        let mut setting = Setting { server: Sshd::start()?, account: Account::new()?, repo: fixtures::get("refs", refs::refs)? };
        setting.know(&setting.server.known_host(KeyKind::Ecdsa, Known::Plain)?)?;
        let (wrong, right) = (setting.key("wrong", KeyKind::Ed25519)?, setting.key("right", kind)?);
        setting.server.authorize(&right)?;
        let agent = Agent::start()?;
        for key in [&wrong, &right] {
            agent.add(key)?;
            fs::remove_file(key)?;
        }
        setting.account.set_env("SSH_AUTH_SOCK", agent.socket());
        setting.mounts(&setting.url()?).with_context(|| format!("{kind:?}"))?;
    }
    Ok(())
}

#[test]
fn an_agent_that_is_gone_does_no_harm() -> Result<()> {
    let mut setting = Setting::new(KeyKind::Ed25519)?;
    setting.account.set_env("SSH_AUTH_SOCK", "/nonexistent/agent");
    setting.mounts(&setting.url()?)
}

#[test]
fn ssh_config_names_host_port_user_and_key() -> Result<()> {
    let setting = Setting::new(KeyKind::Ed25519)?;
    let key = setting.key("work key", KeyKind::Ecdsa)?;
    fs::remove_file(setting.account.home().join(".ssh/id_ed25519"))?;
    setting.server.authorize(&key)?;
    let (port, user) = (setting.server.port(), setting.server.user()?);
    setting.account.write_home(
        ".ssh/config",
        &format!(
            "# aliases\nHost other\n  HostName 192.0.2.1\nHost *.example !no.example alias\n  HostName=127.0.0.1\n\tPort {port}\n  \
             User {user}\n  IdentityFile \"~/.ssh/work key\"\nHost *\n  User nobody\n  Port 1\n"
        ),
    )?;
    let path = setting.repo.path().display().to_string();
    for url in [format!("ssh://alias{path}"), format!("alias:{path}"), format!("git.example:{path}"), format!("{user}@alias:{path}")] {
        setting.mounts(&url).with_context(|| url.clone())?;
    }
    Ok(())
}

#[test]
fn paths_with_spaces_and_quotes() -> Result<()> {
    let setting = Setting::new(KeyKind::Ed25519)?;
    let dir = gitmount_tests::scratch::dir()?;
    let path = dir.path().join("it's a \"path\" & $more.git");
    let repo = fixtures::small(&path, &[("a", "1\n")])?;
    let url = setting.server.url(repo.path())?;
    let mounted = setting.account.mount(&url, &[])?;
    ensure!(mounted.text("a")? == "1\n");
    Ok(())
}

#[test]
fn a_server_that_takes_no_variables_still_gives_one_commit() -> Result<()> {
    let (_dir, repo) = fixtures::copy("mixed", fixtures::storage::mixed)?;
    let server = Sshd::with("")?;
    let account = Account::new()?;
    account.write_home(".ssh/known_hosts", &server.known_host(KeyKind::Ed25519, Known::Plain)?)?;
    let key = account.home().join(".ssh/id_ed25519");
    new_key(&key, KeyKind::Ed25519, "")?;
    server.authorize(&key)?;
    let mounted = account.mount(&server.url(repo.path())?, &[])?;
    compare::against_both(mounted.path(), &repo, "main")?;
    let stored = fs::read_dir(account.store().join("repos"))?.next().context("one repository is stored")??.path();
    let count = Repo::at(stored).line(["rev-list", "--count", &repo.id("main")?])?;
    ensure!(count == "1", "depth was ignored: {count} commits were fetched");
    let new = fixtures::commit(&repo, "news", &[("new", "1\n")])?;
    mounted.pull()?;
    ensure!(mounted.commit()? == new && mounted.text("new")? == "1\n");
    Ok(())
}

#[test]
fn an_encrypted_key_is_refused_at_once_and_by_name() -> Result<()> {
    let setting = Setting::new(KeyKind::Ed25519)?;
    let key = setting.account.home().join(".ssh/id_ed25519");
    fs::remove_file(&key)?;
    fs::remove_file(public(&key))?;
    new_key(&key, KeyKind::Ed25519, "a passphrase")?;
    setting.server.authorize(&key)?;
    let started = std::time::Instant::now();
    setting.refused(&["id_ed25519", "passphrase", "ssh-add"])?;
    ensure!(started.elapsed().as_secs() < 10, "it took {:?}", started.elapsed());
    Ok(())
}

#[test]
fn a_key_that_the_server_does_not_know_is_refused() -> Result<()> {
    let setting = Setting::new(KeyKind::Ed25519)?;
    let key = setting.account.home().join(".ssh/id_ed25519");
    fs::remove_file(&key)?;
    fs::remove_file(public(&key))?;
    new_key(&key, KeyKind::Ed25519, "")?;
    setting.refused(&["key", "127.0.0.1"])
}

#[test]
fn a_repository_that_is_not_there_is_not_found() -> Result<()> {
    let setting = Setting::new(KeyKind::Ed25519)?;
    let dir = setting.account.mount_point()?;
    let url = setting.server.url(&setting.repo.path().with_extension("nothing"))?;
    setting.account.refused(["mount", &url, &dir.to_string_lossy()], 3, &["refs.nothing"])?;
    Ok(())
}
