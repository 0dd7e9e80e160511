//! The mounts of this user: which process serves a mount point, and mounts whose process died.

use std::path::{Path, PathBuf};

use gitmount_proto::fsd::v1 as proto;
use gitmount_proto::socket::ConnectError;

use super::exit::{CliError, Result};
use super::mount_table::{self, MountPoint};
use crate::control::client::Client;
use crate::control::runtime::RuntimeDir;

/// What is found at a mount point.
pub enum Found {
    /// A process serves it.
    Live(Box<Client>),
    /// The process died; the mount is still in the kernel's table.
    Dead,
}

/// One view of a live process, or a mount whose process died.
#[derive(Debug, Clone)]
pub enum Entry {
    /// A process says so.
    Live {
        /// Its process id.
        pid: u32,
        /// The view.
        view: Box<proto::View>,
    },
    /// The kernel says so.
    Dead(MountPoint),
}

/// The absolute name of a mount point that was asked for.
pub fn target(dir: &Path) -> Result<PathBuf> {
    mount_table::absolute(dir).map_err(|_| no_mount(dir))
}

/// Who serves `target`.
pub fn find(target: &Path) -> Result<Found> {
    let runtime = RuntimeDir::open()?;
    match Client::connect(&runtime.socket(target)) {
        Ok(client) => Ok(Found::Live(Box::new(client))),
        Err(ConnectError::Dead(_) | ConnectError::Missing(_)) => match mount_table::at(target)? {
            Some(mount) if mount.is_dead() => Ok(Found::Dead),
            Some(_) => Err(CliError::other(format!(
                "{} is served by a process that is not asked this way: give the --socket of its daemon, or ask as who mounted it",
                target.display()
            ))),
            None => Err(no_mount(target)),
        },
        Err(error) => Err(CliError::other(error.to_string())),
    }
}

/// A live process that serves `target`.
pub fn live(target: &Path) -> Result<Client> {
    match find(target)? {
        Found::Live(client) => Ok(*client),
        Found::Dead => {
            let shown = target.display();
            Err(CliError::other(format!(
                "the process that served {shown} died: unmount it with `gitmount unmount {shown}` and mount it again"
            )))
        }
    }
}

/// All mounts of this runtime directory. Leftovers of dead processes whose mount is gone are removed on the way.
pub fn all() -> Result<Vec<Entry>> {
    let runtime = RuntimeDir::open()?;
    let mut entries = Vec::new();
    for socket in runtime.sockets()? {
        match Client::connect(&socket) {
            Ok(mut client) => match client.status() {
                Ok(status) => entries.extend(status.views.into_iter().map(|view| Entry::Live { pid: status.pid, view: Box::new(view) })),
                // It ended meanwhile.
                Err(_) if !socket.exists() => {}
                // One that is stuck does not hide the others.
                Err(error) => eprintln!("gitmount: warning: the process at {} says nothing: {error}", socket.display()),
            },
            Err(ConnectError::Missing(_)) => {}
            Err(ConnectError::Dead(_)) => match mount_table::mount_points()?.into_iter().find(|m| runtime.socket(&m.target) == socket) {
                Some(mount) => entries.push(Entry::Dead(mount)),
                None => runtime.lock()?.remove_dead(&socket),
            },
            Err(error) => return Err(CliError::other(error.to_string())),
        }
    }
    Ok(entries)
}

fn no_mount(dir: &Path) -> CliError {
    CliError::not_found(format!("{} is no gitmount mount: `gitmount status` lists those there are", dir.display()))
}
