//! Logins over HTTP: git's credential helpers are asked and told how it went, and a secret is never seen anywhere.

use std::fs;

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures::{self, refs};
use gitmount_tests::mount::Account;
use gitmount_tests::run::run;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::{Fault, HttpServer};
use gitmount_tests::servers::tls::TestCa;

const PASSWORD: &str = "s3cret-0f-th1s-test";

/// A server that wants a login, with an account that trusts it and whose helper knows `password`.
fn setting(password: &str) -> Result<(HttpServer, Account, TestCa)> {
    let repo = fixtures::get("refs", refs::refs)?;
    let ca = TestCa::new()?;
    let server = HttpServer::tls(repo.path().parent().context("a fixture lies in a directory")?, &ca)?;
    server.require_login("user", PASSWORD);
    let mut account = Account::new()?;
    account.set_env("GIT_SSL_CAINFO", ca.file());
    // Everything that could be logged is.
    account.set_env("GITMOUNT_LOG", "trace");
    let (log, secret) = (account.home().join("helper.log"), account.write_home("secret", password)?);
    // Records what it is asked to do, and with what, but for the password.
    let helper = format!(
        "!f() {{ echo \"$1\" >>{log}; grep -v ^password >>{log}; test $1 = get && echo username=user && echo password=$(cat {secret}); }}; f",
        log = log.display(),
        secret = secret.display()
    );
    let quoted = helper.replace('\\', "\\\\").replace('"', "\\\"");
    account.write_home(".gitconfig", &format!("[credential]\n\thelper = \"{quoted}\"\n"))?;
    Ok((server, account, ca))
}

fn helper_log(account: &Account) -> Result<String> {
    Ok(fs::read_to_string(account.home().join("helper.log"))?)
}

#[test]
fn a_helper_is_asked_and_told_that_it_was_right() -> Result<()> {
    let (server, account, _ca) = setting(PASSWORD)?;
    let mounted = account.mount(&server.url("refs.git"), &["--ref", "main"])?;
    ensure!(mounted.text("which")? == "main\n");
    let log = helper_log(&account)?;
    ensure!(log.starts_with("get\n") && log.contains("store\n") && !log.contains("erase"), "{log}");
    ensure!(log.contains("protocol=https\n") && log.contains(&format!("host=127.0.0.1:{}\n", server.port())), "{log}");
    Ok(())
}

#[test]
fn a_wrong_password_is_refused_and_the_helper_told() -> Result<()> {
    let (server, account, _ca) = setting("wrong-password")?;
    let dir = account.mount_point()?;
    let finished = account.refused(["mount", &server.url("refs.git"), &dir.to_string_lossy()], 4, &["127.0.0.1", "refused", "login"])?;
    ensure!(!finished.err().contains("wrong-password"));
    let log = helper_log(&account)?;
    ensure!(log.contains("erase\n") && !log.contains("store\n"), "{log}");
    Ok(())
}

#[test]
fn without_a_login_the_error_says_how_to_give_one() -> Result<()> {
    let (server, account, _ca) = setting(PASSWORD)?;
    fs::remove_file(account.home().join(".gitconfig"))?;
    let dir = account.mount_point()?;
    account.refused(["mount", &server.url("refs.git"), &dir.to_string_lossy()], 4, &["127.0.0.1", "credential"])?;
    Ok(())
}

#[test]
fn a_login_goes_to_no_other_host() -> Result<()> {
    let (server, account, ca) = setting(PASSWORD)?;
    let repo = fixtures::get("refs", refs::refs)?;
    let other = HttpServer::tls(repo.path().parent().context("a fixture lies in a directory")?, &ca)?;
    let mounted = account.mount(&server.url("refs.git"), &["--ref", "main"])?;
    server.misbehave(Fault::Redirect(other.base()));
    // Whether a redirect to another host is followed or not: no login goes there.
    let _ = mounted.pull();
    ensure!(other.requests().iter().all(|asked| asked.authorization.is_none()), "{:?}", other.requests());
    Ok(())
}

#[test]
fn the_secret_is_on_no_command_line_in_no_file_and_in_no_message() -> Result<()> {
    let (server, account, _ca) = setting(PASSWORD)?;
    let mounted = account.mount(&server.url("refs.git"), &["--ref", "main"])?;
    mounted.pull()?;
    for id in account.processes() {
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{id}/{file}"))?;
            ensure!(!String::from_utf8_lossy(&bytes).contains(PASSWORD), "the secret is in the {file} of a process");
        }
    }
    let basic = server.requests().into_iter().find_map(|asked| asked.authorization).context("no login was sent")?;
    let encoded = basic.strip_prefix("Basic ").context("the login is basic authentication")?;
    for text in [PASSWORD, encoded] {
        for dir in [account.store().to_owned(), account.runtime()] {
            let found = scratch::files_with(&dir, text)?;
            ensure!(found.is_empty(), "the secret is in {found:?}");
        }
    }
    server.require_login("user", "another one now");
    let refused = account.run(["pull".as_ref(), mounted.path().as_os_str()])?;
    ensure!(refused.code() == 4, "{}", refused.err());
    for said in [refused.err(), account.run(["status"])?.out(), account.run(["status", "--output", "json"])?.out()] {
        ensure!(!said.contains(PASSWORD) && !said.contains(encoded), "{said}");
    }
    ensure!(mounted.text("which")? == "main\n");
    Ok(())
}

#[test]
fn the_log_of_a_foreground_mount_has_no_secret() -> Result<()> {
    let (server, account, _ca) = setting(PASSWORD)?;
    let dir = account.mount_point()?;
    let mut command = account.command(["mount", "--foreground", "--ref", "main", &server.url("refs.git"), &dir.to_string_lossy()]);
    let log = account.home().join("foreground.log");
    command.stdin(std::process::Stdio::null()).stdout(fs::File::create(&log)?).stderr(fs::File::options().append(true).open(&log)?);
    let mut child = gitmount_tests::run::start(&mut command)?;
    gitmount_tests::run::wait_for("the mount", std::time::Duration::from_secs(30), || dir.join("which").exists().then_some(()))?;
    run(account.command(["unmount"]).arg(&dir))?.success()?;
    ensure!(child.wait()?.success(), "a foreground mount ends with 0 when it is unmounted");
    let said = fs::read_to_string(&log)?;
    ensure!(!said.is_empty() && !said.contains(PASSWORD), "the log is empty or has the secret");
    Ok(())
}

#[test]
fn a_private_repository_is_not_served_to_somebody_without_the_login() -> Result<()> {
    let (server, account, _ca) = setting(PASSWORD)?;
    let mounted = account.mount(&server.url("refs.git"), &["--ref", "main"])?;
    fs::remove_file(account.home().join(".gitconfig"))?;
    let dir = account.mount_point()?;
    // The objects are in the store; that is no right to them.
    let url = server.url("refs.git");
    account.refused(["mount", "--ref", "main", &url, &dir.to_string_lossy()], 4, &["credential"])?;
    account.refused(["mount", "--ref", "main", "--offline", "allowStale", &url, &dir.to_string_lossy()], 4, &["credential"])?;
    ensure!(mounted.text("which")? == "main\n");
    Ok(())
}
