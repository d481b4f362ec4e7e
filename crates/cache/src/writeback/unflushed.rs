//! What of a file was written and not flushed: a failed flush may have lost it.
//!
//! ```text
//!               submitted: epoch sampled        completed                  a flush that began later
//!   dirty ────────────────────────────▶ writing ─────────▶ pinned ──────────────────────────────▶ durable
//!     ▲                                    │         └───▶ unpinned (direct, trim, window full) ──▶ durable
//!     │                                    │ completed, and a flush failed since it was submitted
//!     └── pinned: written again ◀──────────┘                 flush failed: pinned ──▶ dirty, else poison
//! ```
//! Invariants:
//! W1 a write whose bookkeeping runs after a flush failed counts as failed, if it was submitted before:
//!    the device may have completed it ahead of the flush, whatever order we hear of it in.
//! W2 the epoch moves in the same critical section that drains what had completed by then, so each
//!    write is drained, or sees the epoch moved.
//!
//! Lock: one, a leaf.

use crate::rangeset::RangeSet;
use forebay_base::sync::Mutex;
use std::ops::Range;

/// How many flushes of the file had failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch(u64);

/// What one flush answers for. Ranges are of file blocks.
#[derive(Debug, Default)]
pub struct Covered {
    /// Blocks kept in the cache: they can be written again.
    pub pinned: RangeSet,
    /// Bytes were written that nobody holds any more.
    pub unpinned: bool,
}

#[derive(Debug, Default)]
struct State {
    covered: Covered,
    failures: u64,
    /// Flushes that began and whose outcome has not been dealt with.
    flushing: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Unflushed {
    state: Mutex<State>,
}

impl Unflushed {
    /// To be sampled before a write is submitted.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.state.lock().failures)
    }

    /// Blocks of a completed write are pinned if `pin`; otherwise the write is remembered as one that
    /// nobody holds. False if a flush failed since `epoch` (W1): nothing was remembered.
    #[must_use]
    pub fn completed(&self, epoch: Epoch, blocks: Range<u64>, pin: bool) -> bool {
        let mut state = self.state.lock();
        assert!(epoch.0 <= state.failures, "W2: epochs only grow");
        if epoch.0 != state.failures {
            return false;
        }
        if pin {
            state.covered.pinned.insert(blocks);
        } else {
            state.covered.unpinned = true;
        }
        true
    }

    /// Blocks are dropped from the cache; `forgotten`: some of them were pinned.
    pub(crate) fn drop_blocks(&self, blocks: Range<u64>, forgotten: bool) {
        let mut state = self.state.lock();
        state.covered.pinned.remove(blocks);
        // What takes the blocks' place may be less than whole blocks.
        state.covered.unpinned |= forgotten;
    }

    /// A flush begins: what it answers for.
    pub fn begin_flush(&self) -> Covered {
        let mut state = self.state.lock();
        state.flushing += 1;
        std::mem::take(&mut state.covered)
    }

    /// What it covered is durable, or dirty again.
    pub fn end_flush(&self) {
        let mut state = self.state.lock();
        assert!(state.flushing > 0, "a flush ends once");
        state.flushing -= 1;
    }

    /// It failed: also what completed since it began may be gone (W2).
    pub fn flush_failed(&self) -> Covered {
        let mut state = self.state.lock();
        state.failures += 1;
        std::mem::take(&mut state.covered)
    }

    /// What of the blocks is pinned for the next flush, descending.
    pub fn pinned_within(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        self.state.lock().covered.pinned.within(blocks).collect()
    }

    /// Blocks pinned for the next flush.
    pub fn pinned_blocks(&self) -> u64 {
        self.state.lock().covered.pinned.total()
    }

    /// Nothing that a flush would answer for, or that one under way does.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.flushing == 0 && state.covered.pinned.is_empty() && !state.covered.unpinned
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_late_completion_does_not_escape_a_failed_flush() {
        let unflushed = Unflushed::default();
        let (early, late) = (unflushed.epoch(), unflushed.epoch());
        assert!(unflushed.completed(early, 0..4, true));
        assert_eq!(unflushed.begin_flush().pinned.total(), 4);
        assert!(unflushed.completed(early, 4..5, true), "while the flush runs");
        assert_eq!(unflushed.flush_failed().pinned.total(), 1);
        assert!(!unflushed.completed(late, 8..9, true) && !unflushed.completed(late, 8..9, false));
        assert!(!unflushed.is_empty(), "the outcome is not dealt with");
        unflushed.end_flush();
        assert!(unflushed.is_empty());
        assert!(unflushed.completed(unflushed.epoch(), 8..9, false));
        assert!(unflushed.begin_flush().unpinned);
    }
}
