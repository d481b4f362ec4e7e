//! Who gets which blocks of data segments: the fifth behaviour, in three ways that can be chosen.
//!
//! - `interleaved`, the baseline: block by block, the state lock let go in between, as f2fs did it with
//!   the lock of its log. Whoever comes in between takes the next block.
//! - `serialized`, the patch: the same, under one mutex from looking the map up until the last block of the
//!   request has its place; direct writes take it from a number of pages on, write-back always.
//! - `reserve`, ours: the whole request in one hold of the state lock, out of the window of its stream.
//!
//! Reading order: `runs` (runs that were taken and are not in use), `window` (streams and their
//! windows), `strategy` (the three strategies).
//!
//! Invariants: A11 a byte of a data segment has one owner: nobody, the open end of `Space`,
//! a window, the pool of small runs, what is left over, or one reservation. A12 no lock and no turn is held
//! during I/O, and nothing is waited for while the turn is held (scheduling points of tests aside).
//! A13 what windows hold counts as free, and is free before anybody is told that there is no room.
//!
//! Locks: the turn of `serialized` is outermost and taken alone; everything else is covered by the
//! volume's state lock.

pub(crate) mod runs;
pub(crate) mod strategy;
pub(crate) mod window;

use forebay_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use forebay_base::task::{Pick, WaitQueue, yield_now};
use forebay_base::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;

/// Bytes of a page, as [`OpenOptions::serialized_dio_pages`](crate::OpenOptions) counts them.
pub const PAGE_BYTES: u64 = 4096;
/// Default of `serialized_dio_pages`.
pub const SERIALIZED_DIO_PAGES: u32 = 64;

/// How blocks of data are given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllocMode {
    /// Block by block, beside everybody else.
    Interleaved,
    /// A request at a time from so many pages on.
    Serialized,
    /// Window by window for each stream.
    #[default]
    Reserve,
}

impl AllocMode {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Interleaved, Self::Serialized, Self::Reserve];
}

impl fmt::Display for AllocMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Interleaved => "interleaved",
            Self::Serialized => "serialized",
            Self::Reserve => "reserve",
        })
    }
}

impl FromStr for AllocMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|mode| mode.to_string() == text);
        found.ok_or_else(|| {
            let text = format!("`{text}` is none of interleaved, serialized, reserve");
            Error::new(ErrorKind::InvalidInput, "alloc", text)
        })
    }
}

/// A run: logical address (`Sizes::address` of `runs`) and bytes.
pub(crate) type Run = (u64, u64);

/// What was given out since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocStats {
    /// Direct writes that were given blocks.
    pub direct_requests: u64,
    /// Their bytes.
    pub direct_bytes: u64,
    /// Runs on the device that they were given.
    pub direct_extents: u64,
    /// Reservations of write-back, their bytes, and the runs that they were given.
    pub written_back: u64,
    /// See `written_back`.
    pub written_back_bytes: u64,
    /// See `written_back`.
    pub written_back_extents: u64,
    /// Holds of the state lock for giving out.
    pub holds: u64,
    /// Turns of `serialized`.
    pub turns: u64,
    /// Bytes of records that tell where content is.
    pub record_bytes: u64,
    /// Windows opened.
    pub windows: u64,
    /// Bytes of windows that were returned unused.
    pub returned_bytes: u64,
    /// Now: bytes that windows and the pool of small runs hold.
    pub held_bytes: u64,
    /// Now: bytes that are left over within data segments, for whoever comes next.
    pub left_bytes: u64,
    /// In so many runs.
    pub left_runs: u64,
}

/// What the ways of giving out share beside the state.
pub(crate) struct Allocator {
    pub mode: AllocMode,
    pages: AtomicU32,
    turn: AtomicBool,
    waiting: WaitQueue,
    /// A task gives way at each lock: where tasks only meet when they wait, they meet at locks, too.
    points: bool,
}

impl Allocator {
    pub fn new(mode: AllocMode, pages: u32, points: bool) -> Self {
        let (pages, turn) = (AtomicU32::new(pages), AtomicBool::new(false));
        Self { mode, pages, turn, waiting: WaitQueue::new(), points }
    }

    /// `serialized_dio_pages`: 0 is always, the largest number is never.
    pub fn pages(&self) -> u32 {
        self.pages.load(Ordering::Relaxed)
    }

    /// For requests to come.
    pub fn set_pages(&self, pages: u32) {
        self.pages.store(pages, Ordering::Relaxed);
    }

    /// Whether a request is to take the turn.
    pub fn serializes(&self, direct: bool, bytes: u64) -> bool {
        let pages = self.pages();
        let large = pages != u32::MAX && bytes.div_ceil(PAGE_BYTES) >= u64::from(pages);
        self.mode == AllocMode::Serialized && (large || !direct)
    }

    /// Whether a request is given its places without giving way to anybody.
    pub fn at_once(&self) -> bool {
        self.mode == AllocMode::Reserve && !self.points
    }

    /// A lock is about to be taken.
    pub async fn point(&self) {
        if self.points {
            yield_now().await;
        }
    }

    /// The mutex of the patch.
    pub async fn turn(&self) -> Turn<'_> {
        self.point().await;
        self.waiting.wait_until(|| (!self.turn.swap(true, Ordering::AcqRel)).then_some(())).await;
        Turn(self)
    }
}

/// The turn, until it is dropped.
pub(crate) struct Turn<'a>(&'a Allocator);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turn.store(false, Ordering::Release);
        // Whoever is woken takes the turn, and wakes the next one at its end.
        self.0.waiting.wake_matching(|_| Pick::WakeAndStop);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names() {
        for mode in AllocMode::ALL {
            assert_eq!(mode.to_string().parse::<AllocMode>().unwrap(), mode);
        }
        assert_eq!("both".parse::<AllocMode>().unwrap_err().kind(), ErrorKind::InvalidInput);
    }

    /// One page less is not serialised, 0 is always and the largest number never; live.
    #[test]
    fn a3_the_threshold_is_exact_and_live() {
        let allocator = Allocator::new(AllocMode::Serialized, 64, false);
        assert!(!allocator.serializes(true, 63 * PAGE_BYTES));
        assert!(allocator.serializes(true, 63 * PAGE_BYTES + 512));
        assert!(allocator.serializes(true, 64 * PAGE_BYTES));
        assert!(allocator.serializes(false, 512), "write-back always takes it");
        allocator.set_pages(0);
        assert!(allocator.serializes(true, 512));
        allocator.set_pages(u32::MAX);
        assert!(!allocator.serializes(true, 1 << 60));
        for mode in [AllocMode::Interleaved, AllocMode::Reserve] {
            assert!(!Allocator::new(mode, 0, false).serializes(true, 1 << 30));
        }
    }
}
