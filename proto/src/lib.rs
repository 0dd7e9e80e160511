//! What gitmount's processes say to each other: types generated from the `.proto` files, and the client side of a unix socket.
//!
//! - [`fsd::v1`]: the control socket of a process that serves mounts (`fsd/v1/control.proto`).
//! - `secret`: messages with a credential print without it.
//! - [`socket`]: a channel to a server on a unix socket.

mod secret;
pub mod socket;

/// The file system daemon.
pub mod fsd {
    /// Version 1 of `gitmount.fsd`.
    #[allow(missing_docs, clippy::all, unused_qualifications, rustdoc::all)]
    pub mod v1 {
        tonic::include_proto!("gitmount.fsd.v1");
    }
}
