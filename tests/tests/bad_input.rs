//! Every wrong input is refused with an exit code and one sentence that names what was wrong and what would be right.

use std::fs;

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures::{self, content, refs};
use gitmount_tests::mount::Account;
use gitmount_tests::scratch;

fn mount_refused(account: &Account, args: &[&str], code: i32, words: &[&str]) -> Result<()> {
    let dir = account.mount_point()?;
    let mut all = vec!["mount"];
    all.extend(args);
    let shown = dir.to_string_lossy();
    all.push(&shown);
    account.refused(all, code, words).with_context(|| format!("{args:?}"))?;
    ensure!(!gitmount_tests::mount::is_mounted(&dir)?, "{args:?} mounted something");
    Ok(())
}

#[test]
fn urls() -> Result<()> {
    let account = Account::new()?;
    for (url, words) in [
        ("https://", &["host", "https://"][..]),
        ("https:///path/only", &["host", "https://"]),
        ("ssh://git@/path", &["host"]),
        ("https://host.example", &["repository"]),
        ("ftp://host.example/r.git", &["ftp", "https://"]),
        ("HTTPX://host.example/r.git", &["httpx", "https://"]),
        ("git+ssh://host.example/r.git", &["git+ssh", "ssh://"]),
        ("ext::sh -c 'touch /tmp/owned'", &["ext::"]),
        ("fd::17/x", &["fd::"]),
        ("https::https://host.example/r", &["https::"]),
        ("ssh://-oProxyCommand=touch/r", &["dash"]),
        ("-oProxyCommand=touch:r", &[]),
        ("user@-host.example:r", &["dash"]),
        ("ssh://-user@host.example/r", &["dash"]),
        ("git@host.example:-r.git", &["dash"]),
        ("https://host.example:99999/r", &["port"]),
        ("https://host.example:port/r", &["port"]),
        ("https://host.example/r\ninjected", &["newline"]),
        ("https://host.example/r\rinjected", &["contains a"]),
        ("https://host.example/r\u{7}", &["control"]),
        ("https://ho st.example/r", &["host", "characters"]),
        ("https://host.example/r?query=1", &["?"]),
        ("https://host.example/r#fragment", &["#"]),
        ("", &["empty"]),
    ] {
        if url.starts_with('-') {
            // The option parser sees it first; `--` shows what the URL parser says.
            mount_refused(&account, &["--", url], 2, &["dash"])?;
        }
        mount_refused(&account, &[url], 2, words)?;
    }
    Ok(())
}

#[test]
fn a_password_in_a_url_is_refused_and_not_repeated() -> Result<()> {
    let account = Account::new()?;
    for url in ["https://user:hunter2@host.example/r.git", "https://:hunter2@host.example/r.git", "ssh://git:hunter2@host.example/r"] {
        let dir = account.mount_point()?;
        let finished = account.refused(["mount", url, &dir.to_string_lossy()], 2, &["password", "credential"])?;
        ensure!(!finished.err().contains("hunter2"), "{}", finished.err());
    }
    // A user name alone may be a token.
    let dir = account.mount_point()?;
    let finished = account.refused(["mount", "https://ghp_token@host.example/r.git", &dir.to_string_lossy()], 2, &["user"])?;
    ensure!(!finished.err().contains("ghp_token"), "{}", finished.err());
    Ok(())
}

#[test]
fn refs_that_git_does_not_allow() -> Result<()> {
    let account = Account::new()?;
    for reference in [
        "", "a..b", "-x", "a b", "a\nb", "a\tb", "a~1", "a^", "a:b", "a?b", "a*b", "a[b", "a\\b", "/a", "a/", "a//b", "a.lock", ".a",
        "a/.b", "a.", "@{", "a@{1}", "@", "refs/", "\u{7f}",
    ] {
        let option = format!("--ref={reference}");
        mount_refused(&account, &[&option, "https://host.example/r.git"], 2, &["ref"])?;
    }
    Ok(())
}

#[test]
fn paths_in_the_repository() -> Result<()> {
    let repo = fixtures::get("content", content::content)?;
    let account = Account::new()?;
    for (path, code, words) in [
        ("no/such/dir", 3, &["no/such/dir", "does not exist"][..]),
        ("one byte", 3, &["one byte", "directory"]),
        ("one byte/below", 3, &["one byte"]),
        ("links/to-directory", 3, &["links/to-directory", "link"]),
        ("modules/sub", 3, &["modules/sub", "submodule"]),
        ("/sizes", 2, &["slash"]),
        ("sizes//x", 2, &["sizes//x"]),
        ("../sizes", 2, &[".."]),
        ("sizes/./x", 2, &["sizes/./x"]),
    ] {
        mount_refused(&account, &["--path", path, &repo.arg()], code, words)?;
    }
    Ok(())
}

#[test]
fn directories_to_mount_on() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let account = Account::new()?;
    let dir = scratch::dir()?;
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    fs::write(dir.path().join("file"), "")?;
    fs::create_dir_all(dir.path().join("full/inside"))?;
    for (name, words) in [("missing", &["missing", "mkdir"][..]), ("file", &["file", "directory"]), ("full", &["full", "empty"])] {
        account.refused(["mount", "--ref", "main", &repo.arg(), &at(name)], 2, words)?;
    }
    let mounted = account.mount(&repo.arg(), &["--ref", "main"])?;
    let shown = mounted.path().to_string_lossy().into_owned();
    account.refused(["mount", "--ref", "orphan", &repo.arg(), &shown], 2, &["already", "unmount"])?;
    ensure!(mounted.text("which")? == "main\n");
    Ok(())
}

#[test]
fn commands_for_what_is_not_mounted() -> Result<()> {
    let account = Account::new()?;
    let dir = account.mount_point()?;
    let dir = dir.to_string_lossy();
    for command in ["unmount", "pull"] {
        account.refused([command, &dir], 3, &[&dir, "mount"])?;
        account.refused([command, "/no/such/directory"], 3, &["/no/such/directory"])?;
    }
    ensure!(account.status()?.is_empty());
    Ok(())
}

#[test]
fn options() -> Result<()> {
    let repo = fixtures::get("refs", refs::refs)?;
    let account = Account::new()?;
    for (args, words) in [
        (&["--pull", "soon"][..], &["soon", "30s"][..]),
        (&["--pull", "0s"], &["0s"]),
        (&["--pull", "on-demand"], &["on-demand"]),
        (&["--depth=-1"], &["-1", "depth"]),
        (&["--depth=many"], &["many", "depth"]),
        (&["--offline", "maybe"], &["maybe", "allowStale"]),
    ] {
        let dir = account.mount_point()?;
        let mut all = vec!["mount".to_owned()];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        all.extend([repo.arg(), dir.to_string_lossy().into_owned()]);
        // The option parser's own messages may have a line more, with a hint.
        let finished = account.run(&all)?;
        ensure!(finished.code() == 2, "{args:?}: {}", finished.err());
        for word in words {
            ensure!(finished.err().contains(word), "{word} is missing: {}", finished.err());
        }
    }
    for args in [&["mount"][..], &["mount", "https://host.example/r"], &["frobnicate"], &[]] {
        ensure!(account.run(args)?.code() == 2, "{args:?}");
    }
    Ok(())
}

#[test]
fn a_path_that_is_no_repository() -> Result<()> {
    let account = Account::new()?;
    let dir = scratch::dir()?;
    fs::write(dir.path().join("file"), "")?;
    let at = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
    mount_refused(&account, &[&at("missing")], 3, &["missing"])?;
    mount_refused(&account, &[&dir.path().to_string_lossy()], 3, &["repository"])?;
    mount_refused(&account, &[&at("file")], 3, &["file"])?;
    Ok(())
}

#[test]
fn help_and_completions_are_there() -> Result<()> {
    let account = Account::new()?;
    for command in ["mount", "unmount", "pull", "status", "verify", "gc"] {
        let help = account.run([command, "--help"])?.success()?.out();
        ensure!(help.contains("Example") && help.contains(&format!("gitmount {command}")), "{command}: {help}");
    }
    let help = account.run(["--help"])?.success()?.out();
    for code in ["2  ", "3  ", "4  ", "5  "] {
        ensure!(help.contains(code), "exit code {code} is not documented: {help}");
    }
    for shell in ["bash", "zsh", "fish"] {
        ensure!(account.run(["completions", shell])?.success()?.out().contains("gitmount"));
    }
    Ok(())
}
