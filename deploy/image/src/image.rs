//! What is in an image, and how it is written: one layer, its configuration, and the two tables of contents, that of OCI's image layout
//! (`index.json`) and that of `docker save` (`manifest.json`), both of which point to the same blobs.

use std::collections::BTreeMap;
use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::tar::{Kind, Writer};

/// An image with one layer.
#[derive(Debug, Clone)]
pub struct Image {
    entries: BTreeMap<String, (u32, Kind)>,
    architecture: String,
    entrypoint: Vec<String>,
    environment: Vec<String>,
    labels: BTreeMap<String, String>,
    compressed: bool,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// `sha256:…` of the manifest, by which registries know the image.
    pub digest: String,
    /// Bytes of the layer, as it is fetched.
    pub compressed: usize,
    /// Bytes of the layer, as it lies on a node.
    pub unpacked: usize,
}

impl Image {
    /// An empty image for an architecture as OCI names it, such as `amd64`.
    pub fn new(architecture: &str) -> Self {
        Image {
            entries: BTreeMap::new(),
            architecture: architecture.to_owned(),
            entrypoint: Vec::new(),
            environment: Vec::new(),
            labels: BTreeMap::new(),
            compressed: true,
        }
    }

    /// Adds a file at an absolute path, with the directories above it.
    #[must_use]
    pub fn file(self, path: &str, mode: u32, bytes: Vec<u8>) -> Self {
        self.add(path, mode, Kind::File(bytes))
    }

    /// Adds a directory at an absolute path, with those above it.
    #[must_use]
    pub fn directory(self, path: &str, mode: u32) -> Self {
        self.add(path, mode, Kind::Directory)
    }

    /// Adds a symbolic link at an absolute path.
    #[must_use]
    pub fn symlink(self, path: &str, target: &str) -> Self {
        self.add(path, 0o777, Kind::Symlink(target.to_owned()))
    }

    fn add(mut self, path: &str, mode: u32, kind: Kind) -> Self {
        let path = path.trim_matches('/');
        for (at, _) in path.match_indices('/') {
            self.entries.entry(format!("{}/", &path[..at])).or_insert((0o755, Kind::Directory));
        }
        let end = if kind == Kind::Directory { "/" } else { "" };
        self.entries.insert(format!("{path}{end}"), (mode, kind));
        self
    }

    /// What runs when nobody says otherwise.
    #[must_use]
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.entrypoint = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// A variable of the environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// A label.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        self.labels.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Leaves the layer as it is: quickly written, for images that go nowhere.
    #[must_use]
    pub fn uncompressed(mut self) -> Self {
        self.compressed = false;
        self
    }

    fn layer(&self) -> io::Result<Vec<u8>> {
        let mut writer = Writer::new(Vec::new());
        for (name, (mode, kind)) in &self.entries {
            writer.add(name, *mode, kind)?;
        }
        writer.finish()
    }

    /// A text that is another one whenever the contents are: for tags of images that are made for tests.
    ///
    /// # Errors
    /// When an entry cannot be written into a layer.
    pub fn fingerprint(&self) -> io::Result<String> {
        Ok(sha256(&[self.layer()?, self.config("").to_string().into_bytes()].concat())[..16].to_owned())
    }

    fn config(&self, layer: &str) -> Value {
        json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": { "Entrypoint": self.entrypoint, "Env": self.environment, "Labels": self.labels },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
            "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "gitmount-image" }],
            "created": "1970-01-01T00:00:00Z",
        })
    }

    /// Writes the image under a name such as `gitmount:0.1.0` or `registry.example.com/gitmount:0.1.0`.
    ///
    /// # Errors
    /// When writing fails, or a path in the image is too long.
    pub fn write(&self, name: &str, out: impl Write) -> io::Result<Written> {
        let layer = self.layer()?;
        let (packed, layer_type) = if self.compressed {
            let mut packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
            packed.write_all(&layer)?;
            (packed.finish()?, "application/vnd.oci.image.layer.v1.tar+gzip")
        } else {
            (layer.clone(), "application/vnd.oci.image.layer.v1.tar")
        };
        let config = self.config(&sha256(&layer)).to_string().into_bytes();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": described("application/vnd.oci.image.config.v1+json", &config),
            "layers": [described(layer_type, &packed)],
        });
        let manifest = manifest.to_string().into_bytes();
        let full = full_name(name);
        let mut descriptor = described("application/vnd.oci.image.manifest.v1+json", &manifest);
        descriptor["platform"] = json!({ "architecture": self.architecture, "os": "linux" });
        // The first is read by containerd, the second by other tools, which want the tag alone.
        descriptor["annotations"] = json!({
            "io.containerd.image.name": full,
            "org.opencontainers.image.ref.name": full.rsplit(':').next(),
        });
        let index = json!({ "schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [descriptor] });
        let docker = json!([{ "Config": blob(&config), "RepoTags": [name], "Layers": [blob(&packed)] }]);
        let mut blobs: BTreeMap<String, &[u8]> = BTreeMap::new();
        for bytes in [&packed, &config, &manifest] {
            blobs.insert(blob(bytes), bytes);
        }

        let mut tar = Writer::new(out);
        let mut add = |name: &str, bytes: &[u8]| tar.add(name, 0o644, &Kind::File(bytes.to_vec()));
        add("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        add("index.json", index.to_string().as_bytes())?;
        add("manifest.json", docker.to_string().as_bytes())?;
        for (name, bytes) in &blobs {
            add(name, bytes)?;
        }
        tar.finish()?.flush()?;
        Ok(Written { digest: format!("sha256:{}", sha256(&manifest)), compressed: packed.len(), unpacked: layer.len() })
    }
}

/// The name as container runtimes store it: with a registry and a tag.
pub fn full_name(name: &str) -> String {
    let first = name.split('/').next().unwrap_or_default();
    let registry = name.contains('/') && (first.contains(['.', ':']) || first == "localhost");
    let prefix = match (registry, name.contains('/')) {
        (true, _) => "",
        (false, true) => "docker.io/",
        (false, false) => "docker.io/library/",
    };
    let last = name.rsplit('/').next().unwrap_or_default();
    let tag = if last.contains(':') { "" } else { ":latest" };
    format!("{prefix}{name}{tag}")
}

fn described(media_type: &str, bytes: &[u8]) -> Value {
    json!({ "mediaType": media_type, "digest": format!("sha256:{}", sha256(bytes)), "size": bytes.len() })
}

fn blob(bytes: &[u8]) -> String {
    format!("blobs/sha256/{}", sha256(bytes))
}

fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Image {
        Image::new("amd64").file("/usr/bin/b", 0o755, b"b".to_vec()).file("/usr/bin/a", 0o755, b"a".to_vec()).directory("/tmp", 0o1777)
    }

    #[test]
    fn equal_contents_are_equal_bytes() {
        let (mut first, mut second) = (Vec::new(), Vec::new());
        let written = example().write("x:1", &mut first).unwrap();
        let other =
            Image::new("amd64").directory("/tmp", 0o1777).file("/usr/bin/a", 0o755, b"a".to_vec()).file("/usr/bin/b", 0o755, b"b".to_vec());
        assert_eq!(other.write("x:1", &mut second).unwrap(), written);
        assert!(first == second);
        assert_eq!(example().fingerprint().unwrap(), other.fingerprint().unwrap());
        assert_ne!(example().fingerprint().unwrap(), example().env("A", "b").fingerprint().unwrap());
    }

    #[test]
    fn every_blob_is_what_its_name_says() {
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("image.tar");
        let written = example().write("x:1", std::fs::File::create(&archive).unwrap()).unwrap();
        let untar = std::process::Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(dir.path()).status().unwrap();
        assert!(untar.success());
        let read = |name: &str| -> Value { serde_json::from_slice(&std::fs::read(dir.path().join(name)).unwrap()).unwrap() };
        let blobs: Vec<_> = std::fs::read_dir(dir.path().join("blobs/sha256")).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(blobs.len(), 3);
        for path in blobs {
            assert_eq!(sha256(&std::fs::read(&path).unwrap()), path.file_name().unwrap().to_str().unwrap());
        }
        let index = read("index.json");
        assert_eq!(index["manifests"][0]["digest"], written.digest.as_str());
        assert_eq!(index["manifests"][0]["annotations"]["io.containerd.image.name"], "docker.io/library/x:1");
        let docker = read("manifest.json");
        assert_eq!(docker[0]["RepoTags"][0], "x:1");
        let config = read(docker[0]["Config"].as_str().unwrap());
        let layer = std::process::Command::new("gzip").arg("-dc").arg(dir.path().join(docker[0]["Layers"][0].as_str().unwrap())).output();
        let layer = layer.unwrap().stdout;
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", sha256(&layer)));
        assert_eq!(layer.len(), written.unpacked);
    }

    #[test]
    fn names_are_completed_as_runtimes_do() {
        for (name, full) in [
            ("gitmount", "docker.io/library/gitmount:latest"),
            ("gitmount:1", "docker.io/library/gitmount:1"),
            ("local/test:1", "docker.io/local/test:1"),
            ("localhost/x:1", "localhost/x:1"),
            ("127.0.0.1:5000/x", "127.0.0.1:5000/x:latest"),
            ("registry.example.com/a/b:2", "registry.example.com/a/b:2"),
        ] {
            assert_eq!(full_name(name), full);
        }
    }
}
