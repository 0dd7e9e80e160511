//! What is measured of a daemon.

use crate::view::Switched;

/// All metrics.
#[derive(Debug, Default)]
pub struct Metrics {}

impl Metrics {
    /// A view moved.
    pub fn switched(&self, _switched: &Switched) {}

    /// A host refused a credential.
    pub fn refused(&self) {}
}
