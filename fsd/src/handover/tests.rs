//! Holder, client and keeper with each other. A socket pair stands in for a mount: it ends when its other end is closed.

use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, connect, listen, recv, send, socket, socketpair,
};

use super::hold::{MOST_DEPOSITS, Server};
use super::message::{self, Answer, LONGEST, Request};
use super::*;

mod store;

/// What version 1 says, byte for byte: later releases must go on reading it.
const GOLDEN: &str = include_str!("golden/hold-1.jsonl");

fn start(dir: &Path) -> PathBuf {
    let path = dir.join("hold.sock");
    let server = Server::bind(&path).expect("listens");
    thread::spawn(move || server.run());
    path
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < end, "{what} does not happen");
        thread::sleep(Duration::from_millis(2));
    }
}

fn deposit<'a>(id: &str, device: &'a impl AsFd) -> Deposit<'a> {
    Deposit { id: id.to_owned(), init: vec![1, 2, 0xff], device: device.as_fd() }
}

fn raw(path: &Path) -> OwnedFd {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    connect(socket.as_raw_fd(), &UnixAddr::new(path).expect("a path")).expect("connects");
    socket
}

#[test]
fn what_was_deposited_is_collected_and_is_the_same_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let holder = Holder::connect(&start(dir.path())).expect("connects");
    let (device, mut other) = UnixStream::pair().expect("a pair");
    holder.deposit(&deposit("b", &device)).expect("is kept");
    holder.deposit(&deposit("a", &device)).expect("is kept");
    drop(device);
    let all = holder.collect().expect("answers");
    assert_eq!(all.iter().map(|held| held.id.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(all[1].init, [1, 2, 0xff]);
    other.write_all(b"x").expect("somebody holds it");
    let mut byte = [0];
    UnixStream::from(all.into_iter().next().expect("two").device).read_exact(&mut byte).expect("reads");
    assert_eq!(&byte, b"x");
    holder.withdraw("a").expect("answers");
    holder.withdraw("never there").expect("answers");
    assert_eq!(holder.collect().expect("answers").len(), 1);
}

fn notification(code: i32, unique: u64, body: &[u8]) -> Vec<u8> {
    let length = 16 + body.len() as u32;
    [&length.to_ne_bytes()[..], &code.to_ne_bytes(), &unique.to_ne_bytes(), body].concat()
}

#[test]
fn notifications_are_written_one_by_one_and_nothing_else_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = start(dir.path());
    // Messages stay apart, as with a mount.
    let (device, mount) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a pair");
    let keeper = Keeper::new(&path).expect("starts");
    keeper.deposit(&deposit("a", &device)).expect("is kept");
    let tell = keeper.messenger("a");
    let (entry, inode) = (notification(3, 0, b"entry"), notification(2, 0, b"inode"));
    assert!(tell(&[entry.clone(), inode.clone()].concat()));
    let mut buffer = [0; 64];
    for expected in [entry, inode] {
        let length = recv(mount.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("is there");
        assert_eq!(buffer[..length], expected);
    }
    let [answer, store] = [notification(0, 7, b""), notification(4, 0, b"data")];
    for refused in [&answer[..], &store, b"garbage", &notification(2, 0, b"inode")[..18]] {
        assert!(!tell(refused), "{refused:?}");
    }
    assert!(!keeper.messenger("b")(&notification(2, 0, b"inode")), "nobody deposited it");
    assert!(recv(mount.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).is_err(), "nothing else was written");
}

#[test]
fn a_notification_that_waits_keeps_nobody_else_waiting() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = start(dir.path());
    let (device, other) = UnixStream::pair().expect("a pair");
    Holder::connect(&path).expect("connects").deposit(&deposit("a", &device)).expect("is kept");
    // The pair takes no more, so that the next message waits as one for a locked directory does.
    device.set_nonblocking(true).expect("sets");
    while (&device).write(&[0; 4096]).is_ok() {}
    device.set_nonblocking(false).expect("sets");
    let telling = thread::spawn({
        let path = path.clone();
        move || Holder::connect(&path).expect("connects").notify("a", &notification(2, 0, b"inode"), &|| true)
    });
    assert_eq!(Holder::connect(&path).expect("connects").collect().expect("answers").len(), 1);
    assert!(!telling.is_finished());
    drop(other);
    // The mount is gone, which is no failure of the holder; it may have found that out before it was asked.
    match telling.join().expect("no panic") {
        Ok(()) | Err(Error::Refused(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_holder_that_does_not_answer_is_waited_for_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("hold.sock");
    let listener = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
    bind(listener.as_raw_fd(), &UnixAddr::new(&path).expect("a path")).expect("binds");
    listen(&listener, Backlog::new(8).expect("few")).expect("listens");
    // It answers whether it is there, until it is told to keep something; then it is stopped.
    let notified = Arc::new(AtomicUsize::new(0));
    let counted = notified.clone();
    let stopped = Arc::new(AtomicBool::new(false));
    thread::spawn(move || {
        while let Ok(number) = accept(listener.as_raw_fd()) {
            let (connection, stopped, counted) = (crate::sys::own(number), stopped.clone(), counted.clone());
            thread::spawn(move || {
                let mut buffer = vec![0; LONGEST];
                while let Ok((1.., device)) = crate::sys::receive(connection.as_fd(), &mut buffer) {
                    let text = String::from_utf8_lossy(&buffer);
                    counted.fetch_add(usize::from(text.contains("notify")), Ordering::SeqCst);
                    let answer = if device.is_some() { Answer::Done } else { Answer::End };
                    if !stopped.fetch_or(device.is_some(), Ordering::SeqCst) {
                        message::send(connection.as_fd(), &answer, None, MsgFlags::empty()).expect("somebody waits");
                    }
                    buffer.fill(0);
                }
            });
        }
    });
    let keeper = Keeper::new(&path).expect("starts");
    let (device, _other) = UnixStream::pair().expect("a pair");
    keeper.deposit(&deposit("a", &device)).expect("is kept");
    assert!(keeper.is_holding("a"));
    let tell = keeper.messenger("a");
    for _ in 0..3 {
        assert!(!tell(&notification(2, 0, b"inode")));
    }
    assert_eq!(notified.load(Ordering::SeqCst), 1);
}

#[test]
fn mounts_that_have_ended_are_dropped() {
    let dir = tempfile::tempdir().expect("a directory");
    let holder = Holder::connect(&start(dir.path())).expect("connects");
    let (device, other) = UnixStream::pair().expect("a pair");
    holder.deposit(&deposit("a", &device)).expect("is kept");
    drop((device, other));
    until("the drop", || holder.collect().expect("answers").is_empty());
}

#[test]
fn a_second_holder_is_refused_and_a_dead_ones_socket_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = start(dir.path());
    assert!(matches!(Server::bind(&path), Err(Error::Refused(_))));
    let other = dir.path().join("other");
    drop(Server::bind(&other).expect("listens"));
    assert!(matches!(Holder::connect(&other), Err(Error::Absent(_))));
    Server::bind(&other).expect("replaces it");
    let file = dir.path().join("file");
    std::fs::write(&file, "precious").expect("writes");
    assert!(Server::bind(&file).is_err());
    assert_eq!(std::fs::read(&file).expect("is there"), b"precious");
}

#[test]
fn garbage_and_silence_cost_the_others_nothing() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = start(dir.path());
    let (device, _other) = UnixStream::pair().expect("a pair");
    Holder::connect(&path).expect("connects").deposit(&deposit("a", &device)).expect("is kept");
    let silent: Vec<_> = (0..200).map(|_| raw(&path)).collect();
    for garbage in [&b"{"[..], b"\0\0\0\0", br#"{"v":2,"op":"collect","after":""}"#, br#"{"v":1,"op":"deposit","id":"x","init":""}"#] {
        let socket = raw(&path);
        send(socket.as_raw_fd(), garbage, MsgFlags::empty()).expect("sends");
        let (answer, device) = message::answer(socket.as_fd()).expect("answers");
        assert!(matches!(answer, Answer::Refused { .. }) && device.is_none(), "{answer:?}");
    }
    let socket = raw(&path);
    send(socket.as_raw_fd(), &[b' '; LONGEST + 1], MsgFlags::empty()).expect("sends");
    assert_eq!(recv(socket.as_raw_fd(), &mut [0; 64], MsgFlags::empty()), Ok(0), "too long a message ends the connection");
    // One that asks for ever and never reads an answer.
    let deaf = raw(&path);
    let question = message::encode(&Request::Collect { after: String::new() });
    while send(deaf.as_raw_fd(), &question, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL).is_ok() {}
    assert_eq!(Holder::connect(&path).expect("connects").collect().expect("answers").len(), 1);
    drop(silent);
}

#[test]
fn too_many_are_refused_and_replacing_is_not() {
    let dir = tempfile::tempdir().expect("a directory");
    let holder = Holder::connect(&start(dir.path())).expect("connects");
    let (device, _other) = UnixStream::pair().expect("a pair");
    for n in 0..MOST_DEPOSITS {
        holder.deposit(&deposit(&n.to_string(), &device)).expect("is kept");
    }
    assert!(matches!(holder.deposit(&deposit("one more", &device)), Err(Error::Refused(_))));
    holder.deposit(&deposit("7", &device)).expect("replaces");
    assert_eq!(holder.collect().expect("answers").len(), MOST_DEPOSITS);
}

#[test]
fn a_keeper_deposits_everything_again_when_the_holder_was_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("hold.sock");
    let keeper = Keeper::new(&path).expect("starts");
    let (device, _other) = UnixStream::pair().expect("a pair");
    keeper.deposit(&deposit("a", &device)).expect("no holder is no error");
    assert!(!keeper.is_holding("a") && keeper.collect().expect("nothing").is_empty());
    for _ in 0..2 {
        let server = Server::bind(&path).expect("listens");
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            sender.send(nix::unistd::gettid()).expect("somebody waits");
            server.run()
        });
        let id = receiver.recv().expect("runs");
        until("the deposit", || keeper.is_holding("a"));
        assert_eq!(Holder::connect(&path).expect("connects").collect().expect("answers").len(), 1);
        crate::sys::signal_thread(id.as_raw(), nix::sys::signal::Signal::SIGTERM);
        thread.join().expect("no panic").expect("ends well");
        until("the loss", || !keeper.is_connected());
        assert!(!keeper.is_holding("a"));
    }
}

#[test]
fn version_1_is_understood_byte_for_byte() {
    let (id, init) = ("view-1".to_owned(), vec![0x68, 0, 0xff]);
    let requests = [
        Request::Deposit { id: id.clone(), init: init.clone() },
        Request::Collect { after: String::new() },
        Request::Withdraw { id: id.clone() },
        Request::Notify { id: id.clone(), messages: vec![0x10, 0, 0, 0] },
        Request::Store { id: id.clone() },
    ];
    let answers = [Answer::Done, Answer::Held { id, init }, Answer::End, Answer::Refused { why: "too many".into() }];
    let mut lines = GOLDEN.lines();
    for request in requests {
        assert_eq!(message::decode(lines.next().expect("a line").as_bytes()), Ok(request));
    }
    for answer in answers {
        assert_eq!(message::decode(lines.next().expect("a line").as_bytes()), Ok(answer));
    }
    assert_eq!(lines.next(), None);
}

#[test]
fn a_newer_version_is_refused_by_name() {
    let error = message::decode::<Request>(br#"{"v":9,"op":"collect","after":""}"#).expect_err("is newer");
    assert!(error.contains('9') && error.contains('1'), "{error}");
}
