//! Container images without a container engine: files go into a layer, and the image into one tar that is an OCI image layout and what
//! `docker load` reads at the same time.
//!
//! Equal files give equal bytes: entries are sorted and have no times, owners or names of this machine.
//!
//! - [`image`]: what is in an image, and how it is written.
//! - [`tar`]: the archive format, as much of it as images need.
//! - [`release`]: the image of gitmount itself.

pub mod image;
pub mod release;
pub mod tar;
