//! Attributes and their refusals.

use super::*;
use gitmount_proto::csi::v1::volume_capability::{AccessMode, BlockVolume, MountVolume};

fn context(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn request(pairs: &[(&str, &str)]) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest { volume_context: context(pairs), readonly: true, ..Default::default() }
}

const INLINE: (&str, &str) = ("csi.storage.k8s.io/ephemeral", "true");
const URL: (&str, &str) = ("url", "https://example.com/a.git");

fn refusal(request: &NodePublishVolumeRequest) -> String {
    Volume::parse(request).unwrap_err().0
}

#[test]
fn attributes_travel_as_they_are_and_the_kubelets_keys_are_accepted() {
    let pod_name = ("csi.storage.k8s.io/pod.name", "reader");
    let all = [URL, INLINE, pod_name, ("ref", "main"), ("path", "docs"), ("pull", "30s"), ("depth", "0"), ("offline", "allowStale")];
    let volume = Volume::parse(&request(&all)).unwrap();
    let view = fsd::ViewSpec {
        url: URL.1.into(),
        r#ref: "main".into(),
        path: b"docs".to_vec(),
        pull: "30s".into(),
        depth: "0".into(),
        offline: "allowStale".into(),
        ..Default::default()
    };
    assert_eq!(volume, Volume { form: Form::Inline, view });
    assert_eq!(pod(&context(&all)).name, "reader");
}

#[test]
fn a_bad_attribute_is_refused_by_name_with_a_right_value() {
    let inline = |pair| request(&[URL, INLINE, pair]);
    let claim = |pair| request(&[URL, pair]);
    for (bad, words) in [
        (request(&[]), ["url", "https://"]),
        (request(&[("url", "")]), ["url", "https://"]),
        (inline(("branch", "main")), ["branch", "ref"]),
        (inline(("Ref", "main")), ["Ref", "\"ref\""]),
        (inline(("ref", "")), ["ref", "main"]),
        (inline(("ref", "a\nb")), ["ref", "one line"]),
        (inline(("pull", "on-demand")), ["pull", "claim"]),
        (inline(("webhookSecret", "x")), ["webhookSecret", "claim"]),
        (claim(("webhookSecret", "No_Name")), ["webhookSecret", "data-webhook"]),
    ] {
        let said = refusal(&bad);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
    assert!(Volume::parse(&claim(("webhookSecret", "data-webhook"))).is_ok());
    assert!(Volume::parse(&claim(("pull", "on-demand"))).is_ok());
}

#[test]
fn of_several_wrong_ones_always_the_same_is_named() {
    let bad = request(&[("b", "1"), ("a", "1"), ("c", "1"), URL]);
    assert!((0..20).all(|_| refusal(&bad).contains("\"a\"")));
}

#[test]
fn a_pod_must_ask_for_read_only() {
    for (form, place) in [(vec![URL, INLINE], "csi"), (vec![URL], "persistentVolumeClaim")] {
        let said = refusal(&NodePublishVolumeRequest { readonly: false, ..request(&form) });
        assert!(said.contains("readOnly: true") && said.contains(place), "{said}");
    }
}

#[test]
fn a_capability_that_is_none_of_a_tree_is_refused() {
    let with = |access_type, mode: Mode| NodePublishVolumeRequest {
        volume_capability: Some(VolumeCapability { access_type: Some(access_type), access_mode: Some(AccessMode { mode: mode.into() }) }),
        ..request(&[URL])
    };
    let mount = |flags: &[&str]| {
        AccessType::Mount(MountVolume { mount_flags: flags.iter().map(|f| (*f).to_owned()).collect(), ..Default::default() })
    };
    assert!(refusal(&with(AccessType::Block(BlockVolume {}), Mode::MultiNodeReaderOnly)).contains("volumeMode"));
    assert!(refusal(&with(mount(&["noatime"]), Mode::MultiNodeReaderOnly)).contains("noatime"));
    assert!(refusal(&with(mount(&[]), Mode::SingleNodeWriter)).contains("ReadOnlyMany"));
    assert!(Volume::parse(&with(mount(&["ro"]), Mode::MultiNodeReaderOnly)).is_ok());
}

#[test]
fn however_long_the_name_of_an_attribute_is_its_refusal_fits_into_an_event() {
    for name in ["x".repeat(200_000), "\u{e9}".repeat(100_000), "\n".repeat(100_000)] {
        let said = unknown(&name);
        assert!(said.len() < 1024 && said.contains("webhookSecret"), "{} bytes: {said:.200}", said.len());
    }
    assert!(unknown("branch").contains("\"branch\""));
}
