//! A `gitmount daemon` of a test's own, and a client of its control socket for what the command line cannot ask.
//!
//! Dropped, it is killed and its mounts are taken away, so that a failing test leaves nothing behind.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::fsd::v1::control_client::ControlClient;
use gitmount_proto::socket;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::mount::{self, Account};
use crate::run::{self, wait_for};
use crate::scratch;

/// How long a daemon may take to be ready, and to end.
const DEADLINE: Duration = Duration::from_secs(30);

/// A running daemon, or one that can be started again with the same state.
#[derive(Debug)]
pub struct Daemon {
    account: Account,
    options: Vec<OsString>,
    state: PathBuf,
    child: Option<Child>,
    holder: Option<Child>,
    targets: TempDir,
}

impl Daemon {
    /// One for an account that was prepared, not started yet.
    pub fn new(account: Account, options: &[&str]) -> Result<Self> {
        scratch::require_root()?;
        let options = options.iter().map(OsString::from).collect();
        let state = account.home().join("state");
        Ok(Daemon { account, options, state, child: None, holder: None, targets: scratch::dir()? })
    }

    /// Puts its state directory elsewhere.
    pub fn with_state(mut self, state: impl Into<PathBuf>) -> Self {
        self.state = state.into();
        self
    }

    /// Starts a holder that keeps its mounts.
    pub fn with_holder(mut self) -> Result<Self> {
        let hold = self.account.home().join("hold.sock");
        self.options.extend(["--hold".into(), hold.into_os_string()]);
        self.restart_holder()?;
        Ok(self)
    }

    /// Starts one whose mounts a holder keeps.
    pub fn held(options: &[&str]) -> Result<Self> {
        let mut daemon = Self::new(Account::new()?, options)?.with_holder()?;
        daemon.restart()?;
        Ok(daemon)
    }

    /// Starts the holder (again) and waits until it listens.
    pub fn restart_holder(&mut self) -> Result<()> {
        ensure!(self.holder.is_none(), "the holder runs already");
        let socket = self.account.home().join("hold.sock");
        let log = File::options().create(true).append(true).open(self.log_file())?;
        let mut command = self.account.command(["hold", "--socket"]);
        command.arg(&socket).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
        self.holder = Some(command.spawn().context("the holder could not be started")?);
        wait_for("the holder's socket", DEADLINE, || listens(&socket).then_some(()))
    }

    /// Kills the holder.
    pub fn kill_holder(&mut self) -> Result<()> {
        let mut child = self.holder.take().context("the holder does not run")?;
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// The holder's process id.
    pub fn holder_pid(&self) -> Result<i32> {
        Ok(self.holder.as_ref().context("the holder does not run")?.id().cast_signed())
    }

    /// How many mounts the holder holds.
    pub fn holds(&self) -> Result<usize> {
        let id = self.holder_pid()?;
        let open = fs::read_dir(format!("/proc/{id}/fd"))?.flatten();
        Ok(open.filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == Path::new("/dev/fuse"))).count())
    }

    /// Starts one that allows `http://`, with further options.
    pub fn start(options: &[&str]) -> Result<Self> {
        Self::start_as(Account::new()?, options)
    }

    /// The same for an account that was prepared.
    pub fn start_as(account: Account, options: &[&str]) -> Result<Self> {
        let mut daemon = Self::new(account, options)?;
        daemon.restart()?;
        Ok(daemon)
    }

    /// Starts it (again) and waits until it answers.
    pub fn restart(&mut self) -> Result<()> {
        ensure!(self.child.is_none(), "the daemon runs already");
        let log = File::options().create(true).append(true).open(self.log_file())?;
        let mut command = self.account.command(["daemon", "--allow-http", "--state"]);
        command.arg(self.state()).arg("--socket").arg(self.socket()).arg("--store").arg(self.account.store()).args(&self.options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.process_group(0);
        let mut child = command.spawn().context("the daemon could not be started")?;
        let ready = wait_for("the daemon's first answer", DEADLINE, || {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(Err(status));
            }
            socket::probe(&self.socket()).is_ok().then_some(Ok(()))
        });
        match ready? {
            Ok(()) => self.child = Some(child),
            Err(status) => bail!("the daemon ended with {status}: {}", self.log()?),
        }
        Ok(())
    }

    /// Its account.
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Its state directory.
    pub fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// Its control socket.
    pub fn socket(&self) -> PathBuf {
        self.account.home().join("daemon.sock")
    }

    fn log_file(&self) -> PathBuf {
        self.account.home().join("daemon.log")
    }

    /// What it has logged.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.log_file())?)
    }

    /// Its process id.
    pub fn pid(&self) -> Result<i32> {
        Ok(self.child.as_ref().context("the daemon does not run")?.id().cast_signed())
    }

    /// Kills it, as the kernel does when memory is short.
    pub fn kill(&mut self) -> Result<()> {
        self.end(Signal::SIGKILL).map(drop)
    }

    /// Asks it to end, and waits.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.end(Signal::SIGTERM)
    }

    /// Sends it a signal and waits for nothing.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill(Pid::from_raw(self.pid()?), signal)?)
    }

    fn end(&mut self, signal: Signal) -> Result<ExitStatus> {
        self.signal(signal)?;
        self.ended()
    }

    /// Waits for its end.
    pub fn ended(&mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("the daemon does not run")?;
        let ended = wait_for("the daemon's end", DEADLINE, || child.try_wait().ok().flatten());
        if ended.is_err() {
            let _ = child.kill();
            let _ = child.wait();
        }
        ended
    }

    /// A directory, not made yet, to publish at.
    pub fn target(&self, name: &str) -> PathBuf {
        self.targets.path().join(name)
    }

    /// A client of its socket.
    pub fn client(&self) -> Result<Client> {
        Client::connect(&self.socket())
    }

    /// Publishes `view` at the target `name`.
    pub fn publish(&self, name: &str, view: proto::ViewSpec) -> Result<proto::Published> {
        self.client()?.publish(&self.target(name), view, None)
    }

    /// The state of the view at a target, as status says it.
    pub fn view(&self, target: &Path) -> Result<proto::View> {
        let status = self.client()?.status()?;
        let target = target.as_os_str().as_encoded_bytes();
        let found = status.views.into_iter().find(|view| view.mounts.iter().any(|mount| mount == target));
        found.with_context(|| format!("{} is missing in the status", String::from_utf8_lossy(target)))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        for child in [&mut self.child, &mut self.holder].into_iter().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
        for root in [self.targets.path().to_owned(), self.state()] {
            for target in mount::mounts_below(&root).unwrap_or_default().iter().rev() {
                let _ = nix::mount::umount2(target, nix::mount::MntFlags::MNT_DETACH);
            }
        }
        if std::thread::panicking() {
            eprintln!("the daemon logged: {}", self.log().unwrap_or_default());
        }
    }
}

/// Whether a holder listens on `socket`, which takes whole packets.
fn listens(socket: &Path) -> bool {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket as open};
    let probe = open(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None);
    let (Ok(probe), Ok(address)) = (probe, UnixAddr::new(socket)) else { return false };
    connect(std::os::fd::AsRawFd::as_raw_fd(&probe), &address).is_ok()
}

/// A view of `url` that is pulled on demand only.
pub fn view(url: &str) -> proto::ViewSpec {
    proto::ViewSpec { url: url.into(), pull: "on-demand".into(), ..Default::default() }
}

/// A login.
pub fn token(username: &str, token: &str) -> proto::Credential {
    let token = proto::Token { username: username.into(), token: token.into() };
    proto::Credential { kind: Some(proto::credential::Kind::Token(token)), ca_crt: String::new() }
}

/// A blocking client of a control socket.
#[derive(Debug)]
pub struct Client {
    runtime: tokio::runtime::Runtime,
    inner: ControlClient<Channel>,
}

impl Client {
    /// Connects.
    pub fn connect(path: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let channel = runtime.block_on(socket::connect(path, DEADLINE))?;
        Ok(Client { runtime, inner: ControlClient::new(channel) })
    }

    /// What is served.
    pub fn status(&mut self) -> Result<proto::StatusResponse> {
        Ok(self.runtime.block_on(self.inner.status(proto::StatusRequest {}))?.into_inner())
    }

    /// Counters of a target.
    pub fn statistics(&mut self, target: &Path) -> Result<proto::StatisticsResponse> {
        Ok(self.runtime.block_on(self.inner.statistics(proto::StatisticsRequest { target: bytes(target) }))?.into_inner())
    }

    /// Publishes for a volume called `v` in the namespace `n`.
    pub fn publish(&mut self, target: &Path, view: proto::ViewSpec, credential: Option<proto::Credential>) -> Result<proto::Published> {
        let volume = Some(proto::Volume { name: "v".into(), namespace: "n".into(), ..Default::default() });
        self.publish_with(proto::PublishRequest { target: bytes(target), view: Some(view), credential, volume, ..Default::default() })
    }

    /// Any publish.
    pub fn publish_with(&mut self, request: proto::PublishRequest) -> Result<proto::Published> {
        match self.runtime.block_on(self.inner.publish(request))?.into_inner().outcome {
            Some(proto::publish_response::Outcome::Published(published)) => Ok(published),
            Some(proto::publish_response::Outcome::Failure(failure)) => Err(refused(failure)),
            None => bail!("an empty answer"),
        }
    }

    /// Unpublishes.
    pub fn unpublish(&mut self, target: &Path) -> Result<()> {
        self.unpublish_with(target, false)
    }

    /// Unpublishes a target that is its caller's own, as a pod's is.
    pub fn remove(&mut self, target: &Path) -> Result<()> {
        self.unpublish_with(target, true)
    }

    fn unpublish_with(&mut self, target: &Path, remove_target: bool) -> Result<()> {
        let request = proto::UnpublishRequest { target: bytes(target), remove_target };
        self.runtime.block_on(self.inner.unpublish(request))?.into_inner().failure.map_or(Ok(()), |failure| Err(refused(failure)))
    }

    /// Gives a target another credential.
    pub fn update_credential(&mut self, target: &Path, credential: proto::Credential) -> Result<()> {
        let request = proto::UpdateCredentialRequest { target: bytes(target), credential: Some(credential) };
        let answer = self.runtime.block_on(self.inner.update_credential(request))?.into_inner();
        answer.failure.map_or(Ok(()), |failure| Err(refused(failure)))
    }

    /// Fetches now and waits.
    pub fn pull(&mut self, target: &Path) -> Result<proto::Pulled> {
        match self.pull_with(proto::PullRequest { target: bytes(target), ..Default::default() })? {
            proto::pull_response::Outcome::Pulled(pulled) => Ok(pulled),
            other => bail!("{other:?}"),
        }
    }

    /// Notes a demand; gives for how many views.
    pub fn demand(&mut self, target: &Path) -> Result<u32> {
        match self.pull_with(proto::PullRequest { target: bytes(target), no_wait: true, ..Default::default() })? {
            proto::pull_response::Outcome::Noted(noted) => Ok(noted.views),
            other => bail!("{other:?}"),
        }
    }

    /// Any pull.
    pub fn pull_with(&mut self, request: proto::PullRequest) -> Result<proto::pull_response::Outcome> {
        match self.runtime.block_on(self.inner.pull(request))?.into_inner().outcome {
            Some(proto::pull_response::Outcome::Failure(failure)) => Err(refused(failure)),
            Some(outcome) => Ok(outcome),
            None => bail!("an empty answer"),
        }
    }

    /// The last events of a target.
    pub fn log(&mut self, target: &Path) -> Result<Vec<proto::Event>> {
        Ok(self.runtime.block_on(self.inner.log(proto::LogRequest { target: bytes(target) }))?.into_inner().events)
    }

    /// Watches; the stream has begun when this returns.
    pub fn watch(mut self) -> Result<Watch> {
        let stream = self.runtime.block_on(self.inner.watch(proto::WatchRequest {}))?.into_inner();
        let mut watch = Watch { client: self, stream };
        let first = watch.event()?;
        ensure!(first.kind() == proto::event::Kind::Watching, "the first event is {first:?}");
        Ok(watch)
    }
}

/// A stream of events.
#[derive(Debug)]
pub struct Watch {
    client: Client,
    stream: tonic::Streaming<proto::Event>,
}

impl Watch {
    /// The next event.
    pub fn event(&mut self) -> Result<proto::Event> {
        let next = async { tokio::time::timeout(DEADLINE, self.stream.message()).await };
        self.client.runtime.block_on(next).context("no event came")??.context("the stream ended")
    }

    /// The next event of a kind; others are passed over.
    pub fn next_of(&mut self, kind: proto::event::Kind) -> Result<proto::Event> {
        loop {
            let event = self.event()?;
            if event.kind() == kind {
                return Ok(event);
            }
        }
    }
}

fn refused(failure: proto::Failure) -> anyhow::Error {
    anyhow::anyhow!("{:?}: {}", failure.fault(), failure.message)
}

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_encoded_bytes().to_vec()
}

/// The threads and descriptors of a process.
pub fn resources(pid: i32) -> Result<(Vec<String>, usize)> {
    let mut threads = Vec::new();
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        threads.push(fs::read_to_string(task?.path().join("comm")).unwrap_or_default().trim().to_owned());
    }
    threads.sort();
    Ok((threads, fs::read_dir(format!("/proc/{pid}/fd"))?.count()))
}

/// Runs `gitmount` with this daemon's socket.
pub fn through(daemon: &Daemon, args: &[&str]) -> Result<run::Finished> {
    let socket = daemon.socket();
    let mut all: Vec<&str> = vec![args[0], "--socket", socket.to_str().context("the socket's path is UTF-8")?];
    all.extend(&args[1..]);
    daemon.account().run(all)
}
