//! Writes into the cache. Folio by folio: plan (what must be there first), wait for it without any
//! lock, then copy in and mark dirty under the folio lock.

use crate::admitted::Ahead;
use crate::file::{Handle, MappedFile, Source};
use crate::fill::{FillMode, Filling};
use crate::obstacle::Obstacle;
use crate::passing::Passing;
use crate::resize::{Again, Growth, Placed};
use forebay_base::units::{is_aligned, round_down, round_up};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_cache::FramePool;
use forebay_cache::dirty::control::PORTION;
use forebay_cache::folio::Blocks;
use forebay_cache::stats::Counters;
use forebay_cache::writeback::{Which, WriteOutPass};
use forebay_cache::{FolioWrite, State};
use std::ops::Range;

/// Where the bytes of a write are.
enum Put {
    Cached,
    /// On the device, durable if the flags ask for it.
    Past,
}

/// What a buffered write does when a truncate has cut its range off meanwhile.
#[derive(Clone, Copy)]
pub(crate) enum Beyond<'a> {
    /// The write counts as later than the truncate, and grows the file again. The bytes it adds
    /// have this space.
    Grow(&'a Ahead<'a>),
    /// It stops.
    Stop,
}

impl MappedFile {
    /// Writes if that needs no waiting, and returns the length. `None`: the write has to wait. Part
    /// of the bytes may have been written then, and the caller writes all of them again.
    pub fn try_write(&self, offset: u64, src: &[u8], flags: IoFlags) -> Option<Result<usize>> {
        let slow = IoFlags::DIRECT
            | IoFlags::DSYNC
            | IoFlags::SYNC
            | IoFlags::START_WRITEBACK
            | IoFlags::APPEND
            | IoFlags::NOWAIT;
        if flags.intersects(slow) || !self.mapping.domain.free_run() || self.mapping.is_failing() {
            return None;
        }
        let range = match self.check_write(offset, src.len(), flags) {
            Ok(range) => range,
            Err(error) => return Some(Err(error)),
        };
        if range.end > self.size() {
            return None;
        }
        let passing = self.write_now(flags)?;
        if passing.is_uncached() {
            self.ops.announce(&range);
        }
        // A write that stops before its end is written again by the caller, and counted there.
        let done = self.try_write_range(&range, src, passing).is_none();
        done.then(|| {
            self.count_uncached(passing, src.len() as u64);
            Ok(src.len())
        })
    }

    fn count_uncached(&self, passing: Passing, bytes: u64) {
        if passing.is_uncached() {
            Counters::add(&self.cache.counters.uncached_write_bytes, bytes);
        }
    }

    /// Splits a byte range at folio ends, into pieces of at most a portion: a writer dirties no
    /// more between two checks of the limits.
    #[inline]
    fn portions(&self, range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
        self.split(range, PORTION.min(self.mapping.folio_size()))
    }

    /// Writes from the start as far as possible without waiting; `Some` is the offset where it
    /// stopped.
    fn try_write_range(&self, range: &Range<u64>, src: &[u8], passing: Passing) -> Option<u64> {
        let nothing = self.nothing_ahead();
        let (mut passed, how) = (range.start + PORTION, (passing, &nothing));
        for (index, piece) in self.portions(range.clone()) {
            if piece.end > passed {
                // The part written so far may have filled the limit.
                if !self.mapping.domain.free_run() {
                    self.cache.wake_flusher_above(&self.mapping);
                    return Some(piece.start);
                }
                passed = piece.start + PORTION;
            }
            let bytes =
                &src[(piece.start - range.start) as usize..(piece.end - range.start) as usize];
            let mut pool = FramePool::empty(&self.cache);
            if let Err(obstacle) = self.write_piece(index, &piece, bytes, how, &mut pool) {
                let (Obstacle::Frames(count) | Obstacle::Fresh(count)) = obstacle else {
                    return Some(piece.start);
                };
                let Some(frames) = self.cache.take_frames(count) else { return Some(piece.start) };
                pool = frames;
                if self.write_piece(index, &piece, bytes, how, &mut pool).is_err() {
                    return Some(piece.start);
                }
            }
        }
        self.cache.wake_flusher_above(&self.mapping);
        None
    }

    /// Writes all of `src` at `offset`; returns its length. With `NOWAIT` it may write less.
    pub async fn write(
        &self,
        handle: &Handle,
        offset: u64,
        src: Source<'_>,
        flags: IoFlags,
    ) -> Result<usize> {
        let written = self.write_placed(handle, offset, src, flags).await?;
        Ok((written.end - written.start) as usize)
    }

    /// [`MappedFile::write`]; returns where the bytes went, which an append learns only now.
    pub async fn write_placed(
        &self,
        handle: &Handle,
        offset: u64,
        src: Source<'_>,
        flags: IoFlags,
    ) -> Result<Range<u64>> {
        self.write_to_place(handle, offset, src, flags, &mut None).await
    }

    /// A write that also returns in `place` where the bytes went, once they are part of the file:
    /// even if it fails after that, for example because the bytes cannot be made durable. A caller
    /// that retries an append then writes there.
    pub async fn write_to_place(
        &self,
        handle: &Handle,
        offset: u64,
        mut src: Source<'_>,
        flags: IoFlags,
        place: &mut Option<Range<u64>>,
    ) -> Result<Range<u64>> {
        let Placed { range, size, mut growth, ahead } = {
            let memory = src.bytes().as_ptr() as u64;
            self.place_write(offset, src.bytes().len(), memory, flags).await?
        };
        if range.is_empty() {
            *place = Some(range.clone());
            return Ok(range);
        }
        if flags.contains(IoFlags::NOWAIT) {
            let len = self.write_nowait(&range, src.bytes(), flags)?;
            return Ok(range.start..range.start + len as u64);
        }
        let done = self.put(&range, size, &mut src, flags, ahead, &mut growth).await;
        if let Err(error) = done {
            match growth {
                Some(growth) => growth.undo().await,
                None => *place = Some(range),
            }
            return Err(error);
        }
        *place = Some(range.clone());
        if let Some(growth) = growth {
            growth.done();
        }
        if matches!(done, Ok(Put::Past)) {
            return Ok(range);
        }
        if flags.intersects(IoFlags::DSYNC | IoFlags::SYNC) {
            self.sync_range(handle, range.clone(), src.blocking()).await?;
        } else if flags.contains(IoFlags::START_WRITEBACK) {
            let max_bytes = u64::MAX;
            let (range, which) = (range.clone(), Which::All);
            let pass = WriteOutPass { range, which, max_bytes, sync: false };
            self.write_out_pass(&pass).await;
        }
        Ok(range)
    }

    /// Puts the bytes of a write where they belong. `size`: the end of file when it was placed.
    async fn put<'a>(
        &'a self,
        range: &Range<u64>,
        size: u64,
        src: &mut Source<'_>,
        flags: IoFlags,
        ahead: Option<Ahead<'a>>,
        growth: &mut Option<Growth<'_>>,
    ) -> Result<Put> {
        let mut ahead = ahead.unwrap_or_else(|| self.nothing_ahead());
        if flags.contains(IoFlags::DIRECT) {
            // A direct write gets its space when it reserves places.
            ahead = self.nothing_ahead();
        }
        if flags.contains(IoFlags::DIRECT)
            && !self.direct_write_fallback(range, size, src, flags)?
            && self.write_direct(range, src, flags, growth).await?
        {
            return Ok(Put::Past);
        }
        if flags.intersects(IoFlags::UNCACHED | IoFlags::DIRECT) {
            self.write_uncached(range, src, &ahead).await?;
        } else {
            let (passing, beyond) = (Passing::of_write(flags), Beyond::Grow(&ahead));
            self.write_buffered(range, range.start, src, passing, beyond).await?;
        }
        Ok(Put::Cached)
    }

    fn write_nowait(&self, range: &Range<u64>, src: &[u8], flags: IoFlags) -> Result<usize> {
        let waits = IoFlags::DIRECT | IoFlags::DSYNC | IoFlags::SYNC;
        let fail = |why| Err(Error::new(ErrorKind::WouldBlock, "write", why));
        if flags.intersects(waits) {
            return fail("the flags ask for I/O");
        }
        if !self.mapping.domain.free_run() {
            return fail("too much is dirty");
        }
        let Some(passing) = self.write_now(flags) else {
            return fail("the uncached strategy waits for the device");
        };
        let done = match self.try_write_range(range, src, passing) {
            None => src.len(),
            Some(stop) if stop > range.start => (stop - range.start) as usize,
            Some(_) => return fail("blocks have to be read or waited for"),
        };
        self.count_uncached(passing, done as u64);
        Ok(done)
    }

    /// Writes `range` into the cache; the first byte of `src` belongs at `base`. False: a truncate
    /// stopped it.
    pub(crate) async fn write_buffered(
        &self,
        range: &Range<u64>,
        base: u64,
        src: &Source<'_>,
        passing: Passing,
        beyond: Beyond<'_>,
    ) -> Result<bool> {
        self.count_uncached(passing, range.end - range.start);
        let mut passed = range.start;
        for (index, piece) in self.portions(range.clone()) {
            if piece.end > passed {
                passed = range.end.min(piece.start + self.cache.dirty.portion());
                self.cache.throttle(&self.mapping, passed - piece.start).await?;
            }
            let mut again: Option<Again<'_>> = None;
            let bytes = &src.bytes()[(piece.start - base) as usize..(piece.end - base) as usize];
            let from = (bytes, src.blocking());
            let done = self.write_portion(index, &piece, from, passing, beyond, &mut again).await;
            match (again, &done) {
                (None, _) => {}
                (Some(again), Ok(true)) => again.growth.done(),
                (Some(again), _) => again.growth.undo().await,
            }
            if !done? {
                return Ok(false);
            }
        }
        self.cache.wake_flusher_above(&self.mapping);
        Ok(true)
    }

    /// Writes a piece of one folio, waiting for obstacles. False: a truncate stopped it.
    async fn write_portion<'a>(
        &'a self,
        index: u64,
        piece: &Range<u64>,
        (bytes, blocking): (&[u8], bool),
        passing: Passing,
        beyond: Beyond<'_>,
        again: &mut Option<Again<'a>>,
    ) -> Result<bool> {
        let nothing = self.nothing_ahead();
        let ahead = match beyond {
            Beyond::Grow(ahead) => ahead,
            Beyond::Stop => &nothing,
        };
        let mut pool = FramePool::empty(&self.cache);
        let (mut fills, mut pressure) = (0, None);
        loop {
            let ahead = again.as_ref().and_then(|again| again.ahead.as_ref()).unwrap_or(ahead);
            let how = (passing, ahead);
            let Err(obstacle) = self.write_piece(index, piece, bytes, how, &mut pool) else {
                return Ok(true);
            };
            if matches!(obstacle, Obstacle::Shrunk) {
                if matches!(beyond, Beyond::Stop) {
                    return Ok(false);
                }
                // Another write that makes the file longer may need the frames.
                pool = FramePool::empty(&self.cache);
                pressure = None;
                *again = self.grow_again(piece, ahead).await?;
                continue;
            }
            fills += u32::from(matches!(obstacle, Obstacle::Fill(_)));
            if fills > 2 && pressure.is_none() {
                // Both edges were read, and one was evicted again: dirty and unflushed blocks hold
                // almost all of the cache, and each edge evicts the other.
                pressure = Some(self.cache.press_for_frames());
            }
            self.overcome(index, piece, obstacle, &mut pool, blocking, passing).await?;
        }
    }

    /// Writes into one folio. If it has to wait first, returns for what, and changes nothing.
    fn write_piece(
        &self,
        index: u64,
        piece: &Range<u64>,
        src: &[u8],
        (passing, ahead): (Passing, &Ahead<'_>),
        pool: &mut FramePool<'_>,
    ) -> std::result::Result<(), Obstacle> {
        let mapping = &*self.mapping;
        let at = (piece.start - mapping.folio_start(index)) as usize;
        let folio = self.cache.lock_for_write(mapping, index, at, src, passing.is_passing());
        let Some(folio) = folio else { return Err(Obstacle::Slots) };
        if mapping.is_exclusive(piece) {
            return Err(Obstacle::Exclusive);
        }
        // The size is read once, under the lock: all that follows uses this value.
        let eof = self.end();
        if piece.end > eof {
            return Err(Obstacle::Shrunk);
        }
        let blocks = mapping.blocks_touched(index, piece);
        // Blocks that are all up to date need no read, and no frames (table.F3).
        let look = folio.look(blocks);
        if look.reading {
            return Err(Obstacle::Reading(blocks));
        }
        if !look.uptodate
            && let Some(fill) = self.must_read_first(&folio, index, piece, eof)
        {
            return Err(Obstacle::Fill(fill));
        }
        // The space counts at the map until the blocks are dirty.
        let admitted = if look.dirty { None } else { Some(self.admit(&folio, blocks, ahead)?) };
        let missing = if look.uptodate { 0 } else { folio.frames_missing(blocks) };
        let fresh = self.resolve_hits(&folio, blocks, look.writing)?;
        if missing + fresh.frames > pool.len() {
            return Err(fresh.obstacle(missing));
        }
        if fresh.frames > 0 {
            folio.detach(blocks, &(at..at + src.len()), fresh.stable, pool);
        }
        if !look.uptodate {
            folio.install_frames(blocks, pool);
            self.zero_behind_eof(&folio, index, piece, eof);
        }
        match missing > 0 {
            true => folio.copy_in_fresh(at, src),
            false => folio.copy_in(at, src),
        }
        // Dirty blocks are up to date (table.F2): an ordinary write to them changes no state.
        let changes_retention = look.uncached || look.held_above && passing == Passing::Cached;
        if !look.dirty || changes_retention || passing == Passing::Marked {
            folio.mark_dirty(blocks, passing.retention());
        }
        if let Some(admitted) = admitted {
            admitted.arrived();
        }
        // A task that moves an end that lies within a block holds that block, and locks this folio
        // before it moves the end.
        let stands = is_aligned(eof, mapping.block_size())
            || piece.end <= round_down(eof, mapping.block_size())
            || self.end() == eof;
        assert!(stands, "E5: the end of file moved within a block that is being written");
        if passing == Passing::Cached {
            folio.touch(blocks, !is_aligned(piece.start, mapping.block_size()));
        }
        Ok(())
    }

    /// The block that has to be up to date before `piece` changes a part of it (lineage.D9): only
    /// that block is read. A block that is written up to the end of file needs no read.
    fn must_read_first(
        &self,
        folio: &FolioWrite<'_>,
        index: u64,
        piece: &Range<u64>,
        eof: u64,
    ) -> Option<Range<u64>> {
        let mapping = &*self.mapping;
        let touched = mapping.blocks_touched(index, piece);
        let end =
            if piece.end >= eof { round_up(piece.end, mapping.block_size()) } else { piece.end };
        let whole = mapping.blocks_inside(index, &(piece.start..end));
        let partial = [
            Blocks { start: touched.start, end: touched.end.min(touched.start + 1) },
            Blocks { start: touched.end.max(1) - 1, end: touched.end },
        ];
        let inside = |b: &Blocks| b.start >= whole.start && b.end <= whole.end;
        let needs = |b: &&Blocks| !b.is_empty() && !inside(b) && !folio.all(State::Uptodate, **b);
        partial.iter().find(needs).map(|&b| mapping.range_of(index, b))
    }

    /// If the last block is written up to the end of file and was not cached, zeroes the bytes
    /// behind the end (lineage.D14).
    fn zero_behind_eof(&self, folio: &FolioWrite<'_>, index: u64, piece: &Range<u64>, eof: u64) {
        let blocks = self.mapping.blocks_touched(index, piece);
        let last = Blocks { start: blocks.end - 1, end: blocks.end };
        let end = self.mapping.range_of(index, last).end;
        if piece.end < end && piece.end >= eof && !folio.all(State::Uptodate, last) {
            let base = self.mapping.folio_start(index);
            folio.zero_bytes((piece.end - base) as usize..(end - base) as usize);
        }
    }

    async fn overcome<'a>(
        &'a self,
        index: u64,
        piece: &Range<u64>,
        obstacle: Obstacle,
        pool: &mut FramePool<'a>,
        blocking: bool,
        passing: Passing,
    ) -> Result<()> {
        let mapping = &*self.mapping;
        let blocks = mapping.blocks_touched(index, piece);
        match obstacle {
            Obstacle::Slots => self.cache.wait_slot(mapping).await,
            Obstacle::Exclusive => mapping.bounds.wait_not_exclusive(piece.clone()).await,
            // The caller does not pass this: it grows the file itself (`grow_again`).
            Obstacle::Shrunk => {}
            Obstacle::NoRoom(error) => {
                // Other tasks may wait for the frames.
                *pool = FramePool::empty(&self.cache);
                return self.make_room_within(error, mapping.range_of(index, blocks)).await;
            }
            Obstacle::Reading(blocks) => {
                self.cache.wait_while(mapping, index, blocks, State::Reading).await
            }
            Obstacle::Stable => self.wait_stable(index, blocks).await,
            Obstacle::Fresh(count) => self.fresh_frames(index, blocks, count, pool).await,
            Obstacle::Frames(count) => {
                *pool = FramePool::empty(&self.cache);
                *pool = self.cache.wait_frames(mapping, count).await;
            }
            Obstacle::Fill(range) => {
                let mode = FillMode { inline: blocking, ..passing.fill() };
                return self.fill_block(index, range, mode).await;
            }
        }
        Ok(())
    }

    /// Reads one block and waits for it; or waits until the read can be tried again: for its range,
    /// or for a frame.
    pub(crate) async fn fill_block(
        &self,
        index: u64,
        range: Range<u64>,
        mode: FillMode,
    ) -> Result<()> {
        let blocks = self.mapping.blocks_touched(index, &range);
        match self.start_fill(range, mode).await {
            Filling::Exclusive(held) => self.mapping.bounds.wait_not_exclusive(held).await,
            Filling::NoFrames => drop(self.cache.wait_frames(&self.mapping, 1).await),
            Filling::Started(error) => {
                self.cache.wait_while(&self.mapping, index, blocks, State::Reading).await;
                if let Some(error) = error.take() {
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
