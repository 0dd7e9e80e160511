//! What a target path says of its volume. The kubelet makes them up as `<root>/pods/<uid>/volumes/kubernetes.io~csi/<name>/mount`, with the
//! name of the PersistentVolume, or of an inline volume in its pod.

/// The name in a target path; `None` for a path that no kubelet made.
pub fn spec_name(target: &str) -> Option<&str> {
    let (volumes, last) = target.rsplit_once('/')?;
    let (rest, name) = volumes.rsplit_once('/')?;
    (last == "mount" && rest.ends_with("/volumes/kubernetes.io~csi") && !name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kubelets_path_names_the_volume() {
        assert_eq!(spec_name("/var/lib/kubelet/pods/1-2/volumes/kubernetes.io~csi/franchises/mount"), Some("franchises"));
        for other in ["/tmp/x", "/pods/1/volumes/kubernetes.io~csi//mount", "mount", "/a/volumes/kubernetes.io~csi/b/other"] {
            assert_eq!(spec_name(other), None, "{other}");
        }
    }
}
