//! Counts the kernel's messages, by operation.

use std::sync::atomic::{AtomicU64, Ordering};

/// Requests the kernel has sent so far, by operation, sorted by name; only those that happened.
pub type RequestCounts = Vec<(&'static str, u64)>;

macro_rules! operations {
    ($($variant:ident $name:literal),* $(,)?) => {
        /// What the kernel asks for.
        #[derive(Debug, Clone, Copy)]
        #[repr(usize)]
        pub(super) enum Operation { $(#[doc = $name] $variant),* }

        const NAMES: &[&str] = &[$($name),*];
    };
}

operations! {
    Access "access", Forget "forget", Getattr "getattr", Getxattr "getxattr", Ioctl "ioctl", Listxattr "listxattr", Lookup "lookup",
    Lseek "lseek", Open "open", Opendir "opendir", Other "other", Read "read", Readdir "readdir", Readdirplus "readdirplus",
    Readlink "readlink", Statfs "statfs", Write "write",
}

/// The counters of one mount.
#[derive(Debug)]
pub(super) struct Requests([AtomicU64; NAMES.len()]);

impl Default for Requests {
    fn default() -> Self {
        Requests(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

impl Requests {
    pub(super) fn add(&self, operation: Operation) {
        self.0[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counts(&self) -> RequestCounts {
        let all = NAMES.iter().zip(&self.0).map(|(name, count)| (*name, count.load(Ordering::Relaxed)));
        all.filter(|(_, count)| *count > 0).collect()
    }
}
