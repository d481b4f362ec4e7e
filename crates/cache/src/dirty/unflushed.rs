//! The blocks of a file that were written and not flushed: a failed flush may have lost them.
//!
//! ```text
//!         submitted: epoch sampled   completed      a flush that began later
//!   dirty ──────────────────▶ writing ─────────▶ pinned ───────────────────────────────▶ durable
//!     ▲                          │         └───▶ unpinned (direct, trim, window full) ──▶ durable
//!     │                          │ completed, and a flush failed since it was submitted
//!     └── pinned: written again ◀┘           flush failed: pinned ──▶ dirty, else poison
//! ```
//!
//! Invariants: W1 a write whose bookkeeping runs after a flush failed counts as failed, if it was
//! submitted before: the device may have completed it ahead of the flush, in whatever order the
//! results arrive. W2 a completed block is kept with the epoch of that moment. If the epoch has
//! moved since, the block is lost, whichever file's flush failed: no later flush certifies it. W3
//! the epoch is the domain's ([`crate::dirty::flushes`]): a flush of any of its files moves it. W4
//! a block that is dropped while a flush that covers it is in progress counts as unpinned if that
//! flush fails. W5 if a request fails without a failed flush (flushes.X4), the blocks that it
//! covered wait for the next flush, unless the epoch has moved meanwhile.
//!
//! Lock: one; below it that of the reused sets.

use crate::dirty::flushes::Flushes;
use crate::rangeset::RangeSet;
use forebay_base::sync::{Arc, Mutex};
use std::ops::Range;

/// How many flushes of the domain had failed at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Epoch(u64);

/// The writes that one flush makes durable, or loses. Ranges are of file blocks.
#[derive(Debug, Default)]
pub struct Covered {
    /// Blocks kept in the cache: they can be written again.
    pub pinned: RangeSet,
    /// Bytes were written whose blocks are not kept any more.
    pub unpinned: bool,
    /// How many flushes had failed when these writes completed. Without meaning for lost blocks.
    epoch: Epoch,
}

impl Covered {
    /// Whether the flush covers no write.
    pub fn is_empty(&self) -> bool {
        self.pinned.is_empty() && !self.unpinned
    }
}

#[derive(Debug, Default)]
struct State {
    /// The writes that the next flush will cover.
    covered: Covered,
    /// Blocks that a failed flush may have lost, not yet taken by a caller.
    lost: Covered,
    /// Flushes that have begun, and not ended by [`Unflushed::end_flush`].
    flushing: u32,
    /// Pinned blocks that were dropped during such a flush, which may have covered them.
    given_up: RangeSet,
}

impl State {
    /// Moves blocks that completed before the epoch moved to the lost ones (W2).
    fn look(&mut self, now: Epoch) {
        assert!(self.covered.epoch.0 <= now.0, "W2: epochs only grow");
        if self.covered.epoch != now {
            let old = std::mem::take(&mut self.covered);
            self.covered.epoch = now;
            for run in old.pinned.iter() {
                self.lost.pinned.insert(run);
            }
            self.lost.unpinned |= old.unpinned;
        }
    }
}

/// The written but unflushed blocks of a file.
#[derive(Default)]
pub struct Unflushed {
    flushes: Arc<Flushes>,
    state: Mutex<State>,
}

impl Unflushed {
    /// For a file of the domain that `flushes` are of.
    pub(crate) fn new(flushes: Arc<Flushes>) -> Self {
        Self { flushes, state: Mutex::default() }
    }

    /// The current epoch. Sample it before a write is submitted (W1).
    pub fn epoch(&self) -> Epoch {
        Epoch(self.flushes.failures())
    }

    /// Records a completed write, whose blocks `pinned` stay cached; `None`: its blocks are not
    /// kept. False if a flush failed since `epoch` (W1): then nothing was recorded. `memory`: an
    /// empty set, for the first blocks after a flush.
    #[must_use]
    pub fn completed(
        &self,
        epoch: Epoch,
        pinned: Option<Range<u64>>,
        memory: impl FnOnce() -> RangeSet,
    ) -> bool {
        let mut state = self.state.lock();
        let now = self.epoch();
        state.look(now);
        assert!(epoch.0 <= now.0, "W2: epochs only grow");
        if epoch != now {
            return false;
        }
        let covered = &mut state.covered;
        match pinned {
            None => covered.unpinned = true,
            Some(blocks) => {
                if !covered.pinned.has_memory() {
                    covered.pinned = memory();
                }
                covered.pinned.insert(blocks);
            }
        }
        true
    }

    /// Blocks are dropped from the cache; `forgotten`: some of them were pinned.
    pub(crate) fn drop_blocks(&self, blocks: Range<u64>, forgotten: bool) {
        let mut state = self.state.lock();
        state.look(self.epoch());
        // The new content may cover only a part of a lost block: the loss of the rest is reported.
        state.lost.unpinned |= forgotten && state.lost.pinned.overlaps(&blocks);
        state.covered.unpinned |= forgotten;
        if forgotten && state.flushing > 0 {
            state.given_up.insert(blocks.clone());
        }
        state.lost.pinned.remove(blocks.clone());
        state.covered.pinned.remove(blocks);
    }

    /// A flush begins: takes the blocks that it covers.
    pub fn begin_flush(&self) -> Covered {
        let mut state = self.state.lock();
        state.look(self.epoch());
        state.flushing += 1;
        let epoch = state.covered.epoch;
        std::mem::replace(&mut state.covered, Covered { epoch, ..Covered::default() })
    }

    /// A flush that [`Unflushed::end_flush`] is about to end has made nothing durable and lost
    /// nothing (W5).
    pub fn put_back(&self, mut covered: Covered) {
        let mut state = self.state.lock();
        state.look(self.epoch());
        let State { covered: next, lost, given_up, .. } = &mut *state;
        // `drop_blocks` has counted these as unpinned.
        for run in given_up.iter() {
            covered.pinned.remove(run);
        }
        let into = if covered.epoch == next.epoch { next } else { lost };
        if into.pinned.total() == 0 {
            std::mem::swap(&mut into.pinned, &mut covered.pinned);
        }
        for run in covered.pinned.iter() {
            into.pinned.insert(run);
        }
        into.unpinned |= covered.unpinned;
    }

    /// Whether no flush of the domain has failed since this one began.
    pub fn is_certified(&self, covered: &Covered) -> bool {
        covered.epoch == self.epoch()
    }

    /// Ends a flush: its blocks are durable, or dirty again. Returns the pinned blocks that were
    /// dropped since it began: if it failed, these are not kept anywhere (W4).
    pub fn end_flush(&self) -> RangeSet {
        let mut state = self.state.lock();
        assert!(state.flushing > 0, "a flush ends once");
        state.flushing -= 1;
        std::mem::take(&mut state.given_up)
    }

    /// Takes the completed blocks that failed flushes may have lost (W2), for the caller to handle.
    pub fn take_lost(&self) -> Covered {
        let mut state = self.state.lock();
        state.look(self.epoch());
        std::mem::take(&mut state.lost)
    }

    /// Takes the pinned blocks that wait for a flush, for a caller that knows that some are lost;
    /// [`Unflushed::take_lost`] has the others. Of what is not pinned the caller knows itself what
    /// is lost: it waits for the next flush. `None` while a flush of the file is in progress.
    pub fn take_back(&self) -> Option<Covered> {
        let mut state = self.state.lock();
        state.look(self.epoch());
        if state.flushing > 0 {
            return None;
        }
        let pinned = std::mem::take(&mut state.covered.pinned);
        Some(Covered { pinned, unpinned: false, epoch: state.covered.epoch })
    }

    /// The blocks that were written again since the flush that covers them began: pinned for the
    /// next flush, or lost meanwhile and to be written again.
    pub fn pinned_within(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let state = self.state.lock();
        let lost = state.lost.pinned.within(blocks.clone());
        lost.chain(state.covered.pinned.within(blocks)).collect()
    }

    /// Whether no block waits for a flush, none is covered by a flush in progress, and none is
    /// lost.
    pub fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.flushing == 0 && state.covered.is_empty() && state.lost.is_empty()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn done(unflushed: &Unflushed, epoch: Epoch, pinned: Option<Range<u64>>) -> bool {
        unflushed.completed(epoch, pinned, RangeSet::default)
    }

    fn fail_one(flushes: &Arc<Flushes>) {
        drop(flushes.begin(0, None));
    }

    #[test]
    fn late_completion_after_failed_flush_counts_as_failed() {
        let unflushed = Unflushed::default();
        let (early, late) = (unflushed.epoch(), unflushed.epoch());
        assert!(done(&unflushed, early, Some(0..4)));
        let covered = unflushed.begin_flush();
        assert!(covered.pinned.total() == 4 && unflushed.is_certified(&covered));
        assert!(done(&unflushed, early, Some(4..5)), "while the flush runs");
        fail_one(&unflushed.flushes);
        assert!(!unflushed.is_certified(&covered));
        assert!(!done(&unflushed, late, Some(8..9)) && !done(&unflushed, late, None));
        assert_eq!(unflushed.take_lost().pinned.total(), 1);
        assert!(!unflushed.is_empty(), "the outcome is not dealt with");
        assert!(unflushed.end_flush().is_empty());
        assert!(unflushed.is_empty());
        assert!(done(&unflushed, unflushed.epoch(), None));
        assert!(unflushed.begin_flush().unpinned);
    }

    /// The story: a block that a flush covered was written again, then a flush of another file
    /// failed. The newer bytes were not counted as lost, and the block counted as flushed.
    #[test]
    fn block_lost_during_flush_end_is_written_again() {
        let unflushed = Unflushed::default();
        assert!(done(&unflushed, unflushed.epoch(), Some(0..4)));
        let covered = unflushed.begin_flush();
        assert!(done(&unflushed, unflushed.epoch(), Some(1..2)), "while the flush runs");
        assert!(unflushed.is_certified(&covered));
        fail_one(&unflushed.flushes);
        assert!(done(&unflushed, unflushed.epoch(), Some(8..9)), "the epoch moved");
        assert!(unflushed.pinned_within(0..4).iter().eq(std::iter::once(&(1..2))));
    }

    /// W5: a failed request that lost nothing leaves its blocks to the next flush. If another flush
    /// failed meanwhile, they are lost.
    #[test]
    fn blocks_of_failed_request_wait_for_next_flush() {
        let unflushed = Unflushed::default();
        assert!(done(&unflushed, unflushed.epoch(), Some(0..4)));
        assert!(done(&unflushed, unflushed.epoch(), None));
        let covered = unflushed.begin_flush();
        assert!(done(&unflushed, unflushed.epoch(), Some(6..8)), "while the request runs");
        unflushed.drop_blocks(1..2, true);
        unflushed.put_back(covered);
        assert!(unflushed.end_flush().iter().eq(std::iter::once(1..2)));
        assert!(unflushed.take_lost().is_empty());
        let covered = unflushed.begin_flush();
        assert!(covered.pinned.iter().eq([0..1, 2..4, 6..8]) && covered.unpinned);
        assert!(unflushed.is_certified(&covered));
        fail_one(&unflushed.flushes);
        unflushed.put_back(covered);
        unflushed.end_flush();
        assert!(unflushed.begin_flush().is_empty(), "W2");
        let lost = unflushed.take_lost();
        assert!(lost.pinned.iter().eq([0..1, 2..4, 6..8]) && lost.unpinned);
    }

    /// The story: a direct write replaced a block that a flush in progress covered, and the flush
    /// failed. The loss of the rest of the block, which was not kept any more, was not reported.
    #[test]
    fn block_dropped_in_flush_is_reported_at_its_end() {
        let unflushed = Unflushed::default();
        assert!(done(&unflushed, unflushed.epoch(), Some(0..4)));
        unflushed.drop_blocks(7..8, false);
        let _covered = unflushed.begin_flush();
        unflushed.drop_blocks(2..3, true);
        assert!(unflushed.end_flush().iter().eq(std::iter::once(2..3)), "W4");
        unflushed.drop_blocks(3..4, true);
        let _covered = unflushed.begin_flush();
        assert!(unflushed.end_flush().is_empty(), "nothing was under way");
    }

    /// The story: the next flush of a file certified its completed blocks, though a failed flush of
    /// another file of the device may have lost them.
    #[test]
    fn flush_failure_of_one_file_affects_all_of_domain() {
        let flushes: Arc<Flushes> = Arc::default();
        let (one, other) = (Unflushed::new(flushes.clone()), Unflushed::new(flushes.clone()));
        assert!(done(&other, other.epoch(), Some(0..4)));
        let early = other.epoch();
        fail_one(&one.flushes);
        assert!(!done(&other, early, None), "W1, W3");
        // A block written after the failure is not lost, and is kept apart from lost ones.
        assert!(done(&other, other.epoch(), Some(6..7)));
        assert!(!other.is_empty());
        assert!(other.begin_flush().pinned.iter().eq(std::iter::once(6..7)), "W2");
        let lost = other.take_lost();
        assert!(lost.pinned.iter().eq(std::iter::once(0..4)) && !lost.unpinned);
        assert!(other.end_flush().is_empty());
        assert!(other.is_empty() && one.take_lost().is_empty());
        // A lost block that is dropped cannot be written again: it counts as unpinned.
        assert!(done(&other, other.epoch(), Some(0..4)));
        fail_one(&flushes);
        other.drop_blocks(2..3, true);
        let lost = other.take_lost();
        assert!(lost.unpinned && lost.pinned.total() == 3);
    }
}
