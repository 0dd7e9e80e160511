//! What SIGINT, SIGTERM and SIGHUP do to a process that mounts: first they cancel the fetch, later they unmount.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::{CliError, Result};
use super::login::Terminal;
use crate::daemon::serving::Serving;

/// The exit code of an interrupted command.
const INTERRUPTED: i32 = 130;

/// The handlers.
#[derive(Debug, Clone)]
pub struct Signals {
    stop: Arc<AtomicBool>,
    serving: Arc<OnceLock<Arc<Serving>>>,
}

/// The three signals that end a command.
pub(super) fn ending() -> std::io::Result<[Signal; 3]> {
    Ok([signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?])
}

/// Waits for any of them.
pub(super) async fn next([interrupt, terminate, hangup]: &mut [Signal; 3]) {
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
}

impl Signals {
    /// Installs them on `runtime`.
    pub fn install(runtime: &Handle, terminal: Arc<Terminal>) -> Result<Self> {
        let signals = Signals { stop: Arc::new(AtomicBool::new(false)), serving: Arc::new(OnceLock::new()) };
        let _context = runtime.enter();
        let mut received = ending().map_err(|e| CliError::other(format!("signals cannot be handled ({e})")))?;
        let mine = signals.clone();
        runtime.spawn(async move {
            loop {
                next(&mut received).await;
                if terminal.interrupted() {
                    // Nothing is fetched yet while a password is asked for.
                    std::process::exit(INTERRUPTED);
                }
                let again = mine.stop.swap(true, Ordering::SeqCst);
                match mine.serving.get().cloned() {
                    // Somebody still has files open on what was unmounted, and somebody else has lost patience.
                    Some(_) if again => std::process::exit(INTERRUPTED),
                    Some(serving) => {
                        tokio::task::spawn_blocking(move || unmount(&serving));
                    }
                    None => {}
                }
            }
        });
        Ok(signals)
    }

    /// Set when the command shall stop.
    pub fn stop(&self) -> &Arc<AtomicBool> {
        &self.stop
    }

    /// From now on signals unmount `serving`; one that has come already does so now.
    pub fn serving(&self, serving: &Arc<Serving>) {
        // Called once for a process, so the cell is empty.
        let _ = self.serving.set(Arc::clone(serving));
        if self.stop.load(Ordering::SeqCst) {
            unmount(serving);
        }
    }
}

/// Unmounts; when files are open, detaches.
fn unmount(serving: &Serving) {
    if let Err(error) = serving.unmount(false).or_else(|_| serving.unmount(true)) {
        tracing::error!(%error, "the mount cannot be unmounted");
    }
}
