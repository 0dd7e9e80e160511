//! The programs of a Kubernetes node, built from the Go modules in `tests/cluster/` once and kept outside of the checkout, each component
//! in a directory named by a hash of what it is built from. A directory is complete: it gets its name by one rename at the end.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::go::Go;
use crate::run::run_with;
use crate::scratch;

/// A Go module below `tests/cluster/`, and how its programs are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Component {
    /// API server, controller manager, scheduler, kubelet, kubectl.
    Kubernetes,
    /// containerd, its shim for runc, ctr.
    Containerd,
    /// etcd and csi-sanity.
    Etcd,
    /// runc.
    Runc,
    /// helm.
    Helm,
    /// Gitea, with the files that it reads when it runs.
    Gitea,
}

/// What one `go build` is told.
struct Recipe {
    module: &'static str,
    /// The module whose version the programs tell.
    of: &'static str,
    packages: &'static [&'static str],
    /// What `go build` calls a program, and what it is called here.
    renamed: &'static [(&'static str, &'static str)],
    tags: &'static str,
    cgo: bool,
    /// Directories of the module's source that the program reads.
    data: &'static [&'static str],
}

impl Component {
    /// All of them.
    pub const ALL: [Component; 6] =
        [Component::Runc, Component::Etcd, Component::Containerd, Component::Helm, Component::Kubernetes, Component::Gitea];

    fn recipe(self) -> Recipe {
        let plain = Recipe { module: "", of: "", packages: &[], renamed: &[], tags: "", cgo: false, data: &[] };
        match self {
            Component::Kubernetes => Recipe {
                module: "kubernetes",
                of: "k8s.io/kubernetes",
                packages: &[
                    "k8s.io/kubernetes/cmd/kube-apiserver",
                    "k8s.io/kubernetes/cmd/kube-controller-manager",
                    "k8s.io/kubernetes/cmd/kube-scheduler",
                    "k8s.io/kubernetes/cmd/kubelet",
                    "k8s.io/kubernetes/cmd/kubectl",
                ],
                ..plain
            },
            Component::Containerd => Recipe {
                module: "containerd",
                of: "github.com/containerd/containerd/v2",
                packages: &[
                    "github.com/containerd/containerd/v2/cmd/containerd",
                    "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
                    "github.com/containerd/containerd/v2/cmd/ctr",
                ],
                tags: "no_btrfs no_devmapper no_zfs",
                ..plain
            },
            Component::Etcd => Recipe {
                module: "etcd",
                of: "go.etcd.io/etcd/server/v3",
                packages: &["go.etcd.io/etcd/server/v3", "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity"],
                renamed: &[("server", "etcd")],
                ..plain
            },
            // With seccomp, since containerd's default profile needs it.
            Component::Runc => Recipe {
                module: "runc",
                of: "github.com/opencontainers/runc",
                packages: &["github.com/opencontainers/runc"],
                tags: "seccomp",
                cgo: true,
                ..plain
            },
            Component::Helm => Recipe { module: "helm", of: "helm.sh/helm/v3", packages: &["helm.sh/helm/v3/cmd/helm"], ..plain },
            Component::Gitea => Recipe {
                module: "gitea",
                of: "code.gitea.io/gitea",
                packages: &["code.gitea.io/gitea"],
                tags: "sqlite sqlite_unlock_notify",
                cgo: true,
                data: &["options", "public", "templates"],
                ..plain
            },
        }
    }

    /// The directory of its programs; they are built when they are not there.
    ///
    /// # Errors
    /// Without Go or a way to its module proxy, saying so.
    pub fn programs(self) -> Result<PathBuf> {
        let recipe = self.recipe();
        let source = modules().join(recipe.module);
        let flags = recipe.flags(&source)?;
        let dir = cache()?.join(format!("{}-{}", recipe.module, fingerprint(&source, &flags)?));
        if dir.is_dir() {
            return Ok(dir);
        }
        let _lock = scratch::exclusive("cluster-build")?;
        if !dir.is_dir() {
            recipe
                .build(&source, &flags, &dir)
                .with_context(|| format!("the programs of tests/cluster/{} could not be built", recipe.module))?;
        }
        Ok(dir)
    }
}

impl Recipe {
    fn flags(&self, source: &Path) -> Result<Vec<String>> {
        let manifest = fs::read_to_string(source.join("go.mod"))?;
        let version = manifest.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word == "require");
            (words.next() == Some(self.of)).then(|| words.next()).flatten()
        });
        let version = version.with_context(|| format!("{}/go.mod does not require {}", source.display(), self.of))?;
        let bare = version.trim_start_matches('v');
        let stamp = match self.module {
            "kubernetes" => {
                let at = "k8s.io/component-base/version";
                let mut parts = bare.split('.');
                let (major, minor) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
                format!("-X {at}.gitVersion={version} -X {at}.gitMajor={major} -X {at}.gitMinor={minor}")
            }
            "containerd" => format!("-X {}/version.Version={version}", self.of),
            "helm" => format!("-X {}/internal/version.version={version}", self.of),
            "runc" => format!("-X main.version={bare}"),
            "gitea" => format!("-X main.Version={bare}"),
            _ => String::new(),
        };
        Ok(vec!["-tags".into(), self.tags.into(), "-ldflags".into(), format!("-s -w {stamp}").trim_end().to_owned()])
    }

    fn build(&self, source: &Path, flags: &[String], dir: &Path) -> Result<()> {
        let go = Go::find()?;
        eprintln!("building {} (once; it is kept in {})", self.module, dir.display());
        let started = Instant::now();
        let unfinished = dir.with_extension("unfinished");
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished)?;
        }
        fs::create_dir_all(&unfinished)?;
        let mut build = go.command();
        build.current_dir(source).env("CGO_ENABLED", if self.cgo { "1" } else { "0" });
        build.arg("build").args(flags).arg("-o").arg(&unfinished).args(self.packages);
        run_with(&mut build, &[], Duration::from_secs(3600))?.success()?;
        for (from, to) in self.renamed {
            fs::rename(unfinished.join(from), unfinished.join(to))?;
        }
        if !self.data.is_empty() {
            let mut list = go.command();
            list.current_dir(source).args(["list", "-m", "-f", "{{.Dir}}", self.of]);
            let module = run_with(&mut list, &[], Duration::from_secs(300))?.success()?.out();
            for data in self.data {
                copy(&Path::new(module.trim()).join(data), &unfinished.join(data))?;
            }
        }
        fs::rename(&unfinished, dir)?;
        eprintln!("built {} in {:.0} s", self.module, started.elapsed().as_secs_f64());
        Ok(())
    }
}

/// Where built programs are kept.
pub(super) fn cache() -> Result<PathBuf> {
    let base = match std::env::var_os("XDG_CACHE_HOME").filter(|dir| !dir.is_empty()) {
        Some(dir) => PathBuf::from(dir),
        None => PathBuf::from(std::env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache"),
    };
    let dir = base.join("gitmount-ci/cluster");
    fs::create_dir_all(&dir).with_context(|| format!("{} could not be made", dir.display()))?;
    Ok(dir)
}

/// The folder of the Go modules.
pub(super) fn modules() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("cluster")
}

fn fingerprint(source: &Path, flags: &[String]) -> Result<String> {
    let mut hash = Sha256::new();
    for name in ["go.mod", "go.sum"] {
        let content = fs::read(source.join(name)).with_context(|| format!("{} has no {name}", source.display()))?;
        hash.update(content);
        hash.update([0]);
    }
    for flag in flags {
        hash.update(flag);
        hash.update([0]);
    }
    hash.update(std::env::consts::ARCH);
    Ok(super::hex(&hash.finalize()[..6]))
}

/// Copies a directory that may not be writable, as a writable one.
fn copy(from: &Path, to: &Path) -> Result<()> {
    ensure!(from.is_dir(), "{} is no directory", from.display());
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &to)?;
        } else {
            fs::write(&to, fs::read(entry.path())?)?;
        }
    }
    Ok(())
}
