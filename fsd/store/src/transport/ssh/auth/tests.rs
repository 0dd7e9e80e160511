use std::process::Command;

use super::*;
use crate::credential::{HostKeys, Secret};

/// Makes a key pair with OpenSSH's own tool and gives its private file.
fn keygen(dir: &Path, name: &str, args: &[&str]) -> PathBuf {
    let path = dir.join(name);
    let made = Command::new("ssh-keygen").args(["-q", "-C", "", "-f"]).arg(&path).args(args).status().unwrap();
    assert!(made.success());
    path
}

fn auth(files: &[&PathBuf]) -> SshAuth {
    SshAuth { key_files: files.iter().map(|p| p.to_path_buf()).collect(), host_keys: HostKeys::FirstUse, ..SshAuth::default() }
}

fn refusal(auth: &SshAuth) -> String {
    let error = Offer::load(auth).err().expect("refused");
    assert_eq!(error.fault(), Fault::Refused);
    error.to_string()
}

#[test]
fn keys_are_read_in_every_form_that_ssh_keygen_writes() {
    let dir = tempfile::tempdir().unwrap();
    let forms: &[&[&str]] = &[
        &["-t", "ed25519"],
        &["-t", "ecdsa", "-b", "384"],
        &["-t", "rsa", "-b", "2048"],
        &["-t", "rsa", "-b", "2048", "-m", "PEM"],
        &["-t", "rsa", "-b", "2048", "-m", "PKCS8"],
        &["-t", "ecdsa", "-m", "PKCS8"],
        &["-t", "ecdsa", "-b", "256", "-m", "PEM"],
    ];
    for (index, form) in forms.iter().enumerate() {
        let path = keygen(dir.path(), &format!("key{index}"), &[form, &["-N", ""][..]].concat());
        let offer = Offer::load(&auth(&[&path])).unwrap_or_else(|e| panic!("{form:?}: {e}"));
        let public = std::fs::read_to_string(path.with_extension("pub")).unwrap();
        let public = keys::PublicKey::from_openssh(public.trim()).unwrap();
        assert_eq!(offer.keys[0].key.public_key().key_data(), public.key_data(), "{form:?}");
        let indented: String = std::fs::read_to_string(&path).unwrap().lines().map(|l| format!("  {l}\r\n")).collect();
        let texts = SshAuth { keys: vec![Secret::new(indented.trim_end())], ..SshAuth::default() };
        assert_eq!(Offer::load(&texts).unwrap().keys.len(), 1, "{form:?} as an indented text");
    }
}

#[test]
fn a_key_with_a_passphrase_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let plain = keygen(dir.path(), "plain", &["-t", "ed25519", "-N", ""]);
    let forms: &[&[&str]] = &[&["-t", "ed25519"], &["-t", "rsa", "-b", "2048", "-m", "PEM"], &["-t", "rsa", "-b", "2048", "-m", "PKCS8"]];
    for (index, form) in forms.iter().enumerate() {
        let path = keygen(dir.path(), &format!("key{index}"), &[form, &["-N", "secret"][..]].concat());
        let message = refusal(&auth(&[&path]));
        assert!(message.contains(&format!("key{index} has a passphrase")) && message.contains("ssh-add"), "{form:?}: {message}");
        let text = Secret::new(std::fs::read_to_string(&path).unwrap());
        let texts = SshAuth { keys: vec![text], agent: Some("/nowhere".into()), ..SshAuth::default() };
        let message = refusal(&texts);
        assert!(message.contains("the SSH key has a passphrase"), "{form:?}: no agent is asked for a key that was given as a text");
        assert!(message.contains("\"ssh-privatekey\"") && !message.contains("ssh-a"), "{form:?}: {message}");

        let both = Offer::load(&auth(&[&path, &plain])).unwrap();
        assert_eq!((both.keys.len(), both.locked.len()), (1, 1), "{form:?}: another key may do");
        let strict = SshAuth { keys_optional: false, ..auth(&[&path, &plain]) };
        assert!(refusal(&strict).contains("has a passphrase"));
        let agent = SshAuth { agent: Some("/nowhere".into()), ..auth(&[&path]) };
        assert_eq!(Offer::load(&agent).unwrap().locked.len(), 1, "{form:?}: the agent may hold it");
    }
}

#[test]
fn what_is_no_key_is_refused_without_being_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("odd");
    std::fs::write(&path, "-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----\n").unwrap();
    let missing = dir.path().join("missing");
    let optional = Offer::load(&auth(&[&path, &missing])).unwrap();
    assert_eq!((optional.keys.len(), optional.notes.len()), (0, 1), "only the damaged one is worth a note");
    let message = refusal(&SshAuth { keys_optional: false, ..auth(&[&path]) });
    assert!(message.contains("is no private key: give one in OpenSSH") && !message.contains("hunter2"), "{message}");
    let message = refusal(&SshAuth { keys_optional: false, ..auth(&[&missing]) });
    assert!(message.contains("missing cannot be read"), "{message}");
    let message = refusal(&SshAuth { keys: vec![Secret::new("hunter2")], ..SshAuth::default() });
    assert!(message.contains("the SSH key is no private key") && !message.contains("hunter2"), "{message}");
}

/// A key of ssh-keygen's whose private number has 31 bytes, as one of 512 has; it lets nobody in anywhere.
const SHORT: &str = include_str!("short-number.key");

#[test]
fn a_key_whose_number_begins_with_zeros_is_the_same_key_and_damaged_ones_are_none() {
    let Ok(Loaded::Key(key)) = decode(SHORT) else { panic!("it is a key") };
    assert!(keys::decode_secret_key(SHORT, None).is_err(), "once the decoder takes it, `openssh` can go");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    std::fs::write(&path, SHORT).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let public = Command::new("ssh-keygen").arg("-yf").arg(&path).output().unwrap().stdout;
    assert_eq!(key.public_key().to_openssh().unwrap(), String::from_utf8(public).unwrap().trim());
    assert_eq!(openssh::in_full_length(&openssh::in_full_length(SHORT).unwrap()), None);
    for (cut, byte) in SHORT.trim_end().bytes().enumerate() {
        assert_eq!(openssh::in_full_length(&SHORT[..cut]), None, "{cut}");
        assert!(byte == b'\n' || openssh::in_full_length(&format!("{}{}", &SHORT[..cut], &SHORT[cut + 1..])).is_none(), "{cut}");
    }
}
