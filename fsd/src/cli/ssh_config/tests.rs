//! The reader against what ssh_config(5) says, one rule a test.

use super::*;

fn query(host: &str) -> Query<'_> {
    Query { host, user: None, local_user: "me", home: Path::new("/home/me") }
}

fn read(text: &str, host: &str) -> HostConfig {
    parse(text, query(host), Path::new("/nonexistent"))
}

#[test]
fn the_first_value_wins_and_identity_files_add_up() {
    let text = "
        Host work
            HostName git.work.example
            Port 2222
            IdentityFile ~/.ssh/work
        Host *
            Port 22
            User git
            IdentityFile ~/.ssh/id_ed25519
            IdentityFile ~/.ssh/work";
    let config = read(text, "work");
    assert_eq!(config.host_name.as_deref(), Some("git.work.example"));
    assert_eq!((config.port, config.user.as_deref()), (Some(2222), Some("git")));
    assert_eq!(config.identity_files, ["~/.ssh/work", "~/.ssh/id_ed25519"]);
    let other = read(text, "home");
    assert_eq!((other.host_name, other.port), (None, Some(22)));
}

#[test]
fn options_before_the_first_host_apply_to_all() {
    assert_eq!(read("User first\nHost x\nUser second", "x").user.as_deref(), Some("first"));
}

#[test]
fn patterns_have_wildcards_and_negation() {
    let text = "Host *.example.com !secret.example.com host?\nUser git";
    for (host, taken) in [
        ("a.example.com", true),
        ("A.EXAMPLE.com", true),
        ("secret.example.com", false),
        ("example.com", false),
        ("host1", true),
        ("host12", false),
    ] {
        assert_eq!(read(text, host).user.is_some(), taken, "{host}");
    }
    assert!(read("Host !other\nUser git", "x").user.is_none(), "a negated pattern alone matches nothing");
    assert!(wildcard("*a*b*", "xxaxxbxx") && !wildcard("*a*b", "ab c") && wildcard("**", ""));
}

#[test]
fn keywords_ignore_case_and_take_equals_and_quotes_and_comments() {
    let config = read("HOST=x\n\tuSER = git # me\nIdentityFile \"~/my keys/id\"\n# User other", "x");
    assert_eq!(config.user.as_deref(), Some("git"));
    assert_eq!(config.identity_files, ["~/my keys/id"]);
}

#[test]
fn known_hosts_files_are_lists_and_switches_are_words() {
    let config = read(
        "Host x\nUserKnownHostsFile ~/a ~/b\nGlobalKnownHostsFile none\nIdentitiesOnly yes\nIdentitiesOnly no\nIdentityAgent none",
        "x",
    );
    assert_eq!(config.user_known_hosts, Some(vec!["~/a".into(), "~/b".into()]));
    assert_eq!(config.global_known_hosts, Some(vec!["none".into()]));
    assert_eq!((config.identities_only, config.identity_agent.as_deref()), (Some(true), Some("none")));
}

#[test]
fn bad_ports_are_no_ports() {
    assert_eq!(read("Port 0\nPort x\nPort 70000\nPort 23", "x").port, Some(23));
}

#[test]
fn match_blocks_apply_by_the_criteria_that_need_no_program() {
    for (criteria, taken) in [
        ("all", true),
        ("host x", true),
        ("host y,x", true),
        ("host x user me", true),
        ("host x user you", false),
        ("!host y", true),
        ("!host x", false),
        ("originalhost x localuser me", true),
        ("exec true", false),
        ("host x exec \"true\"", false),
        ("host", false),
        ("", false),
    ] {
        assert_eq!(read(&format!("Match {criteria}\nUser git"), "x").user.is_some(), taken, "{criteria}");
    }
    let renamed = "Host x\nHostName real\nMatch host real\nUser git";
    assert_eq!(read(renamed, "x").user.as_deref(), Some("git"), "Match host looks at HostName");
}

#[test]
fn jump_hosts_are_noticed_unless_none() {
    assert_eq!(read("ProxyJump bastion", "x").proxy, Some("ProxyJump"));
    assert_eq!(read("ProxyCommand nc %h %p", "x").proxy, Some("ProxyCommand"));
    assert_eq!(read("ProxyJump none", "x").proxy, None);
}

#[test]
fn includes_are_relative_with_wildcards_and_stay_in_their_block() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("d/1.conf"), "User one\nHost other\nPort 1").unwrap();
    std::fs::write(dir.path().join("d/2.conf"), "User two\nPort 2").unwrap();
    std::fs::write(dir.path().join("loop"), "Include loop\nUser looped").unwrap();
    let read = |text: &str, host| parse(text, Query { host, ..query(host) }, dir.path());
    let config = read("Include d/*.conf", "x");
    assert_eq!((config.user.as_deref(), config.port), (Some("one"), Some(2)));
    assert_eq!(read("Host other\nInclude d/*.conf", "x").user, None);
    assert_eq!(read("Include missing\nUser git", "x").user.as_deref(), Some("git"));
    assert_eq!(read("Include loop", "x").user.as_deref(), Some("looped"), "a file that includes itself ends");
}

#[test]
fn tokens_stand_for_home_hosts_and_users() {
    let tokens = Tokens { home: Path::new("/home/me"), host: "real", original: "alias", user: "git", local_user: "me", port: 22 };
    assert_eq!(tokens.path("~/.ssh/%h_%r"), Path::new("/home/me/.ssh/real_git"));
    assert_eq!(tokens.path("%d/keys/%n-%u-%p"), Path::new("/home/me/keys/alias-me-22"));
    assert_eq!(tokens.expand("100%% %x %"), "100% %x %");
    assert_eq!(tokens.expand("%h.example.com"), "real.example.com");
}
