//! Container images without a container engine: docker-style archives of one layer that containerd imports. Equal content gives equal
//! bytes, and the tag of our own image names its content.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::mount;
use crate::run::{command, run, run_with};
use crate::scratch;

/// An archive on the disk.
#[derive(Debug, Clone)]
pub struct Image {
    name: String,
    tar: PathBuf,
}

impl Image {
    /// Its name with its tag.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The archive.
    pub fn tar(&self) -> &Path {
        &self.tar
    }
}

/// What an image is made of.
#[derive(Debug, Default)]
pub struct Builder {
    entries: BTreeMap<String, Entry>,
    entrypoint: Vec<String>,
}

#[derive(Debug)]
enum Entry {
    Directory(u32),
    File(Vec<u8>, u32),
    Link(String),
}

impl Builder {
    /// An image of empty directories.
    pub fn new() -> Self {
        let mut builder = Builder::default();
        for dir in ["dev", "etc", "mnt", "proc", "run", "sys", "tmp", "var"] {
            let mode = if dir == "tmp" { 0o1777 } else { 0o755 };
            builder.entries.insert(dir.to_owned(), Entry::Directory(mode));
        }
        builder
    }

    /// Adds a file.
    pub fn file(mut self, path: &str, content: Vec<u8>, mode: u32) -> Self {
        self.parents(path);
        self.entries.insert(path.trim_start_matches('/').to_owned(), Entry::File(content, mode));
        self
    }

    /// Adds a symbolic link.
    pub fn link(mut self, path: &str, target: &str) -> Self {
        self.parents(path);
        self.entries.insert(path.trim_start_matches('/').to_owned(), Entry::Link(target.to_owned()));
        self
    }

    /// Adds a program of this machine at `path`, with the shared libraries that it needs where they are here.
    pub fn program(mut self, path: &str, program: &Path) -> Result<Self> {
        let content = fs::read(program).with_context(|| format!("{} cannot be put into an image", program.display()))?;
        self = self.file(path, content, 0o755);
        let libraries = run(command("ldd").arg(program))?;
        // It fails for a static program, which needs none.
        if !libraries.status.success() {
            return Ok(self);
        }
        for line in libraries.out().lines() {
            ensure!(!line.contains("not found"), "{} lacks a library: {line}", program.display());
            if let Some(library) = line.split_whitespace().find(|word| word.starts_with('/')) {
                self = self.file(library, fs::read(library)?, 0o755);
            }
        }
        Ok(self)
    }

    /// What is run unless a pod says otherwise.
    pub fn entrypoint(mut self, words: &[&str]) -> Self {
        self.entrypoint = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    fn parents(&mut self, path: &str) {
        let mut parent = Path::new(path.trim_start_matches('/'));
        while let Some(dir) = parent.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            self.entries.entry(dir.to_string_lossy().into_owned()).or_insert(Entry::Directory(0o755));
            parent = dir;
        }
    }

    /// Writes the archive of `repository:tag`; without a tag, its content gives one.
    pub fn build(self, repository: &str, tag: Option<&str>) -> Result<Image> {
        let mut layer = Vec::new();
        // Sorted, so that directories come before what is in them.
        for (path, entry) in &self.entries {
            append(&mut layer, path, entry)?;
        }
        layer.extend([0; 1024]);
        let layer_hash = super::hex(&Sha256::digest(&layer));
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = serde_json::to_vec(&json!({
            "architecture": architecture, "os": "linux",
            "config": {"Entrypoint": self.entrypoint, "Env": ["PATH=/bin:/usr/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_hash}")]},
            "history": [{"created_by": "gitmount tests"}],
        }))?;
        let config_hash = super::hex(&Sha256::digest(&config));
        let name = format!("{repository}:{}", tag.unwrap_or(&config_hash[..12]));
        let tar = scratch::shared_dir()?.join("images").join(format!("{}-{config_hash}.tar", repository.replace('/', "-")));
        if !tar.exists() {
            let manifest = json!([{
                "Config": format!("{config_hash}.json"), "RepoTags": [name], "Layers": [format!("{layer_hash}/layer.tar")],
            }]);
            let mut archive = Vec::new();
            append(&mut archive, &format!("{config_hash}.json"), &Entry::File(config, 0o644))?;
            append(&mut archive, &layer_hash, &Entry::Directory(0o755))?;
            append(&mut archive, &format!("{layer_hash}/layer.tar"), &Entry::File(layer, 0o644))?;
            append(&mut archive, "manifest.json", &Entry::File(serde_json::to_vec(&manifest)?, 0o644))?;
            archive.extend([0; 1024]);
            write(&tar, &archive)?;
        }
        Ok(Image { name, tar })
    }
}

/// Writes a file under another name first: whoever finds it finds all of it.
fn write(path: &Path, content: &[u8]) -> Result<()> {
    let dir = path.parent().context("an archive lies in a directory")?;
    fs::create_dir_all(dir)?;
    let file = tempfile::NamedTempFile::new_in(dir)?;
    fs::write(file.path(), content)?;
    fs::set_permissions(file.path(), fs::Permissions::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}

/// Appends one entry in the form that POSIX calls ustar, owned by root, of the time zero.
fn append(archive: &mut Vec<u8>, path: &str, entry: &Entry) -> Result<()> {
    let (kind, mode, content, target): (u8, u32, &[u8], &str) = match entry {
        Entry::Directory(mode) => (b'5', *mode, &[], ""),
        Entry::File(content, mode) => (b'0', *mode, content, ""),
        Entry::Link(target) => (b'2', 0o777, &[], target),
    };
    ensure!(path.len() < 100 && target.len() < 100, "the path {path} is too long for an image");
    let mut header = [0_u8; 512];
    let mut put = |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, &format!("{mode:07o}"));
    put(108, "0000000");
    put(116, "0000000");
    put(124, &format!("{:011o}", content.len()));
    put(136, "00000000000");
    // The sum is counted as if these were its digits.
    put(148, "        ");
    put(157, target);
    put(257, "ustar");
    put(263, "00");
    header[156] = kind;
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend(header);
    archive.extend(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
    Ok(())
}

/// `local/pause:1`, what holds a pod's namespaces.
pub(super) fn pause() -> Result<Image> {
    const SOURCE: &str = "#include <signal.h>\n#include <unistd.h>\nstatic void end(int s) { (void)s; _exit(0); }\n\
        int main(void) { signal(SIGTERM, end); signal(SIGINT, end); signal(SIGCHLD, SIG_IGN); for (;;) pause(); }\n";
    let dir = scratch::dir()?;
    let program = dir.path().join("pause");
    let mut compiler = command("cc");
    compiler.args(["-O2", "-s", "-static", "-x", "c", "-", "-o"]).arg(&program);
    run_with(&mut compiler, SOURCE.as_bytes(), crate::run::DEADLINE)?
        .success()
        .context("a static program is compiled for the pause image")?;
    Builder::new().file("/pause", fs::read(program)?, 0o755).entrypoint(&["/pause"]).build("local/pause", Some("1"))
}

/// `local/test:1`, a busybox.
pub(super) fn test() -> Result<Image> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.is_file());
    let busybox = busybox.context("there is no busybox for the test image: install busybox-static")?;
    ensure!(!run(command("ldd").arg(&busybox))?.status.success(), "{} is not static: install busybox-static", busybox.display());
    let applets = run(command(&busybox).arg("--list"))?.success()?.out();
    let mut builder =
        Builder::new().file("/bin/busybox", fs::read(&busybox)?, 0o755).file("/etc/passwd", USERS.into(), 0o644).entrypoint(&["/bin/sh"]);
    for applet in applets.lines().filter(|applet| !applet.is_empty() && *applet != "busybox") {
        builder = builder.link(&format!("/bin/{applet}"), "busybox");
    }
    builder.build("local/test", Some("1"))
}

const USERS: &str = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";

/// `local/gitmount:…`, the programs under test, as they were built for the tests.
pub fn gitmount() -> Result<Image> {
    let mut builder = Builder::new()
        .file("/etc/passwd", USERS.into(), 0o644)
        .program("/usr/bin/gitmount", &mount::gitmount()?)?
        .entrypoint(&["/usr/bin/gitmount"]);
    // Not there before the driver is.
    if Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("csi").is_dir() {
        builder = builder.program("/usr/bin/gitmount-csi", &mount::gitmount_csi()?)?;
    }
    builder.build("local/gitmount", None)
}
