use super::*;

const ED: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAINIidnBaAaSXkcauufUmJa5DAf/xcS3BdeMokQJ01zEo";
const EC: &str = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBADSRN+72L5Gql1dKM8+BD3VTBNevddJmaVbLL3dr3rRrCX0Jq+cCw8QE4BXAZKEgLCHv1ReWZtp/I/uy7keBwk=";

fn key(text: &str) -> PublicKey {
    PublicKey::from_openssh(text).unwrap()
}

fn given(text: &str) -> HostCheck {
    HostCheck::load(&HostKeys::Text(text.into()), Path::new("/nowhere"), "git.example.com", 22).unwrap()
}

fn refusal(check: &HostCheck, shown: &str) -> String {
    let error = check.judge(&key(shown)).expect_err("refused");
    assert_eq!(error.fault(), Fault::Refused);
    error.to_string()
}

#[test]
fn only_a_known_key_is_accepted_where_keys_are_given() {
    given(&format!("git.example.com {ED}")).judge(&key(ED)).unwrap();
    let unknown = refusal(&given(&format!("other.example.com {ED}")), ED);
    assert!(
        unknown.contains("git.example.com is not in the known_hosts") && unknown.contains("SHA256:") && unknown.contains("ssh-keyscan"),
        "{unknown}"
    );
    let changed = refusal(&given(&format!("git.example.com {EC}")), ED);
    assert!(changed.contains("shows another key") && changed.contains("replace the old one"), "{changed}");
    let revoked = refusal(&given(&format!("git.example.com {ED}\n@revoked * {ED}")), ED);
    assert!(revoked.contains("@revoked"), "{revoked}");
}

#[test]
fn the_host_is_asked_for_the_key_it_is_known_by() {
    let first = |text: &str| given(text).preferred().into_iter().next().unwrap();
    assert_eq!(first(""), Algorithm::Ed25519);
    assert_eq!(first(&format!("git.example.com {EC}")), Algorithm::Ecdsa { curve: EcdsaCurve::NistP256 });
    let all = given(&format!("git.example.com {EC}")).preferred();
    assert!(all.len() == 6 && !all.contains(&Algorithm::Rsa { hash: None }), "the others stay, without SHA-1: {all:?}");
}

#[test]
fn files_are_read_together_and_may_be_missing() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("kh");
    fs::write(&file, [format!("git.example.com {ED}\n").as_bytes(), b"\xff\xfe not text\n"].concat()).unwrap();
    let files = HostKeys::Files(vec![dir.path().join("missing"), file]);
    HostCheck::load(&files, dir.path(), "git.example.com", 22).unwrap().judge(&key(ED)).unwrap();
    let error = HostCheck::load(&HostKeys::Files(vec![dir.path().into()]), dir.path(), "h", 22).err().expect("a directory cannot be read");
    assert!(error.to_string().contains("cannot be read"), "{error}");
}

#[test]
fn a_first_key_is_recorded_and_a_change_refused() {
    let dir = tempfile::tempdir().unwrap();
    let load = |port| HostCheck::load(&HostKeys::FirstUse, dir.path(), "Git.example.com", port).unwrap();
    fs::write(dir.path().join("known_hosts"), "# no newline at the end").unwrap();
    load(2222).judge(&key(ED)).unwrap();
    load(2222).judge(&key(ED)).unwrap();
    let text = fs::read_to_string(dir.path().join("known_hosts")).unwrap();
    assert_eq!(text, format!("# no newline at the end\n[git.example.com]:2222 {ED}\n"));
    let changed = refusal(&load(2222), EC);
    assert!(changed.contains("[Git.example.com]:2222 shows another key") && changed.contains("ssh-keygen -R '[Git"), "{changed}");
    load(22).judge(&key(EC)).unwrap();

    // Both looked before either wrote: the first to write wins.
    let (one, other) = (load(2200), load(2200));
    fs::write(dir.path().join("known_hosts"), "").unwrap();
    let (one, other) = (HostCheck { known: Known::default(), ..one }, HostCheck { known: Known::default(), ..other });
    one.judge(&key(ED)).unwrap();
    assert!(refusal(&other, EC).contains("shows another key"));
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "nothing but the file and its lock: {left:?}");
}

#[test]
fn racing_first_uses_lose_no_entry() {
    let dir = tempfile::tempdir().unwrap();
    std::thread::scope(|scope| {
        for port in 2000..2016 {
            let dir = dir.path();
            scope.spawn(move || HostCheck::load(&HostKeys::FirstUse, dir, "h", port).unwrap().judge(&key(ED)).unwrap());
        }
    });
    let text = fs::read_to_string(dir.path().join("known_hosts")).unwrap();
    assert_eq!(text.lines().count(), 16, "{text}");
}
