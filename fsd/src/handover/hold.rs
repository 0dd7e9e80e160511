//! The holder: keeps descriptors for as long as their mounts live, and tells the kernel of changes in them.
//!
//! One thread answers: a connection costs one descriptor until its first message, and nothing is ever waited for. When there
//! are too many connections the one that was silent for longest is closed.
//!
//! Telling the kernel is here for one reason: it waits, whatever the signal, for the lock of a directory, and who has that lock may wait for an answer of
//! the daemon. Were it the daemon that tells, one that is killed at this moment could not end, and so not be started again, before it was
//! answered by itself. The holder lives on, and the next daemon answers. Each such request has a thread of its own. Storing files in the page
//! cache is here for the same reason.

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::io;
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, getsockopt, listen, socket, sockopt,
};
use nix::unistd::Uid;

use super::client::Holder;
use super::crew::Crew;
use super::message::{self, Answer, LONGEST, LONGEST_ID, LONGEST_INIT, Request};
use super::{Error, Result, store};
use crate::fuse::{is_gone, split_notifications};
use crate::sys;

/// Descriptors kept at most.
pub const MOST_DEPOSITS: usize = 4096;
/// Connections at most.
const MOST_CONNECTIONS: usize = 64;
/// How often it is looked for mounts that have ended, in milliseconds.
const LOOK: u16 = 2000;
/// Waiting connections.
const BACKLOG: i32 = 64;

/// Threads that tell the kernel.
const MOST_TELLERS: usize = 256;
/// Mounts for which files are stored at once.
pub const MOST_STORERS: usize = 8;

struct Crews {
    tellers: Crew,
    storers: Crew,
}

struct Kept {
    init: Vec<u8>,
    /// Shared with the threads that write to it.
    device: Arc<OwnedFd>,
}

/// A holder that listens.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    listener: OwnedFd,
    ending: SignalFd,
}

/// Holds until SIGTERM or SIGINT, on a socket at `path`.
///
/// # Errors
/// As [`Server::bind`].
pub fn serve(path: &Path) -> Result<()> {
    Server::bind(path)?.run()
}

impl Server {
    /// Listens on `path`, in place of a socket that nobody listens on. From now on SIGTERM and SIGINT wait for [`Server::run`]: call this before other
    /// threads are started.
    ///
    /// # Errors
    /// When another holder listens there, or the socket cannot be made.
    pub fn bind(path: &Path) -> Result<Self> {
        match Holder::connect(path) {
            Ok(_) => return Err(Error::Refused(format!("a holder listens on {} already", path.display()))),
            Err(Error::Absent(_)) => {}
            // Another kind of socket has its owner, too.
            Err(error) => return Err(error),
        }
        match fs::symlink_metadata(path) {
            Ok(there) if std::os::unix::fs::FileTypeExt::is_socket(&there.file_type()) => fs::remove_file(path)?,
            Ok(_) => return Err(Error::Refused(format!("{} exists and is no socket", path.display()))),
            Err(_) => {}
        }
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
        // Whoever comes before this is asked for his user, too.
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        listen(&listener, Backlog::new(BACKLOG)?)?;
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        if soft < hard {
            setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
        }
        let mut signals = SigSet::empty();
        signals.add(Signal::SIGTERM);
        signals.add(Signal::SIGINT);
        signals.thread_block()?;
        let ending = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Server { path: path.to_owned(), listener, ending })
    }

    /// Holds until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// When the system cannot wait for messages any more.
    pub fn run(self) -> Result<()> {
        let mut kept: BTreeMap<String, Kept> = BTreeMap::new();
        let crews = Crews { tellers: Crew::new("tell", MOST_TELLERS), storers: Crew::new("store", MOST_STORERS) };
        // The one that was silent for longest comes first.
        let mut connections: Vec<OwnedFd> = Vec::new();
        loop {
            let mut watched =
                vec![PollFd::new(self.ending.as_fd(), PollFlags::POLLIN), PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
            watched.extend(connections.iter().map(|c| PollFd::new(c.as_fd(), PollFlags::POLLIN)));
            let wait = if kept.is_empty() { PollTimeout::NONE } else { PollTimeout::from(LOOK) };
            match poll(&mut watched, wait) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
            let happened: Vec<PollFlags> = watched.iter().map(|w| w.revents().unwrap_or(PollFlags::empty())).collect();
            if !happened[0].is_empty() {
                // The next holder replaces the file if this fails.
                let _ = fs::remove_file(&self.path);
                return Ok(());
            }
            // After the wait, since any request of the kernel would end a wait for them.
            kept.retain(|_, kept| !is_gone(kept.device.as_fd()));
            let mut spoke = happened[2..].iter().map(|events| !events.is_empty());
            let (speaking, mut silent): (Vec<_>, Vec<_>) =
                std::mem::take(&mut connections).into_iter().partition(|_| spoke.next().unwrap_or(false));
            silent.extend(speaking.into_iter().filter_map(|connection| answer(connection, &mut kept, &crews)));
            connections = silent;
            if !happened[1].is_empty() {
                self.accept(&mut connections);
            }
        }
    }

    fn accept(&self, connections: &mut Vec<OwnedFd>) {
        let Ok(number) = accept4(self.listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK) else {
            if connections.len() > 1 {
                // Most likely there are too many descriptors.
                connections.remove(0);
            }
            return;
        };
        let connection = sys::own(number);
        let peer = getsockopt(&connection, sockopt::PeerCredentials);
        if !peer.is_ok_and(|peer| [Uid::effective(), Uid::from_raw(0)].contains(&Uid::from_raw(peer.uid()))) {
            return;
        }
        if connections.len() >= MOST_CONNECTIONS {
            connections.remove(0);
        }
        connections.push(connection);
    }
}

/// Reads one request and answers it; nothing comes back when the connection has ended or is somebody else's now.
fn answer(connection: OwnedFd, kept: &mut BTreeMap<String, Kept>, crews: &Crews) -> Option<OwnedFd> {
    let mut buffer = vec![0; LONGEST];
    let (length, device) = match sys::receive(connection.as_fd(), &mut buffer) {
        Ok((0, _)) => return None,
        Ok(received) => received,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(connection),
        Err(_) => return None,
    };
    let refused = |why: String| (Answer::Refused { why }, None);
    let (answer, device) = match (message::decode(&buffer[..length]), device) {
        (Err(why), _) => refused(why),
        (Ok(Request::Deposit { .. }), None) => refused("a deposit comes with a descriptor".into()),
        (Ok(Request::Deposit { id, init }), Some(device)) => {
            if id.is_empty() || id.len() > LONGEST_ID || init.len() > LONGEST_INIT {
                refused(format!("a name has 1 to {LONGEST_ID} bytes, a greeting at most {LONGEST_INIT}"))
            } else if kept.len() >= MOST_DEPOSITS && !kept.contains_key(&id) {
                refused(format!("{MOST_DEPOSITS} descriptors are kept already"))
            } else {
                kept.insert(id, Kept { init, device: Arc::new(device) });
                (Answer::Done, None)
            }
        }
        (Ok(Request::Collect { after }), _) => match kept.range::<str, _>((Bound::Excluded(after.as_str()), Bound::Unbounded)).next() {
            Some((id, next)) => (Answer::Held { id: id.clone(), init: next.init.clone() }, Some(next.device.as_fd())),
            None => (Answer::End, None),
        },
        (Ok(Request::Withdraw { id }), _) => {
            kept.remove(&id);
            (Answer::Done, None)
        }
        (Ok(Request::Notify { id, messages }), _) => {
            match (kept.get(&id).map(|kept| Arc::clone(&kept.device)), split_notifications(&messages)) {
                (None, _) => refused(format!("{id} is not kept")),
                (_, None) => refused("these are no notifications".into()),
                (Some(device), Some(_)) => return tell(connection, device, messages, &crews.tellers),
            }
        }
        (Ok(Request::Store { .. }), None) => refused("what is to be stored comes through a pipe".into()),
        (Ok(Request::Store { id }), Some(pipe)) => match kept.get(&id).map(|kept| Arc::clone(&kept.device)) {
            None => refused(format!("{id} is not kept")),
            Some(device) => (store_from(pipe, device, &crews.storers), None),
        },
    };
    // Who does not read his answers is not waited for.
    message::send(connection.as_fd(), &answer, device, MsgFlags::MSG_DONTWAIT).ok()?;
    Some(connection)
}

/// Tells the kernel in a thread of its own, which then answers and ends the connection; gives that back when there is none to be had.
fn tell(connection: OwnedFd, device: Arc<OwnedFd>, messages: Vec<u8>, tellers: &Crew) -> Option<OwnedFd> {
    let Some(place) = tellers.place() else {
        let answer = Answer::Refused { why: "too many notifications wait".into() };
        message::send(connection.as_fd(), &answer, None, MsgFlags::MSG_DONTWAIT).ok()?;
        return Some(connection);
    };
    tellers.start(place, move || {
        for message in split_notifications(&messages).into_iter().flatten() {
            // That the kernel does not know the entry, or that the mount is gone, is as good as told.
            let _ = nix::unistd::write(&device, message);
        }
        drop(device);
        // Who asked may be gone by now.
        let _ = message::send(connection.as_fd(), &Answer::Done, None, MsgFlags::MSG_DONTWAIT);
    });
    None
}

/// Has a thread of its own store what comes through `pipe`.
fn store_from(pipe: OwnedFd, device: Arc<OwnedFd>, storers: &Crew) -> Answer {
    let started = storers.place().is_some_and(|place| storers.start(place, move || store::carry(&pipe, &device)));
    if started { Answer::Done } else { Answer::Refused { why: "files are stored for too many mounts already".into() } }
}
