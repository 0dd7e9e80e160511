//! Keeps a daemon's descriptors with the holder, whichever holder there is at the moment.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::pipe2;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::client::Holder;
use super::{Deposit, Error, Held, Result};
use crate::fuse::{Courier, Messenger};

/// How often a holder is looked for that was there before, and one that never was.
const AGAIN: Duration = Duration::from_millis(50);
/// See [`AGAIN`].
const AGAIN_ABSENT: Duration = Duration::from_secs(1);
/// How often an end of the keeper is noticed while the holder is connected, in milliseconds.
const LOOK_UP: u16 = 200;
/// What a pipe to the holder takes, in bytes.
const PIPE: i32 = 1 << 20;

#[derive(Debug)]
struct Kept {
    init: Vec<u8>,
    device: OwnedFd,
    /// Whether the holder that is connected has it.
    held: bool,
}

#[derive(Debug, Default)]
struct State {
    kept: BTreeMap<String, Kept>,
    holder: Option<Arc<Holder>>,
    ever: bool,
    told: bool,
    ending: bool,
}

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    state: Mutex<State>,
    wake: Condvar,
}

/// Deposits descriptors, and deposits them again with every new holder. Dropping it ends its thread; the holder keeps what it has.
#[derive(Debug)]
pub struct Keeper {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// A keeper for the holder at `socket`, which need not be there (yet).
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn new(socket: &Path) -> io::Result<Self> {
        let shared = Arc::new(Shared { socket: socket.to_owned(), state: Mutex::default(), wake: Condvar::new() });
        shared.connect();
        let thread = thread::Builder::new().name("keeper".into()).spawn({
            let shared = shared.clone();
            move || shared.run()
        })?;
        Ok(Keeper { shared, thread: Some(thread) })
    }

    /// Everything the holder has; from now on it is kept here as well, until it is [withdrawn](Keeper::withdraw). Nothing when there is no holder.
    ///
    /// # Errors
    /// When there is one and it does not answer as it should.
    pub fn collect(&self) -> Result<Vec<Held>> {
        let mut state = self.shared.state.lock();
        let holder = match state.holder.clone() {
            Some(holder) => holder,
            None => match Holder::connect(&self.shared.socket) {
                Ok(holder) => Arc::new(holder),
                Err(Error::Absent(_)) => return Ok(Vec::new()),
                Err(error) => return Err(error),
            },
        };
        let all = holder.collect()?;
        for held in &all {
            let device = held.device.try_clone()?;
            state.kept.insert(held.id.clone(), Kept { init: held.init.clone(), device, held: true });
        }
        Ok(all)
    }

    /// Keeps a descriptor. That there is no holder, or that it says no, is logged and no error: the mount works without.
    ///
    /// # Errors
    /// When the descriptor cannot be copied.
    pub fn deposit(&self, deposit: &Deposit<'_>) -> io::Result<()> {
        let device = deposit.device.try_clone_to_owned()?;
        let mut state = self.shared.state.lock();
        state.kept.insert(deposit.id.clone(), Kept { init: deposit.init.clone(), device, held: false });
        self.shared.deposit(&mut state);
        Ok(())
    }

    /// Keeps a descriptor no longer.
    pub fn withdraw(&self, id: &str) {
        let mut state = self.shared.state.lock();
        state.kept.remove(id);
        if let Some(holder) = state.holder.clone()
            && let Err(error) = holder.withdraw(id)
        {
            self.shared.lost(&mut state, &error);
        }
    }

    /// Leaves a descriptor that was collected to whose it is.
    pub fn leave(&self, id: &str) {
        self.shared.state.lock().kept.remove(id);
    }

    /// Tells the kernel of changes in the mount `id` through the holder, for [`Mount::notify_through`](crate::fuse::Mount::notify_through); false when
    /// that does not work.
    pub fn messenger(&self, id: &str) -> Messenger {
        let (shared, id) = (Arc::clone(&self.shared), id.to_owned());
        Box::new(move |messages| {
            // One that does not answer is waited for once, not for each mount.
            let Some(holder) = shared.state.lock().holder.clone() else { return false };
            let is_there = || Holder::connect(&shared.socket).and_then(|holder| holder.answers()).is_ok();
            let told = Holder::connect(&shared.socket).and_then(|holder| holder.notify(&id, messages, &is_there));
            if let Err(error) = &told {
                tracing::debug!(%id, %error, "the holder does not tell the kernel of changes");
                let mut state = shared.state.lock();
                // Not one that was connected meanwhile.
                if !matches!(error, Error::Refused(_)) && state.holder.as_ref().is_some_and(|now| Arc::ptr_eq(now, &holder)) {
                    shared.lost(&mut state, error);
                }
            }
            told.is_ok()
        })
    }

    /// Stores files in the page cache of the mount `id` through the holder, for [`Mount::store_through`](crate::fuse::Mount::store_through).
    pub fn courier(&self, id: &str) -> Courier {
        let (socket, id) = (self.shared.socket.clone(), id.to_owned());
        Box::new(move || {
            let opened = open_pipe(&socket, &id);
            if let Err(error) = &opened {
                tracing::debug!(%id, %error, "the holder stores nothing in the page cache");
            }
            opened.ok()
        })
    }

    /// Whether the holder has `id` right now.
    pub fn is_holding(&self, id: &str) -> bool {
        let state = self.shared.state.lock();
        state.holder.is_some() && state.kept.get(id).is_some_and(|kept| kept.held)
    }

    /// Whether a holder is connected.
    pub fn is_connected(&self) -> bool {
        self.shared.state.lock().holder.is_some()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.shared.state.lock().ending = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let mut state = self.state.lock();
            if state.ending {
                return;
            }
            match state.holder.clone() {
                Some(holder) => {
                    drop(state);
                    if has_ended(&holder) {
                        let mut state = self.state.lock();
                        // Not one that was connected meanwhile.
                        if state.holder.as_ref().is_some_and(|now| Arc::ptr_eq(now, &holder)) {
                            self.lost(&mut state, &io::Error::from(io::ErrorKind::ConnectionReset).into());
                        }
                    }
                }
                None => {
                    let pause = if state.ever { AGAIN } else { AGAIN_ABSENT };
                    self.wake.wait_for(&mut state, pause);
                    let ending = state.ending;
                    drop(state);
                    if !ending {
                        self.connect();
                    }
                }
            }
        }
    }

    fn connect(&self) {
        // One that is stopped must hold up nobody else, so it is asked before anybody waits for the lock.
        let found = Holder::connect(&self.socket).and_then(|holder| holder.answers().map(|()| holder));
        let state = &mut self.state.lock();
        match found {
            Ok(holder) => {
                if state.told {
                    tracing::info!(socket = %self.socket.display(), "the holder is back");
                }
                (state.holder, state.ever, state.told) = (Some(Arc::new(holder)), true, false);
                state.kept.values_mut().for_each(|kept| kept.held = false);
                self.deposit(state);
            }
            // One sentence, not one for each attempt.
            Err(error) if !std::mem::replace(&mut state.told, true) => {
                tracing::warn!(%error, "mounts end with this process while nobody holds them");
            }
            Err(_) => {}
        }
    }

    /// Deposits whatever the holder does not have.
    fn deposit(&self, state: &mut MutexGuard<'_, State>) {
        let Some(holder) = state.holder.clone() else { return };
        for (id, kept) in state.kept.iter_mut().filter(|(_, kept)| !kept.held) {
            let deposited = holder.deposit(&Deposit { id: id.clone(), init: kept.init.clone(), device: kept.device.as_fd() });
            match deposited {
                Ok(()) => kept.held = true,
                Err(Error::Refused(why)) => tracing::warn!(%id, %why, "the holder refuses a mount, which ends with this process"),
                Err(error) => return self.lost(state, &error),
            }
        }
    }

    fn lost(&self, state: &mut MutexGuard<'_, State>, error: &Error) {
        state.holder = None;
        state.kept.values_mut().for_each(|kept| kept.held = false);
        if !std::mem::replace(&mut state.told, true) {
            tracing::warn!(%error, "the holder is gone: mounts end with this process until it is back");
        }
        self.wake.notify_all();
    }
}

/// A pipe through which the holder stores files of the mount `id`.
fn open_pipe(socket: &Path, id: &str) -> Result<OwnedFd> {
    let (read, write) = pipe2(OFlag::O_CLOEXEC)?;
    // With less room it is slower.
    let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(PIPE));
    fcntl(&write, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    Holder::connect(socket)?.store(id, read.as_fd())?;
    Ok(write)
}

/// Waits a moment for the end of the connection.
fn has_ended(holder: &Holder) -> bool {
    let mut watched = [PollFd::new(holder.as_fd(), PollFlags::empty())];
    // Answers belong to who asked; the end is told without being asked for.
    poll(&mut watched, PollTimeout::from(LOOK_UP)).is_ok_and(|n| n > 0)
}
