//! What decoding needs beside the pack: zlib states, buffers and a cache of delta bases. A few of them wait in a pool of the process,
//! so that memory is bounded by how many threads decode at once, not by how many threads or repositories there are.

use std::sync::Mutex;

use gix_pack::cache::lru::StaticLinkedList;

/// Bytes of delta bases one decoder keeps.
const DELTA_BASE_CACHE: usize = 4 << 20;
/// Idle decoders kept.
const IDLE: usize = 4;
/// A buffer that grew beyond this is given back to the allocator after use.
const BUFFER: usize = 1 << 20;

static POOL: Mutex<Vec<Decoder>> = Mutex::new(Vec::new());

pub(super) struct Decoder {
    /// For the beginnings of entries.
    pub(super) inflate: gix::zlib::Inflate,
    /// For whole entries.
    pub(super) whole: libdeflater::Decompressor,
    pub(super) bases: StaticLinkedList<64>,
    /// For who needs an object only while it has the decoder.
    pub(super) buffer: Vec<u8>,
    /// A delta, the object it is applied to, and what it makes of it.
    pub(super) delta: Vec<u8>,
    pub(super) base: Vec<u8>,
    pub(super) next: Vec<u8>,
}

/// Runs `work` with a decoder of the pool.
pub(super) fn with<T>(work: impl FnOnce(&mut Decoder) -> T) -> T {
    let pooled = POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop();
    let mut decoder = pooled.unwrap_or_else(|| Decoder {
        inflate: gix::zlib::Inflate::default(),
        whole: libdeflater::Decompressor::new(),
        bases: StaticLinkedList::new(DELTA_BASE_CACHE),
        buffer: Vec::new(),
        delta: Vec::new(),
        base: Vec::new(),
        next: Vec::new(),
    });
    let result = work(&mut decoder);
    let Decoder { buffer, delta, base, next, .. } = &mut decoder;
    for buffer in [buffer, delta, base, next] {
        if buffer.capacity() > BUFFER {
            *buffer = Vec::new();
        }
    }
    let mut pool = POOL.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if pool.len() < IDLE {
        pool.push(decoder);
    }
    result
}
