//! Reads: out of the cache where the range is cached, else through the cache, or past it.

use crate::file::{Handle, MappedFile, Target};
use crate::fill::{FillError, FillMode, Filling, corrupt};
use crate::ops::{Extent, Lookup, MapFuture};
use crate::passing::Passing;
use forebay_base::buf::{AlignedBuf, DataRef};
use forebay_base::checksum::crc32c;
use forebay_base::sync::atomic::Ordering;
use forebay_base::units::{is_aligned, round_down, round_up};
use forebay_base::{IoFlags, Result};
use forebay_block::{BioFlags, BioOp, io};
use forebay_cache::folio::{Blocks, fault_in_for_writing};
use forebay_cache::readahead::Plan;
use forebay_cache::stats::Counters;
use forebay_cache::streams::Stream;
use forebay_cache::{FolioRead, State};
use std::ops::Range;

/// A long uncached request is split into steps of this many bytes, so that the next one is read
/// while this one is copied.
const UNCACHED_STEP: u64 = 1 << 20;

impl MappedFile {
    /// Reads `dst.bytes().len()` bytes at `offset`; fewer only at the end of file.
    pub async fn read(
        &self,
        handle: &Handle,
        offset: u64,
        mut dst: Target<'_>,
        flags: IoFlags,
    ) -> Result<usize> {
        let len = dst.bytes().len();
        let asked = offset..offset.saturating_add(len as u64);
        let is_empty = self.check_read(offset, len, flags)?.is_empty();
        let direct =
            flags.contains(IoFlags::DIRECT) && !self.direct_fallback(&asked, &mut dst, flags)?;
        if is_empty {
            return Ok(0);
        }
        if flags.contains(IoFlags::NOWAIT) {
            return self.read_nowait(handle, offset, dst.bytes(), flags);
        }
        let began = self.cache.world.now();
        let got = loop {
            let cuts = self.mapping.bounds.cuts();
            let range = self.check_read(offset, len, flags)?;
            self.read_range(handle, &range, &mut dst, flags, direct).await?;
            // After a truncate the read has zeros behind the new end, which are not returned.
            let end = range.end.min(self.size()).max(range.start);
            // The count of truncates is read after the size. If a write has made the file longer
            // again, such zeros may lie below its end: the read repeats. Each repeat means another
            // truncate.
            if self.mapping.bounds.cuts() == cuts {
                break (end - range.start) as usize;
            }
        };
        self.cache.latencies.read.add(self.cache.world.now().saturating_sub(began));
        if flags.contains(IoFlags::HELD_ABOVE) && !direct {
            self.drop_unreferenced(offset..offset + got as u64);
        }
        Ok(got)
    }

    /// Drops blocks that the cache above has just read, unless ordinary requests use them, too.
    #[inline(never)]
    pub(crate) fn drop_unreferenced(&self, range: Range<u64>) {
        for (index, part) in self.pieces(range) {
            if let Some(folio) = self.cache.lock_folio(&self.mapping, index) {
                folio.drop_unreferenced(self.mapping.blocks_touched(index, &part));
            }
        }
    }

    async fn read_range(
        &self,
        handle: &Handle,
        range: &Range<u64>,
        dst: &mut Target<'_>,
        flags: IoFlags,
        direct: bool,
    ) -> Result<()> {
        if range.is_empty() {
            return Ok(());
        }
        if direct {
            Counters::add(&self.cache.counters.direct_read_bytes, range.end - range.start);
            return self.read_around(range, range.start, dst).await;
        }
        let leaves_nothing = IoFlags::UNCACHED | IoFlags::DIRECT | IoFlags::HELD_ABOVE;
        match flags.intersects(leaves_nothing) {
            true => self.read_uncached(handle, range, dst).await,
            false => self.read_through(handle, range, dst, Passing::Cached).await,
        }
    }

    /// Whether all of a range is up to date at this moment.
    pub(crate) fn all_cached(&self, range: &Range<u64>) -> bool {
        self.all_folios(range, |folio, blocks| folio.uptodate(blocks))
    }

    /// Whether a read of all of a range is a hit at this moment.
    pub(crate) fn all_hit(&self, range: &Range<u64>) -> bool {
        self.all_folios(range, |folio, blocks| folio.is_hit(blocks))
    }

    fn all_folios(&self, range: &Range<u64>, is: impl Fn(&FolioRead<'_>, Blocks) -> bool) -> bool {
        self.pieces(range.clone()).all(|(index, part)| {
            let blocks = self.mapping.blocks_touched(index, &part);
            let folio = self.cache.lookup(&self.mapping, index, usize::MAX);
            folio.is_some_and(|folio| is(&folio, blocks) && folio.intact())
        })
    }

    /// A read through the cache: with readahead, unless its blocks are to be dropped afterwards
    /// ([`Passing::Marked`]).
    pub(crate) async fn read_through(
        &self,
        handle: &Handle,
        range: &Range<u64>,
        dst: &mut Target<'_>,
        passing: Passing,
    ) -> Result<()> {
        let is_read_ahead = passing != Passing::Marked;
        let mut ahead = if is_read_ahead { self.plan_ahead(handle, range) } else { 0..0 };
        let window = (self.cache.frames_per_operation() * forebay_cache::FRAME_SIZE) as u64;
        let mut mode = FillMode { inline: dst.blocking() && ahead.is_empty(), ..passing.fill() };
        let mut at = range.start;
        while at < range.end {
            let part = at..range.end.min(at + window);
            let error = self.fill_or_wait(part.clone(), mode).await;
            if !ahead.is_empty() {
                let background = FillMode { background: true, ..passing.fill() };
                self.start_fill(std::mem::take(&mut ahead), background).await;
                mode.inline = dst.blocking();
            }
            for (index, piece) in self.pieces(part.clone()) {
                self.copy_piece(index, piece, range.start, dst, &error, passing).await?;
            }
            at = part.end;
        }
        Ok(())
    }

    /// The readahead for a request of `range` that goes through the cache.
    pub(crate) fn plan_ahead(&self, handle: &Handle, range: &Range<u64>) -> Range<u64> {
        let max = self.readahead_limit();
        let plan = handle.streams.plan(range.start, range.end, max, self.size(), false);
        self.record_stream(handle, range, &plan, false);
        self.drop_uncached(plan.abandoned);
        plan.ahead
    }

    /// Records the stream for monitoring. Not on the hit path.
    fn record_stream(&self, handle: &Handle, range: &Range<u64>, plan: &Plan, uncached: bool) {
        let Some((at, window)) = plan.stream else { return };
        // The address of the reader's streams identifies the reader.
        let reader = std::ptr::from_ref(&handle.streams) as u64 + at as u64;
        let (file, now) = (self.mapping.id, self.cache.world.now());
        let position = range.end;
        self.cache.streams.record(Stream {
            file,
            reader,
            position,
            window,
            uncached,
            bytes: 0,
            at: now,
        });
    }

    /// How far a stream may read ahead, bytes: at most half of the small queue.
    fn readahead_limit(&self) -> u64 {
        let small = (self.cache.small_target() * forebay_cache::FRAME_SIZE) as u64;
        self.cache.readahead_max.load(Ordering::Relaxed).min(small / 2)
    }

    /// Starts a fill, but waits while another task holds the beginning of the range exclusively.
    /// `None` when there are no frames for it.
    pub(crate) async fn fill_or_wait(
        &self,
        range: Range<u64>,
        mode: FillMode,
    ) -> Option<FillError> {
        loop {
            match self.start_fill(range.clone(), mode).await {
                Filling::Started(error) => return Some(error),
                Filling::NoFrames => return None,
                Filling::Exclusive(held) => self.mapping.bounds.wait_not_exclusive(held).await,
            }
        }
    }

    /// Copies a piece of one folio once it is cached; reads past the cache if its blocks are
    /// evicted again each time, or there are no frames.
    async fn copy_piece(
        &self,
        index: u64,
        piece: Range<u64>,
        base: u64,
        dst: &mut Target<'_>,
        error: &Option<FillError>,
        passing: Passing,
    ) -> Result<()> {
        let mapping = &*self.mapping;
        let mut error = error.clone();
        for _ in 0..8 {
            let piece = self.clip_to_size(&piece, base, dst);
            let blocks = mapping.blocks_touched(index, &piece);
            if piece.is_empty() {
                return Ok(());
            }
            // Not under the lock of the folio: a page fault may wait long.
            fault_in_for_writing(
                &mut dst.bytes()[(piece.start - base) as usize..(piece.end - base) as usize],
            );
            if let Some(folio) = self.cache.lock_folio(mapping, index) {
                if folio.all(State::Uptodate, blocks) {
                    let into = &mut dst.bytes()
                        [(piece.start - base) as usize..(piece.end - base) as usize];
                    folio.copy_out((piece.start - mapping.folio_start(index)) as usize, into);
                    passing.read(&folio, blocks, !is_aligned(piece.start, mapping.block_size()));
                    Counters::add(&self.cache.counters.misses, u64::from(blocks.len()));
                    return Ok(());
                }
                if folio.any(State::Reading, blocks) {
                    drop(folio);
                    self.cache.wait_while(mapping, index, blocks, State::Reading).await;
                    continue;
                }
            }
            if let Some(e) = error.as_ref().and_then(FillError::take) {
                return Err(e);
            }
            let mode = FillMode { inline: dst.blocking(), ..passing.fill() };
            error = self.fill_or_wait(piece.clone(), mode).await;
            if error.is_none() {
                break;
            }
        }
        // No frames, or the blocks were evicted each time: reads past the cache.
        self.read_around(&piece, base, dst).await
    }

    /// The part of a run that lies within the file now; bytes that a truncate has removed meanwhile
    /// become zeros in `dst`.
    fn clip_to_size(&self, run: &Range<u64>, base: u64, dst: &mut Target<'_>) -> Range<u64> {
        let end = run.end.min(self.size()).max(run.start);
        dst.bytes()[(end - base) as usize..(run.end - base) as usize].fill(0);
        run.start..end
    }

    /// An uncached read past the cache, with the readahead of its stream.
    pub(crate) async fn read_ahead_and_around(
        &self,
        handle: &Handle,
        range: &Range<u64>,
        dst: &mut Target<'_>,
    ) -> Result<()> {
        // A single request that continues no stream causes no readahead behind its end.
        let stream = handle.streams.continues(range.start);
        let limit = if stream { self.size() } else { range.end.min(self.size()) };
        let mut at = range.start;
        while at < range.end {
            let step = at..range.end.min(at + UNCACHED_STEP);
            self.uncached_readahead(handle, &step, limit).await;
            self.read_around(&step, range.start, dst).await?;
            at = step.end;
        }
        Ok(())
    }

    /// A sequential uncached stream gets a window of its own ahead; a random reader gets none.
    async fn uncached_readahead(&self, handle: &Handle, range: &Range<u64>, limit: u64) {
        let max = self.readahead_limit();
        let plan = handle.streams.plan(range.start, range.end, max, limit, true);
        self.record_stream(handle, range, &plan, true);
        self.drop_uncached(plan.abandoned);
        if !plan.ahead.is_empty() {
            let mode = FillMode { background: true, ..Passing::Marked.fill() };
            self.start_fill(plan.ahead.clone(), mode).await;
            // A concurrent read may have ended the stream since its window was planned.
            if !handle.streams.wants(&plan.ahead) {
                self.drop_uncached(plan.ahead);
            }
        }
    }

    /// Reads past the cache, but coherently: cached blocks are copied out and keep their age
    /// (lineage.U1), blocks of an uncached window are dropped when consumed (lineage.U2). The rest
    /// is read from the device and not cached. Hits and misses are decided block by block
    /// (lineage.U3).
    async fn read_around(&self, range: &Range<u64>, base: u64, dst: &mut Target<'_>) -> Result<()> {
        let mut absent: Option<Range<u64>> = None;
        for (index, part) in self.pieces(range.clone()) {
            let mut at = part.start;
            while at < part.end {
                let (run, there) = self.next_run(index, at..part.end).await;
                if there {
                    if let Some(gone) = absent.take() {
                        self.read_absent(gone, base, dst).await?;
                    }
                    if !self.consume(index, run.clone(), base, dst) {
                        continue;
                    }
                } else {
                    let start = absent.take().map_or(run.start, |a| a.start);
                    absent = Some(start..run.end);
                }
                at = run.end;
            }
        }
        if let Some(gone) = absent {
            self.read_absent(gone, base, dst).await?;
        }
        Ok(())
    }

    /// The longest run from `range.start` on, within one folio, that is all cached or all absent;
    /// waits while its first block is being read.
    async fn next_run(&self, index: u64, range: Range<u64>) -> (Range<u64>, bool) {
        let mapping = &*self.mapping;
        let blocks = mapping.blocks_touched(index, &range);
        loop {
            let Some(folio) = self.cache.lock_folio(mapping, index) else { return (range, false) };
            let first = Blocks { start: blocks.start, end: blocks.start + 1 };
            if folio.any(State::Reading, first) {
                drop(folio);
                self.cache.wait_while(mapping, index, first, State::Reading).await;
                continue;
            }
            let there = folio.all(State::Uptodate, first);
            let mut end = first.end;
            while end < blocks.end {
                let next = Blocks { start: end, end: end + 1 };
                let same = folio.all(State::Uptodate, next) == there;
                if !same || folio.any(State::Reading, next) {
                    break;
                }
                end += 1;
            }
            let run = Blocks { start: blocks.start, end };
            let bytes = mapping.range_of(index, run);
            return (range.start..bytes.end.min(range.end), there);
        }
    }

    /// Copies cached blocks out; false if they were evicted meanwhile. Drops uncached blocks whose
    /// last byte was read.
    fn consume(&self, index: u64, run: Range<u64>, base: u64, dst: &mut Target<'_>) -> bool {
        let mapping = &*self.mapping;
        let blocks = mapping.blocks_touched(index, &run);
        let Some(folio) = self.cache.lock_folio(mapping, index) else { return false };
        if !folio.all(State::Uptodate, blocks) {
            return false;
        }
        let into = &mut dst.bytes()[(run.start - base) as usize..(run.end - base) as usize];
        folio.copy_out((run.start - mapping.folio_start(index)) as usize, into);
        folio.drop_uncached(self.consumed(index, &run));
        self.cache.hits.add(u64::from(blocks.len()));
        true
    }

    /// The blocks whose last byte (or the file's) lies in `run`.
    fn consumed(&self, index: u64, run: &Range<u64>) -> Blocks {
        let block = self.mapping.block_size();
        let eof = self.size();
        let end = if run.end >= eof { round_up(eof, block) } else { run.end };
        self.mapping.blocks_inside(index, &(round_down(run.start, block)..end))
    }

    /// Reads a run that is not cached: straight into the caller's memory if it is aligned, else
    /// through a private buffer.
    async fn read_absent(&self, run: Range<u64>, base: u64, dst: &mut Target<'_>) -> Result<()> {
        let mut at = run.start;
        let mut cuts = self.mapping.bounds.cuts();
        let mut run = self.clip_to_size(&run, base, dst);
        let mut permit = None;
        while at < run.end {
            let info = self.ops.info();
            let device_block = u64::from(self.device().limits().logical_block);
            // A checksum covers a complete unit.
            let unit = if info.sums { u64::from(info.unit) } else { device_block };
            let start = round_down(at, unit);
            let longest = u64::from(self.device().limits().max_transfer);
            let longest = round_down(longest, unit).max(unit);
            let end = round_up(run.end, unit).min(start + longest);
            let failures = self.ops.flush_failures();
            let mut extent = self.ops.map(start..end, Lookup::Read);
            if matches!(extent, MapFuture::Later(_)) {
                // The map may need private memory to answer, perhaps all that remains.
                drop(permit.take());
            }
            let extent = (&mut extent).await?;
            let upto = (extent.offset + extent.len).min(run.end);
            assert!(upto > at, "a map makes progress");
            let into = (at - base) as usize..(upto - base) as usize;
            if extent.device_offset.is_some()
                && permit.is_none()
                && self.needs_permit(at - start, unit, &into, dst)
            {
                permit = self.cache.try_private(end - start);
                if permit.is_none() {
                    // A task that waits for memory must hold no pin.
                    drop(extent);
                    permit = Some(self.cache.private(end - start).await);
                    continue;
                }
            }
            match extent.device_offset {
                None => dst.bytes()[into].fill(0),
                Some(device_at) => {
                    if !extent.in_memory {
                        let counter = &self.cache.counters.uncached_read_bytes;
                        Counters::add(counter, upto - at);
                    }
                    let done = self.read_device(device_at, at - start, into, dst, &extent).await;
                    let now = self.mapping.bounds.cuts();
                    if now != cuts {
                        // A truncate removed bytes during the read: repeats it for the remaining
                        // range.
                        cuts = now;
                        run = self.clip_to_size(&(at..run.end), base, dst);
                        continue;
                    }
                    done?;
                    if !info.sums && self.ops.flush_failures() != failures {
                        // A failed flush may have lost what was read: asks the map again, which
                        // knows.
                        continue;
                    }
                }
            }
            drop(extent.pin);
            drop(permit.take());
            at = upto;
        }
        Ok(())
    }

    /// Whether the read of `into`, which begins `skip` bytes within a unit, needs a permit for
    /// private memory: the device cannot borrow the caller's memory for it.
    fn needs_permit(
        &self,
        skip: u64,
        unit: u64,
        into: &Range<usize>,
        dst: &mut Target<'_>,
    ) -> bool {
        let aligned = skip == 0 && is_aligned(into.len() as u64, unit);
        let memory = dst.bytes()[into.clone()].as_ptr() as u64;
        let borrowed = match dst {
            Target::Slice(_) => is_aligned(memory, u64::from(self.device().limits().memory_align)),
            Target::Owned(buf) => into.len() == buf.len(),
        };
        !aligned || !borrowed
    }

    /// Reads `into.len()` bytes that begin `skip` bytes after `device_at` into `dst[into]`. If
    /// bytes read straight into the caller's memory do not match their checksum, they are read
    /// again into private memory, which no other thread can change, before they are reported
    /// corrupt.
    async fn read_device(
        &self,
        device_at: u64,
        skip: u64,
        into: Range<usize>,
        dst: &mut Target<'_>,
        extent: &Extent,
    ) -> Result<()> {
        let unit = match &extent.sums {
            Some(_) => u64::from(self.ops.info().unit),
            None => u64::from(self.device().limits().logical_block),
        };
        let want = into.len() as u64;
        let aligned = skip == 0 && is_aligned(want, unit);
        if aligned && self.read_straight(device_at, into.clone(), dst).await? {
            if self.matches(extent, &dst.bytes()[into.clone()]) {
                return Ok(());
            }
            Counters::add(&self.cache.counters.reread_bytes, want);
        }
        let len = round_up(skip + want, unit);
        let mut part = AlignedBuf::new(len as usize);
        if dst.blocking() {
            self.device().read_into(device_at, &mut part)?;
        } else {
            let data = DataRef::Buf(part);
            let done =
                io(&**self.device(), BioOp::Read, device_at, len, data, BioFlags::SYNC).await;
            done.result?;
            part = done.data.into_buf().expect("an owned buffer comes back (B2)");
        }
        if !self.matches(extent, &part) {
            return Err(corrupt(&(extent.offset..extent.offset + len)));
        }
        dst.bytes()[into].copy_from_slice(&part[skip as usize..(skip + want) as usize]);
        Ok(())
    }

    /// Reads aligned bytes into the caller's memory; false if the device cannot borrow it.
    async fn read_straight(
        &self,
        device_at: u64,
        into: Range<usize>,
        dst: &mut Target<'_>,
    ) -> Result<bool> {
        let (want, whole) = (into.len() as u64, into.len() == dst.bytes().len());
        let memory = dst.bytes()[into.clone()].as_ptr() as u64;
        let align = u64::from(self.device().limits().memory_align);
        match dst {
            Target::Slice(slice) if is_aligned(memory, align) => {
                self.device().read_into(device_at, &mut slice[into]).map(|()| true)
            }
            Target::Owned(buf) if whole => {
                let data = DataRef::Buf(std::mem::replace(*buf, AlignedBuf::new(0)));
                let done =
                    io(&**self.device(), BioOp::Read, device_at, want, data, BioFlags::SYNC).await;
                if let Some(back) = done.data.into_buf() {
                    **buf = back;
                }
                done.result.map(|()| true)
            }
            _ => Ok(false),
        }
    }

    /// Whether stored bytes, from the extent's first unit on, match their checksums, if any.
    fn matches(&self, extent: &Extent, bytes: &[u8]) -> bool {
        let Some(sums) = &extent.sums else { return true };
        bytes
            .chunks(self.ops.info().unit as usize)
            .zip(sums.iter())
            .all(|(b, &sum)| crc32c(b) == sum)
    }
}
