//! Bare git repositories as an object store: fetching, refs, objects and maintenance, without any file system.
//!
//! The map:
//!
//! - [`url`], [`refspec`], [`ids`], [`path`]: the names that come from outside, parsed once at the border.
//! - [`credential`]: secrets and how they are offered to a host; they print redacted and live in memory only.
//! - [`known_hosts`]: which keys SSH hosts may show.
//! - [`store`]: the directory of repositories; [`repository`]: one bare repository, its refs and pins.
//! - [`fetch`]: resolve a ref at the remote and bring its objects; `transport`: the wire below it.
//! - [`local`]: a repository of the user's on the local disk, opened read-only.
//! - [`objects`]: read commits, trees and blobs; big blobs as a stream; `packing`: packs on their way in; `points`: where inflating
//!   can start in the middle.
//! - [`maintenance`]: `gc` and `verify`.
//! - [`error`]: one error for the crate, with whose fault it is.
#![forbid(unsafe_code)]

pub mod credential;
pub mod error;
pub mod fetch;
pub mod ids;
pub mod known_hosts;
pub mod local;
pub mod maintenance;
pub mod objects;
mod packing;
pub mod path;
mod points;
pub mod refspec;
pub mod repository;
pub mod store;
pub(crate) mod transport;
pub mod url;

pub use error::{Fault, StoreError};
