//! The service and its client over a real socket, with operations that only record.

use std::time::Duration;

use gitmount_store::Fault;

use super::super::{Failure, client::Client};
use super::*;

struct Fake;

impl Operations for Fake {
    fn views(&self) -> Vec<proto::View> {
        vec![proto::View { url: "https://example.com/a.git".into(), mounts: vec![b"/mnt/\xff".to_vec()], ..Default::default() }]
    }

    fn pull(&self, target: &Path) -> Option<Result<proto::Pulled, Failure>> {
        match target.to_str() {
            Some("/mnt/ok") => Some(Ok(proto::Pulled { old: "a".into(), new: "b".into(), changed: 3 })),
            Some("/mnt/down") => Some(Err(Failure::new(Fault::Unreachable, "host \"example.com\" does not answer"))),
            _ => None,
        }
    }

    fn unmount(&self, _: &Path, lazy: bool) -> Option<Result<(), Failure>> {
        Some(if lazy { Ok(()) } else { Err(Failure::new(Fault::Usage, "busy")) })
    }

    fn statistics(&self, _: &Path) -> Option<proto::StatisticsResponse> {
        Some(proto::StatisticsResponse { fetches: 7, ..Default::default() })
    }
}

#[test]
fn every_operation_reaches_its_method_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Server::start(runtime.handle(), UnixListener::bind(&path).unwrap(), Arc::new(Fake)).unwrap();

    let mut client = Client::connect(&path).unwrap();
    let status = client.status().unwrap();
    assert_eq!(status.pid, std::process::id());
    assert_eq!(status.views[0].mounts, [b"/mnt/\xff".to_vec()]);
    assert_eq!(client.pull(Path::new("/mnt/ok")).unwrap().new, "b");
    let down = client.pull(Path::new("/mnt/down")).unwrap_err();
    assert_eq!((down.fault(), down.to_string().as_str()), (Fault::Unreachable, "host \"example.com\" does not answer"));
    assert_eq!(client.pull(Path::new("/mnt/other")).unwrap_err().fault(), Fault::NotFound);
    assert!(client.unmount(Path::new("/mnt/ok"), true).is_ok());
    assert_eq!(client.unmount(Path::new("/mnt/ok"), false).unwrap_err().to_string(), "busy");
    assert_eq!(client.statistics(Path::new("/mnt/ok")).unwrap().fetches, 7);

    // A client that stays connected does not hold the server up.
    runtime.block_on(server.stop(Duration::from_millis(500)));
    assert!(Client::connect(&path).is_err());
}

#[test]
fn garbage_on_the_socket_harms_nobody() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _server = Server::start(runtime.handle(), UnixListener::bind(&path).unwrap(), Arc::new(Fake)).unwrap();
    let mut garbage = std::os::unix::net::UnixStream::connect(&path).unwrap();
    garbage.write_all(&[0xff; 4096]).unwrap();
    garbage.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    // Whatever it answers, it closes the connection.
    let mut answer = Vec::new();
    let _ = garbage.read_to_end(&mut answer);
    let half_open = std::os::unix::net::UnixStream::connect(&path).unwrap();
    assert_eq!(Client::connect(&path).unwrap().status().unwrap().views.len(), 1);
    drop(half_open);
}

#[test]
fn only_the_same_user_and_root_may_ask() {
    let (me, root, other) = (Uid::from_raw(1000), Uid::from_raw(0), Uid::from_raw(1001));
    assert!(allowed(me, me) && allowed(me, root) && !allowed(me, other) && !allowed(root, me));
}
