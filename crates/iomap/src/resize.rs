//! Changes of the end of file: growth before a write, and [`MappedFile::set_len`]. The state
//! machine and its invariants (bounds.E1 to E9) are in [`forebay_cache::bounds`].

use crate::admitted::Ahead;
use crate::file::MappedFile;
use crate::inflight::InFlight;
use crate::obstacle::Obstacle;
use crate::ops::{Admit, Change, Lookup};
use forebay_base::sync::atomic::Ordering;
use forebay_base::units::{is_aligned, round_down, round_up};
use forebay_base::{Error, ErrorKind, IoFlags, Result};
use forebay_cache::bounds::{Exclusive, HoldsBlocks, Resize};
use forebay_cache::folio::Blocks;
use forebay_cache::held::Held;
use forebay_cache::{FolioWrite, FramePool, Retention, State};
use std::ops::Range;

/// Where a write goes.
pub(crate) struct Placed<'a> {
    pub range: Range<u64>,
    /// The bytes it adds to the file, until they are written.
    pub growth: Option<Growth<'a>>,
    /// The end of file when it was placed.
    pub size: u64,
    /// Space for the bytes it adds to the file.
    pub ahead: Option<Ahead<'a>>,
}

/// A write that makes the file longer, before its bytes are written: readers do not see them, and
/// no other write is placed behind them (bounds.E7). Dropped, it leaves bytes behind the visible
/// size that the next [`Resize`] truncates.
pub(crate) struct Growth<'a> {
    file: &'a MappedFile,
    resize: Resize<'a>,
    to: u64,
}

impl Growth<'_> {
    /// The bytes are written: readers see them from now on.
    pub fn done(self) {
        self.resize.show(self.to);
    }

    /// The write has failed: the file ends where it did before the write.
    pub async fn undo(self) {
        let (bounds, name) = (&self.file.mapping.bounds, self.file.device().name());
        if let Err(error) = self.file.shrink(&self.resize, bounds.visible()).await {
            self.file.uncut.store(true, Ordering::SeqCst);
            log::warn!("{name}: bytes behind the end of file are cut off later: {error}");
        }
    }
}

/// The resources that a write holds after a truncate overtook it, until its bytes are written.
pub(crate) struct Again<'a> {
    pub growth: Growth<'a>,
    /// `None`: the space that it got before suffices.
    pub ahead: Option<Ahead<'a>>,
}

/// A size that was moved before an operation that may fail or be dropped: moved back on drop,
/// unless `back` was cleared after the operation succeeded.
struct Moved<'a, 'b> {
    resize: &'b Resize<'a>,
    held: &'b Held,
    /// The size, and the visible one.
    back: Option<(u64, u64)>,
}

impl Drop for Moved<'_, '_> {
    fn drop(&mut self) {
        if let Some((size, visible)) = self.back {
            self.resize.move_to(size, Some(self.held));
            self.resize.show(visible);
        }
    }
}

impl MappedFile {
    /// Takes the right to move the size, and truncates bytes that a failed or dropped write left
    /// behind the visible size.
    async fn resize(&self) -> Result<Resize<'_>> {
        let resize = self.mapping.bounds.resize().await;
        self.cut_hidden(&resize).await?;
        Ok(resize)
    }

    async fn cut_hidden(&self, resize: &Resize<'_>) -> Result<()> {
        if !self.mapping.bounds.has_hidden_bytes() {
            return Ok(());
        }
        let done = self.shrink(resize, self.size()).await;
        if done.is_err() {
            self.uncut.store(true, Ordering::SeqCst);
        }
        done
    }

    /// For a sync: truncates bytes that a failed or dropped write left behind the visible size.
    /// Does nothing while another task has the [`Resize`]: that task truncates first. A map with a
    /// size of its own publishes the visible size, so a failure does no harm. Otherwise the object
    /// below stays longer than the file: each sync reports that until a truncation succeeds.
    pub(crate) async fn cut_hidden_now(&self) {
        if self.mapping.bounds.has_hidden_bytes()
            && let Some(resize) = self.mapping.bounds.try_resize()
            && let Err(error) = self.cut_hidden(&resize).await
        {
            log::warn!("{}: bytes behind the end of file: {error}", self.device().name());
            if self.ops.published_size().is_none() {
                self.mapping.errseq.set(error);
            }
        }
    }

    /// The range that a write goes to. If that lies beyond the end, makes cache and storage longer.
    /// No other write does so until the bytes of this write are there: two appends never overlap,
    /// and no write lies behind bytes that another one fails to write.
    pub(crate) async fn place_write(
        &self,
        offset: u64,
        len: usize,
        memory: u64,
        flags: IoFlags,
    ) -> Result<Placed<'_>> {
        let append = flags.contains(IoFlags::APPEND);
        let first = if append { self.size() } else { offset };
        let (range, size) = (self.check_write(first, len, flags)?, self.size());
        if range.is_empty() || (!append && range.end <= size) {
            return Ok(Placed { range, growth: None, size, ahead: None });
        }
        if flags.contains(IoFlags::NOWAIT) {
            return Err(Error::new(ErrorKind::WouldBlock, "write", "the file has to grow"));
        }
        let resize = self.resize().await?;
        let size = self.size();
        let range = self.check_write(if append { size } else { offset }, len, flags)?;
        if range.end <= size {
            return Ok(Placed { range, growth: None, size, ahead: None });
        }
        if flags.contains(IoFlags::DIRECT) && !flags.contains(IoFlags::FALLBACK) {
            // Refused before the file grows. The request ends where the file will end.
            self.check_direct("write directly", &range, memory, range.end, flags)?;
        }
        let ahead = Some(self.admit_ahead(&(range.start.max(size)..range.end)).await?);
        self.grow(&resize, range.end).await?;
        let growth = Some(Growth { file: self, resize, to: range.end });
        Ok(Placed { size: range.end, range, growth, ahead })
    }

    /// Grows the file to hold `range` again: a truncate ran between the placing of a write and its
    /// bytes, so the write counts as later. `ahead`: the space that the write has. The result is
    /// kept until the bytes are there. The caller must hold no frames and no [`Growth`].
    pub(crate) async fn grow_again(
        &self,
        range: &Range<u64>,
        ahead: &Ahead<'_>,
    ) -> Result<Option<Again<'_>>> {
        let resize = self.resize().await?;
        let size = self.size();
        if range.end <= size {
            return Ok(None);
        }
        let added = range.start.max(size)..range.end;
        let ahead = match ahead.covers(&added) {
            true => None,
            false => Some(self.admit_ahead(&added).await?),
        };
        self.grow(&resize, range.end).await?;
        Ok(Some(Again { growth: Growth { file: self, resize, to: range.end }, ahead }))
    }

    /// Sets the size. Bytes behind it are lost, bytes that it adds read as zeros. Errors:
    /// `ReadOnly`, `Unsupported` where the size is fixed, those of the storage.
    pub async fn set_len(&self, to: u64) -> Result<()> {
        if self.read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "truncate", "opened for reading only"));
        }
        if to >= 1 << 63 {
            return Err(Error::new(ErrorKind::OutOfRange, "truncate", "the size overflows"));
        }
        let resize = self.mapping.bounds.resize().await;
        if to < self.size() && self.ops.info().can_grow {
            return self.shrink(&resize, to).await;
        }
        self.cut_hidden(&resize).await?;
        self.lengthen(&resize, to).await
    }

    /// Makes the file end at `to` at least, and never shorter: it truncates no write that has made
    /// the file longer meanwhile. Errors: as for [`MappedFile::set_len`].
    pub async fn grow_to(&self, to: u64) -> Result<()> {
        if self.read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, "allocate", "opened for reading only"));
        }
        if to >= 1 << 63 {
            return Err(Error::new(ErrorKind::OutOfRange, "allocate", "the size overflows"));
        }
        let resize = self.resize().await?;
        match to > self.size() {
            true => self.lengthen(&resize, to).await,
            false => Ok(()),
        }
    }

    /// Moves the size up to `to`. No hidden bytes lie behind the size.
    async fn lengthen(&self, resize: &Resize<'_>, to: u64) -> Result<()> {
        let size = self.size();
        if to == size {
            return Ok(());
        }
        if !self.ops.info().can_grow {
            let text = format!("the object has a fixed size of {size}, not {to}");
            return Err(Error::new(ErrorKind::Unsupported, "truncate", text));
        }
        self.grow(resize, to).await?;
        resize.show(to);
        Ok(())
    }

    /// Makes storage longer, then moves the size up to `to`. When the size moves, the block of the
    /// old end is held, and no fill reads it (bounds.E2, bounds.E5).
    async fn grow(&self, resize: &Resize<'_>, to: u64) -> Result<()> {
        let size = self.end();
        if self.opened_end.load(Ordering::Relaxed) == size {
            self.clean_end(resize, size).await?;
            self.opened_end.store(u64::MAX, Ordering::Relaxed);
        }
        let held = match is_aligned(size, self.mapping.block_size()) {
            true => None,
            false => Some(self.hold_end(size).await),
        };
        self.ops.change(Change::Grow(to)).await?;
        resize.move_to(to, held.as_ref().map(|held| held as _));
        Ok(())
    }

    /// A map with a size of its own may have recovered the file after a crash. The size may come
    /// from a truncate whose zeros behind the new end were not written yet. Or blocks behind the
    /// size are mapped, because a larger size was not recoverable yet. These bytes would show as
    /// soon as the file grows. So before its first growth storage is made to hold zeros there
    /// (bounds.E1).
    async fn clean_end(&self, resize: &Resize<'_>, size: u64) -> Result<()> {
        if self.ops.published_size().is_none() {
            return Ok(());
        }
        let block = self.mapping.block_size();
        let behind = round_up(size, block)..round_down(u64::MAX >> 1, block);
        let found = self.ops.map(behind.clone(), Lookup::Find).await?;
        if found.device_offset.is_some() || found.offset + found.len < behind.end {
            drop(found);
            return self.shrink(resize, size).await;
        }
        let edge = round_down(size, block)..round_up(size, block);
        if edge.is_empty()
            || self.ops.map(edge.clone(), Lookup::Find).await?.device_offset.is_none()
        {
            return Ok(());
        }
        self.rewrite_end(&edge).await
    }

    /// Makes the block of the end dirty, as it is in the cache: with zeros behind the size
    /// (bounds.E6).
    async fn rewrite_end(&self, edge: &Range<u64>) -> Result<()> {
        loop {
            let dirtied = |folio: &FolioWrite<'_>, blocks: Blocks, _: &mut InFlight| {
                // A block that is dirty is written out with its zeros.
                if folio.any(State::Dirty, blocks) {
                    return Ok(());
                }
                let nothing = self.nothing_ahead();
                let _admitted = self.admit(folio, blocks, &nothing)?;
                folio.mark_dirty(blocks, Retention::Keep);
                Ok(())
            };
            // The range is free again before space is made.
            let refused = self.hold_edge(edge, edge, dirtied).await?.1;
            match refused {
                Err(Obstacle::NoRoom(error)) => {
                    self.make_room(error, self.mapping.block_size()).await?;
                }
                _ => return Ok(()),
            }
        }
    }

    /// Takes `range` exclusively, and calls `f` with the folio of `edge`, a block of the range,
    /// when that block is up to date and neither read nor written out. A block that is not cached
    /// is read by the holder: if it gave the range back for that, direct writes would drop the
    /// block again.
    async fn hold_edge<T>(
        &self,
        range: &Range<u64>,
        edge: &Range<u64>,
        mut f: impl FnMut(&FolioWrite<'_>, Blocks, &mut InFlight) -> T,
    ) -> Result<(InFlight, T)> {
        let mapping = &*self.mapping;
        let index = mapping.folio_index(edge.start);
        let blocks = mapping.blocks_touched(index, edge);
        let mut pool = FramePool::empty(&self.cache);
        loop {
            let held = mapping.bounds.exclusive(range.clone()).await;
            let mut flight = InFlight::new(self, held, range.clone());
            loop {
                if let Some(folio) = self.lock_idle(index, blocks).await
                    && folio.all(State::Uptodate, blocks)
                {
                    // The block's bytes may change from here on, and no reader pins it anew
                    // (pin.P6).
                    if folio.frames_pinned(blocks) > pool.len() {
                        drop(folio);
                        match self.cache.take_frames(1) {
                            Some(frames) => pool = frames,
                            None => break,
                        }
                        continue;
                    }
                    folio.detach_pinned(blocks, &(0..0), &mut pool);
                    let done = f(&folio, blocks, &mut flight);
                    drop(folio);
                    return Ok((flight, done));
                }
                if !self.fill_held(index, edge, &mut pool).await? {
                    break;
                }
            }
            // Ends the ticket of `flight`, for which a sync waits, and releases the range, which a
            // task that frees memory may need.
            drop(flight);
            self.wait_memory(&mut pool).await;
        }
    }

    /// Holds the block of the end of file when it is not being read.
    async fn hold_end(&self, size: u64) -> Exclusive<'_> {
        let mapping = &*self.mapping;
        let held = mapping.bounds.exclusive(size..size + 1).await;
        let (index, range) = (mapping.folio_index(size), held.range());
        let blocks = mapping.blocks_touched(index, &range);
        self.cache.wait_while(mapping, index, blocks, State::Reading).await;
        if let Some(folio) = self.cache.lock_folio(mapping, index) {
            debug_assert!(folio.tail_is_zero(blocks), "E1: the end may not move");
        }
        held
    }

    async fn shrink(&self, resize: &Resize<'_>, to: u64) -> Result<()> {
        let mapping = &*self.mapping;
        let (size, block) = (self.end(), mapping.block_size());
        let first = round_down(to, block);
        let mut flight = self.hold_cut(to, first).await?;
        let cut = round_up(to, block)..u64::MAX >> 1;
        self.each_idle(&cut, |folio, blocks| {
            flight.replaced.take(folio, blocks);
            let clean = folio.runs(blocks, |t, s, g| !t.bits(s, State::Writing, g));
            clean.into_iter().for_each(|run| folio.discard(run));
        })
        .await;
        let flight = flight.share();
        let visible = self.size();
        resize.move_to(to, Some(flight.held()));
        let mut moved = Moved { resize, held: flight.held(), back: Some((size, visible)) };
        self.ops.change(Change::Truncate(to, flight.owned())).await?;
        moved.back = None;
        // The object is not longer than the file now, even if an earlier truncation failed.
        self.uncut.store(false, Ordering::SeqCst);
        if !flight.kept_back.is_empty() {
            self.zero_tail(to);
        }
        self.opened_end.store(u64::MAX, Ordering::Relaxed);
        if to == visible && !self.ops.info().fua_suffices {
            // Only bytes that were never accepted are gone, and the map has published none of them:
            // no flush has to cover the truncation.
            flight.durable();
        }
        flight.done();
        Ok(())
    }

    /// Holds all blocks from that of the new end on. If the new end lies within a block, that block
    /// is cached, dirty and kept from write-out: its tail is zeroed in the cache and then written
    /// (bounds.E1).
    async fn hold_cut(&self, to: u64, first: u64) -> Result<InFlight> {
        let mapping = &*self.mapping;
        let all = first..u64::MAX >> 1;
        if to == first {
            let held = mapping.bounds.exclusive(all.clone()).await;
            return Ok(InFlight::new(self, held, all));
        }
        let edge = first..first + mapping.block_size();
        self.ops.admit(mapping.block_size(), self.held(), Admit::Edge)?;
        // The space of the block counts at the map until it is dirty.
        let _admitted = self.arriving(mapping.block_size());
        let keep_back = |folio: &FolioWrite<'_>, blocks: Blocks, flight: &mut InFlight| {
            folio.mark_dirty(blocks, Retention::Keep);
            flight.kept_back.take(folio, blocks);
        };
        let (flight, ()) = self.hold_edge(&all, &edge, keep_back).await?;
        debug_assert!(!flight.kept_back.is_empty(), "E1: the block of the new end is kept back");
        Ok(flight)
    }

    /// Zeroes the bytes of the last block behind the end (bounds.E1). The caller has taken the
    /// dirty block, so it is neither in flight nor evicted.
    fn zero_tail(&self, to: u64) {
        let mapping = &*self.mapping;
        let index = mapping.folio_index(to);
        let folio =
            self.cache.lock_folio(mapping, index).expect("a taken dirty block is not evicted (F4)");
        let base = mapping.folio_start(index);
        let end = round_up(to, mapping.block_size());
        folio.zero_bytes((to - base) as usize..(end - base) as usize);
    }
}
