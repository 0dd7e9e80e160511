//! OpenSSH's `sshd` on loopback, for the account that runs the tests, with keys, a known_hosts file and an agent of the test's own.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result};
use tempfile::TempDir;

use super::Process;
use crate::run::{self, run, wait_for};
use crate::scratch;

/// A kind of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Ed25519.
    Ed25519,
    /// RSA with 2048 bits.
    Rsa,
    /// ECDSA on NIST P-256.
    Ecdsa,
}

impl KeyKind {
    /// All of them.
    pub const ALL: [KeyKind; 3] = [KeyKind::Ed25519, KeyKind::Rsa, KeyKind::Ecdsa];

    fn name(self) -> &'static str {
        match self {
            KeyKind::Ed25519 => "ed25519",
            KeyKind::Rsa => "rsa",
            KeyKind::Ecdsa => "ecdsa",
        }
    }
}

/// A running `sshd` with a host key of each kind.
#[derive(Debug)]
pub struct Sshd {
    _process: Process,
    dir: TempDir,
    host: Ipv4Addr,
    port: u16,
}

/// How a host is written in `known_hosts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// `[127.0.0.1]:port key`.
    Plain,
    /// `|1|salt|hash key`.
    Hashed,
    /// `127.0.0.1 key`, as OpenSSH accepts it for any port.
    WithoutPort,
}

impl Sshd {
    /// Starts a server that takes the environment variable by which clients ask for protocol V2.
    pub fn start() -> Result<Self> {
        Self::with("AcceptEnv GIT_PROTOCOL\n")
    }

    /// Starts a server with further lines of `sshd_config`.
    pub fn with(more: &str) -> Result<Self> {
        Self::on(Ipv4Addr::LOCALHOST, more)
    }

    /// Starts a server on another address of this machine, such as the one that a cluster's pods reach.
    pub fn at(host: Ipv4Addr) -> Result<Self> {
        Self::on(host, "AcceptEnv GIT_PROTOCOL\n")
    }

    fn on(host: Ipv4Addr, more: &str) -> Result<Self> {
        run::require("sshd", "openssh-server")?;
        let dir = scratch::dir()?;
        for kind in KeyKind::ALL {
            new_key(&dir.path().join(format!("host_{}", kind.name())), kind, "")?;
        }
        fs::write(dir.path().join("authorized_keys"), "")?;
        if nix::unistd::geteuid().is_root() {
            // Where the unprivileged part of sshd is locked in; a service manager would make it.
            fs::create_dir_all("/run/sshd")?;
        }
        let (process, port) = Process::listening_at(host, |port| {
            let home = dir.path().display();
            let config = format!(
                "ListenAddress {host}\nPort {port}\nHostKey {home}/host_ed25519\nHostKey {home}/host_rsa\nHostKey {home}/host_ecdsa\n\
                 PidFile {home}/pid\nAuthorizedKeysFile {home}/authorized_keys\nStrictModes no\nUsePAM no\nPermitRootLogin yes\n\
                 PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\nLogLevel VERBOSE\n\
                 SetEnv GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null\n{more}"
            );
            fs::write(dir.path().join("sshd_config"), config)?;
            let mut command = run::command("/usr/sbin/sshd");
            command.args(["-D", "-e", "-f"]).arg(dir.path().join("sshd_config"));
            command.stdin(Stdio::null()).stderr(fs::File::create(dir.path().join("log"))?);
            Ok(command)
        })?;
        Ok(Sshd { _process: process, dir, host, port })
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The account it lets in: the one that runs the tests.
    pub fn user(&self) -> Result<String> {
        Ok(nix::unistd::User::from_uid(nix::unistd::geteuid())?.context("the account that runs the tests has no name")?.name)
    }

    /// The `ssh://` URL of the repository at `path`.
    pub fn url(&self, path: &Path) -> Result<String> {
        Ok(format!("ssh://{}@{}:{}{}", self.user()?, self.host, self.port, path.display()))
    }

    /// From now on, the holder of the private key `key` is let in.
    pub fn authorize(&self, key: &Path) -> Result<()> {
        let all = self.dir.path().join("authorized_keys");
        let public = fs::read_to_string(public(key))?;
        Ok(fs::write(&all, fs::read_to_string(&all)? + &public)?)
    }

    /// A line for `known_hosts` with the host key of one kind.
    pub fn known_host(&self, kind: KeyKind, how: Known) -> Result<String> {
        let key = fs::read_to_string(public(&self.dir.path().join(format!("host_{}", kind.name()))))?;
        known_host_at(self.host, &key, self.port, how)
    }

    /// What it has logged.
    pub fn log(&self) -> Result<String> {
        Ok(fs::read_to_string(self.dir.path().join("log"))?)
    }
}

/// A line for `known_hosts` with the public key `key` for the server on `port`.
pub fn known_host(key: &str, port: u16, how: Known) -> Result<String> {
    known_host_at(Ipv4Addr::LOCALHOST, key, port, how)
}

/// The same for a server on another address.
pub fn known_host_at(host: Ipv4Addr, key: &str, port: u16, how: Known) -> Result<String> {
    // Without the comment.
    let key = key.split_whitespace().take(2).collect::<Vec<_>>().join(" ");
    match how {
        Known::Plain => Ok(format!("[{host}]:{port} {key}\n")),
        Known::WithoutPort => Ok(format!("{host} {key}\n")),
        Known::Hashed => {
            let dir = scratch::dir()?;
            let file = dir.path().join("known_hosts");
            fs::write(&file, format!("[{host}]:{port} {key}\n"))?;
            run(run::command("ssh-keygen").args(["-q", "-H", "-f"]).arg(&file))?.success()?;
            Ok(fs::read_to_string(file)?)
        }
    }
}

/// Makes a private key at `path` (and `<path>.pub`), encrypted unless `passphrase` is empty.
pub fn new_key(path: &Path, kind: KeyKind, passphrase: &str) -> Result<()> {
    let mut command = run::command("ssh-keygen");
    command.args(["-q", "-t", kind.name(), "-N", passphrase, "-C", "test", "-f"]).arg(path);
    if kind == KeyKind::Rsa {
        command.args(["-b", "2048"]);
    }
    run(&mut command)?.success()?;
    Ok(())
}

/// The file of the public half of the private key at `key`.
pub fn public(key: &Path) -> PathBuf {
    let mut name = key.as_os_str().to_owned();
    name.push(".pub");
    name.into()
}

/// A running `ssh-agent`.
#[derive(Debug)]
pub struct Agent {
    _process: Process,
    dir: TempDir,
}

impl Agent {
    /// Starts one that holds no key.
    pub fn start() -> Result<Self> {
        run::require("ssh-agent", "openssh-client")?;
        let dir = scratch::dir()?;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700))?;
        let socket = dir.path().join("socket");
        let mut command = run::command("ssh-agent");
        command.arg("-D").arg("-a").arg(&socket).stdin(Stdio::null()).stdout(Stdio::null());
        let process = Process::start(&mut command)?;
        wait_for("the socket of ssh-agent", Duration::from_secs(10), || socket.exists().then_some(()))?;
        Ok(Agent { _process: process, dir })
    }

    /// Its socket, for `SSH_AUTH_SOCK`.
    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    /// Gives it the private key at `key`.
    pub fn add(&self, key: &Path) -> Result<()> {
        run(run::command("ssh-add").arg("-q").arg(key).env("SSH_AUTH_SOCK", self.socket()))?.success().map(drop)
    }
}
