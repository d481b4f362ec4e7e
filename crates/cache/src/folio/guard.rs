//! The guard through which folios are read and changed under their lock: [`FolioWrite`].
//! States and invariants (table.F1..F6) are in [`crate::table`].

pub use super::pool::FramePool;
use super::read::{copy_out, touch};
use crate::ageing::queues::MAIN;
use crate::cache::PageCache;
use crate::dirty::limits::UNCACHED_AGE;
use crate::folio::batch::Freed;
use crate::mapping::Mapping;
use crate::memory::arena::{Arena, FRAME_SIZE, Frame};
use crate::stats::Counters;
use crate::table::{Blocks, Slot, State, Table};
use forebay_base::sync::atomic::Ordering;
use std::cell::Cell;
use std::ops::Range;

/// Least length of a write whose bytes go around the caches of the processor. A shorter one may be
/// synced or read at once, from these caches.
const STREAM_BYTES: usize = 64 << 10;

/// The states that a block loses when it is dropped.
pub(crate) const ABSENT_LACKS: [State; 5] =
    [State::Uptodate, State::Referenced, State::Active, State::Uncached, State::HeldAbove];

/// What becomes of blocks that a write has made dirty, once they are clean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Retention {
    /// They stay cached.
    Keep,
    /// Those that were not cached before are written out within the uncached window and dropped.
    Window,
    /// Those that were not cached before, or only for uncached requests, are dropped after ordinary
    /// write-back and the next flush.
    UntilFlushed,
}

/// The states of a run of blocks that a writer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Look {
    /// All are up to date.
    pub uptodate: bool,
    /// All are dirty.
    pub dirty: bool,
    /// Some are being read from the device.
    pub reading: bool,
    /// Some are in write-out to the device.
    pub writing: bool,
    /// Some came in by an uncached request.
    pub uncached: bool,
    /// Some are dropped once they are clean and flushed.
    pub held_above: bool,
}

/// A folio with its lock held.
pub struct FolioWrite<'a> {
    pub(crate) cache: &'a PageCache,
    pub(crate) mapping: &'a Mapping,
    pub(crate) slot: Slot,
    /// Index of the folio in its file.
    pub index: u64,
    /// The tasks to wake once the lock is released: a waker may run any code.
    wakes: Cell<Wakes>,
}

/// Tasks that wait for what changed under a folio lock: a set of the constants.
#[derive(Clone, Copy, Default, PartialEq)]
struct Wakes(u8);

impl Wakes {
    const NONE: Self = Self(0);
    const FLUSHER: Self = Self(1);
    /// Writers that wait until fewer bytes are dirty.
    const WRITERS: Self = Self(2);
    /// Tasks that wait for frames.
    const FRAMES: Self = Self(4);

    fn has(self, task: Self) -> bool {
        self.0 & task.0 != 0
    }
}

impl Drop for FolioWrite<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cache.table.unlock(self.slot);
        // One comparison, for a write that hits.
        if self.wakes.get() != Wakes::NONE {
            self.wake();
        }
    }
}

impl<'a> FolioWrite<'a> {
    /// The guard of a lock that was taken.
    #[inline]
    pub(crate) fn of_lock(
        cache: &'a PageCache,
        mapping: &'a Mapping,
        slot: Slot,
        index: u64,
    ) -> Self {
        Self { cache, mapping, slot, index, wakes: Cell::new(Wakes::NONE) }
    }
}

impl FolioWrite<'_> {
    fn defer_wake(&self, tasks: Wakes) {
        self.wakes.set(Wakes(self.wakes.get().0 | tasks.0));
    }

    /// The flusher is woken when the lock is released, if its timer `is_late`.
    pub(crate) fn defer_flusher_wake(&self, is_late: bool) {
        if is_late {
            self.defer_wake(Wakes::FLUSHER);
        }
    }

    /// If frames were given back, the waiters that they serve are woken when the lock is released.
    pub(crate) fn defer_frames_wake(&self, has_given: bool) {
        if has_given {
            self.defer_wake(Wakes::FRAMES);
        }
    }

    /// Wakes the tasks; the lock is released.
    #[cold]
    fn wake(&self) {
        let wakes = self.wakes.get();
        self.mapping.domain.wake_flusher_if(wakes.has(Wakes::FLUSHER));
        if wakes.has(Wakes::WRITERS) {
            self.mapping.domain.wake_writers(false);
        }
        if wakes.has(Wakes::FRAMES) {
            self.cache.wake_for_frames();
        }
    }

    /// Whether all blocks of the run have the state.
    pub fn all(&self, state: State, blocks: Blocks) -> bool {
        self.cache.table.all(self.slot, state, blocks)
    }

    /// Whether any block of the run has the state.
    pub fn any(&self, state: State, blocks: Blocks) -> bool {
        self.cache.table.any(self.slot, state, blocks)
    }

    /// Reads the states of its blocks that a writer needs, at once.
    #[inline]
    pub fn look(&self, blocks: Blocks) -> Look {
        let mut look = Look { uptodate: true, dirty: true, ..Look::default() };
        for (g, mask) in blocks.masks() {
            let bits = |state| self.cache.table.bits(self.slot, state, g);
            look.uptodate &= bits(State::Uptodate) & mask == mask;
            look.dirty &= bits(State::Dirty) & mask == mask;
            look.reading |= bits(State::Reading) & mask != 0;
            look.writing |= bits(State::Writing) & mask != 0;
            look.uncached |= bits(State::Uncached) & mask != 0;
            look.held_above |= bits(State::HeldAbove) & mask != 0;
        }
        look
    }

    /// The maximal runs of `blocks` whose bits are set in the words that `f` returns, one for each
    /// group of 64 blocks. The words are read as the iterator advances, so the caller may change
    /// the states of runs it has received.
    pub fn runs(
        &self,
        blocks: Blocks,
        f: impl Fn(&Table, Slot, usize) -> u64,
    ) -> impl Iterator<Item = Blocks> {
        let (table, slot, mut masks) = (&self.cache.table, self.slot, blocks.masks());
        let (mut base, mut word, mut open) = (0, 0u64, None::<Blocks>);
        std::iter::from_fn(move || {
            loop {
                if word == 0 {
                    let Some((g, mask)) = masks.next() else { return open.take() };
                    (base, word) = (g as u32 * 64, f(table, slot, g) & mask);
                    continue;
                }
                let lo = word.trailing_zeros();
                let upto = lo + (!(word >> lo)).trailing_zeros();
                word = if upto == 64 { 0 } else { word & (u64::MAX << upto) };
                let run = Blocks { start: base + lo, end: base + upto };
                match &mut open {
                    Some(last) if last.end == run.start => last.end = run.end,
                    _ => {
                        let before = open.replace(run);
                        if before.is_some() {
                            return before;
                        }
                    }
                }
            }
        })
    }

    /// The runs of blocks that have the state.
    pub fn runs_with(&self, blocks: Blocks, state: State) -> impl Iterator<Item = Blocks> {
        self.runs(blocks, move |t, s, g| t.bits(s, state, g))
    }

    /// Ages the blocks; see [`FolioRead::touch`](super::read::FolioRead::touch).
    pub fn touch(&self, blocks: Blocks, same: bool) {
        touch(&self.cache.table, self.slot, blocks, same);
    }

    /// Makes the blocks ordinary cached ones: no longer dropped after use (lineage.U4).
    pub fn keep(&self, blocks: Blocks) {
        for (g, mask) in blocks.masks() {
            self.cache.table.clear_bits(self.slot, State::Uncached, g, mask);
            self.cache.table.clear_bits(self.slot, State::HeldAbove, g, mask);
        }
    }

    /// Copies bytes out, from `offset` within the folio. The blocks must be up to date.
    pub fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        let there = copy_out(self.cache, self.slot, offset, dst);
        assert!(there, "uptodate has a frame (F3)");
    }

    pub(crate) fn frames_of(&self, blocks: Blocks) -> Range<usize> {
        let per = self.mapping.blocks_per_frame();
        if blocks.is_empty() {
            return 0..0;
        }
        (blocks.start / per) as usize..blocks.end.div_ceil(per) as usize
    }

    /// Frames that the blocks lack.
    pub fn frames_missing(&self, blocks: Blocks) -> usize {
        let lacks = |&f: &usize| self.cache.table.frame(self.slot, f).is_none();
        self.frames_of(blocks).filter(lacks).count()
    }

    /// Gives the blocks frames out of `pool`, which must have enough.
    pub fn install_frames(&self, blocks: Blocks, pool: &mut FramePool<'_>) {
        for at in self.frames_of(blocks) {
            if self.cache.table.frame(self.slot, at).is_none() {
                let frame = pool.frames.pop().expect("the caller asked frames_missing");
                self.cache.table.replace_frame(self.slot, at, Some(frame));
                self.count_frames(1);
            }
        }
    }

    pub(crate) fn count_frames(&self, change: i64) {
        let queue = self.cache.table.queue(self.slot);
        self.cache.queued[queue as usize].fetch_add(change, Ordering::Relaxed);
        if queue == MAIN {
            self.cache.count_young(self.slot, change);
        }
    }

    pub(crate) fn frame_at(&self, block: u32) -> Frame {
        let at = (block / self.mapping.blocks_per_frame()) as usize;
        self.cache.table.frame(self.slot, at).expect("the block has a frame (F3)")
    }

    /// Gives back the frames of `blocks` in which no block is cached, dirty or in I/O (table.F3).
    pub(super) fn strip_frames(&self, blocks: Blocks) {
        let (per, mut freed) = (self.mapping.blocks_per_frame(), Freed::new(self.cache));
        for at in self.frames_of(blocks) {
            let run = Blocks { start: at as u32 * per, end: (at as u32 + 1) * per };
            let used = [State::Uptodate, State::Reading, State::Writing, State::Dirty];
            if used.iter().any(|&s| self.any(s, run)) {
                continue;
            }
            if let Some(frame) = self.cache.table.replace_frame(self.slot, at, None) {
                self.count_frames(-1);
                freed.leave(frame, self.mapping.id);
            }
        }
        self.defer_frames_wake(freed.put());
    }

    // ---- writes ----

    /// Copies bytes in at `offset` within the folio. Partly written blocks must be up to date, none
    /// may be *reading*, all must have frames. The holder of the lock then marks them dirty.
    #[inline]
    pub fn copy_in(&self, offset: usize, src: &[u8]) {
        self.fill_frames(offset, src, Arena::copy_in);
    }

    /// As [`FolioWrite::copy_in`], for frames that were installed for this write. Many bytes go
    /// around the caches of the processor, which have nothing of such frames.
    pub fn copy_in_fresh(&self, offset: usize, src: &[u8]) {
        match src.len() >= STREAM_BYTES {
            true => self.fill_frames(offset, src, Arena::stream_in),
            false => self.copy_in(offset, src),
        }
    }

    #[inline]
    fn fill_frames(&self, offset: usize, src: &[u8], copy: impl Fn(&Arena, Frame, usize, &[u8])) {
        debug_assert!(self.cache.table.is_locked(self.slot), "F6: bytes come in under the lock");
        let (mut at, mut rest) = (offset, src);
        while !rest.is_empty() {
            let len = rest.len().min(FRAME_SIZE - at % FRAME_SIZE);
            let (part, after) = rest.split_at(len);
            let frame = self.cache.table.frame(self.slot, at / FRAME_SIZE);
            let frame = frame.expect("the caller installed the frames");
            debug_assert!(
                !self.cache.words.is_pinned(frame),
                "pin.P1: a writer detaches pinned frames"
            );
            copy(&self.cache.arena, frame, at % FRAME_SIZE, part);
            at += len;
            rest = after;
        }
    }

    /// Makes blocks up to date and dirty for a writer. Returns the bytes of blocks that were clean.
    pub fn mark_dirty(&self, blocks: Blocks, retention: Retention) -> u64 {
        debug_assert!(self.tail_is_zero(blocks), "E1: a writer left bytes behind the end");
        let bytes = self.set_dirty(blocks, retention);
        // Skipped if it adds nothing: an atomic addition right behind the copy waits until all of
        // the copy has left the store buffer (measured: 250 of 790 ns).
        if bytes > 0 {
            Counters::add(&self.cache.counters.dirtied_bytes, bytes);
        }
        bytes
    }

    /// Makes blocks up to date and dirty; every path that dirties a block ends here (lineage.D6).
    /// Returns the bytes of blocks that were clean.
    pub(crate) fn set_dirty(&self, blocks: Blocks, retention: Retention) -> u64 {
        let table = &self.cache.table;
        let was_clean = !table.any_at_all(self.slot, State::Dirty);
        let uncached = retention == Retention::Window;
        let mut fresh = 0u64;
        for (g, mask) in blocks.masks() {
            let added = table.set_bits(self.slot, State::Uptodate, g, mask);
            self.set_retention(retention, g, mask, added);
            fresh += u64::from(table.set_bits(self.slot, State::Dirty, g, mask).count_ones());
            table.check_block(self.slot, g);
        }
        let bytes = fresh * self.mapping.block_size();
        // An uncached write lists the folio also if its blocks were cached or dirty before: they
        // stay cached, but their write-out starts within the window all the same.
        if (was_clean && fresh > 0) || uncached {
            self.list_dirty(bytes, uncached);
        }
        if fresh == 0 {
            return 0;
        }
        self.mapping.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.mapping.domain.add_dirty(bytes);
        bytes
    }

    /// Notes what becomes of the blocks of a group, of which `added` were not cached before.
    fn set_retention(&self, retention: Retention, group: usize, mask: u64, added: u64) {
        let (table, slot) = (&self.cache.table, self.slot);
        match retention {
            Retention::Keep => {
                table.clear_bits(slot, State::Uncached, group, mask);
                table.clear_bits(slot, State::HeldAbove, group, mask);
            }
            Retention::Window => drop(table.set_bits(slot, State::Uncached, group, added)),
            Retention::UntilFlushed => {
                // Also blocks that only uncached requests used: no reader wants them kept.
                let passed = table.clear_bits(slot, State::Uncached, group, mask);
                table.set_bits(slot, State::HeldAbove, group, added | passed);
            }
        }
    }

    /// Adds the folio to the dirty set, and the file to its flusher's queue; wakes the flusher if
    /// its timer would expire too late.
    fn list_dirty(&self, bytes: u64, uncached: bool) {
        let now = self.cache.world.now();
        let (mapping, dirty_folios) = (self.mapping, &self.mapping.dirty);
        let listed = dirty_folios.list(self.index, now, uncached);
        if listed.fresh {
            mapping.domain.count_dirty_folio(1);
        }
        // While the file is dirty it stays queued, so not each write wakes the flusher.
        if !dirty_folios.is_queued() || (listed.fresh && dirty_folios.is_stalled()) {
            self.defer_flusher_wake(mapping.domain.dirtied(mapping.id, now));
        }
        if !uncached {
            return;
        }
        // The first uncached write of a folio counts as a block at least, even if all its blocks
        // were dirty: the flusher skips a file without bytes of uncached writes.
        let bytes = if listed.uncached { bytes } else { bytes.max(mapping.block_size()) };
        let before = dirty_folios.more_uncached(bytes);
        let window = self.cache.dirty.uncached_window.load(Ordering::Relaxed) / 4;
        if before < window && before + bytes >= window {
            self.defer_flusher_wake(mapping.domain.look_by(mapping.id, now));
        } else if before == 0 {
            let at = now + UNCACHED_AGE;
            self.defer_flusher_wake(mapping.domain.look_by(mapping.id, at));
        }
    }

    /// Takes `cleared` blocks out of the dirty count, after their bits were cleared.
    pub(crate) fn undirty(&self, cleared: u64) {
        let bytes = cleared * self.mapping.block_size();
        self.mapping.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
        if !self.cache.table.any_at_all(self.slot, State::Dirty)
            && self.mapping.dirty.unlist(self.index)
        {
            self.mapping.domain.count_dirty_folio(-1);
        }
        self.mapping.domain.sub_dirty(bytes);
        self.defer_wake(Wakes::WRITERS);
    }

    /// Drops blocks whatever their state, dirty ones included: they are being overwritten, punched
    /// or truncated. None may be *reading* or *writing*.
    pub fn discard(&self, blocks: Blocks) {
        assert!(!self.any(State::Reading, blocks) && !self.any(State::Writing, blocks));
        let (mut cleared, forgotten) = (0, self.clear_unflushed(blocks));
        for (g, mask) in blocks.masks() {
            let table = &self.cache.table;
            cleared += u64::from(table.clear_bits(self.slot, State::Dirty, g, mask).count_ones());
            for state in ABSENT_LACKS {
                table.clear_bits(self.slot, state, g, mask);
            }
        }
        if cleared > 0 {
            self.undirty(cleared);
        }
        let numbers = self.mapping.block_numbers(self.index, blocks);
        self.mapping.unflushed.drop_blocks(numbers.clone(), forgotten);
        self.mapping.unfail(numbers);
        self.strip_frames(blocks);
    }

    /// Drops those of the blocks that are uncached, clean and idle (lineage.U5): they were
    /// consumed, or their write-out is done. Those being read are dropped when their fill ends.
    pub fn drop_uncached(&self, blocks: Blocks) {
        self.abandon_fills(blocks);
        self.drop_idle(blocks, |t, s, g| t.bits(s, State::Uncached, g));
    }

    /// Drops those of the blocks that are clean, flushed and idle, and that a cache above holds.
    /// The block in which the file ends stays unless it is full: an append reads it first.
    pub(crate) fn drop_held_above(&self, blocks: Blocks) {
        let size = self.mapping.size();
        let end = size - size % self.mapping.block_size();
        let whole = self.mapping.blocks_inside(self.index, &(0..end));
        for (g, mask) in blocks.masks() {
            // An ordinary request has used them meanwhile: they are ordinary blocks from now on.
            let used = mask & self.cache.table.bits(self.slot, State::Referenced, g);
            self.cache.table.clear_bits(self.slot, State::HeldAbove, g, used);
        }
        self.drop_idle(blocks.within(whole), |t, s, g| t.bits(s, State::HeldAbove, g));
    }

    /// Drops those of the blocks that are clean, flushed and idle, and that no ordinary request has
    /// used: the cache above, which has just read them, holds them now.
    pub fn drop_unreferenced(&self, blocks: Blocks) {
        self.drop_idle(blocks, |t, s, g| !t.bits(s, State::Referenced, g));
    }

    fn drop_idle(&self, blocks: Blocks, chosen: impl Fn(&Table, Slot, usize) -> u64) {
        let droppable = |t: &Table, s: Slot, g: usize| {
            let busy = [State::Dirty, State::Writing, State::Reading, State::Unflushed];
            let busy = busy.iter().fold(0, |w, &b| w | t.bits(s, b, g));
            chosen(t, s, g) & t.bits(s, State::Uptodate, g) & !busy
        };
        for run in self.runs(blocks, droppable) {
            for (g, mask) in run.masks() {
                for state in ABSENT_LACKS {
                    self.cache.table.clear_bits(self.slot, state, g, mask);
                }
            }
            self.strip_frames(run);
        }
    }

    /// Uncached blocks that are still being read are not needed any more: their fill drops them at
    /// its end. The bit *referenced* marks them; it has no other meaning while a block is being
    /// read.
    fn abandon_fills(&self, blocks: Blocks) {
        for (g, mask) in blocks.masks() {
            let table = &self.cache.table;
            let reading = table.bits(self.slot, State::Reading, g);
            let gone = mask & reading & table.bits(self.slot, State::Uncached, g);
            table.set_bits(self.slot, State::Referenced, g, gone);
        }
    }

    /// Drops the blocks of an ended fill that no reader needs any more ([`Self::abandon_fills`]).
    pub(super) fn drop_abandoned(&self, blocks: Blocks) {
        let gone = self.runs(blocks, |t, s, g| {
            t.bits(s, State::Uncached, g) & t.bits(s, State::Referenced, g)
        });
        gone.for_each(|run| self.drop_uncached(run));
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::config::Config;
    use crate::dirty::dirty_folios::DirtyCursor;
    use crate::table::{Blocks, State};
    use crate::writeback::{Which, WriteOutPass};
    use crate::{FramePool, PageCache, Retention};
    use forebay_base::world::RealWorld;
    use std::cell::Cell;

    #[test]
    fn d18_scan_costs_a_step_per_64_blocks_and_run() {
        let folio_size = 2 << 20;
        let config = Config { folio_size, huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(512, 8 << 20);
        let folio = cache.lock_or_make(&mapping, 1, false).unwrap();
        let all = mapping.blocks_touched(1, &(0..u64::MAX >> 1));
        assert_eq!(all.len(), 4096);
        let dirty = [(0, 1), (63, 65), (127, 129), (640, 1400), (4095, 4096)];
        let dirty = dirty.map(|(start, end)| Blocks { start, end });
        for run in dirty {
            let mut pool: FramePool<'_> = cache.take_frames(folio.frames_missing(run)).unwrap();
            folio.install_frames(run, &mut pool);
            folio.mark_dirty(run, Retention::Keep);
        }
        let steps = Cell::new(0);
        let found = folio.runs(all, |table, slot, group| {
            steps.set(steps.get() + 1);
            table.bits(slot, State::Dirty, group)
        });
        let found: Vec<_> = found.collect();
        assert_eq!((found, steps.get()), (dirty.to_vec(), 64));
        drop(folio);
        // A pass over a file visits its dirty folios only.
        let pass = WriteOutPass {
            range: 0..u64::MAX >> 1,
            which: Which::All,
            max_bytes: u64::MAX,
            sync: false,
        };
        let (mut cursor, mut listed, folios) = (DirtyCursor::default(), Vec::new(), 0..u64::MAX);
        cursor.begin(&pass, &folios, 0);
        mapping.dirty.next_of_pass(&pass, &folios, &mut cursor, (64, &mut listed));
        assert_eq!(listed, [1]);
    }
}
