//! Allocation of blocks in data segments: behaviour 5 of docs/reference/behaviours.md, with three
//! strategies to choose from.
//!
//! - `interleaved`, the baseline: block by block. It releases the state lock between blocks, as
//!   f2fs released the lock of its log. A concurrent request then takes the next block.
//! - `serialized`, the patch: block by block under one mutex, from the lookup in the map until the
//!   last block of the request has its place. Direct writes take the mutex from a configured
//!   number of pages on, write-back always takes it.
//! - `reserve`, the Forebay strategy: the whole request while the state lock is held once, out of
//!   the window of its stream.
//!
//! Reading order: `runs` (runs that were taken and are not in use), `window` (streams and their
//! windows), `strategy` (places by `reserve`; the other two strategies take single blocks in
//! `files/places.rs`).
//!
//! Invariants: A11 each byte of a data segment has at most one owner: the open end in `Space`, a
//! window, the pool of small runs, a leftover run, or one reservation. A12 no lock and no turn is
//! held during I/O. The holder of the turn waits for nothing, apart from the scheduling points of
//! tests. A13 space in windows counts as free. It is released before any request is refused for
//! lack of space.
//!
//! Locks: the turn of `serialized` is the outermost lock and is taken alone. The volume's state
//! lock covers everything else.

pub(crate) mod runs;
pub(crate) mod strategy;
pub(crate) mod window;

use forebay_base::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use forebay_base::task::{Pick, WaitQueue, yield_now};
use forebay_base::{Error, ErrorKind, Result};
use std::fmt;
use std::str::FromStr;

/// The bytes of a page, as [`OpenOptions::serialized_dio_pages`](crate::OpenOptions) counts pages.
pub const PAGE_BYTES: u64 = 4096;
/// The default of `serialized_dio_pages`.
pub const SERIALIZED_DIO_PAGES: u32 = 64;

/// The strategy that allocates blocks for data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AllocMode {
    /// Block by block: concurrent requests interleave.
    Interleaved,
    /// One request at a time, for direct writes from a number of pages on.
    Serialized,
    /// A window for each stream.
    #[default]
    Reserve,
}

impl AllocMode {
    /// All strategies.
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

/// A run: its logical address (`Sizes::address` of `runs`), and its length in bytes.
pub(crate) type Run = (u64, u64);

/// Allocation statistics since the volume was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AllocStats {
    /// Number of direct writes that got blocks.
    pub direct_requests: u64,
    /// The bytes of these direct writes.
    pub direct_bytes: u64,
    /// The contiguous device runs of these direct writes.
    pub direct_extents: u64,
    /// Reservations of write-back. The next two fields are their bytes, and their device runs.
    pub written_back: u64,
    /// The bytes of these reservations.
    pub written_back_bytes: u64,
    /// The contiguous device runs of these reservations.
    pub written_back_extents: u64,
    /// How often an allocation took the state lock.
    pub holds: u64,
    /// How often a request took the turn of `serialized`.
    pub turns: u64,
    /// Bytes of log records that map content to its place.
    pub record_bytes: u64,
    /// Windows that were opened.
    pub windows: u64,
    /// Bytes of windows that were returned unused.
    pub returned_bytes: u64,
    /// Current bytes in windows and in the pool of small runs.
    pub held_bytes: u64,
    /// Current bytes of leftover runs in data segments, which any request may take.
    pub left_bytes: u64,
    /// The number of these leftover runs.
    pub left_runs: u64,
}

/// What the strategies share apart from the volume's state.
pub(crate) struct Allocator {
    pub mode: AllocMode,
    pages: AtomicU32,
    turn: AtomicBool,
    waiting: WaitQueue,
    /// A task yields at each lock. Under the test scheduler tasks switch only where they wait, so
    /// this makes them meet at locks, too.
    points: bool,
}

impl Allocator {
    pub fn new(mode: AllocMode, pages: u32, points: bool) -> Self {
        let (pages, turn) = (AtomicU32::new(pages), AtomicBool::new(false));
        Self { mode, pages, turn, waiting: WaitQueue::new(), points }
    }

    /// The current `serialized_dio_pages`: 0 means always, the largest number means never.
    pub fn pages(&self) -> u32 {
        self.pages.load(Ordering::Relaxed)
    }

    /// Sets `serialized_dio_pages` for later requests.
    pub fn set_pages(&self, pages: u32) {
        self.pages.store(pages, Ordering::Relaxed);
    }

    /// Whether a request must take the turn.
    pub fn serializes(&self, direct: bool, bytes: u64) -> bool {
        let pages = self.pages();
        let large = pages != u32::MAX && bytes.div_ceil(PAGE_BYTES) >= u64::from(pages);
        self.mode == AllocMode::Serialized && (large || !direct)
    }

    /// Whether a request gets all its places without yielding to other tasks.
    pub fn at_once(&self) -> bool {
        self.mode == AllocMode::Reserve && !self.points
    }

    /// A scheduling point of tests before a lock is taken.
    pub async fn point(&self) {
        if self.points {
            yield_now().await;
        }
    }

    /// Takes the mutex of the `serialized` strategy.
    pub async fn turn(&self) -> Turn<'_> {
        self.point().await;
        self.waiting.wait_until(|| (!self.turn.swap(true, Ordering::AcqRel)).then_some(())).await;
        Turn(self)
    }
}

/// The turn: it is released when this is dropped.
pub(crate) struct Turn<'a>(&'a Allocator);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.turn.store(false, Ordering::Release);
        // The woken task takes the turn, and wakes the next task when it drops the turn.
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

    /// A request that is one page shorter than the limit is not serialized. 0 means always, and the
    /// largest number never. A new limit applies to the next request.
    #[test]
    fn a3_threshold_is_exact_and_takes_effect_at_once() {
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
