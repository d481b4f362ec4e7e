//! Stable writes: how bytes in flight are kept unchanged where the device needs that.
//!
//! A block is *hit* when a writer is about to change it while a write-out uses the same frame that
//! the folio holds. The writer then waits, or the frame is detached: the write-out keeps it, the
//! folio gets a fresh one. A write-out of a copy (*snapshot*) is never hit.
//!
//! Invariants: S-a the frames of a piece do not change from capture to end, if every writer
//! resolved its hits first. S-b a frame is detached only when a block of it is hit, and no block of
//! it is being read: a fill uses the frame of its plan. S-c snapshots hold a sixteenth of the
//! frames at most and leave as many free; they never reclaim, so write-out never waits for frames.
//!
//! Lock rule: all of it under the folio lock; the frame allocator may be taken inside.

use crate::cache::PageCache;
use crate::folio::batch::FrameBatch;
use crate::folio::guard::{FolioWrite, FramePool};
use crate::mapping::Mapping;
use crate::memory::arena::Frame;
use crate::stats::Counters;
use crate::strategy::StableStrategy;
use crate::table::{Blocks, State};
use crate::writeback::pieces::WritePiece;
use forebay_base::sync::atomic::Ordering;
use forebay_base::world::Nanos;
use std::ops::Range;

/// The price of a frame taken from a cached block, as time: about one read of the block.
const FRAME_PRICE: Nanos = 100_000;

/// How much of a run of blocks is in write-out from frames that the folio still has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hit {
    /// Blocks hit.
    pub blocks: u32,
    /// Frames that they are in.
    pub frames: usize,
    /// A block of these frames is being read.
    pub reading: bool,
}

/// What a writer does about a hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It waits for the write-out.
    Wait,
    /// It takes fresh frames.
    Detach,
}

impl FolioWrite<'_> {
    /// The blocks of frame `at` that belong to `blocks`.
    fn part_of_frame(&self, at: usize, blocks: Blocks) -> Blocks {
        let per = self.mapping.blocks_per_frame();
        let first = at as u32 * per;
        Blocks { start: blocks.start.max(first), end: blocks.end.min(first + per) }
    }

    /// The frame at `at` if a block of `blocks` in it is hit.
    fn hit_frame(&self, at: usize, blocks: Blocks) -> Option<Frame> {
        let frame = self.cache.table.frame(self.slot, at)?;
        let hit = self.cache.words.is_captured(frame)
            && self.any(State::Writing, self.part_of_frame(at, blocks));
        hit.then_some(frame)
    }

    /// What a write to `blocks` would hit. A pinned frame does not count: the writer replaces that
    /// in any case, and never waits for it.
    pub fn hit(&self, blocks: Blocks) -> Hit {
        let mut hit = Hit::default();
        if !self.any(State::Writing, blocks) {
            return hit;
        }
        for at in self.frames_of(blocks) {
            match self.hit_frame(at, blocks) {
                Some(frame) if !self.cache.words.is_pinned(frame) => {}
                _ => continue,
            }
            let part = self.part_of_frame(at, blocks);
            hit.blocks += self.runs_with(part, State::Writing).map(|run| run.len()).sum::<u32>();
            hit.frames += 1;
            hit.reading |=
                self.any(State::Reading, part.whole_frames(self.mapping.blocks_per_frame()));
        }
        hit
    }

    /// Gives each frame of `blocks` that is pinned, or with `in_flight` hit, a fresh one out of
    /// `pool`, which holds enough ([`FolioWrite::frames_pinned`], [`FolioWrite::hit`]). Bytes that
    /// the writer is about to overwrite (`written`, within the folio) are not copied. Returns the
    /// number of frames replaced.
    pub fn detach(
        &self,
        blocks: Blocks,
        written: &Range<usize>,
        in_flight: bool,
        pool: &mut FramePool<'_>,
    ) -> u64 {
        let (mut replaced, mut hit, mut copied, mut bytes) = (0, 0, 0, 0);
        for at in self.frames_of(blocks) {
            let Some(old) = self.cache.table.frame(self.slot, at) else { continue };
            if self.cache.words.is_pinned(old) {
                self.detach_pin(at, old, written, pool);
                replaced += 1;
                continue;
            }
            // A frame that was pinned when the caller counted, and is no more, may be in flight:
            // then it is replaced, too.
            if !in_flight || self.hit_frame(at, blocks).is_none() {
                continue;
            }
            let part = self.part_of_frame(at, blocks);
            let whole = part.whole_frames(self.mapping.blocks_per_frame());
            assert!(!self.any(State::Reading, whole), "a fill goes to the frame of its plan (S-b)");
            bytes += self.replace_frame_at(at, old, written, pool);
            let count =
                |part, state| -> u32 { self.runs_with(part, state).map(|run| run.len()).sum() };
            hit += u64::from(count(part, State::Writing));
            copied += u64::from(count(whole, State::Uptodate));
            replaced += 1;
        }
        let counters = &self.cache.counters;
        Counters::add(&counters.stable_hits, hit);
        Counters::add(&counters.stable_copies, copied);
        Counters::add(&counters.stable_copied_bytes, bytes);
        replaced
    }

    /// Turns a piece just taken into a copy of itself, so that no writer can hit it. False, and
    /// nothing changed, if there are no frames for that: writers wait for the end of this
    /// write-out.
    pub fn snapshot(&self, piece: &mut WritePiece) -> bool {
        let Some(fresh) = self.cache.take_for_snapshot(piece.frames.len()) else {
            Counters::add(&self.cache.counters.stable_fallbacks, 1);
            return false;
        };
        let block = self.mapping.block_size() as usize;
        for (i, (old, &new)) in piece.frames.iter().zip(fresh.iter()).enumerate() {
            let part = self.part_of_frame(piece.first_frame + i, piece.blocks);
            let first = (piece.first_frame + i) as u32 * self.mapping.blocks_per_frame();
            let at = (part.start - first) as usize * block;
            self.cache.arena.copy_between(*old, new, at, part.len() as usize * block);
            self.cache.words.capture_copy(new);
            let last = self.cache.words.release(*old);
            assert!(!last, "the folio holds the frame (A1)");
        }
        piece.frames = fresh;
        piece.snapshot = true;
        let blocks = u64::from(piece.blocks.len());
        Counters::add(&self.cache.counters.stable_snapshots, blocks);
        Counters::add(&self.cache.counters.stable_copied_bytes, blocks * block as u64);
        true
    }
}

impl PageCache {
    /// With fewer free frames than this they are scarce: a 64th of all, 8 to 512. Reclaim tries to
    /// keep at least as many free, so it has not kept up, or finds nothing clean.
    fn scarce_below(&self) -> usize {
        (self.sizes.frames() / 64).clamp(8, 512)
    }

    /// Decides how a writer resolves a hit of `frames` frames, by the current strategy.
    ///
    /// `auto` weighs the rest of the write-out against the price of the frames. While frames are
    /// plentiful a copy costs a microsecond and a wait at least a thread switch: it takes fresh
    /// frames. When frames are scarce each is taken from a cached block, and the price rises as
    /// they run out. It waits if half of the recent write-out time of this file is less than that
    /// price.
    pub fn answer_hit(&self, mapping: &Mapping, frames: usize) -> Answer {
        match self.strategies.stable() {
            StableStrategy::Wait | StableStrategy::Snapshot => Answer::Wait,
            StableStrategy::Cow => Answer::Detach,
            StableStrategy::Auto => {
                let (free, scarce) = (self.frames.lock().free(), self.scarce_below());
                if free >= scarce + frames {
                    return Answer::Detach;
                }
                let left = free.saturating_sub(frames) as u64;
                let price = FRAME_PRICE * frames as u64 * scarce as u64 / left.max(1);
                let rest = mapping.write_nanos.load(Ordering::Relaxed) / 2;
                if left == 0 || rest < price { Answer::Wait } else { Answer::Detach }
            }
        }
    }

    /// Waits until a write to `blocks` would hit nothing.
    pub async fn wait_not_hit(&self, mapping: &Mapping, index: u64, blocks: Blocks) {
        let done = || match self.lock_folio(mapping, index) {
            Some(folio) if folio.hit(blocks).blocks > 0 => None,
            _ => Some(()),
        };
        self.wait_queue(mapping.id, index).wait_until(done).await;
    }

    /// Free frames for a snapshot; never by reclaim (S-c).
    fn take_for_snapshot(&self, count: usize) -> Option<FrameBatch> {
        let reserve = self.sizes.frames() / 16;
        let mut fresh = FrameBatch::default();
        let mut alloc = self.frames.lock();
        let held = self.snapshot_frames.load(Ordering::Relaxed);
        let room = alloc.free() >= count + reserve && held as usize + count <= reserve;
        if !room || !alloc.take(count, &mut fresh) {
            return None;
        }
        let held = self.snapshot_frames.fetch_add(count as u64, Ordering::Relaxed) as usize + count;
        debug_assert!(held <= reserve && alloc.free() >= reserve, "S-c: {held} of {reserve}");
        Some(fresh)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use forebay_base::world::RealWorld;

    /// Where frames are scarce, `auto` weighs the wait for a slow device against the frames. It may
    /// take some of the last free frames, never the last one. The fewer there are, the longer it
    /// waits instead.
    #[test]
    fn s8_auto_weighs_wait_against_free_frames() {
        let config = Config { huge_pages: false, ..Config::with_budget(8 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        cache.strategies.set_stable(StableStrategy::Auto);
        let mapping = cache.new_mapping(4096, 1 << 20);
        let scarce = cache.scarce_below();
        let answer = |left: usize, nanos: Nanos| {
            let free = cache.frames.lock().free();
            let held = cache.take_frames(free - left).unwrap();
            mapping.write_nanos.store(nanos, Ordering::Relaxed);
            let answer = cache.answer_hit(&mapping, 2);
            drop(held);
            answer
        };
        assert_eq!(answer(scarce + 2, 0), Answer::Detach, "plenty: a copy is always cheaper");
        assert_eq!(answer(scarce + 1, 0), Answer::Wait, "scarce, and the device is fast");
        // Half of the recent write-out time counts as the rest of a write-out.
        let price = |left: usize| FRAME_PRICE * 2 * scarce as u64 / (left - 2) as u64;
        for left in [scarce, 6, 4] {
            assert_eq!(answer(left, 2 * price(left)), Answer::Detach, "{left}");
            assert_eq!(answer(left, 2 * price(left) - 2), Answer::Wait, "{left}");
        }
        assert_eq!(answer(2, Nanos::MAX), Answer::Wait, "it would take the last ones");
    }
}
