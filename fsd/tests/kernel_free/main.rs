//! The file system without a kernel: its answers, what it tells the kernel, what it stores ahead.

mod caches;
mod fixture;
mod gate;
mod interleaving;
mod model;
mod prefetch;
mod snapshots;
mod switches;
mod trees;
