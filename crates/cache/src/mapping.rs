//! The cache's data per file: geometry, dirty folios, write-outs in flight, errors. The end of file
//! and the ranges held exclusively are in [`crate::bounds`], unflushed blocks in
//! [`crate::dirty::unflushed`].

use crate::bounds::Bounds;
use crate::dirty::dirty_folios::DirtyFolios;
use crate::dirty::domain::Domain;
use crate::dirty::errseq::ErrSeq;
use crate::dirty::unflushed::Unflushed;
use crate::memory::arena::FRAME_SIZE;
use crate::rangeset::RangeSet;
use crate::shares::FileShare;
use crate::table::Blocks;
use crate::table::owners::Owners;
use forebay_base::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use forebay_base::sync::{Arc, Mutex};
use forebay_base::task::WaitQueue;
use forebay_base::world::Nanos;
use forebay_base::{Error, ErrorKind};
use std::collections::VecDeque;
use std::ops::Range;

/// Memory of an open file in addition to its blocks, bytes: its mapping, the data of the layers
/// below and above, a handle, entries of tables, and the allocator's overhead. Memory that grows
/// with its blocks (dirty sets) is counted with these. Measured: the test of ten thousand files
/// compares the memory of the process with it.
pub(crate) const FILE_BYTES: u64 = 2560 + size_of::<Mapping>() as u64;

/// Errors of a closed file that no opener has seen: the next opener gets them.
#[derive(Debug, Clone)]
pub struct Unreported {
    /// The latest error.
    pub error: Error,
    /// Why accepted bytes may be lost for good; `None` if none is.
    pub sticky: Option<Error>,
}

/// Write-outs in flight, numbered in order of issue.
#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    /// Write-outs in order of their numbers, each with the bytes that it may write; `None`: it has
    /// ended. The first has not ended. The queue keeps its memory.
    in_flight: VecDeque<(u64, Option<Range<u64>>)>,
    /// How many of those in the queue have ended.
    over: usize,
}

impl Tickets {
    /// Ends a write-out. Found by binary search, as thousands may be in flight.
    fn end(&mut self, ticket: u64) {
        let at = self.in_flight.binary_search_by_key(&ticket, |&(number, _)| number);
        let ended = self.in_flight[at.expect("issued before")].1.take();
        assert!(ended.is_some(), "a write-out ends once");
        self.over += 1;
        while self.in_flight.front().is_some_and(|(_, range)| range.is_none()) {
            self.in_flight.pop_front();
            self.over -= 1;
        }
        if self.over > 32 && self.over > self.in_flight.len() / 2 {
            self.in_flight.retain(|(_, range)| range.is_some());
            self.over = 0;
        }
    }
}

/// One file in the cache.
pub struct Mapping {
    /// Number of the file, never 0. If the file is opened again while its folios are cached, its
    /// next mapping may get the same number; no other file does.
    pub id: u32,
    block_shift: u32,
    folio_shift: u32,
    /// End of file, and ranges held exclusively.
    pub bounds: Bounds,
    /// The domain whose flusher writes its dirty blocks.
    pub domain: Arc<Domain>,
    /// Folios that have dirty blocks.
    pub dirty: Arc<DirtyFolios>,
    owners: Arc<Owners>,
    /// Bytes of dirty blocks.
    pub dirty_bytes: AtomicU64,
    /// How long a write-out takes from capture to end, ns, smoothed.
    pub(crate) write_nanos: AtomicU64,
    /// Errors for fsync.
    pub errseq: ErrSeq,
    /// Blocks that were written and not flushed yet.
    pub unflushed: Unflushed,
    /// File blocks whose last write-out failed; dirty still.
    failed: Mutex<RangeSet>,
    /// `failed` is not empty: asked on every write.
    failing: AtomicBool,
    /// Set when accepted bytes may be lost for good: fsync fails from then on.
    pub sticky: Mutex<Option<Error>>,
    /// `sticky` was set, and forgotten at a last close, or a loss is possible.
    had_loss: AtomicBool,
    /// Slot minus index of the folio that was made last. The folios of a file that was read in
    /// order have consecutive slots: a lookup can prefetch the likely slot while it still reads the
    /// index.
    slot_guess: AtomicU32,
    /// Pauses that writers of the file have yet to make, ns.
    pub(crate) pause_debt: AtomicU64,
    tickets: Mutex<Tickets>,
    /// How often write-outs left dirty blocks over ([`Mapping::leftovers`]).
    leftovers: AtomicU64,
    ticket_wait: WaitQueue,
    /// The file is closed for good: blocks in write-out are dropped when the write-out ends.
    dead: AtomicBool,
    /// Its part of the budget, given back on drop.
    _share: Option<FileShare>,
}

impl Mapping {
    pub(crate) fn new(
        id: u32,
        (owners, domain): (Arc<Owners>, Arc<Domain>),
        block_size: u32,
        folio_size: u32,
        size: u64,
        share: Option<FileShare>,
    ) -> Self {
        assert!(block_size.is_power_of_two() && (512..=FRAME_SIZE as u32).contains(&block_size));
        Self {
            id,
            block_shift: block_size.trailing_zeros(),
            folio_shift: folio_size.trailing_zeros(),
            bounds: Bounds::new(u64::from(block_size), size),
            unflushed: Unflushed::new(domain.flushes.clone()),
            domain,
            dirty: Arc::default(),
            owners,
            dirty_bytes: AtomicU64::new(0),
            write_nanos: AtomicU64::new(0),
            errseq: ErrSeq::default(),
            failed: Mutex::default(),
            failing: AtomicBool::new(false),
            sticky: Mutex::default(),
            had_loss: AtomicBool::new(false),
            slot_guess: AtomicU32::new(0),
            pause_debt: AtomicU64::new(0),
            tickets: Mutex::default(),
            leftovers: AtomicU64::new(0),
            ticket_wait: WaitQueue::new(),
            dead: AtomicBool::new(false),
            _share: share,
        }
    }

    /// Bytes of a block.
    #[inline]
    pub fn block_size(&self) -> u64 {
        1 << self.block_shift
    }

    /// Bytes of a folio.
    #[inline]
    pub fn folio_size(&self) -> u64 {
        1 << self.folio_shift
    }

    /// Blocks of a frame.
    #[inline]
    pub fn blocks_per_frame(&self) -> u32 {
        FRAME_SIZE as u32 >> self.block_shift
    }

    /// End of file, bytes.
    #[inline]
    pub fn size(&self) -> u64 {
        self.bounds.size()
    }

    /// The folio that holds `offset`.
    #[inline]
    pub fn folio_index(&self, offset: u64) -> u64 {
        offset >> self.folio_shift
    }

    /// First byte of a folio.
    #[inline]
    pub fn folio_start(&self, index: u64) -> u64 {
        index << self.folio_shift
    }

    /// The blocks of folio `index` that `range` (bytes) touches: rounded outwards (lineage.D3).
    #[inline]
    pub fn blocks_touched(&self, index: u64, range: &Range<u64>) -> Blocks {
        let base = self.folio_start(index);
        let start = range.start.max(base) - base;
        let end = range.end.clamp(base, base + self.folio_size()) - base;
        let start = (start >> self.block_shift) as u32;
        Blocks { start, end: (end.div_ceil(1 << self.block_shift) as u32).max(start) }
    }

    /// The blocks of a folio that `len` bytes (at least one) touch, from `at` bytes into the folio
    /// on. The folio must hold all these bytes.
    #[inline]
    pub fn blocks_within(&self, at: u64, len: u64) -> Blocks {
        debug_assert!(len > 0 && at + len <= self.folio_size());
        let last = (at + len - 1) >> self.block_shift;
        Blocks { start: (at >> self.block_shift) as u32, end: last as u32 + 1 }
    }

    /// The blocks of folio `index` that lie fully inside `range`: rounded inwards (lineage.D3).
    #[inline]
    pub fn blocks_inside(&self, index: u64, range: &Range<u64>) -> Blocks {
        let base = self.folio_start(index);
        let start = (range.start.max(base) - base).div_ceil(1 << self.block_shift) as u32;
        let end = range.end.clamp(base, base + self.folio_size()) - base;
        Blocks { start, end: ((end >> self.block_shift) as u32).max(start) }
    }

    /// Bytes of the blocks, as a file range.
    pub fn range_of(&self, index: u64, blocks: Blocks) -> Range<u64> {
        let base = self.folio_start(index);
        base + (u64::from(blocks.start) << self.block_shift)
            ..base + (u64::from(blocks.end) << self.block_shift)
    }

    /// File block numbers of a run.
    pub fn block_numbers(&self, index: u64, blocks: Blocks) -> Range<u64> {
        let base = self.folio_start(index) >> self.block_shift;
        base + u64::from(blocks.start)..base + u64::from(blocks.end)
    }

    /// Folio indices that a byte range touches.
    pub fn folios(&self, range: &Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return 0..0;
        }
        self.folio_index(range.start)..self.folio_index(range.end - 1) + 1
    }

    /// The slot where a folio may be; a hint.
    #[inline]
    pub(crate) fn guess_slot(&self, index: u64) -> u32 {
        self.slot_guess.load(Ordering::Relaxed).wrapping_add(index as u32)
    }

    /// A folio was made in `slot`.
    pub(crate) fn note_slot(&self, index: u64, slot: u32) {
        self.slot_guess.store(slot.wrapping_sub(index as u32), Ordering::Relaxed);
    }

    /// Adds the duration of a write-out of the file to the smoothed one.
    pub(crate) fn write_took(&self, nanos: u64) {
        // A lost update does not matter.
        let old = self.write_nanos.load(Ordering::Relaxed);
        let new = if old == 0 { nanos } else { (old * 7 + nanos) / 8 };
        self.write_nanos.store(new, Ordering::Relaxed);
    }

    /// Whether `range` is held exclusively. Check under the folio lock, before bytes or states of
    /// the folio change: a task that takes a range locks each folio *after* registering.
    #[inline]
    pub fn is_exclusive(&self, range: &Range<u64>) -> bool {
        self.bounds.is_exclusive(range)
    }

    // ---- write-outs in flight ----

    /// Numbers a write-out that will take blocks of `range`; call it before. Taken blocks are not
    /// dirty any more: a sync that does not find them dirty must find the number, and wait for it.
    pub fn issue_ticket(&self, range: Range<u64>) -> u64 {
        let mut tickets = self.tickets.lock();
        let ticket = tickets.next;
        tickets.next += 1;
        tickets.in_flight.push_back((ticket, Some(range)));
        ticket
    }

    /// The write-out is over.
    pub fn end_ticket(&self, ticket: u64) {
        {
            self.tickets.lock().end(ticket);
        }
        self.ticket_wait.wake_all();
    }

    /// Waits until every write-out that was numbered before this call is over.
    pub async fn wait_write_outs(&self) {
        let upto = self.tickets.lock().next;
        let done = || {
            let tickets = self.tickets.lock();
            tickets.in_flight.front().is_none_or(|&(first, _)| first >= upto).then_some(())
        };
        self.ticket_wait.wait_until(done).await;
    }

    /// How often dirty blocks were left over: a write-out returned them unwritten, or a sync found
    /// them and could not take them. A sync that has waited for the tickets runs another pass if
    /// this count has moved.
    pub fn leftovers(&self) -> u64 {
        self.leftovers.load(Ordering::SeqCst)
    }

    /// Counts dirty blocks left over. Call under their folio's lock, before the ticket ends.
    pub fn note_leftover(&self) {
        self.leftovers.fetch_add(1, Ordering::SeqCst);
    }

    /// The lowest byte from `from` on that may be unwritten: in a dirty block, or in write-out,
    /// except in that of the number `ended`. `lowest_dirty(at)` is the lowest byte from `at` on,
    /// within its folio, in a dirty block.
    pub(crate) fn lowest_unwritten(
        &self,
        from: u64,
        ended: Option<u64>,
        lowest_dirty: impl Fn(u64) -> Option<u64>,
    ) -> u64 {
        // The dirty set is read before and after the tickets. A block that leaves it for a
        // write-out has its ticket by then; one that returns from a write-out is listed before the
        // ticket ends.
        let dirty = || {
            let mut index = self.folio_index(from);
            while let Some(first) = self.dirty.first_from(index) {
                // In the first folio only the dirty blocks count, which may lie far behind its
                // start.
                let start = from.max(self.folio_start(first));
                if let Some(dirty) = lowest_dirty(start) {
                    return dirty;
                }
                index = first + 1;
            }
            u64::MAX
        };
        let before = dirty();
        let on_the_way = {
            let tickets = self.tickets.lock();
            let others = tickets.in_flight.iter().filter(|(number, _)| Some(*number) != ended);
            let ranges = others.filter_map(|(_, range)| range.as_ref());
            let later = ranges.filter(|range| range.end > from);
            later.map(|range| range.start).min().unwrap_or(u64::MAX)
        };
        before.min(on_the_way).min(dirty()).max(from)
    }

    /// Write-outs planned or in flight.
    pub fn write_outs(&self) -> usize {
        let tickets = self.tickets.lock();
        tickets.in_flight.len() - tickets.over
    }

    // ---- the end of its life ----

    /// The file has no owner any more that could write dirty blocks or retry failed ones.
    pub fn die(&self) {
        self.dead.store(true, Ordering::Release);
    }

    /// Whether [`Mapping::die`] was called. Call under the folio lock.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Whether all that was accepted is durable, or given up.
    pub fn is_settled(&self) -> bool {
        // Dirty blocks enter write-out, and then become unflushed or fail; the checks follow this
        // order.
        self.dirty_bytes.load(Ordering::SeqCst) == 0
            && self.write_outs() == 0
            && self.unflushed.is_empty()
            && !self.is_failing()
            && self.dirty_bytes.load(Ordering::SeqCst) == 0
    }

    // ---- what failed ----

    /// Bytes of blocks whose last write-out failed.
    pub fn failed_bytes(&self) -> u64 {
        if !self.is_failing() {
            return 0;
        }
        self.failed.lock().total() << self.block_shift
    }

    /// Whether any block's last write-out failed.
    #[inline]
    pub fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Acquire)
    }

    /// Whether the last write-out of any of the file blocks failed.
    pub fn failed_in(&self, numbers: &Range<u64>) -> bool {
        self.is_failing() && self.failed.lock().overlaps(numbers)
    }

    /// File blocks whose last write-out failed.
    pub fn failed_blocks(&self) -> Vec<Range<u64>> {
        self.failed.lock().iter().collect()
    }

    /// Those of the blocks whose last write-out failed.
    pub fn failed_within(&self, numbers: Range<u64>) -> Vec<Range<u64>> {
        self.failed.lock().within(numbers).collect()
    }

    /// The write-out of the blocks failed. True: the flusher's timer expires too late for their
    /// retry, and the caller wakes it once it holds no lock.
    #[must_use]
    pub(crate) fn fail(&self, numbers: Range<u64>, now: Nanos) -> bool {
        let mut failed = self.failed.lock();
        let fresh = failed.insert(numbers) << self.block_shift;
        self.failing.store(true, Ordering::Release);
        // Under the lock, so that the domain learns of failure and repair in their order.
        self.domain.add_failed(self.id, fresh, now)
    }

    /// The blocks were written after all, or are not wanted any more.
    pub(crate) fn unfail(&self, numbers: Range<u64>) {
        if self.is_failing() {
            let mut failed = self.failed.lock();
            let gone = failed.remove(numbers) << self.block_shift;
            let healed = failed.is_empty();
            self.failing.store(!healed, Ordering::Release);
            self.domain.sub_failed(self.id, gone, healed);
        }
    }

    /// Records that accepted bytes may be lost: every later fsync fails.
    pub fn poison(&self, why: &str) {
        let error = Error::new(ErrorKind::Io, "sync", why);
        self.errseq.set(error.clone());
        self.sticky.lock().get_or_insert(error);
    }

    /// Records that accepted bytes may be lost, for a map that fails commits if they are.
    pub fn note_possible_loss(&self) {
        self.had_loss.store(true, Ordering::Release);
    }

    /// The last opener has closed the file, and later ones sync what is not lost. A loss that no
    /// opener has seen stays, for the next one.
    pub fn forget_seen_loss(&self) {
        let mut sticky = self.sticky.lock();
        // Under the lock: `poison` sets `errseq` first, so a new error is seen here or set later.
        if self.errseq.unreported().is_none() && sticky.take().is_some() {
            self.had_loss.store(true, Ordering::Release);
        }
    }

    /// Whether accepted bytes may be lost, also if the openers of that time have closed the file.
    /// What is cached of such a file is not retained after its last close.
    pub fn had_loss(&self) -> bool {
        self.sticky.lock().is_some() || self.had_loss.load(Ordering::Acquire)
    }

    /// Errors that no opener has seen, for the next opener of the file.
    pub fn unreported(&self) -> Option<Unreported> {
        let error = self.errseq.unreported()?;
        Some(Unreported { error, sticky: self.sticky.lock().clone() })
    }

    /// Restores errors that no opener had seen when the file was closed. Call it before the file
    /// has openers.
    pub fn restore_unreported(&self, unreported: Unreported) {
        self.errseq.set(unreported.error);
        *self.sticky.lock() = unreported.sticky;
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        debug_assert_eq!(self.write_outs(), 0, "a write-out holds its mapping");
        self.owners.close(self.id);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::dirty::control::DirtyControl;

    fn mapping(block_size: u32) -> Mapping {
        let control = DirtyControl::new(&Config::with_budget(1 << 20), 1 << 20);
        let owner = (Arc::new(Owners::new()), control.domain(None));
        Mapping::new(1, owner, block_size, 65536, 1 << 20, None)
    }

    #[test]
    fn d3_rounding() {
        let m = mapping(512);
        assert_eq!(m.blocks_touched(1, &(65536 + 511..65536 + 1025)), Blocks { start: 0, end: 3 });
        assert_eq!(m.blocks_inside(1, &(65536 + 511..65536 + 1025)), Blocks { start: 1, end: 2 });
        assert!(m.blocks_inside(1, &(65536 + 1..65536 + 511)).is_empty());
        assert!(m.blocks_touched(1, &(65536 + 5..65536 + 5)).len() <= 1);
        assert_eq!(m.blocks_touched(0, &(100..70000)), Blocks { start: 0, end: 128 });
        assert_eq!(m.folios(&(100..70000)), 0..2);
        assert_eq!(m.range_of(1, Blocks { start: 1, end: 3 }), 66048..67072);
    }
}
