//! The container image, as `make image` writes it: its programs run where there is nothing but the image, and do their work there.
//!
//! `GITMOUNT_IMAGE` names the tar. Without it nothing is checked, since building static programs takes minutes; the gate has a step that does.

use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io::Write};

use anyhow::{Context, Result, ensure};
use gitmount_tests::fixtures::{self, refs};
use gitmount_tests::run;
use gitmount_tests::scratch;
use gitmount_tests::servers::http::HttpServer;
use gitmount_tests::servers::tls::TestCa;
use serde_json::Value;
use tempfile::TempDir;

/// The image's files, unpacked, and its configuration.
fn unpacked() -> Result<Option<(TempDir, Value)>> {
    let Some(image) = std::env::var_os("GITMOUNT_IMAGE") else {
        eprintln!("GITMOUNT_IMAGE is not set: `make image` writes target/image/gitmount.tar");
        return Ok(None);
    };
    let dir = scratch::dir()?;
    let untar = |archive: &Path, to: &Path| run::run(run::command("tar").arg("-xf").arg(archive).arg("-C").arg(to))?.success();
    untar(&PathBuf::from(image), dir.path())?;
    let read = |name: &str| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(dir.path().join(name))?)?) };
    let manifest = read("manifest.json")?;
    let config = read(manifest[0]["Config"].as_str().context("a configuration")?)?;
    fs::create_dir(dir.path().join("root"))?;
    untar(&dir.path().join(manifest[0]["Layers"][0].as_str().context("a layer")?), &dir.path().join("root"))?;
    Ok(Some((dir, config)))
}

/// Every program in a mount namespace of its own, in which the image's files are all that there is. `$1` are those files, `$2` a
/// repository, `$3` what it holds.
const WORK: &str = r#"
set -eu
root=$1 url=$2 expected=$3
serve() { exec env -i PATH=/usr/bin HOME=/tmp /usr/sbin/chroot "$root" "$@"; }
in_image() { (serve "$@"); }
until_there() { for _ in $(seq 200); do [ -e "$root$1" ] && return; sleep 0.1; done; echo "$1 does not appear" >&2; return 1; }
started=
trap 'kill $started 2>/dev/null || true' EXIT
mount --rbind /dev "$root/dev"
mount -t proc proc "$root/proc"
mkdir "$root/one" "$root/two"

in_image gitmount --version
in_image gitmount-csi --version

# A mount by hand.
in_image gitmount mount --ref main "$url" /one
diff --recursive --no-dereference "$expected" "$root/one"
in_image gitmount unmount /one

# What the containers run.
serve gitmount hold --socket /run/hold.sock & started="$started $!"
serve gitmount daemon --state /var/lib/gitmount --socket /run/fsd.sock --hold /run/hold.sock & daemon=$! started="$started $!"
until_there /run/fsd.sock
serve gitmount-csi node --node-name node --endpoint unix:///run/csi.sock --daemon /run/fsd.sock & started="$started $!"
until_there /run/csi.sock
in_image gitmount mount --socket /run/fsd.sock --ref main "$url" /two
diff --recursive --no-dereference "$expected" "$root/two"
kill -KILL $daemon
wait $daemon || true
rm "$root/run/fsd.sock"
serve gitmount daemon --state /var/lib/gitmount --socket /run/fsd.sock --hold /run/hold.sock & started="$started $!"
until_there /run/fsd.sock
diff --recursive --no-dereference "$expected" "$root/two"
in_image gitmount unmount --socket /run/fsd.sock /two
"#;

#[test]
fn its_programs_mount_and_hold_with_nothing_but_the_image() -> Result<()> {
    let Some((dir, _)) = unpacked()? else { return Ok(()) };
    scratch::require_root()?;
    scratch::require_fuse()?;
    let root = dir.path().join("root");
    let repo = fixtures::get("refs", refs::refs)?;
    let expected = scratch::dir()?;
    let archive = expected.path().join("tree.tar");
    repo.run(["archive".as_ref(), "--format=tar".as_ref(), "--output".as_ref(), archive.as_os_str(), "refs/heads/main".as_ref()])?;
    let tree = expected.path().join("tree");
    fs::create_dir(&tree)?;
    run::run(run::command("tar").arg("-xf").arg(&archive).arg("-C").arg(&tree))?.success()?;

    // Over HTTPS: the authority is looked up where the image has them.
    let ca = TestCa::new()?;
    let authorities = root.join("etc/ssl/certs/ca-certificates.crt");
    ensure!(fs::metadata(&authorities)?.len() > 100_000, "the image has next to no authorities");
    fs::File::options().append(true).open(&authorities)?.write_all(ca.pem().as_bytes())?;
    let server = HttpServer::tls(repo.path().parent().context("a fixture lies in a directory")?, &ca)?;

    let mut work = run::command("unshare");
    work.args(["--mount", "--propagation", "private", "sh", "-c", WORK, "work"]).arg(&root).arg(server.url("refs.git")).arg(&tree);
    run::run_with(&mut work, &[], Duration::from_secs(120))?.success()?;
    Ok(())
}

#[test]
fn it_says_what_it_is() -> Result<()> {
    let Some((_dir, config)) = unpacked()? else { return Ok(()) };
    let labels = &config["config"]["Labels"];
    ensure!(labels["org.opencontainers.image.licenses"] == "MIT OR Apache-2.0", "{config}");
    ensure!(labels["org.opencontainers.image.version"].is_string(), "{config}");
    ensure!(config["architecture"] == "amd64" || config["architecture"] == "arm64", "{config}");
    Ok(())
}
