//! fsync: write out, wait, flush, and report the result.
//!
//! A completed write is not durable. Blocks written since the last flush are kept in the cache
//! (within a window) until a flush that began after them has succeeded. If it fails they become
//! dirty again and are rewritten. Blocks that were not kept are lost, and fsync fails from then on
//! (docs/reference/failure-protocol.md). A commit can also fail without a failed flush, as on a
//! host without space. Then nothing is lost, and the blocks wait for the next commit (flushes.X4).
//!
//! Flushes of one file are taken in turn and shared ([`forebay_block::flush_turns`]): all callers
//! that arrive during one flush share the next. The turn also orders the bookkeeping of the blocks
//! that the flushes cover. A raw image has one file for its device object, so no other flush of the
//! device could be shared. A volume shares the flushes of its device between its files.

use crate::file::{Handle, MappedFile};
use crate::ops::{Commit, may_be_lost};

use forebay_base::sync::atomic::Ordering;
use forebay_base::task::BoxFuture;
use forebay_base::world::WorldRef;
use forebay_base::{Error, ErrorKind, Result};
use forebay_block::flush_turns::Turn;
use forebay_cache::State;
use forebay_cache::dirty::unflushed::Covered;
use forebay_cache::folio::Table;
use forebay_cache::rangeset::RangeSet;
use forebay_cache::stats::Counters;
use forebay_cache::writeback::WriteOutPass;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Why a file is poisoned.
const NOT_HELD: &str = "a flush failed, and some of what it covered is not held any more";

/// A flush in progress. If the future that runs it is dropped, as when a simulated world stops, its
/// outcome is not known: it counts as failed, and its waiters continue.
struct Running {
    file: Arc<MappedFile>,
    covered: Covered,
    over: bool,
}

impl Running {
    async fn run(mut self, here: bool) -> Result<()> {
        let file = self.file.clone();
        file.publish_size();
        // `flight` is dropped before `self`: if this future is dropped, the failure is counted
        // first.
        let heard = file.ops.flush_failures();
        let flight = file.mapping.domain.flushes.begin(file.device_address(), heard);
        let began = file.cache.world.now();
        let done = file.ops.commit(Commit::Data, here).await;
        file.cache.latencies.flush.add(file.cache.world.now().saturating_sub(began));
        let heard_since = file.ops.flush_failures();
        let is_lossless = done.is_err() && heard.is_some() && heard_since == heard;
        match done {
            Ok(()) => flight.worked(heard_since).await,
            Err(_) if is_lossless => flight.lost_nothing(),
            Err(_) => drop(flight),
        }
        self.end(done, is_lossless && !file.ops.lost(&RangeSet::default()).is_any)
    }

    /// `done`: the device's result; `keeps`: it is an error, and what the flush covers is not lost.
    /// Returns the result to report: after a successful flush it is an error if the failed flush of
    /// another file may have lost blocks that this one covers.
    fn end(&mut self, done: Result<()>, keeps: bool) -> Result<()> {
        self.over = true;
        let (file, unflushed) = (&*self.file, &self.file.mapping.unflushed);
        let mut covered = std::mem::take(&mut self.covered);
        let again = file.write_lost_again(&mut covered.pinned);
        if done.is_ok() {
            file.mapping.domain.note_flushed();
        }
        // A host without space refuses the flush of each file, again and again: warns once.
        let is_first_report = !keeps || file.mapping.domain.note_refused();
        if keeps {
            let pinned = covered.pinned.total() > 0;
            unflushed.put_back(std::mem::take(&mut covered));
            if pinned {
                file.mapping.domain.flush_later(file.mapping.id, file.cache.world.now());
            }
        }
        let certified = done.is_ok() && (covered.is_empty() || unflushed.is_certified(&covered));
        // Blocks lost by other files' failed flushes. If this flush failed, blocks written after it
        // began may be lost, too.
        let lost = unflushed.take_lost();
        let done = match done {
            Ok(()) if !certified || !lost.is_empty() || again => {
                let text = "a flush of the same device failed that was asked for elsewhere";
                Err(Error::new(ErrorKind::Io, "flush", text))
            }
            done => done,
        };
        // Lost blocks first: they may hold newer bytes of blocks that the flush covered.
        file.flush_failed(&lost);
        if certified {
            file.flush_worked(&covered.pinned);
        } else {
            file.flush_failed(&covered);
        }
        let given_up = unflushed.end_flush();
        if let Err(error) = &done {
            let level = if is_first_report { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "flush failed: {error}");
            let covered = |run: &Range<u64>| !certified && covered.pinned.overlaps(run);
            if given_up.iter().any(|run| covered(&run) || lost.pinned.overlaps(&run)) {
                may_be_lost(&file.mapping, &*file.ops, NOT_HELD);
            }
            // After the blocks are dirty again: a sync that misses this error finds them.
            file.mapping.errseq.set(error.clone());
        }
        for set in [covered.pinned, lost.pinned, given_up] {
            file.cache.keep_set(set);
        }
        file.flush_turns.lock().end(&done);
        file.flush_ended.wake_all();
        done
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.over {
            let error = Error::new(ErrorKind::Shutdown, "flush", "its task was dropped");
            // The waiters of the flush get the error.
            let _told = self.end(Err(error), false);
        }
    }
}

/// A flush that continues without the task that waits for it: the device has the request, and which
/// blocks it has made durable is known only at its end.
struct Carried<'a> {
    world: &'a WorldRef,
    flush: Option<BoxFuture<'static, Result<()>>>,
}

impl Future for Carried<'_> {
    type Output = Result<()>;
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let flush = self.flush.as_mut().expect("a flush is polled until it ends");
        let done = flush.as_mut().poll(cx);
        if done.is_ready() {
            self.flush = None;
        }
        done
    }
}

impl Drop for Carried<'_> {
    fn drop(&mut self) {
        if let Some(flush) = self.flush.take() {
            // No task waits for the result; the error sequence keeps an error.
            self.world.spawn("forebay-iomap flush", Box::pin(async move { drop(flush.await) }));
        }
    }
}

impl MappedFile {
    /// Makes all that was written before this call durable. Each handle that was open at a
    /// write-back error sees it once. While an accepted byte is not durable no call returns `Ok`.
    pub async fn sync(&self, handle: &Handle) -> Result<()> {
        self.sync_range(handle, 0..u64::MAX >> 1, false).await
    }

    /// [`MappedFile::sync`] for a caller that blocks: I/O may be carried out on its thread.
    pub async fn sync_here(&self, handle: &Handle) -> Result<()> {
        self.sync_range(handle, 0..u64::MAX >> 1, true).await
    }

    /// Writes out dirty blocks, and publishes them with the size: each later commit, to any file of
    /// the map, includes them. Nothing is durable yet.
    pub async fn write_out(&self) -> Result<()> {
        if self.read_only() {
            return Ok(());
        }
        let entered = self.mapping.errseq.now();
        let pass = WriteOutPass::for_sync(0..u64::MAX >> 1);
        self.write_out_all(&pass, false).await;
        let published = self.publish_upto(self.size(), false).await;
        self.mapping.errseq.error_since(entered).map_or(published, Err)
    }

    /// [`MappedFile::sync`] without a caller that could receive the error, as after the last close:
    /// the next opener gets it.
    pub async fn sync_deferring_errors(&self) -> Result<()> {
        self.sync_for(None, 0..u64::MAX >> 1, true).await
    }

    /// Makes a range durable, and the map to find it. `here`: the caller blocks.
    pub(crate) async fn sync_range(
        &self,
        handle: &Handle,
        range: Range<u64>,
        here: bool,
    ) -> Result<()> {
        self.sync_for(Some(handle), range, here).await
    }

    async fn sync_for(&self, handle: Option<&Handle>, range: Range<u64>, here: bool) -> Result<()> {
        if self.read_only() {
            return Ok(());
        }
        // This call reports each failure from here on, even if another call reports it, too: failed
        // blocks may be written again, and not flushed, by the time that it checks for them.
        let entered = self.mapping.errseq.now();
        self.cut_hidden_now().await;
        let pass = WriteOutPass::for_sync(range.clone());
        self.write_out_all(&pass, here).await;
        let published = self.publish_upto(range.end.min(self.size()), here).await;
        let flushed = self.flush_on(here).await;
        self.check_failed(&range, handle)?;
        self.mapping.errseq.error_since(entered).map_or(flushed, Err)?;
        published
    }

    /// Issues a pass of a sync, and waits until its blocks are written or have failed. Blocks that
    /// a truncate or a trim has taken may be dirty again when it ends. With folios written as a
    /// whole, another pass may have taken a folio when its turn comes. In both cases the sync runs
    /// another pass.
    pub(crate) async fn write_out_all(&self, pass: &WriteOutPass, here: bool) {
        loop {
            let leftovers = self.mapping.leftovers();
            self.write_out_pass_on(pass, here).await;
            self.mapping.wait_write_outs().await;
            if self.mapping.leftovers() == leftovers {
                return;
            }
        }
    }

    /// Reports an error that this opener has not seen, else whatever still prevents durability.
    fn check_failed(&self, range: &Range<u64>, handle: Option<&Handle>) -> Result<()> {
        let errseq = &self.mapping.errseq;
        let unseen = handle.and_then(|h| errseq.check_and_advance(&mut h.cursor.lock()));
        if let Some(error) = unseen {
            return Err(error);
        }
        if let Some(error) = self.mapping.sticky.lock().clone() {
            return Err(error);
        }
        let block = self.mapping.block_size();
        let blocks = range.start / block..range.end.div_ceil(block);
        if self.uncut.load(Ordering::SeqCst) && self.ops.published_size().is_none() {
            let text = "the object is longer than the file: a failed write could not be cut off";
            return Err(Error::new(ErrorKind::Io, "sync", text));
        }
        if self.mapping.failed_in(&blocks) {
            let text = "data whose write-out failed is not durable yet";
            return Err(Error::new(ErrorKind::Io, "sync", text));
        }
        Ok(())
    }

    /// Flushes the device so that all writes completed before this call are durable.
    pub(crate) async fn flush_shared(&self) -> Result<()> {
        self.flush_on(false).await
    }

    /// [`MappedFile::flush_shared`]. `here`: the caller blocks, so I/O may run on its thread.
    pub(crate) async fn flush_on(&self, here: bool) -> Result<()> {
        let wanted = self.flush_turns.lock().next();
        let turn = || self.flush_turns.lock().turn(wanted);
        if let Turn::Done(result) = self.flush_ended.wait_until(turn).await {
            return result;
        }
        let covered = self.mapping.unflushed.begin_flush();
        Counters::add(&self.cache.counters.flushes, 1);
        let file = self.me.upgrade().expect("a file that is flushed is alive");
        let running = Running { file, covered, over: false };
        Carried { world: &self.cache.world, flush: Some(Box::pin(running.run(here))) }.await
    }

    /// The address of the device object that is flushed; tells objects apart.
    fn device_address(&self) -> usize {
        std::sync::Arc::as_ptr(self.device()).cast::<()>() as usize
    }

    /// Blocks that failed flushes of other files of the device may have lost become dirty again, as
    /// at the end of the file's own flush. For callers that need the blocks written before the next
    /// sync of the file, which reports the failure, and blocks that are not in the cache any more.
    pub fn take_back_lost(&self) {
        let lost = self.mapping.unflushed.take_lost();
        if !lost.is_empty() {
            self.flush_failed(&lost);
            let text = "a flush of the same device failed that was asked for elsewhere";
            self.mapping.errseq.set(Error::new(ErrorKind::Io, "flush", text));
        }
    }

    /// The completed blocks that wait for a flush of the file become dirty again, for a caller that
    /// knows that some are lost; for those of failed flushes it also calls
    /// [`MappedFile::take_back_lost`]. False: a flush of the file is in progress, which takes its
    /// blocks back if it fails.
    pub fn take_back_unflushed(&self) -> bool {
        let Some(covered) = self.mapping.unflushed.take_back() else { return false };
        self.flush_failed(&covered);
        true
    }

    /// Copies cached whole blocks, for a caller that has to write them again; it does not count as
    /// a use. `pinned`: only blocks that were never read back from the map, which may have lost
    /// them: dirty, in write-out, or kept for the next flush. False: not all of them are cached.
    /// The answer is definite: it waits for a locked folio.
    pub fn copy_held(&self, offset: u64, dst: &mut [u8], pinned: bool) -> bool {
        let mapping = &*self.mapping;
        let end = offset + dst.len() as u64;
        let kept = [State::Dirty, State::Writing, State::Unflushed];
        self.pieces(offset..end).all(|(index, part)| {
            let Some(folio) = self.cache.lock_folio(mapping, index) else { return false };
            let blocks = mapping.blocks_touched(index, &part);
            let lacks = |table: &Table, slot, group| {
                !kept.iter().fold(0, |held, &state| held | table.bits(slot, state, group))
            };
            let is_held = folio.all(State::Uptodate, blocks)
                && !(pinned && folio.runs(blocks, lacks).next().is_some());
            if is_held {
                let into = &mut dst[(part.start - offset) as usize..(part.end - offset) as usize];
                folio.copy_out((part.start - mapping.folio_start(index)) as usize, into);
            }
            is_held
        })
    }

    fn each_pinned(
        &self,
        pinned: &RangeSet,
        mut f: impl FnMut(&forebay_cache::FolioWrite<'_>, Range<u64>),
    ) {
        let block = self.mapping.block_size();
        for run in pinned.iter() {
            for (index, part) in self.pieces(run.start * block..run.end * block) {
                if let Some(folio) = self.cache.lock_folio(&self.mapping, index) {
                    f(&folio, part);
                }
            }
        }
    }

    fn flush_worked(&self, pinned: &RangeSet) {
        let mut free = self.cache.take_set();
        self.each_pinned(pinned, |folio, part| {
            let block = self.mapping.block_size();
            let numbers = part.start / block..part.end / block;
            free.clear();
            free.insert(numbers.clone());
            // Blocks written again while the flush ran are kept for the next flush.
            for again in self.mapping.unflushed.pinned_within(numbers) {
                free.remove(again);
            }
            for run in free.iter() {
                let bytes = run.start * block..run.end * block;
                folio.flushed(self.mapping.blocks_inside(folio.index, &bytes));
            }
        });
        self.cache.keep_set(free);
        // The blocks that were kept can be reclaimed now.
        self.cache.wake_frame_waiters();
    }

    /// Removes the blocks that the map has lost from those that a flush covers, and makes them
    /// dirty again. Returns whether there are any.
    fn write_lost_again(&self, covered: &mut RangeSet) -> bool {
        let lost = self.ops.lost(covered).blocks;
        let mut again = self.cache.take_set();
        for run in &lost {
            covered.remove(run.clone());
            again.insert(run.clone());
        }
        self.each_pinned(&again, |folio, part| {
            folio.flush_failed(self.mapping.blocks_inside(folio.index, &part));
        });
        self.cache.keep_set(again);
        !lost.is_empty()
    }

    fn flush_failed(&self, covered: &Covered) {
        self.each_pinned(&covered.pinned, |folio, part| {
            folio.flush_failed(self.mapping.blocks_inside(folio.index, &part));
        });
        if covered.unpinned {
            may_be_lost(&self.mapping, &*self.ops, NOT_HELD);
        }
    }
}
