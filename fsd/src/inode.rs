//! Versioned node ids: what a node id stands for never changes under it.
