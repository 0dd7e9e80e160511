//! What a service tells its supervisor: `sd_notify(3)`, one datagram to `$NOTIFY_SOCKET`. Without that variable nothing is told.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Tells `state`, such as `READY=1`. That nobody listens is logged and no error.
pub fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, "the supervisor at $NOTIFY_SOCKET cannot be told that {state}");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        // An abstract socket.
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_sockets_get_the_datagram() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let name = format!("gitmount-test-{}", std::process::id());
        let named = UnixDatagram::bind(&path).unwrap();
        let hidden = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, receiver) in [(path.clone().into_os_string(), named), (format!("@{name}").into(), hidden)] {
            send(&socket, "READY=1").unwrap();
            let mut buffer = [0; 64];
            let length = receiver.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], b"READY=1");
        }
        assert!(send(dir.path().join("missing").as_os_str(), "READY=1").is_err());
    }
}
