//! A view's record on the disk: written as a whole, and again and again while the disk is full.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gitmount_store::error::Result;

use super::{Shown, lock};
use crate::daemon::record::Record;

/// How often a full disk is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// How the last write went.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// Held while it is written, and by nobody who only wants to know: a disk may hang.
    turn: Mutex<()>,
    /// Why it failed.
    error: Mutex<Option<String>>,
    /// Whether a thread tries again.
    again: AtomicBool,
}

impl Shown {
    /// Writes its record.
    pub fn write(&self) -> Result<()> {
        // In the order of the changes: the last one to write has seen all of them.
        let _turn = lock(&self.writing.turn);
        // Who waits for a credential after a restart had one.
        let private = self.is_waiting() || lock(&self.access).credentials.values().any(|credential| !credential.is_nothing());
        let commit = self.commit().map(|commit| commit.to_string()).unwrap_or_default();
        let mut record = Record::new(&self.id, self.spec.to_proto(), private, commit);
        record.device = self.mount.get().and_then(|mount| mount.device());
        record.targets = self.targets();
        let written = self.context.state.write(&record);
        *lock(&self.writing.error) = written.as_ref().err().map(ToString::to_string);
        written
    }

    /// The same for a change that stands whether it is written or not: when the disk is full, it is written once there is space.
    pub(in crate::daemon) fn write_or_later(self: &Arc<Self>) {
        let Err(error) = self.write() else { return };
        if self.writing.again.swap(true, Ordering::SeqCst) {
            return;
        }
        tracing::warn!(view = %self.id, %error, "the view's record is not up to date; it is written as soon as that works");
        let view = Arc::downgrade(self);
        let again = move || {
            loop {
                std::thread::sleep(AGAIN);
                let Some(view) = view.upgrade().filter(|view| !view.is_ending()) else { return };
                // A write that fails from now on starts another thread.
                view.writing.again.store(false, Ordering::SeqCst);
                if view.write().is_ok() {
                    return tracing::info!(view = %view.id, "the view's record is up to date again");
                }
                if view.writing.again.swap(true, Ordering::SeqCst) {
                    return;
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("record".into()).spawn(again) {
            self.writing.again.store(false, Ordering::SeqCst);
            tracing::error!(%error, "no thread can be started to write a view's record");
        }
    }

    /// What is wrong with what is written down of it, while something is: it is shown all the same.
    pub(in crate::daemon) fn state_error(&self) -> Option<String> {
        let journal = || self.mount.get().and_then(|mount| mount.view().journal_error());
        lock(&self.writing.error).clone().or_else(journal)
    }
}
