//! `deploy/examples` as users apply them: nothing is replaced but the URL, the image, the namespace and the credential.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gitmount_tests::cluster::{Cluster, Namespace};
use gitmount_tests::deploy::{Example, example_repository};
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::ssh::{KeyKind, Known, Sshd, new_key};
use serde_json::Value;
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(120);
const IMAGE: &str = "local/test:1";
const SHOWN: &str = "https://github.com/git/git";
const PRIVATE: &str = "https://github.com/example/private";
const TOKEN: &str = "a-token-of-the-example";

/// A cluster with the driver, and a host that pods reach.
struct Setup {
    cluster: &'static Cluster,
    dir: TempDir,
    server: HttpServer,
}

impl Setup {
    fn new() -> Result<Self> {
        let cluster = Cluster::get()?;
        let dir = scratch::dir()?;
        example_repository(&dir.path().join("r.git"))?;
        let server = HttpServer::plain_at(cluster.host(), dir.path())?;
        Ok(Setup { cluster, dir, server })
    }

    fn url(&self) -> String {
        self.server.url("r.git")
    }
}

/// Objects of an example, deleted at the end.
struct Applied<'a> {
    cluster: &'a Cluster,
    list: Value,
    namespace: String,
    pod: String,
}

impl<'a> Applied<'a> {
    /// Applies `example` and waits until its pod is Ready.
    fn ready(cluster: &'a Cluster, namespace: &str, example: &Example) -> Result<Self> {
        let applied = Applied { cluster, list: example.list(), namespace: namespace.into(), pod: example.pod()?.into() };
        for object in example.objects() {
            cluster.kubectl.apply_object(object)?;
        }
        cluster.kubectl.wait_pod_ready(namespace, &applied.pod, DEADLINE)?;
        Ok(applied)
    }

    fn read(&self, path: &str) -> Result<String> {
        Ok(self.cluster.kubectl.exec(&self.namespace, &self.pod, &["cat", path])?.success()?.out())
    }

    fn delete(&self) -> Result<()> {
        for object in self.list["items"].as_array().into_iter().flatten().rev() {
            let (kind, name) = (object["kind"].as_str().context("a kind")?, object["metadata"]["name"].as_str().context("a name")?);
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default");
            self.cluster.kubectl.delete(&[kind, name, "--namespace", namespace, "--grace-period=1"])?;
        }
        Ok(())
    }
}

impl Drop for Applied<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.delete() {
            eprintln!("an example stays: {error:#}");
        }
    }
}

#[test]
fn inline_examples_run() -> Result<()> {
    let setup = Setup::new()?;
    let namespace = Namespace::new(setup.cluster, "examples")?;
    let _driver = setup.cluster.usual_driver(&namespace)?;
    for (name, file, content) in [
        ("inline.yaml", "/source/README", "an example\n"),
        ("allow-stale.yaml", "/source/README", "an example\n"),
        ("subpath.yaml", "/documentation/guide.txt", "a guide\n"),
    ] {
        let example = Example::load(name)?.url(SHOWN, &setup.url())?.image(IMAGE)?.within(namespace.name());
        let applied = Applied::ready(setup.cluster, namespace.name(), &example).context(name)?;
        ensure!(applied.read(file)? == content, "{name}");
    }
    Ok(())
}

#[test]
fn two_repositories_run_in_one_pod() -> Result<()> {
    let setup = Setup::new()?;
    let namespace = Namespace::new(setup.cluster, "examples")?;
    let _driver = setup.cluster.usual_driver(&namespace)?;
    let example = Example::load("two-repositories.yaml")?.url(SHOWN, &setup.url())?.url("https://github.com/madler/zlib", &setup.url())?;
    let example = example.image(IMAGE)?.within(namespace.name());
    let applied = Applied::ready(setup.cluster, namespace.name(), &example)?;
    for mount in ["application", "library"] {
        ensure!(applied.read(&format!("/{mount}/README"))? == "an example\n", "{mount}");
    }
    Ok(())
}

#[test]
fn the_restricted_example_runs() -> Result<()> {
    let setup = Setup::new()?;
    // The example has a namespace of its own, beside this.
    let namespace = Namespace::new(setup.cluster, "examples")?;
    let _driver = setup.cluster.usual_driver(&namespace)?;
    let example = Example::load("restricted.yaml")?.url(SHOWN, &setup.url())?.image(IMAGE)?;
    let applied = Applied::ready(setup.cluster, "git-restricted", &example)?;
    ensure!(applied.read("/source/README")? == "an example\n");
    let written = setup.cluster.kubectl.exec("git-restricted", &applied.pod, &["touch", "/source/x"])?;
    ensure!(written.err().contains("Read-only file system"), "{}", written.err());
    Ok(())
}

#[test]
fn the_claim_example_runs() -> Result<()> {
    let setup = Setup::new()?;
    let namespace = Namespace::new(setup.cluster, "examples")?;
    let _driver = setup.cluster.usual_driver(&namespace)?;
    let example = Example::load("claim.yaml")?.url(SHOWN, &setup.url())?.image(IMAGE)?.namespace("default", namespace.name())?;
    let applied = Applied::ready(setup.cluster, namespace.name(), &example)?;
    ensure!(applied.read("/source/README")? == "an example\n");
    Ok(())
}

#[test]
fn examples_with_a_token_run() -> Result<()> {
    let setup = Setup::new()?;
    let namespace = Namespace::new(setup.cluster, "examples")?;
    let _driver = setup.cluster.usual_driver(&namespace)?;
    setup.server.require_login("git", TOKEN);
    let replaced = |name: &str| Example::load(name)?.url(PRIVATE, &setup.url())?.image(IMAGE)?.secret("token", TOKEN);
    let inline = replaced("private-token.yaml")?.within(namespace.name());
    let claim = replaced("private-claim.yaml")?.namespace("default", namespace.name())?;
    for example in [inline, claim] {
        let applied = Applied::ready(setup.cluster, namespace.name(), &example)?;
        ensure!(applied.read("/source/README")? == "an example\n", "{}", applied.pod);
    }
    Ok(())
}

#[test]
fn the_example_with_a_deploy_key_runs() -> Result<()> {
    let setup = Setup::new()?;
    let namespace = Namespace::new(setup.cluster, "examples")?;
    let _driver = setup.cluster.usual_driver(&namespace)?;
    let sshd = Sshd::at(setup.cluster.host())?;
    let key = setup.dir.path().join("key");
    new_key(&key, KeyKind::Ed25519, "")?;
    sshd.authorize(&key)?;
    let example = Example::load("private-ssh.yaml")?
        .url("ssh://git@github.com/example/private", &sshd.url(&setup.dir.path().join("r.git"))?)?
        .image(IMAGE)?
        .secret("ssh-privatekey", &fs::read_to_string(&key)?)?
        .secret("known_hosts", &sshd.known_host(KeyKind::Ed25519, Known::Plain)?)?;
    let applied = Applied::ready(setup.cluster, namespace.name(), &example.within(namespace.name()))?;
    ensure!(applied.read("/source/README")? == "an example\n");
    Ok(())
}
