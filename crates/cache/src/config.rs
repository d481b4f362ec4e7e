//! The configuration of a cache, and the division of its budget.

use crate::memory::arena::FRAME_SIZE;
use crate::strategy::{DirtyTracking, StableStrategy, UncachedStrategy};
use crate::table::Layout;
pub use crate::table::MIN_BLOCK;
use forebay_base::units::{KIB, MIB};
use forebay_base::{Error, ErrorKind, Result};

/// Bytes that a dirty folio costs in addition to its slot: its entries by index and by age.
pub(crate) const DIRTY_FOLIO_BYTES: u64 = 72;
/// Bytes of ghosts and age queues for each folio descriptor.
pub(crate) const SLOT_BOOKS: u64 = 16 + 8;
/// Bookkeeping for each frame, bytes.
pub(crate) const FRAME_BOOKS: u64 = 6;
/// Numbers of frames and slots have 32 bits, of which zero and the topmost bit are reserved.
const NUMBERS: u64 = u32::MAX as u64 / 2;

/// Configuration. `budget` bounds everything that grows with data or load.
#[derive(Debug, Clone)]
pub struct Config {
    /// Limit of all memory, bytes. Memory is taken only when it is used.
    pub budget: u64,
    /// Largest budget that the cache can be given while it runs, bytes; address space is reserved
    /// for it. Default: the budget.
    pub budget_max: Option<u64>,
    /// Take all of the memory at start.
    pub prefault: bool,
    /// Bytes of a folio: a power of two, 4 KiB to 2 MiB.
    pub folio_size: u32,
    /// Frames and tables on huge pages.
    pub huge_pages: bool,
    /// Write-out starts above this many dirty bytes. Default: a tenth of the arena.
    pub dirty_background_bytes: Option<u64>,
    /// Writers wait above this many dirty bytes. Default: a fifth of the arena.
    pub dirty_bytes: Option<u64>,
    /// Dirty blocks older than this are written out, 1/100 s.
    pub dirty_expire_centisecs: u32,
    /// Longest readahead window of a stream, bytes.
    pub readahead_max: u32,
    /// Window of uncached writes to a file, bytes: write-out starts when a quarter of it is dirty.
    pub uncached_window_bytes: u32,
    /// Dirty tracking.
    pub dirty_tracking: DirtyTracking,
    /// Stable-write strategy.
    pub stable: StableStrategy,
    /// What uncached requests do.
    pub uncached_strategy: UncachedStrategy,
    /// Fills each freed frame with a pattern that names its last owner: bytes of 0x80 and more,
    /// derived from the mapping's number. For tests, which write no such bytes.
    pub poison_frames: bool,
}

impl Config {
    /// Defaults with a budget in bytes.
    pub fn with_budget(budget: u64) -> Self {
        Self {
            budget,
            budget_max: None,
            prefault: false,
            folio_size: 64 * KIB as u32,
            huge_pages: true,
            dirty_background_bytes: None,
            dirty_bytes: None,
            dirty_expire_centisecs: 500,
            readahead_max: 2 * MIB as u32,
            uncached_window_bytes: 8 * MIB as u32,
            dirty_tracking: DirtyTracking::default(),
            stable: StableStrategy::default(),
            uncached_strategy: UncachedStrategy::default(),
            poison_frames: false,
        }
    }

    /// Divides the budget, or says why it cannot.
    pub(crate) fn divide(&self) -> Result<Division> {
        self.divide_of(self.budget)
    }

    /// Divides another budget than the one at start.
    pub(crate) fn divide_of(&self, budget: u64) -> Result<Division> {
        let bad = |text: String| Err(Error::new(ErrorKind::InvalidInput, "configure cache", text));
        let size = self.folio_size;
        if !size.is_power_of_two() || !(FRAME_SIZE as u32..=2 * MIB as u32).contains(&size) {
            return bad(format!("folio_size {size}: a power of two from 4 KiB to 2 MiB"));
        }
        if budget < MIB {
            return bad(format!("budget {budget}: at least 1 MiB"));
        }
        let layout = Layout::new(size);
        // Requests in flight and front-end buffers.
        let io_reserve = (budget / 16).min(16 * MIB);
        let rest = budget - io_reserve;
        // Per folio: its descriptor, two index heads (the table is rounded up to a power of two),
        // ghosts, an entry on an age queue or in the free list, and its entries in a dirty set. Per
        // frame: the frame, its word of captures and pins, and its share of its chunk's
        // bookkeeping. Each frame may be in a folio of its own.
        let per_folio = layout.stride as u64 * 8 + 8 + SLOT_BOOKS + DIRTY_FOLIO_BYTES;
        let per_frame = FRAME_SIZE as u64 + FRAME_BOOKS;
        let one_each = rest / (per_folio + per_frame);
        let (slots, frames) = if per_folio * 16 <= per_frame * 2 {
            (one_each, one_each)
        } else {
            // Large folios: descriptors get at most a sixteenth.
            let slots = (rest / 16 / per_folio).max(4);
            (slots, (rest - slots * per_folio) / per_frame)
        };
        let (slots, frames) = (slots.min(frames).min(NUMBERS), frames.min(NUMBERS));
        if frames < u64::from(size) / FRAME_SIZE as u64 || frames < 64 {
            return bad(format!("budget {budget} is too small for folios of {size}"));
        }
        Ok(Division { budget, layout, slots: slots as usize, frames: frames as usize, io_reserve })
    }
}

/// The outcome of [`Config::divide`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Division {
    pub budget: u64,
    pub layout: Layout,
    pub slots: usize,
    pub frames: usize,
    pub io_reserve: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_budget_is_kept() {
        for folio_size in [4096, 16384, 65536, 2 << 20] {
            for budget in (20..34).map(|s| 3u64 << s) {
                let mut config = Config::with_budget(budget);
                config.folio_size = folio_size;
                let Ok(d) = config.divide() else {
                    assert!(budget < 8 * MIB, "{folio_size} {budget}");
                    continue;
                };
                let heads = d.slots.next_power_of_two() * 4;
                let sum = d.frames * FRAME_SIZE
                    + d.slots * (d.layout.stride * 8 + 24 + 40)
                    + heads
                    + d.frames * 6;
                assert!(sum as u64 + d.io_reserve <= budget);
                assert!(d.frames as u64 * 4096 >= budget * 7 / 10, "{folio_size} {budget} {d:?}");
            }
        }
        assert!(Config { folio_size: 5000, ..Config::with_budget(MIB * 64) }.divide().is_err());
        assert!(Config::with_budget(1000).divide().is_err());
    }
}
