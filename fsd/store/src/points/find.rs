//! Finds points while an object is inflated.
//!
//! The inflater stops between blocks, but does not say at which bit of the last byte. So each of the eight is tried on what follows: the
//! right one gives the bytes that the stream itself gave. A place where another one does so as well is no point.

use flate2::Crc;
use zlib_rs::{Inflate, InflateFlush, Status};

use super::resume::Resume;
use super::{Found, Point, SPACING, WINDOW, ZLIB_HEADER};

/// Bytes of the object on which places are tried.
const TRIAL: usize = 16 << 10;
/// Compressed bytes after which a trial is given up: only made-up streams need so many.
const TRIAL_INPUT: usize = 256 << 10;

/// Inflates a zlib stream and notes points.
pub(crate) struct Finder {
    inflate: Inflate,
    found: Found,
    /// The last bytes of the object so far.
    window: Vec<u8>,
    last_byte: u8,
    crc: Crc,
    trial: Option<Trial>,
}

/// A place between two blocks, and what has come since.
struct Trial {
    /// Bits up to the end of the byte that it is in.
    bits: u64,
    offset: u64,
    byte: u8,
    window: Vec<u8>,
    compressed: Vec<u8>,
    object: Vec<u8>,
    /// Of the part before it, and of what has come since.
    before: u32,
    since: Crc,
}

impl Finder {
    /// For one object.
    pub(crate) fn new() -> Self {
        let start = Point { bits: ZLIB_HEADER, offset: 0, crc: 0 };
        Finder {
            inflate: Inflate::new(true, 15),
            found: Found { points: vec![start], windows: Vec::new() },
            window: Vec::with_capacity(4 * WINDOW),
            last_byte: 0,
            crc: Crc::new(),
            trial: None,
        }
    }

    /// Inflates some of `input` into `out`: how much was consumed and produced, and whether the stream has ended. `None` for what is no zlib
    /// stream.
    pub(crate) fn step(&mut self, input: &[u8], out: &mut [u8]) -> Option<(usize, usize, bool)> {
        let (before_in, before_out) = (self.inflate.total_in(), self.inflate.total_out());
        let due = self.trial.is_none() && before_out >= self.last_offset() + SPACING;
        let flush = if due { InflateFlush::Block } else { InflateFlush::NoFlush };
        let ended = self.inflate.decompress(input, out, flush).ok()? == Status::StreamEnd;
        let consumed = (self.inflate.total_in() - before_in) as usize;
        let produced = (self.inflate.total_out() - before_out) as usize;
        let (read, object) = (&input[..consumed], &out[..produced]);
        self.crc.update(object);
        self.last_byte = read.last().copied().unwrap_or(self.last_byte);
        self.window.extend_from_slice(object);
        if self.window.len() > 3 * WINDOW {
            self.window.drain(..self.window.len() - WINDOW);
        }
        if let Some(trial) = &mut self.trial {
            trial.since.update(object);
            trial.compressed.extend_from_slice(read);
            trial.object.extend_from_slice(object);
            if trial.object.len() >= TRIAL || trial.compressed.len() > TRIAL_INPUT {
                self.decide();
            }
        } else if due && !ended && consumed < input.len() && produced < out.len() {
            // Neither input nor room is used up: it stopped because of the block.
            self.trial = self.window.len().checked_sub(WINDOW).map(|start| Trial {
                bits: self.inflate.total_in() * 8,
                offset: self.inflate.total_out(),
                byte: self.last_byte,
                window: self.window[start..].to_vec(),
                compressed: Vec::new(),
                object: Vec::new(),
                before: self.crc.sum(),
                since: Crc::new(),
            });
        }
        Some((consumed, produced, ended))
    }

    /// The points, once the stream has ended.
    pub(crate) fn finish(mut self) -> Found {
        let crc = self.crc.sum();
        if let Some(last) = self.found.points.last_mut() {
            last.crc = crc;
        }
        self.found
    }

    fn last_offset(&self) -> u64 {
        self.found.points.last().map_or(0, |last| last.offset)
    }

    /// Makes a point of the place on trial if it is one.
    fn decide(&mut self) {
        let Some(trial) = self.trial.take().filter(|trial| trial.object.len() >= TRIAL) else { return };
        let mut fitting = (0..8).filter(|unused| trial.fits(*unused));
        let (Some(unused), None) = (fitting.next(), fitting.next()) else { return };
        drop(fitting);
        if let Some(last) = self.found.points.last_mut() {
            last.crc = trial.before;
        }
        self.found.points.push(Point { bits: trial.bits - u64::from(unused), offset: trial.offset, crc: 0 });
        self.found.windows.push(trial.window);
        self.crc = trial.since;
    }
}

impl Trial {
    /// Whether inflating gives what has come when the last `unused` bits of the byte belong to the next block.
    fn fits(&self, unused: u8) -> bool {
        let Some(mut resume) = Resume::new(&self.window, (8 - unused) % 8, self.byte) else { return false };
        let mut out = vec![0; self.object.len()];
        let (mut input, mut at) = (self.compressed.as_slice(), 0);
        while at < out.len() {
            let Some((consumed, produced, _)) = resume.step(input, &mut out[at..]) else { return false };
            if consumed == 0 && produced == 0 || out[at..at + produced] != self.object[at..at + produced] {
                return false;
            }
            input = &input[consumed..];
            at += produced;
        }
        true
    }
}
