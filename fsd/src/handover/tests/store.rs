//! Files that come through a pipe.

use std::fs::File;

use super::*;
use crate::handover::hold::MOST_STORERS;

fn store(node: u64, data: &[u8]) -> Vec<u8> {
    let length = data.len() as u32;
    let body = [&node.to_ne_bytes()[..], &0u64.to_ne_bytes(), &length.to_ne_bytes(), &[0; 4], data].concat();
    notification(4, 0, &body)
}

/// A holder that keeps `a`, a mount whose messages stay apart.
fn scene() -> (tempfile::TempDir, Keeper, OwnedFd) {
    let dir = tempfile::tempdir().expect("a directory");
    let keeper = Keeper::new(&start(dir.path())).expect("starts");
    let (device, mount) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).expect("a pair");
    keeper.deposit(&deposit("a", &device)).expect("is kept");
    (dir, keeper, mount)
}

fn next(mount: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; 256 << 10];
    let length = recv(mount.as_raw_fd(), &mut buffer, MsgFlags::empty()).expect("is there");
    buffer.truncate(length);
    buffer
}

fn nothing_more(mount: &OwnedFd) {
    assert!(recv(mount.as_raw_fd(), &mut [0; 64], MsgFlags::MSG_DONTWAIT).is_err(), "something was written");
}

#[test]
fn files_are_handed_on_one_by_one_whatever_the_pieces_they_come_in() {
    let (_dir, keeper, mount) = scene();
    let mut pipe = File::from(keeper.courier("a")().expect("is taken"));
    let files = [store(7, b"one"), store(8, &[1; 100_000]), store(9, b"")];
    let whole = files.concat();
    for piece in whole.chunks(40_001) {
        pipe.write_all(piece).expect("there is room");
    }
    for expected in &files {
        assert!(next(&mount) == *expected);
    }
    // A daemon that is killed leaves half of one.
    pipe.write_all(&store(10, b"half")[..41]).expect("there is room");
    drop(pipe);
    let mut pipe = File::from(keeper.courier("a")().expect("is taken"));
    pipe.write_all(&files[0]).expect("there is room");
    assert_eq!(next(&mount), files[0]);
    nothing_more(&mount);
}

#[test]
fn what_stores_nothing_ends_the_pipe() {
    let (_dir, keeper, mount) = scene();
    let long = store(1, &vec![0; (128 << 10) + 1]);
    let mut other_length = store(1, b"data");
    other_length[0] += 1;
    for garbage in [notification(2, 0, &[0; 40]), notification(4, 7, &[0; 24]), long, other_length, vec![b'x'; 64]] {
        let mut pipe = File::from(keeper.courier("a")().expect("is taken"));
        let good = store(3, b"good");
        pipe.write_all(&good).expect("there is room");
        assert_eq!(next(&mount), good);
        pipe.write_all(&garbage).expect("there is room");
        until("the end of the pipe", || (&pipe).write(&good).is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe));
        nothing_more(&mount);
    }
}

#[test]
fn there_are_pipes_for_some_mounts_at_once_and_for_those_that_are_kept() {
    let (_dir, keeper, _mount) = scene();
    assert!(keeper.courier("b")().is_none(), "nobody deposited it");
    let mut pipes: Vec<_> = (0..MOST_STORERS).map(|_| keeper.courier("a")().expect("is taken")).collect();
    assert!(keeper.courier("a")().is_none(), "one too many");
    drop(pipes.pop());
    until("the end of a pipe", || keeper.courier("a")().is_some());
}

#[test]
fn storing_that_waits_keeps_nobody_else_waiting() {
    let (dir, keeper, mount) = scene();
    let pipe = File::from(keeper.courier("a")().expect("is taken"));
    // The mount takes no more, as while a reader has the page.
    until("a full mount", || (&pipe).write_all(&store(1, &[0; 50_000])).is_err());
    assert_eq!(Holder::connect(&dir.path().join("hold.sock")).expect("connects").collect().expect("answers").len(), 1);
    drop(mount);
    until("the drop of the mount", || keeper.courier("a")().is_none());
}
