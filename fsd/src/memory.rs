//! How the process takes memory from the system.
//!
//! Inflated blobs come and go in sizes up to some MiB. With the C library's defaults they leave holes in one heap a thread; these settings
//! give every buffer above 256 KiB back as soon as it is dropped and keep the heaps few.

/// Sets the allocator up. Call it before threads are started.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
pub fn set_up() {
    const HEAPS: i32 = 2;
    const OWN_MAPPING_FROM: i32 = 256 << 10;
    const TRIM_FROM: i32 = 1 << 20;
    for (parameter, value) in [(libc::M_ARENA_MAX, HEAPS), (libc::M_MMAP_THRESHOLD, OWN_MAPPING_FROM), (libc::M_TRIM_THRESHOLD, TRIM_FROM)]
    {
        // SAFETY: mallopt takes two integers and only changes the allocator's settings; it is called before other threads exist.
        unsafe { libc::mallopt(parameter, value) };
    }
}

/// Sets the allocator up: nothing to do for this C library.
#[cfg(not(target_env = "gnu"))]
pub fn set_up() {}
