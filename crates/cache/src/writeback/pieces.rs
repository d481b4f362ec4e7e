//! Blocks in write-out: taken from a folio, ended or returned; and the space for unflushed blocks.

use crate::cache::PageCache;
use crate::dirty::unflushed::Epoch;
use crate::folio::batch::{FrameBatch, Freed};
use crate::folio::guard::{FolioWrite, Retention};
use crate::mapping::Mapping;
use crate::memory::arena::Frame;
use crate::stats::Counters;
use crate::strategy::DirtyTracking;
use crate::table::{Blocks, State, Table};
use forebay_base::sync::atomic::Ordering;
use forebay_base::units::{MIB, round_up};
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind};
use std::ops::Range;

impl PageCache {
    /// Waits until fewer bytes than [`PageCache::write_depth`] are in write-out in the domain of
    /// the file.
    pub async fn wait_write_room(&self, mapping: &Mapping) {
        mapping.domain.wait_write_room(self.write_depth()).await;
    }

    /// Bytes in write-out at which a domain issues no more: those that its flusher keeps in flight.
    pub fn write_depth(&self) -> u64 {
        (self.sizes.frame_bytes() / 10).clamp(MIB, 32 * MIB)
    }

    /// Limit of written but unflushed blocks, in bytes over all files. They are kept in case a
    /// flush fails and cannot be reclaimed: with dirty blocks they must leave memory for other
    /// uses.
    pub(crate) fn unflushed_window(&self) -> u64 {
        self.dirty.dirty_limit().min(self.sizes.frame_bytes() / 4)
    }
}

/// A run of blocks of one folio in write-out, with the frames that were captured for it.
#[derive(Debug)]
pub struct WritePiece {
    /// Folio.
    pub index: u64,
    /// Blocks.
    pub blocks: Blocks,
    /// How many of them were dirty.
    dirty: u32,
    /// Their frames at the time of capture, in order.
    pub(crate) frames: FrameBatch,
    pub(crate) first_frame: usize,
    /// The frames are copies of its own (see [`crate::writeback::stable`]).
    pub(crate) snapshot: bool,
    /// When it was taken.
    since: Nanos,
    /// Number of failed flushes of the domain when the piece was taken (unflushed.W1).
    epoch: Epoch,
}

impl WritePiece {
    /// Frame and offset of a block.
    pub fn place(&self, block: u32, mapping: &Mapping) -> (Frame, usize) {
        let per = mapping.blocks_per_frame();
        let frame = self.frames[(block / per) as usize - self.first_frame];
        (frame, (block % per) as usize * mapping.block_size() as usize)
    }
}

impl FolioWrite<'_> {
    /// The first blocks in write-out that keep dirty blocks of the run from being taken: the same
    /// blocks, or, if folios are written as a whole, all of the folio.
    pub fn write_conflict(&self, blocks: Blocks, tracking: DirtyTracking) -> Option<Blocks> {
        match tracking {
            DirtyTracking::Block => {
                let both =
                    |t: &Table, s, g| t.bits(s, State::Dirty, g) & t.bits(s, State::Writing, g);
                self.runs(blocks, both).next()
            }
            DirtyTracking::Folio => {
                let table = &self.cache.table;
                let any = |state| table.any_at_all(self.slot, state);
                (any(State::Dirty) && any(State::Writing)).then(|| self.whole())
            }
        }
    }

    /// The blocks of the run that may be taken for write-out. Under the same lock they may be taken
    /// in parts ([`FolioWrite::take`]); the rest stays as it is, dirty or clean. Blocks already
    /// *writing* are left out: a map that writes in place must have one write of a block in flight
    /// at most.
    ///
    /// With [`DirtyTracking::Folio`], as Linux v5.8 had it, a dirty block anywhere in the folio has
    /// all its up-to-date blocks written, up to the end of file, wherever the run is. No block is
    /// taken while any block of the folio is in write-out.
    pub fn writable(
        &self,
        blocks: Blocks,
        tracking: DirtyTracking,
    ) -> impl Iterator<Item = Blocks> {
        let any = |state| self.cache.table.any_at_all(self.slot, state);
        let blocks = match tracking {
            DirtyTracking::Block => blocks,
            DirtyTracking::Folio if !any(State::Dirty) || any(State::Writing) => {
                Blocks { start: 0, end: 0 }
            }
            DirtyTracking::Folio => {
                let eof = round_up(self.mapping.size(), self.mapping.block_size());
                self.mapping.blocks_touched(self.index, &(0..eof))
            }
        };
        self.runs(blocks, move |t, s, g| match tracking {
            DirtyTracking::Block => t.bits(s, State::Dirty, g) & !t.bits(s, State::Writing, g),
            DirtyTracking::Folio => t.bits(s, State::Uptodate, g),
        })
    }

    /// All blocks of the folio.
    fn whole(&self) -> Blocks {
        self.mapping.blocks_touched(self.index, &(0..u64::MAX >> 1))
    }

    /// Takes all of [`FolioWrite::writable`].
    pub fn begin_write(
        &self,
        blocks: Blocks,
        tracking: DirtyTracking,
        taken: &mut Vec<WritePiece>,
    ) {
        for run in self.writable(blocks, tracking) {
            let mut start = run.start;
            while start < run.end {
                taken.push(self.take(Blocks { start, end: run.end }));
                start = taken.last().map_or(run.end, |piece| piece.blocks.end);
            }
        }
    }

    /// Takes the first part of a run for write-out, which [`FolioWrite::writable`] returned: as
    /// much as the frames of a batch hold. The blocks become clean and *writing* before their bytes
    /// are captured (lineage.D8).
    pub fn take(&self, run: Blocks) -> WritePiece {
        let (table, mut cleared) = (&self.cache.table, 0);
        let most = FrameBatch::MOST as u32 * self.mapping.blocks_per_frame();
        let end = (run.start + 1).next_multiple_of(most).min(run.end);
        let run = Blocks { start: run.start, end };
        for (g, mask) in run.masks() {
            let was = table.clear_bits(self.slot, State::Dirty, g, mask);
            cleared += u64::from(was.count_ones());
            let added = table.set_bits(self.slot, State::Writing, g, mask);
            assert_eq!(added, mask, "one write of a block in flight");
            table.check_block(self.slot, g);
        }
        self.mapping.domain.begin_write(u64::from(run.len()) * self.mapping.block_size());
        self.undirty(cleared);
        let at = self.frames_of(run);
        let mut frames = FrameBatch::default();
        for at in at.clone() {
            let frame = table.frame(self.slot, at).expect("dirty has a frame (F3)");
            self.cache.words.capture(frame);
            frames.push(frame);
        }
        WritePiece {
            index: self.index,
            blocks: run,
            dirty: cleared as u32,
            first_frame: at.start,
            snapshot: false,
            since: self.cache.world.now(),
            epoch: self.mapping.unflushed.epoch(),
            frames,
        }
    }

    /// Ends the write-out of a piece. Blocks that failed become dirty again; written blocks are
    /// kept until the next flush if the window has space.
    fn end_write(&self, piece: &WritePiece, ok: bool) {
        let table = &self.cache.table;
        let bytes = u64::from(piece.blocks.len()) * self.mapping.block_size();
        for (g, mask) in piece.blocks.masks() {
            let was = table.clear_bits(self.slot, State::Writing, g, mask);
            assert_eq!(was, mask, "a write-out ends once");
        }
        self.free_detached(piece);
        let (numbers, now) =
            (self.mapping.block_numbers(self.index, piece.blocks), self.cache.world.now());
        let dead = self.mapping.is_dead();
        let kept = ok && self.keep_until_flush(piece, numbers.clone());
        if !dead && !kept {
            if ok {
                // A sync that waits for this write-out gets the error, also if the blocks are
                // written again before it checks: its own flush may have begun before that
                // (unflushed.W1).
                let text = "a flush of the same device failed during this write-out";
                self.mapping.errseq.set(Error::new(ErrorKind::Io, "flush", text));
            }
            // Blocks redirtied meanwhile are dirty anyway.
            self.mark_failed(piece.blocks);
            self.defer_flusher_wake(self.mapping.fail(numbers, now));
            self.mapping.domain.end_write(bytes);
            return;
        }
        self.mapping.unfail(numbers);
        if dead {
            // Without an owner no task would write them again, or flush.
            self.discard(piece.blocks);
        }
        self.mapping.domain.end_write(bytes);
        self.drop_uncached(piece.blocks);
        self.drop_held_above(piece.blocks);
    }

    fn mark_failed(&self, blocks: Blocks) {
        let passing = [State::Uncached, State::HeldAbove];
        let passing =
            passing.map(|state| (state, self.runs_with(blocks, state).collect::<Vec<_>>()));
        self.set_dirty(blocks, Retention::Keep);
        // Blocks of uncached writes are still dropped once they are written.
        for (state, runs) in passing {
            for (g, mask) in runs.iter().flat_map(|run| run.masks()) {
                self.cache.table.set_bits(self.slot, state, g, mask);
            }
        }
    }

    /// Keeps written blocks until the next flush, if the window has space for them. False if a
    /// flush failed since they were taken (unflushed.W1): they have to be written again.
    fn keep_until_flush(&self, piece: &WritePiece, numbers: Range<u64>) -> bool {
        let blocks = piece.blocks;
        let bytes = u64::from(blocks.len()) * self.mapping.block_size();
        let window = self.cache.unflushed_window();
        let room = self.cache.dirty.unflushed_bytes() + bytes <= window;
        let pin = room && !self.any(State::Uncached, blocks);
        let (pinned, memory) = (pin.then_some(numbers), || self.cache.take_set());
        if !self.mapping.unflushed.completed(piece.epoch, pinned, memory) {
            return false;
        }
        if !pin {
            return true;
        }
        let mut added = 0;
        for (g, mask) in blocks.masks() {
            added += self.cache.table.set_bits(self.slot, State::Unflushed, g, mask).count_ones();
        }
        let added = u64::from(added) * self.mapping.block_size();
        let (id, dirty_folios) = (self.mapping.id, &self.mapping.dirty);
        self.mapping.domain.keep_unflushed(id, dirty_folios, added, window / 8);
        true
    }

    /// The blocks need not be kept for a flush any more; true if any was.
    pub(crate) fn clear_unflushed(&self, blocks: Blocks) -> bool {
        let mut gone = 0;
        for (g, mask) in blocks.masks() {
            gone += self.cache.table.clear_bits(self.slot, State::Unflushed, g, mask).count_ones();
        }
        if gone > 0 {
            let bytes = u64::from(gone) * self.mapping.block_size();
            self.mapping.domain.sub_unflushed(&self.mapping.dirty, bytes);
        }
        gone > 0
    }

    /// Blocks taken for write-out are not written after all; with `dirty`, they are dirty again.
    fn untake(&self, piece: &WritePiece, dirty: bool) {
        for (g, mask) in piece.blocks.masks() {
            let was = self.cache.table.clear_bits(self.slot, State::Writing, g, mask);
            assert_eq!(was, mask, "taken once, given back once");
        }
        let bytes = u64::from(piece.blocks.len()) * self.mapping.block_size();
        self.free_detached(piece);
        if dirty {
            self.mark_failed(piece.blocks);
            self.mapping.note_leftover();
        }
        self.mapping.domain.end_write(bytes);
    }

    /// Dirty blocks of the run cannot be written, for lack of space: they count as failed.
    fn fail_unwritten(&self, blocks: Blocks) {
        // They are not taken, so a sync that looks meanwhile finds them dirty.
        for run in self.writable(blocks, DirtyTracking::Block) {
            let numbers = self.mapping.block_numbers(self.index, run);
            self.defer_flusher_wake(self.mapping.fail(numbers, self.cache.world.now()));
        }
    }

    /// Ends the captures of the frames; gives back those that have left the folio meanwhile and
    /// that nothing else holds.
    fn free_detached(&self, piece: &WritePiece) {
        if piece.snapshot {
            let count = piece.frames.len() as u64;
            self.cache.snapshot_frames.fetch_sub(count, Ordering::Relaxed);
        }
        let mut freed = Freed::new(self.cache);
        for &frame in piece.frames.iter() {
            if self.cache.words.release(frame) {
                self.cache.disown(frame, self.mapping.id);
                freed.push(frame);
            }
        }
        self.defer_frames_wake(freed.put());
    }

    /// A flush that covers the blocks succeeded: they need not be kept any more.
    pub fn flushed(&self, blocks: Blocks) {
        self.clear_unflushed(blocks);
        self.drop_uncached(blocks);
        self.drop_held_above(blocks);
    }

    /// A flush that covers the blocks failed: those that were kept become dirty again.
    pub fn flush_failed(&self, blocks: Blocks) {
        for run in self.runs_with(blocks, State::Unflushed) {
            self.clear_unflushed(run);
            self.mark_failed(run);
            let numbers = self.mapping.block_numbers(self.index, run);
            self.defer_flusher_wake(self.mapping.fail(numbers, self.cache.world.now()));
        }
    }
}

/// Ends the write-out of pieces of one file, and wakes the tasks that wait for it.
pub fn end_write(cache: &PageCache, mapping: &Mapping, pieces: &[WritePiece], ok: bool) {
    let (mut bytes, mut cleaned, mut again) = (0, 0, false);
    let now = cache.world.now();
    if let Some(first) = pieces.first() {
        let took = now.saturating_sub(first.since);
        mapping.write_took(took);
        cache.latencies.writeback.add(took);
    }
    for piece in pieces {
        let folio = cache.lock_folio(mapping, piece.index);
        let folio = folio.expect("a folio with blocks in write-out is not evicted (F4)");
        folio.end_write(piece, ok);
        again |= folio.cache.table.any_at_all(folio.slot, State::Dirty);
        drop(folio);
        bytes += u64::from(piece.blocks.len()) * mapping.block_size();
        cleaned += u64::from(piece.dirty) * mapping.block_size();
        cache.wake_folio(mapping.id, piece.index);
    }
    if again && cache.strategies.dirty_tracking() == DirtyTracking::Folio {
        // A pass that met the folio in write-out has left it alone: the flusher visits it again.
        mapping.domain.wake_flusher();
    }
    if ok {
        mapping.domain.note_written(now, bytes);
        Counters::add(&cache.counters.written_bytes, bytes);
        Counters::add(&cache.counters.cleaned_bytes, cleaned);
    } else {
        Counters::add(&cache.counters.io_errors, 1);
    }
    mapping.domain.end_stall(mapping.id, &mapping.dirty);
    mapping.domain.wake_writers(!ok);
    mapping.domain.made_room(cache.write_depth());
    cache.wake_frame_waiters();
}

/// Dirty blocks of a folio cannot be written, for lack of space: they count as failed, and stay
/// dirty.
pub fn fail_unwritten(cache: &PageCache, mapping: &Mapping, index: u64, blocks: Blocks) {
    let Some(folio) = cache.lock_folio(mapping, index) else { return };
    folio.fail_unwritten(blocks);
    drop(folio);
    Counters::add(&cache.counters.io_errors, 1);
    mapping.domain.wake_writers(true);
}

/// Gives pieces back that were taken for write-out and not written: dirty again, all of them, or
/// dropped, because the operation that took them has replaced their bytes on the device.
pub fn untake(cache: &PageCache, mapping: &Mapping, pieces: &[WritePiece], dirty: bool) {
    for piece in pieces {
        let folio = cache.lock_folio(mapping, piece.index);
        let folio = folio.expect("a folio with blocks in write-out is not evicted (F4)");
        folio.untake(piece, dirty);
        if !dirty {
            folio.discard(piece.blocks);
        }
        drop(folio);
        cache.wake_folio(mapping.id, piece.index);
    }
    mapping.domain.wake_writers(false);
    mapping.domain.made_room(cache.write_depth());
    cache.wake_frame_waiters();
}

/// Ends a fill of blocks of one folio and wakes its waiters. `read_to`: the file's bytes from there
/// on did not come from storage, and read as zeros: the size at the fill's plan, or less
/// (bounds.E6, lineage.D14).
pub fn end_fill(
    cache: &PageCache,
    mapping: &Mapping,
    index: u64,
    blocks: Blocks,
    read_to: u64,
    ok: bool,
) {
    let folio = cache.lock_folio(mapping, index);
    let folio = folio.expect("a folio with blocks being read is not evicted (F4)");
    let range = mapping.range_of(index, blocks);
    if ok && range.end > read_to {
        let base = mapping.folio_start(index);
        folio.zero_bytes((read_to.max(range.start) - base) as usize..(range.end - base) as usize);
    }
    folio.end_fill(blocks, ok);
    drop(folio);
    if !ok {
        Counters::add(&cache.counters.io_errors, 1);
    }
    cache.wake_folio(mapping.id, index);
    cache.wake_frame_waiters();
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use forebay_base::world::RealWorld;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const ALL: Blocks = Blocks { start: 0, end: 4 };

    /// A cache with one file, of which four blocks are dirty.
    fn dirty() -> (forebay_base::sync::Arc<PageCache>, Mapping) {
        let poison_frames = true;
        let config = Config { huge_pages: false, poison_frames, ..Config::with_budget(4 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(4096, 1 << 20);
        let mut pool = cache.take_frames(4).unwrap();
        let folio = cache.lock_or_make(&mapping, 0, false).unwrap();
        folio.install_frames(ALL, &mut pool);
        folio.copy_in(0, &[1; 4 * 4096]);
        folio.mark_dirty(ALL, Retention::Keep);
        drop((folio, pool));
        (cache, mapping)
    }

    fn take(cache: &PageCache, mapping: &Mapping) -> Vec<WritePiece> {
        let mut pieces = Vec::new();
        let folio = cache.lock_folio(mapping, 0).unwrap();
        folio.begin_write(ALL, DirtyTracking::Block, &mut pieces);
        pieces
    }

    /// The file has no owner that would write or flush: blocks made dirty again by a failed
    /// write-out would fill the cache. Poisoned frames show their last owner.
    #[test]
    fn write_out_of_dead_file_drops_blocks_at_end() {
        for (ok, dies) in [(true, true), (false, true), (true, false)] {
            let (cache, mapping) = dirty();
            let pieces = take(&cache, &mapping);
            let (frame, _) = pieces[0].place(0, &mapping);
            if dies {
                mapping.die();
            }
            end_write(&cache, &mapping, &pieces, ok);
            let there = cache.lock_folio(&mapping, 0).is_some_and(|f| f.any(State::Uptodate, ALL));
            assert_eq!(there, !dies, "ok {ok}");
            assert_eq!(cache.dirty.dirty_bytes(), 0);
            let (mut bytes, mark) = ([0; 4096], 0x80 | mapping.id as u8);
            cache.arena.copy_out(frame, 0, &mut bytes);
            assert_eq!(bytes, [if dies { mark } else { 1 }; 4096], "no owner, and marked: {dies}");
        }
    }

    /// The crate's lock rule: write-out needs no lock that reclaim holds while it visits folios.
    /// Else a task that reclaims and waits for a write-out would wait for ever.
    #[test]
    fn write_out_proceeds_during_reclaim() {
        let (cache, mapping) = dirty();
        let (turn, age) = (cache.reclaim_turn.lock(), cache.age.lock());
        let (over, ended) = channel();
        std::thread::scope(|scope| {
            let (cache, mapping) = (&cache, &mapping);
            scope.spawn(move || {
                end_write(cache, mapping, &take(cache, mapping), false);
                let pieces = take(cache, mapping);
                end_write(cache, mapping, &pieces, true);
                over.send(pieces.len()).unwrap();
            });
            // It takes this long only if the thread waits for one of the locks.
            let went = ended.recv_timeout(Duration::from_secs(60));
            drop((turn, age));
            assert_eq!(went, Ok(1), "it waited for who reclaims");
        });
        cache.drop_range(&mapping, 0..1 << 20);
    }
}
