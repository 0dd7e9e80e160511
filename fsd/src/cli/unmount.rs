//! `gitmount unmount` and `gitmount pull`.

use std::path::Path;
use std::time::{Duration, Instant};

use super::args::{PullArgs, UnmountArgs};
use super::exit::{CliError, Result};
use super::mounts::{self, Found};
use super::through;
use crate::control::runtime::RuntimeDir;
use crate::fuse;

/// How long the process of an unmounted tree may take to end.
const END_LIMIT: Duration = Duration::from_secs(10);

/// Unmounts, with or without the process that serves the mount.
pub fn unmount(args: &UnmountArgs) -> Result<()> {
    if let Some(socket) = &args.socket.socket {
        return through::unmount(socket, &args.dir, args.lazy);
    }
    let target = mounts::target(&args.dir)?;
    match mounts::find(&target)? {
        Found::Live(mut client) => {
            client.unmount(&target, args.lazy)?;
            drop(client);
            if !args.lazy {
                wait_for_end(&target)?;
            }
            Ok(())
        }
        Found::Dead => {
            fuse::unmount(&target, args.lazy).map_err(|e| cannot_unmount(&target, &e))?;
            let runtime = RuntimeDir::open()?;
            runtime.lock()?.remove_dead(&runtime.socket(&target));
            Ok(())
        }
    }
}

/// Waits until the process has let go of everything, so that what comes next finds it gone.
fn wait_for_end(target: &Path) -> Result<()> {
    let socket = RuntimeDir::open()?.socket(target);
    let end = Instant::now() + END_LIMIT;
    while socket.exists() {
        if Instant::now() > end {
            return Err(CliError::other(format!("{} is unmounted, but its process does not end: see `gitmount status`", target.display())));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

fn cannot_unmount(target: &Path, error: &std::io::Error) -> CliError {
    let shown = target.display();
    if error.kind() == std::io::ErrorKind::ResourceBusy {
        return CliError::other(format!("{shown} is busy: close what is open there, or detach it with `gitmount unmount --lazy {shown}`"));
    }
    CliError::other(format!("{shown} cannot be unmounted ({error}): the user who mounted it can, and root"))
}

/// Fetches now and prints what moved.
pub fn pull(args: &PullArgs) -> Result<()> {
    let pulled = match &args.socket.socket {
        Some(socket) => through::pull(socket, &args.dir)?,
        None => {
            let target = mounts::target(&args.dir)?;
            mounts::live(&target)?.pull(&target)?
        }
    };
    if pulled.old == pulled.new {
        println!("{}: nothing new", pulled.new);
    } else {
        println!("{}..{}", pulled.old, pulled.new);
    }
    Ok(())
}
