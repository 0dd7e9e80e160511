//! What newer kernels offer beyond the protocol's least, and what is lost without it. The table for users is docs/kernels.md.
//!
//! Each is asked for at INIT and can be left out by name, so that tests see what an older kernel gives.

use std::str::FromStr;
use std::sync::atomic::{AtomicU32, Ordering};

use fuser::InitFlags;

/// Something that not every kernel offers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Feature {
    /// Listings bring attributes along.
    Readdirplus,
    /// Files are opened without a message.
    NoOpen,
    /// Targets of links are cached.
    CacheSymlinks,
    /// Directories are opened without a message, and their listings cached.
    NoOpendir,
    /// A name can be looked up anew without a loss of what is mounted below.
    ExpireOnly,
    /// Requests that a killed process had read can be had again.
    Resend,
    /// Mounts with mapped owners, as pods in user namespaces have them.
    AllowIdmap,
}

impl Feature {
    /// All of them, the oldest first.
    pub const ALL: [Feature; 7] = [
        Feature::Readdirplus,
        Feature::NoOpen,
        Feature::CacheSymlinks,
        Feature::NoOpendir,
        Feature::ExpireOnly,
        Feature::Resend,
        Feature::AllowIdmap,
    ];

    /// Its name in options.
    pub fn name(self) -> &'static str {
        match self {
            Feature::Readdirplus => "readdirplus",
            Feature::NoOpen => "no-open",
            Feature::CacheSymlinks => "cache-symlinks",
            Feature::NoOpendir => "no-opendir",
            Feature::ExpireOnly => "expire-only",
            Feature::Resend => "resend",
            Feature::AllowIdmap => "allow-idmap",
        }
    }

    /// What is logged without it: what it is, since when, and what is different.
    pub fn sentence(self) -> &'static str {
        match self {
            Feature::Readdirplus => {
                "this kernel has no FUSE_READDIRPLUS (Linux 3.9): the first walk of a tree asks for the attributes of each name by itself"
            }
            Feature::NoOpen => "this kernel has no FUSE_NO_OPEN_SUPPORT (Linux 3.16): each opening and closing of a file costs a message",
            Feature::CacheSymlinks => "this kernel has no FUSE_CACHE_SYMLINKS (Linux 4.20): each use of a symbolic link costs a message",
            Feature::NoOpendir => {
                "this kernel has no FUSE_NO_OPENDIR_SUPPORT (Linux 5.1): each opening and closing of a directory costs a message"
            }
            Feature::ExpireOnly => {
                "this kernel has no FUSE_EXPIRE_ONLY (Linux 6.2): a switch unmounts what is mounted below names that it changes"
            }
            Feature::Resend => {
                "this kernel has no FUSE_NOTIFY_RESEND (Linux 6.9): readers that wait when this process is killed wait until the mount ends"
            }
            Feature::AllowIdmap => {
                "this kernel has no FUSE_ALLOW_IDMAP (Linux 6.12): the mount cannot be given to pods with user namespaces of their own"
            }
        }
    }

    pub(super) fn flag(self) -> InitFlags {
        match self {
            Feature::Readdirplus => InitFlags::FUSE_DO_READDIRPLUS,
            Feature::NoOpen => InitFlags::FUSE_NO_OPEN_SUPPORT,
            Feature::CacheSymlinks => InitFlags::FUSE_CACHE_SYMLINKS,
            Feature::NoOpendir => InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            Feature::ExpireOnly => InitFlags::FUSE_HAS_EXPIRE_ONLY,
            Feature::Resend => InitFlags::FUSE_HAS_RESEND,
            Feature::AllowIdmap => InitFlags::FUSE_ALLOW_IDMAP,
        }
    }

    fn bit(self) -> u32 {
        1 << self as u32
    }
}

/// A name that is no feature's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("kernel feature {0:?} is unknown: give some of readdirplus, no-open, cache-symlinks, no-opendir, expire-only, resend, allow-idmap")]
pub struct UnknownFeature(String);

impl FromStr for Feature {
    type Err = UnknownFeature;

    fn from_str(name: &str) -> Result<Self, UnknownFeature> {
        Feature::ALL.into_iter().find(|f| f.name() == name).ok_or_else(|| UnknownFeature(name.to_owned()))
    }
}

/// What was agreed on with the kernel at INIT; nothing before.
#[derive(Debug, Default)]
pub(super) struct Features(AtomicU32);

impl Features {
    /// Notes what was granted, and says of each of `wanted` that is missing what that costs.
    pub(super) fn agree(&self, wanted: &[Feature], granted: InitFlags) {
        for feature in wanted {
            if granted.contains(feature.flag()) {
                self.0.fetch_or(feature.bit(), Ordering::Relaxed);
            } else {
                tracing::warn!("{}", feature.sentence());
            }
        }
    }

    pub(super) fn have(&self, feature: Feature) -> bool {
        self.0.load(Ordering::Relaxed) & feature.bit() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for feature in Feature::ALL {
            assert_eq!(feature.name().parse(), Ok(feature));
        }
        let error = "open".parse::<Feature>().unwrap_err().to_string();
        assert!(Feature::ALL.iter().all(|f| error.contains(f.name())) && error.contains("\"open\""), "{error}");
    }

    #[test]
    fn the_guide_has_every_feature_with_its_sentence() {
        let guide = include_str!("../../../docs/kernels.md");
        for feature in Feature::ALL {
            assert!(guide.contains(&format!("`{}`", feature.name())), "{}", feature.name());
            assert!(guide.contains(feature.sentence()), "{}", feature.sentence());
        }
    }

    #[test]
    fn what_was_not_granted_is_not_there() {
        let features = Features::default();
        assert!(!features.have(Feature::NoOpen));
        features.agree(&Feature::ALL, InitFlags::FUSE_NO_OPEN_SUPPORT | InitFlags::FUSE_ALLOW_IDMAP);
        let have: Vec<_> = Feature::ALL.into_iter().filter(|f| features.have(*f)).collect();
        assert_eq!(have, [Feature::NoOpen, Feature::AllowIdmap]);
    }
}
