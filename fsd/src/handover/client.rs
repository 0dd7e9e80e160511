//! Asks the holder. A holder that does not answer is given up after some seconds.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt, setsockopt, socket, sockopt};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::geteuid;

use super::message::{self, Answer, LONGEST_ID, LONGEST_INIT, Request};
use super::{Deposit, Error, Held, Result};

/// Seconds.
const PATIENCE: i64 = 5;

/// A connection to the holder.
#[derive(Debug)]
pub struct Holder {
    socket: OwnedFd,
}

impl AsFd for Holder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Holder {
    /// Connects.
    ///
    /// # Errors
    /// [`Error::Absent`] when no holder listens there, [`Error::Stranger`] when somebody else does.
    pub fn connect(path: &Path) -> Result<Self> {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
        let limit = TimeVal::seconds(PATIENCE);
        setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
        setsockopt(&socket, sockopt::SendTimeout, &limit)?;
        match connect(socket.as_raw_fd(), &UnixAddr::new(path)?) {
            Ok(()) => {
                let peer = getsockopt(&socket, sockopt::PeerCredentials)?.uid();
                let trusted = peer == 0 || peer == geteuid().as_raw();
                if trusted { Ok(Holder { socket }) } else { Err(Error::Stranger(path.to_owned(), peer)) }
            }
            Err(Errno::ENOENT | Errno::ECONNREFUSED) => Err(Error::Absent(path.to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    fn ask(&self, request: &Request, device: Option<BorrowedFd<'_>>) -> Result<(Answer, Option<OwnedFd>)> {
        message::send(self.socket.as_fd(), request, device, MsgFlags::empty())?;
        match message::answer(self.socket.as_fd())? {
            (Answer::Refused { why }, _) => Err(Error::Refused(why)),
            other => Ok(other),
        }
    }

    fn done(&self, request: &Request, device: Option<BorrowedFd<'_>>) -> Result<()> {
        match self.ask(request, device)? {
            (Answer::Done, _) => Ok(()),
            (other, _) => Err(Error::Garbled(format!("{other:?}"))),
        }
    }

    /// Has it keep a descriptor.
    ///
    /// # Errors
    /// [`Error::Refused`] when it has too many already.
    pub fn deposit(&self, deposit: &Deposit<'_>) -> Result<()> {
        if deposit.id.is_empty() || deposit.id.len() > LONGEST_ID || deposit.init.len() > LONGEST_INIT {
            return Err(Error::Refused(format!("a name has 1 to {LONGEST_ID} bytes, a greeting at most {LONGEST_INIT}")));
        }
        self.done(&Request::Deposit { id: deposit.id.clone(), init: deposit.init.clone() }, Some(deposit.device))
    }

    /// Everything it keeps, in the order of the names; it goes on keeping it.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn collect(&self) -> Result<Vec<Held>> {
        let mut all: Vec<Held> = Vec::new();
        loop {
            let after = all.last().map_or_else(String::new, |held| held.id.clone());
            match self.ask(&Request::Collect { after: after.clone() }, None)? {
                (Answer::End, _) => return Ok(all),
                (Answer::Held { id, init }, Some(device)) if id > after => all.push(Held { id, init, device }),
                (other, _) => return Err(Error::Garbled(format!("{other:?}"))),
            }
        }
    }

    /// Whether it answers at all: one that is stopped takes connections, too.
    ///
    /// # Errors
    /// When it does not.
    pub fn answers(&self) -> Result<()> {
        // After the last name that there can be.
        self.ask(&Request::Collect { after: char::MAX.to_string() }, None).map(drop)
    }

    /// Has it tell the kernel of changes in the mount `id`: notification messages, one after the other. Waits until all are told, for ever if need
    /// be, while `is_there` says that the holder answers others; ends this connection.
    ///
    /// # Errors
    /// When it does not keep `id`, or the messages are none, or it is stopped; then it may tell later, which does no harm.
    pub fn notify(self, id: &str, messages: &[u8], is_there: &dyn Fn() -> bool) -> Result<()> {
        message::send(self.socket.as_fd(), &Request::Notify { id: id.to_owned(), messages: messages.to_vec() }, None, MsgFlags::empty())?;
        loop {
            return match message::answer(self.socket.as_fd()) {
                Ok((Answer::Done, _)) => Ok(()),
                Ok((Answer::Refused { why }, _)) => Err(Error::Refused(why)),
                Ok((other, _)) => Err(Error::Garbled(format!("{other:?}"))),
                Err(Error::Io(error)) if error.kind() == std::io::ErrorKind::WouldBlock && is_there() => continue,
                Err(error) => Err(error),
            };
        }
    }

    /// Has it store in the page cache of the mount `id` what is written into the other end of `pipe`.
    ///
    /// # Errors
    /// [`Error::Refused`] when it does not keep `id`, does so for too many mounts already, or is of an earlier release.
    pub fn store(&self, id: &str, pipe: BorrowedFd<'_>) -> Result<()> {
        self.done(&Request::Store { id: id.to_owned() }, Some(pipe))
    }

    /// Has it keep `id` no longer; nothing happens when it does not.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn withdraw(&self, id: &str) -> Result<()> {
        self.done(&Request::Withdraw { id: id.to_owned() }, None)
    }
}
