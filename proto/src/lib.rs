//! What gitmount's processes say to each other: types generated from the `.proto` files, and the client side of a unix socket.
//!
//! - [`fsd::v1`]: the control socket of a process that serves mounts (`fsd/v1/control.proto`).
//! - [`csi::v1`] and [`pluginregistration`]: what the kubelet asks a volume plugin for.
//! - `secret`: messages with a credential print without it.
//! - [`socket`]: a channel to a server on a unix socket.
//! - [`mount_table`]: the kernel's table of mounts, in which both sides of the control socket look targets up.

pub mod mount_table;
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

/// The Container Storage Interface.
pub mod csi {
    /// Version 1 of `csi`.
    #[allow(missing_docs, clippy::all, unused_qualifications, rustdoc::all)]
    pub mod v1 {
        tonic::include_proto!("csi.v1");
    }
}

/// Registration of plugins with the kubelet.
#[allow(missing_docs, clippy::all, unused_qualifications, rustdoc::all)]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}
