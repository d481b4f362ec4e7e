//! Pins under the folio lock: taking them, and giving a pinned frame a successor before its
//! folio's bytes change. What a pin is: [`crate::folio::pinned`].
//!
//! Invariants: pin.P1 no byte of a pinned frame changes: a writer, a fill and the zeroing of a tail
//! replace the frame in the folio first. pin.P2 no block of a frame is being read when the frame is
//! pinned, and a fill goes to no pinned frame, so a pinned frame can be replaced at any time.
//! Locks: the folio lock.

use crate::cache::PageCache;
use crate::folio::batch::Freed;
use crate::folio::guard::{FolioWrite, FramePool};
use crate::folio::pinned::Pinned;
use crate::memory::arena::{FRAME_SIZE, Frame};
use crate::stats::Counters;
use crate::table::{Blocks, Slot, State, Table};
use std::ops::Range;

impl FolioWrite<'_> {
    /// The pinned frames that `blocks` touch, each with its position in the folio.
    fn pinned_at(&self, blocks: Blocks) -> impl Iterator<Item = (usize, Frame)> {
        let frames = if self.cache.words.any_pinned() { self.frames_of(blocks) } else { 0..0 };
        let held = |at| self.cache.table.frame(self.slot, at).map(|frame| (at, frame));
        frames.filter_map(held).filter(|&(_, frame)| self.cache.words.is_pinned(frame))
    }

    /// Frames that `blocks` touch and that are pinned. The number cannot rise under the lock.
    #[inline]
    pub fn frames_pinned(&self, blocks: Blocks) -> usize {
        if self.cache.words.any_pinned() { self.pinned_at(blocks).count() } else { 0 }
    }

    /// How many of the blocks are up to date and in pinned frames.
    pub fn blocks_pinned(&self, blocks: Blocks) -> u32 {
        let pinned = |table: &Table, slot, group| {
            table.bits(slot, State::Uptodate, group) & self.cache.pinned_blocks(slot, group)
        };
        self.runs(blocks, pinned).map(Blocks::len).sum()
    }

    /// Frames that [`FolioWrite::begin_fill`] takes for these blocks: those that are missing, and
    /// one for each pinned one, however many of its blocks are missing.
    pub fn frames_to_fill(&self, blocks: Blocks) -> usize {
        let (mut counted_to, mut needed) = (0, 0);
        for run in self.fillable(blocks) {
            let frames = self.frames_of(run);
            let lacks = |&at: &usize| {
                let frame = self.cache.table.frame(self.slot, at);
                frame.is_none_or(|frame| self.cache.words.is_pinned(frame))
            };
            needed += (frames.start.max(counted_to)..frames.end).filter(lacks).count();
            counted_to = frames.end;
        }
        needed
    }

    /// Gives each pinned frame of `blocks` a successor out of `pool`, which holds enough
    /// ([`FolioWrite::frames_pinned`]). Bytes that the caller is about to overwrite (`written`,
    /// within the folio) are not copied.
    pub fn detach_pinned(&self, blocks: Blocks, written: &Range<usize>, pool: &mut FramePool<'_>) {
        if self.cache.words.any_pinned() {
            self.pinned_at(blocks).for_each(|(at, old)| self.detach_pin(at, old, written, pool));
        }
    }

    /// Gives the pinned frame `old`, number `at` of the folio, a successor, as
    /// [`FolioWrite::detach_pinned`].
    pub(crate) fn detach_pin(
        &self,
        at: usize,
        old: Frame,
        written: &Range<usize>,
        pool: &mut FramePool<'_>,
    ) {
        let per = self.mapping.blocks_per_frame();
        let whole = Blocks { start: at as u32 * per, end: (at as u32 + 1) * per };
        assert!(!self.any(State::Reading, whole), "no fill goes to a pinned frame (pin.P2)");
        self.replace_frame_at(at, old, written, pool);
        Counters::add(&self.cache.counters.pin_detached_frames, 1);
    }

    /// Puts a fresh frame in the place of `old`, with its bytes save those in `written` (bytes of
    /// the folio). Returns the bytes copied.
    pub(crate) fn replace_frame_at(
        &self,
        at: usize,
        old: Frame,
        written: &Range<usize>,
        pool: &mut FramePool<'_>,
    ) -> u64 {
        let fresh = pool.frames.pop().expect("the caller brought a frame for each");
        let base = at * FRAME_SIZE;
        let from = written.start.clamp(base, base + FRAME_SIZE) - base;
        let to = written.end.clamp(base, base + FRAME_SIZE) - base;
        self.cache.arena.copy_between(old, fresh, 0, from);
        self.cache.arena.copy_between(old, fresh, to, FRAME_SIZE - to);
        self.cache.table.replace_frame(self.slot, at, Some(fresh));
        let mut freed = Freed::new(self.cache);
        freed.leave(old, self.mapping.id);
        self.defer_frames_wake(freed.put());
        (from + FRAME_SIZE - to) as u64
    }

    /// Adds bytes of the folio, `range`, to a pin. Their blocks are up to date, and none of their
    /// frames is being filled. False, and nothing was added: a limit of pins is reached.
    #[must_use]
    pub fn pin(&self, range: Range<usize>, into: &mut Pinned) -> bool {
        let frames = range.start / FRAME_SIZE..range.end.div_ceil(FRAME_SIZE);
        let per = self.mapping.blocks_per_frame();
        let whole = Blocks { start: frames.start as u32 * per, end: frames.end as u32 * per };
        assert!(
            !self.any(State::Reading, whole),
            "a frame that is being filled is not pinned (pin.P2)"
        );
        let number = |at| self.cache.table.frame(self.slot, at).expect("uptodate has a frame (F3)");
        let folio_limit = self.cache.folio_pin_limit();
        if folio_limit.is_some_and(|limit| !self.cache.words.pin_folio(limit)) {
            return false;
        }
        if !self.cache.words.pin(frames.clone().map(number), self.cache.pin_limit()) {
            if folio_limit.is_some() {
                self.cache.words.unpin_folios(1);
            }
            return false;
        }
        into.folios += u32::from(folio_limit.is_some());
        for at in frames {
            let base = at * FRAME_SIZE;
            let (start, end) = (range.start.max(base), range.end.min(base + FRAME_SIZE));
            into.push(self.cache.arena.bytes(number(at), start - base, end - start));
        }
        true
    }
}

impl PageCache {
    /// Most frames that pins may hold, those included that have left their folio: an eighth.
    pub fn pin_limit(&self) -> u64 {
        self.sizes.frames() as u64 / 8
    }

    /// If there are fewer folio descriptors than frames: most parts of folios that pins may hold,
    /// an eighth of the descriptors, as each part keeps one. `None`: the limit of frames suffices.
    /// A folio counts for each pin of it, because the end of a pin does not look up the folio.
    pub(crate) fn folio_pin_limit(&self) -> Option<u64> {
        let slots = self.sizes.slots();
        (slots < self.sizes.frames()).then(|| (slots as u64 / 8).max(1))
    }

    /// Whether new pins may take that many frames, of that many folios.
    pub fn can_pin(&self, frames: u64, folios: u64) -> bool {
        let folios_left = |limit: u64| limit.saturating_sub(self.words.folio_pins());
        frames <= self.pin_limit().saturating_sub(self.words.pinned())
            && self.folio_pin_limit().is_none_or(|limit| folios <= folios_left(limit))
    }

    /// The blocks of a group of a folio, whose lock is held, that are in pinned frames.
    pub(crate) fn pinned_blocks(&self, slot: Slot, group: usize) -> u64 {
        if !self.words.any_pinned() {
            return 0;
        }
        let per = self.table.blocks_per_frame(slot) as usize;
        let (frames, of_frame) = (64 / per, u64::MAX >> (64 - per));
        let all = group * frames..((group + 1) * frames).min(self.table.layout().frames);
        let is_pinned = |&at: &usize| {
            self.table.frame(slot, at).is_some_and(|frame| self.words.is_pinned(frame))
        };
        all.filter(is_pinned).fold(0, |w, at| w | of_frame << (at % frames * per))
    }
}
