//! `gitmount mount`: fetch, mount, answer the control socket, and end with the mount.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gitmount_store::credential::LoginSource;

use super::args::{LogFormat, MountArgs};
use super::exit::{CliError, Result};
use super::login::{GitLogin, Terminal};
use super::plan::Plan;
use super::progress::Bar;
use super::signals::Signals;
use super::{background, logging, mount_table, through};
use crate::control::Operations;
use crate::control::runtime::RuntimeDir;
use crate::control::server::Server;
use crate::daemon::serving::Prepared;

/// How long the answers that are on their way may take when the mount is gone.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// Runs the command; `child` is whether this process was started to serve in the background.
pub fn run(args: &MountArgs, child: bool) -> Result<()> {
    if let Some(socket) = &args.socket.socket {
        return through::mount(args, socket);
    }
    let plan = Plan::new(args);
    if child {
        // The parent prints the error.
        return match plan.and_then(|plan| serve(plan, false)) {
            Ok(()) => Ok(()),
            Err(error) => {
                background::failed(error.clone());
                Err(error)
            }
        };
    }
    let plan = plan?;
    if args.foreground {
        logging::start(LogFormat::Text);
        return serve(plan, true);
    }
    background::start()
}

/// Serves the mount until it is unmounted.
fn serve(plan: Plan, foreground: bool) -> Result<()> {
    let no_thread = |e: std::io::Error| CliError::other(format!("no thread can be started ({e}): raise the limit of processes"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().map_err(no_thread)?;
    let (bar, terminal) = (Arc::new(Bar::new()), Arc::new(Terminal::default()));
    let signals = Signals::install(runtime.handle(), Arc::clone(&terminal))?;
    let login = Arc::new(GitLogin::new(Arc::clone(&bar), terminal));
    let target = plan.target().to_owned();
    let (config, warnings) = plan.with_credentials(Arc::clone(&login) as Arc<dyn LoginSource>)?;
    warnings.iter().for_each(|w| warn(w));

    let prepared = Prepared::new(config, &*bar, signals.stop());
    bar.finish();
    let prepared = prepared?;
    if let Some(warning) = prepared.warning() {
        warn(warning);
    }

    // Under the lock nobody else can mount here between the look and the mount.
    let runtime_dir = RuntimeDir::open()?;
    let lock = runtime_dir.lock()?;
    mount_table::check_target(&target)?;
    let mut socket = lock.bind(&target)?;
    let commit = prepared.commit();
    let mounted = prepared.mount();
    // Before anything can return: the socket takes the lock itself when it goes.
    drop(lock);
    let serving = mounted?;
    let listener = socket.take_listener().expect("the socket was bound above and its listener not taken yet");
    let server = Server::start(runtime.handle(), listener, Arc::clone(&serving) as Arc<dyn Operations>).map_err(no_thread);
    signals.serving(&serving);
    login.end_interaction();
    let started = server.and_then(|server| {
        if foreground {
            tracing::info!(target = %target.display(), %commit, "mounted");
            return Ok(server);
        }
        match background::ready() {
            Ok(true) => Ok(server),
            Ok(false) => Err(CliError::other("the process that started this mount is gone")),
            Err(error) => Err(error),
        }
    });
    let server = match started {
        Ok(server) => server,
        Err(error) => {
            // Nobody knows of this mount: it must not stay.
            let _ = serving.unmount(true);
            return Err(error);
        }
    };
    serving.wait();
    runtime.block_on(server.stop(LAST_ANSWERS));
    if foreground {
        tracing::info!(target = %target.display(), by_signal = signals.stop().load(Ordering::SeqCst), "unmounted");
    }
    drop(socket);
    // A credential helper or a name look-up that hangs must not keep the process.
    runtime.shutdown_background();
    Ok(())
}

pub(super) fn warn(text: &str) {
    eprintln!("gitmount: warning: {text}");
}
