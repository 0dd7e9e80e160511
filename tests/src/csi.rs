//! A `gitmount-csi node` of a test's own over a [`Daemon`], and a client that calls it as a kubelet does, without a Kubernetes.

mod front;

use std::collections::HashMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
pub use front::Front;
use gitmount_proto::csi::v1 as csi;
use gitmount_proto::csi::v1::identity_client::IdentityClient;
use gitmount_proto::csi::v1::node_client::NodeClient;
use gitmount_proto::socket;
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::daemon::Daemon;
use crate::mount::{self, gitmount_csi};
use crate::run::wait_for;
use crate::scratch;

const DEADLINE: Duration = Duration::from_secs(30);

/// A running plugin.
#[derive(Debug)]
pub struct Plugin {
    daemon_socket: PathBuf,
    child: Option<Child>,
    /// Stands for the kubelet's directory.
    kubelet: TempDir,
}

impl Plugin {
    /// Starts one.
    pub fn start(daemon: &Daemon) -> Result<Self> {
        let mut plugin = Plugin { daemon_socket: daemon.socket(), child: None, kubelet: scratch::dir()? };
        fs::create_dir(plugin.registry())?;
        plugin.restart()?;
        Ok(plugin)
    }

    /// Starts it (again) and waits until it listens.
    pub fn restart(&mut self) -> Result<()> {
        let log = File::options().create(true).append(true).open(self.log_file())?;
        let mut command = Command::new(gitmount_csi()?);
        command.args(["node", "--node-name", "node1", "--endpoint"]).arg(self.socket());
        command.arg("--registration-dir").arg(self.registry()).arg("--daemon").arg(&self.daemon_socket);
        command.env("GITMOUNT_LOG", "debug").stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().context("the plugin could not be started")?);
        wait_for("the plugin's socket", DEADLINE, || socket::probe(&self.socket()).is_ok().then_some(()))
    }

    /// Kills it.
    pub fn kill(&mut self) -> Result<()> {
        let mut child = self.child.take().context("the plugin does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Its process id.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("the plugin does not run")?.id())
    }

    /// Its socket.
    pub fn socket(&self) -> PathBuf {
        self.kubelet.path().join("csi.sock")
    }

    /// The directory in which it registers.
    pub fn registry(&self) -> PathBuf {
        self.kubelet.path().join("plugins_registry")
    }

    fn log_file(&self) -> PathBuf {
        self.kubelet.path().join("csi.log")
    }

    /// What it has logged.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.log_file())?)
    }

    /// The target of a volume in a pod, with its parent directories, as a kubelet makes them.
    pub fn target(&self, pod: &str, volume: &str) -> Result<PathBuf> {
        let parent = self.kubelet.path().join("pods").join(pod).join("volumes/kubernetes.io~csi").join(volume);
        fs::create_dir_all(&parent)?;
        Ok(parent.join("mount"))
    }

    /// A client of its socket.
    pub fn client(&self) -> Result<Client> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let channel = runtime.block_on(socket::connect(&self.socket(), DEADLINE))?;
        Ok(Client { runtime, node: NodeClient::new(channel.clone()), identity: IdentityClient::new(channel) })
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        for target in mount::mounts_below(self.kubelet.path()).unwrap_or_default().iter().rev() {
            let _ = nix::mount::umount2(target, nix::mount::MntFlags::MNT_DETACH);
        }
        if std::thread::panicking() {
            eprintln!("the plugin logged: {}", self.log().unwrap_or_default());
        }
    }
}

/// A blocking client.
#[derive(Debug)]
pub struct Client {
    runtime: tokio::runtime::Runtime,
    node: NodeClient<Channel>,
    identity: IdentityClient<Channel>,
}

/// The answer to a call.
pub type Answer<T> = std::result::Result<T, tonic::Status>;

impl Client {
    /// Stages.
    pub fn stage(&mut self, volume: &str, secrets: &[(&str, &str)]) -> Answer<()> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume.into(),
            staging_target_path: format!("/var/lib/kubelet/staging/{volume}"),
            volume_capability: Some(csi::VolumeCapability::default()),
            secrets: pairs(secrets),
            ..Default::default()
        };
        self.runtime.block_on(self.node.node_stage_volume(request)).map(drop)
    }

    /// Unstages.
    pub fn unstage(&mut self, volume: &str) -> Answer<()> {
        let staging_target_path = format!("/var/lib/kubelet/staging/{volume}");
        let request = csi::NodeUnstageVolumeRequest { volume_id: volume.into(), staging_target_path };
        self.runtime.block_on(self.node.node_unstage_volume(request)).map(drop)
    }

    /// Publishes.
    pub fn publish(&mut self, request: csi::NodePublishVolumeRequest) -> Answer<()> {
        self.runtime.block_on(self.node.node_publish_volume(request)).map(drop)
    }

    /// Unpublishes.
    pub fn unpublish(&mut self, volume: &str, target: &Path) -> Answer<()> {
        let request = csi::NodeUnpublishVolumeRequest { volume_id: volume.into(), target_path: target.display().to_string() };
        self.runtime.block_on(self.node.node_unpublish_volume(request)).map(drop)
    }

    /// Statistics.
    pub fn stats(&mut self, volume: &str, target: &Path) -> Answer<csi::NodeGetVolumeStatsResponse> {
        let (volume_id, volume_path) = (volume.into(), target.display().to_string());
        let request = csi::NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        self.runtime.block_on(self.node.node_get_volume_stats(request)).map(tonic::Response::into_inner)
    }

    /// Whether it is ready.
    pub fn probe(&mut self) -> Answer<bool> {
        let answer = self.runtime.block_on(self.identity.probe(csi::ProbeRequest {}))?;
        Ok(answer.into_inner().ready.unwrap_or_default())
    }
}

/// An inline volume of a pod, as a kubelet publishes it.
pub fn inline(target: &Path, attributes: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    let pod = [("ephemeral", "true"), ("pod.name", "reader"), ("pod.namespace", "sites"), ("pod.uid", "1-2")];
    let kubelet = pod.map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value.to_owned()));
    csi::NodePublishVolumeRequest {
        volume_id: format!("csi-{}", target.display()),
        target_path: target.display().to_string(),
        volume_capability: Some(csi::VolumeCapability::default()),
        readonly: true,
        volume_context: pairs(attributes).into_iter().chain(kubelet).collect(),
        ..Default::default()
    }
}

/// A claim's volume.
pub fn claim(volume: &str, target: &Path, attributes: &[(&str, &str)], secrets: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    let mut request = inline(target, attributes);
    request.volume_context.remove("csi.storage.k8s.io/ephemeral");
    csi::NodePublishVolumeRequest { volume_id: volume.into(), secrets: pairs(secrets), ..request }
}

fn pairs(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
