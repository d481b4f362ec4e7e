//! Uncached requests, with the four strategies that can be chosen
//! ([`UncachedStrategy`](forebay_cache::strategy::UncachedStrategy)).
//!
//! How each treats blocks that are not cached, when they are read; when they are written:
//! - `noaccess`: cached, with readahead, and not touched; cached and not touched.
//! - `dropbehind`: cached for the request, dropped after the copy; cached, the writer starts
//!   write-out, waits for it, and then drops them.
//! - `private`: through private memory; through private memory straight to the device, waited for.
//! - `ours`: straight into the caller's memory, with a window ahead for streams; cached for a
//!   window behind, which the flusher writes.
//!
//! Invariants, whatever the strategy: P1 cached blocks are served and updated in place, keep their
//! age, and stay cached (lineage.U1). P2 a request ends by the strategy with which it began;
//! requests of different strategies use the same folios and range locks, so they are coherent. P3
//! no block is dropped that is dirty, in write-out, or held until a flush (lineage.U5).
//!
//! Locks: a private write holds its blocks exclusively while it is at the device. It gets its space
//! from the map before it asks for memory, and then waits for the device only. A private read holds
//! nothing: it publishes nothing that another task could find.

use crate::admitted::Ahead;
use crate::file::{Handle, MappedFile, Source, Target};
use crate::ops::Extent;
use crate::passing::Passing;
use crate::read::Past;
use crate::resize::Again;
use crate::write::Beyond;
use forebay_base::buf::AlignedBuf;
use forebay_base::units::{round_down, round_up};
use forebay_base::{ErrorKind, IoFlags, Result};
use forebay_block::BioFlags;
use forebay_cache::bounds::HoldsBlocks;
use forebay_cache::stats::Counters;
use forebay_cache::strategy::UncachedStrategy;
use forebay_cache::writeback::WriteOutPass;
use std::ops::Range;

/// Longest private write, bytes.
const PRIVATE_MAX: u64 = 1 << 20;

/// How a part of a private write went.
enum Once {
    Written,
    /// Nothing was written: a truncate came before it.
    Overtaken,
    /// Nothing was written: there are no places for what was admitted.
    NoPlaces,
}

/// Drops what a request has brought in when it ends, however it ends.
struct Behind<'a>(&'a MappedFile, Range<u64>);

impl Drop for Behind<'_> {
    fn drop(&mut self) {
        self.0.drop_uncached(self.1.clone());
    }
}

impl MappedFile {
    pub(crate) async fn read_uncached(
        &self,
        handle: &Handle,
        range: &Range<u64>,
        dst: &mut Target<'_>,
    ) -> Result<()> {
        match self.cache.strategies.uncached() {
            UncachedStrategy::NoAccess => {
                self.read_through(handle, range, dst, Passing::Untouched).await
            }
            UncachedStrategy::DropBehind => {
                let _behind = Behind(self, range.clone());
                self.read_through(handle, range, dst, Passing::Marked).await
            }
            UncachedStrategy::Private => {
                self.read_around(range, range.start, dst, Past::Private).await
            }
            UncachedStrategy::Ours => self.read_ahead_and_around(handle, range, dst).await,
        }
    }

    /// How a write that must not wait for the device passes through the cache; `None` if its
    /// strategy would wait.
    pub(crate) fn write_now(&self, range: &Range<u64>, flags: IoFlags) -> Option<Passing> {
        if !flags.intersects(IoFlags::UNCACHED | IoFlags::DIRECT) {
            return Some(Passing::of_write(flags));
        }
        match self.cache.strategies.uncached() {
            UncachedStrategy::NoAccess => Some(Passing::Untouched),
            UncachedStrategy::DropBehind => None,
            UncachedStrategy::Private => self.all_cached(range).then_some(Passing::Marked),
            UncachedStrategy::Ours => Some(Passing::Marked),
        }
    }

    /// Whether a write goes past the cache, or may.
    pub(crate) fn passes_by(&self, flags: IoFlags) -> bool {
        let private = self.cache.strategies.uncached() == UncachedStrategy::Private;
        flags.contains(IoFlags::DIRECT) || flags.contains(IoFlags::UNCACHED) && private
    }

    pub(crate) async fn write_uncached(
        &self,
        range: &Range<u64>,
        src: &Source<'_>,
        ahead: &Ahead<'_>,
    ) -> Result<()> {
        // So that the map finds places at write time, a window at a time (lineage.X6).
        self.ops.announce(range);
        match self.cache.strategies.uncached() {
            UncachedStrategy::NoAccess => {
                self.write_buffered(
                    range,
                    range.start,
                    src,
                    Passing::Untouched,
                    Beyond::Grow(ahead),
                )
                .await?;
                Ok(())
            }
            UncachedStrategy::DropBehind => {
                self.write_buffered(range, range.start, src, Passing::Marked, Beyond::Grow(ahead))
                    .await?;
                let range = range.clone();
                let pass = WriteOutPass::for_sync(range);
                self.write_out_pass(&pass).await;
                // The next sync reports an error (lineage.U14).
                self.mapping.wait_write_outs().await;
                Ok(())
            }
            UncachedStrategy::Private => self.write_private(range, src, ahead).await,
            UncachedStrategy::Ours => {
                self.write_buffered(range, range.start, src, Passing::Marked, Beyond::Grow(ahead))
                    .await?;
                Ok(())
            }
        }
    }

    /// Writes blocks that are cached in the cache, and the others past it.
    async fn write_private(
        &self,
        range: &Range<u64>,
        src: &Source<'_>,
        ahead: &Ahead<'_>,
    ) -> Result<()> {
        let mut absent = range.start..range.start;
        for (index, part) in self.pieces(range.clone()) {
            let mut at = part.start;
            while at < part.end {
                let (run, there) = self.next_run(index, at..part.end).await;
                at = run.end;
                if !there {
                    absent.end = run.end;
                    continue;
                }
                self.write_past(&absent, range.start, src, ahead).await?;
                absent = run.end..run.end;
                self.write_buffered(&run, range.start, src, Passing::Marked, Beyond::Grow(ahead))
                    .await?;
            }
        }
        self.write_past(&absent, range.start, src, ahead).await
    }

    /// Writes a run straight to the device out of private memory; the first byte of `src` belongs
    /// at `base`.
    async fn write_past(
        &self,
        run: &Range<u64>,
        base: u64,
        src: &Source<'_>,
        ahead: &Ahead<'_>,
    ) -> Result<()> {
        let (mut at, mut again): (u64, Option<Again<'_>>) = (run.start, None);
        while at < run.end {
            let end = match self.write_past_part(at..run.end, base, src, ahead, &mut again).await {
                Ok(end) => end,
                Err(error) => {
                    if let Some(again) = again {
                        again.growth.undo().await;
                    }
                    return Err(error);
                }
            };
            if let Some(again) = again.take_if(|_| end > at) {
                again.growth.done();
            }
            at = end;
        }
        Ok(())
    }

    /// Writes a first part of `run`, as long as private memory allows, and returns where that ends.
    /// If a truncate came before it, grows the file `again` and returns where `run` begins.
    async fn write_past_part<'a>(
        &'a self,
        run: Range<u64>,
        base: u64,
        src: &Source<'_>,
        ahead: &Ahead<'_>,
        again: &mut Option<Again<'a>>,
    ) -> Result<u64> {
        let block = self.mapping.block_size();
        let own = again.as_ref().and_then(|again| again.ahead.as_ref()).unwrap_or(ahead);
        // An eighth of private memory: its buffer, and copies of parts of it, take twice the part.
        let part = round_down(self.cache.private_limit() / 8, block).clamp(block, PRIVATE_MAX);
        let end = run.end.min(round_down(run.start, block) + part);
        match self.write_past_once(run.start..end, base, src, own).await? {
            Once::Written => {}
            Once::Overtaken => {
                *again = self.grow_again(&(run.start..end), own).await?;
                return Ok(run.start);
            }
            Once::NoPlaces => {
                let (passing, beyond) = (Passing::Marked, Beyond::Grow(own));
                self.write_buffered(&(run.start..end), base, src, passing, beyond).await?;
            }
        }
        Ok(end)
    }

    async fn write_past_once(
        &self,
        run: Range<u64>,
        base: u64,
        src: &Source<'_>,
        ahead: &Ahead<'_>,
    ) -> Result<Once> {
        let block = self.mapping.block_size();
        let held = self.mapping.bounds.exclusive(run.clone()).await;
        // The size does not move while its block is held (bounds.E5).
        let size = self.end();
        if run.end > size {
            return Ok(Once::Overtaken);
        }
        let whole = round_down(run.start, block)..round_up(run.end, block).min(size);
        self.evict_for_direct(&held.range()).await?;
        let mut places = match self.reserve_run(&whole, held).await {
            // Its space was admitted, and the file has grown for it: the caller caches it instead.
            Err(error) if error.kind() == ErrorKind::NoSpace && ahead.covers(&run) => {
                return Ok(Once::NoPlaces);
            }
            places => places?,
        };
        ahead.placed(&run, block);
        let len = whole.end - whole.start;
        // The buffer, padded copies of it, and one part of an edge.
        let bytes = 2 * len + block;
        let (edges, permit) = loop {
            // Before the permit: the map may need one to answer.
            let edges = self.edges(&run, &whole).await?;
            if let Some(permit) = self.cache.try_private(bytes) {
                break (edges, permit);
            }
            // A task that waits for memory must hold no pin.
            drop(edges);
            drop(self.cache.private(bytes).await);
        };
        places.flight.permit = Some(permit.keep(&self.cache));
        Counters::add(&self.cache.counters.uncached_write_bytes, run.end - run.start);
        let mut data = AlignedBuf::new(len as usize);
        for edge in edges {
            self.read_edge(&edge, whole.start, &mut data).await?;
        }
        let bytes = &src.bytes()[(run.start - base) as usize..(run.end - base) as usize];
        data[(run.start - whole.start) as usize..][..bytes.len()].copy_from_slice(bytes);
        let mut from = if src.blocking() { Source::Slice(&data) } else { Source::Owned(&mut data) };
        self.write_reserved(places, &whole, &mut from, BioFlags::SYNC).await?;
        Ok(Once::Written)
    }

    /// Where the content of the blocks at both ends of `whole` is stored that `run` covers in part
    /// only; holes are left out. The caller holds the blocks exclusively.
    async fn edges(&self, run: &Range<u64>, whole: &Range<u64>) -> Result<Vec<Extent>> {
        let block = self.mapping.block_size();
        let (first, last) = (whole.start, round_down(whole.end - 1, block));
        let (before, behind) = (first < run.start, run.end < whole.end);
        // The first and the last block may be the same.
        let partial = match first == last {
            true => [(first, before || behind), (last, false)],
            false => [(first, before), (last, behind)],
        };
        let mut edges = Vec::new();
        for (start, _) in partial.into_iter().filter(|(_, partial)| *partial) {
            let end = round_up((start + block).min(whole.end), u64::from(self.ops.unit()));
            let mut at = start;
            while at < end {
                let extent = self.ops.map(at..end).await?;
                assert!(extent.len > 0, "a map makes progress");
                at = extent.offset + extent.len;
                if extent.device_offset.is_some() {
                    edges.push(extent);
                }
            }
        }
        Ok(edges)
    }

    /// Reads the bytes at a place into `data`, whose first byte is the file's at `base`. Waits for
    /// the device only.
    async fn read_edge(&self, edge: &Extent, base: u64, data: &mut AlignedBuf) -> Result<()> {
        let Some(device_at) = edge.device_offset else { return Ok(()) };
        let from = (edge.offset - base) as usize;
        let into = from..data.len().min(from + edge.len as usize);
        Counters::add(&self.cache.counters.uncached_read_bytes, into.len() as u64);
        self.read_device(device_at, 0, into, &mut Target::Owned(data), Past::Private, edge).await
    }
}
