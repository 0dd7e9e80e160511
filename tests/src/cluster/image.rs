//! The images of the cluster, written by [`gitmount_image`]. Equal content gives equal bytes, and the tag of our own image names its content.

use std::fs;
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use gitmount_image::image;

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
#[derive(Debug)]
pub struct Builder(image::Image);

impl Builder {
    /// An image of empty directories.
    pub fn empty() -> Self {
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let image = image::Image::new(architecture).uncompressed().env("PATH", "/bin:/usr/bin").directory("/tmp", 0o1777);
        let places = ["/dev", "/etc", "/mnt", "/proc", "/run", "/sys", "/var"];
        Builder(places.iter().fold(image, |image, place| image.directory(place, 0o755)))
    }

    /// Adds a file.
    pub fn file(self, path: &str, content: Vec<u8>, mode: u32) -> Self {
        Builder(self.0.file(path, mode, content))
    }

    /// Adds a symbolic link.
    pub fn link(self, path: &str, target: &str) -> Self {
        Builder(self.0.symlink(path, target))
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
    pub fn entrypoint(self, words: &[&str]) -> Self {
        Builder(self.0.entrypoint(words))
    }

    /// Writes the archive of `repository:tag`; without a tag, its content gives one.
    pub fn build(self, repository: &str, tag: Option<&str>) -> Result<Image> {
        let content = self.0.fingerprint()?;
        let name = format!("{repository}:{}", tag.unwrap_or(&content));
        let dir = scratch::shared_dir()?.join("images");
        let tar = dir.join(format!("{}-{content}.tar", repository.replace('/', "-")));
        if !tar.exists() {
            fs::create_dir_all(&dir)?;
            // Written under another name first: whoever finds it finds all of it.
            let file = tempfile::NamedTempFile::new_in(&dir)?;
            self.0.write(&name, BufWriter::new(file.as_file()))?;
            file.as_file().set_permissions(fs::Permissions::from_mode(0o644))?;
            file.persist(&tar)?;
        }
        Ok(Image { name, tar })
    }
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
    Builder::empty().file("/pause", fs::read(program)?, 0o755).entrypoint(&["/pause"]).build("local/pause", Some("1"))
}

/// `local/test:1`, a busybox.
pub(super) fn test() -> Result<Image> {
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(PathBuf::from).into_iter().find(|path| path.is_file());
    let busybox = busybox.context("there is no busybox for the test image: install busybox-static")?;
    ensure!(!run(command("ldd").arg(&busybox))?.status.success(), "{} is not static: install busybox-static", busybox.display());
    let applets = run(command(&busybox).arg("--list"))?.success()?.out();
    let mut builder =
        Builder::empty().file("/bin/busybox", fs::read(&busybox)?, 0o755).file("/etc/passwd", USERS.into(), 0o644).entrypoint(&["/bin/sh"]);
    for applet in applets.lines().filter(|applet| !applet.is_empty() && *applet != "busybox") {
        builder = builder.link(&format!("/bin/{applet}"), "busybox");
    }
    builder.build("local/test", Some("1"))
}

const USERS: &str = "root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";

/// `local/gitmount:…`, the programs under test, as they were built for the tests.
pub fn gitmount() -> Result<Image> {
    programs()?.build("local/gitmount", None)
}

/// Another image of the same programs, to be upgraded to.
pub fn gitmount_labelled(label: &str) -> Result<Image> {
    programs()?.file("/etc/gitmount-label", label.into(), 0o644).build("local/gitmount", None)
}

fn programs() -> Result<Builder> {
    let mut builder = Builder::empty()
        .file("/etc/passwd", USERS.into(), 0o644)
        .program("/usr/bin/gitmount", &mount::gitmount()?)?
        .entrypoint(&["/usr/bin/gitmount"]);
    // Not there before the driver is.
    if Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("csi").is_dir() {
        builder = builder.program("/usr/bin/gitmount-csi", &mount::gitmount_csi()?)?;
    }
    Ok(builder)
}
