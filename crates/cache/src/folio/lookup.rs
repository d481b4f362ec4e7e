//! Finding, locking and making folios; waiting for a state of their blocks.

use super::guard::FolioWrite;
use super::read::FolioRead;
use crate::ageing::queues::{MAIN, SMALL};
use crate::cache::PageCache;
use crate::mapping::Mapping;
use crate::memory::arena::FRAME_SIZE;
use crate::table::{Blocks, Slot, State};
use forebay_base::task::WaitQueue;

/// Reads a byte of each page of a caller's memory.
#[inline]
fn fault_in(src: &[u8]) {
    let firsts = src.iter().step_by(FRAME_SIZE);
    firsts.chain(src.last()).for_each(|byte| {
        std::hint::black_box(*byte);
    });
}

/// Writes a byte of each page of a caller's memory, with the value that it has. Call it before
/// locking a folio whose bytes are copied there: a page fault under the lock could wait long.
pub fn fault_in_for_writing(dst: &mut [u8]) {
    for page in dst.chunks_mut(FRAME_SIZE) {
        page[0] = std::hint::black_box(page[0]);
        let last = page.len() - 1;
        page[last] = std::hint::black_box(page[last]);
    }
}

impl PageCache {
    /// The folio, for reading without its lock, if it is cached. `None` is a hint (see
    /// [`crate::table::index`]). `offset` is where in the folio the caller will read: these bytes
    /// are prefetched while the states are checked. An `offset` beyond the folio: the caller reads
    /// no bytes.
    #[inline]
    pub fn lookup(&self, mapping: &Mapping, index: u64, offset: usize) -> Option<FolioRead<'_>> {
        self.table.prefetch(mapping.guess_slot(index));
        let found = self.index.find_unlocked(&self.table, mapping.id, index)?;
        Some(FolioRead::new(self, found, offset))
    }

    #[inline]
    fn prefetch(&self, slot: Slot, offset: usize) {
        let at = offset / FRAME_SIZE;
        if at < self.table.layout().frames
            && let Some(frame) = self.table.frame(slot, at)
        {
            self.arena.prefetch(frame, offset % FRAME_SIZE);
        }
    }

    /// The folio for a write of `src` at `offset` of it: [`PageCache::lock_or_make`], with a
    /// prefetch of the memory that the write will touch. Pages of `src` that are not in memory are
    /// faulted in before the lock is taken: a fault may wait for a device, or for a request that
    /// needs this folio.
    #[inline]
    pub fn lock_for_write<'a>(
        &'a self,
        mapping: &'a Mapping,
        index: u64,
        offset: usize,
        src: &[u8],
        passing: bool,
    ) -> Option<FolioWrite<'a>> {
        self.table.prefetch(mapping.guess_slot(index));
        fault_in(src);
        if let Some(slot) = self.index.find(&self.table, mapping.id, index) {
            self.prefetch(slot, offset);
            if let Some(folio) = self.lock_slot(mapping, index, slot) {
                return Some(folio);
            }
        }
        self.lock_or_make(mapping, index, passing)
    }

    /// Locks the slot in which the folio was found; `None` if another folio has it by now.
    #[inline]
    fn lock_slot<'a>(
        &'a self,
        mapping: &'a Mapping,
        index: u64,
        slot: Slot,
    ) -> Option<FolioWrite<'a>> {
        self.table.lock(slot);
        let folio = FolioWrite::of_lock(self, mapping, slot, index);
        (self.table.key(slot) == (mapping.id, index)).then_some(folio)
    }

    /// The lowest byte from `from` on that may be unwritten: in a dirty block, or in write-out. For
    /// callers without a folio lock.
    pub fn lowest_unwritten(&self, mapping: &Mapping, from: u64) -> u64 {
        self.lowest_unwritten_except(mapping, from, None)
    }

    /// [`Self::lowest_unwritten`] for the last request of the write-out with the number `ended`.
    /// Its blocks are written, or dirty again.
    pub fn lowest_unwritten_except(&self, mapping: &Mapping, from: u64, ended: Option<u64>) -> u64 {
        mapping.lowest_unwritten(from, ended, |start| self.lowest_dirty(mapping, start))
    }

    /// The lowest byte from `from` on, within the folio of `from`, that is in a dirty block.
    fn lowest_dirty(&self, mapping: &Mapping, from: u64) -> Option<u64> {
        let index = mapping.folio_index(from);
        let folio = self.lock_folio(mapping, index)?;
        let end = mapping.folio_start(index) + mapping.folio_size();
        let run =
            folio.runs_with(mapping.blocks_touched(index, &(from..end)), State::Dirty).next()?;
        Some(mapping.range_of(index, run).start.max(from))
    }

    /// The folio, locked exclusively. `None` is definite: it was not cached at that moment.
    pub fn lock_folio<'a>(&'a self, mapping: &'a Mapping, index: u64) -> Option<FolioWrite<'a>> {
        loop {
            let slot = self
                .index
                .find(&self.table, mapping.id, index)
                .or_else(|| self.index.find_locked(&self.table, mapping.id, index))?;
            if let Some(folio) = self.lock_slot(mapping, index, slot) {
                return Some(folio);
            }
        }
    }

    /// Locks the folio exclusively, or makes it; `None` if no folio can be evicted to make it. A
    /// folio made for an uncached request (`passing`) counts as new even if it is a ghost, and
    /// leaves the ghost to an ordinary request (lineage.U1).
    pub fn lock_or_make<'a>(
        &'a self,
        mapping: &'a Mapping,
        index: u64,
        passing: bool,
    ) -> Option<FolioWrite<'a>> {
        loop {
            if let Some(folio) = self.lock_folio(mapping, index) {
                return Some(folio);
            }
            let slot = self.take_slot()?;
            let queue = if passing { SMALL } else { self.queue_for_new(mapping.id, index) };
            self.table.lock(slot);
            self.table.set_key(slot, 0, 0);
            if self.index.insert(&self.table, slot, mapping.id, index).is_some() {
                self.table.unlock(slot);
                self.free_slots.lock().push(slot);
                continue;
            }
            self.owners.link(&self.table, mapping.id, slot);
            mapping.note_slot(index, slot);
            self.table.set_queue(slot, queue);
            self.table.set_recalled(slot, queue == MAIN);
            self.table.set_blocks_per_frame(slot, mapping.blocks_per_frame());
            self.table.unlock(slot);
            // Queued while it is unlocked: the holder of a folio lock takes no age lock.
            self.age.lock().push(queue, slot);
        }
    }

    pub(crate) fn wait_queue(&self, id: u32, index: u64) -> &WaitQueue {
        let mixed = (index ^ u64::from(id) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.waits[(mixed >> 56) as usize % self.waits.len()]
    }

    pub(crate) fn wake_folio(&self, id: u32, index: u64) {
        self.wait_queue(id, index).wake_all();
    }

    /// Waits until no block of the run has `state`.
    pub async fn wait_while(&self, mapping: &Mapping, index: u64, blocks: Blocks, state: State) {
        let done = || match self.lock_folio(mapping, index) {
            Some(folio) if folio.any(state, blocks) => None,
            _ => Some(()),
        };
        self.wait_queue(mapping.id, index).wait_until(done).await;
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Retention;
    use crate::config::Config;
    use forebay_base::world::RealWorld;
    use forebay_sim::slow_page::SlowPage;
    use std::sync::Barrier;

    fn cache() -> forebay_base::sync::Arc<PageCache> {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        PageCache::new(config, RealWorld::with_seed(1)).unwrap()
    }

    /// Two tasks that make the same folio both take a slot; the second returns its slot. If that
    /// slot stayed locked, its next owner would wait for ever.
    #[test]
    fn slot_unneeded_is_returned_unlocked() {
        const FOLIOS: u64 = 200;
        let (cache, start) = (cache(), Barrier::new(2));
        let mapping = cache.new_mapping(4096, 1 << 40);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for index in 0..FOLIOS {
                        start.wait();
                        drop(cache.lock_or_make(&mapping, index, false).unwrap());
                    }
                });
            }
        });
        for slot in 1..=2 * FOLIOS as Slot {
            assert!(cache.table.try_lock(slot), "slot {slot} is locked");
            cache.table.unlock(slot);
        }
    }

    /// The story: a write copied from absent memory under the folio lock. Other users of the folio
    /// spun until the page was present; if it came from a file of the same process, for ever.
    #[test]
    fn write_from_absent_memory_does_not_hold_folio_lock() {
        let (cache, (page, pager)) = (cache(), SlowPage::new());
        let mapping = cache.new_mapping(4096, 1 << 20);
        let block = Blocks { start: 0, end: 1 };
        let mut pool = cache.take_frames(1).unwrap();
        let folio = cache.lock_or_make(&mapping, 0, false).unwrap();
        folio.install_frames(block, &mut pool);
        folio.copy_in(0, &[7; 4096]);
        let slot = folio.slot;
        folio.mark_dirty(block, Retention::Keep);
        drop(folio);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let src = page.bytes();
                let folio = cache.lock_for_write(&mapping, 0, 0, src, false).unwrap();
                folio.copy_in(0, src);
            });
            pager.wait_for_fault();
            let is_free = cache.table.try_lock(slot);
            if is_free {
                cache.table.unlock(slot);
            }
            pager.provide();
            assert!(is_free, "the writer waits for its memory under the folio lock");
        });
        let mut back = [1; 4096];
        let folio = cache.lock_folio(&mapping, 0).unwrap();
        folio.copy_out(0, &mut back);
        assert!(back == [0; 4096], "written after all");
        folio.discard(block);
    }

    /// A reader without the lock that a writer overtook must discard its copy.
    #[test]
    fn read_overtaken_by_writer_is_discarded() {
        let cache = cache();
        let mapping = cache.new_mapping(4096, 1 << 20);
        let block = Blocks { start: 0, end: 1 };
        let mut pool = cache.take_frames(1).unwrap();
        let folio = cache.lock_or_make(&mapping, 0, false).unwrap();
        folio.install_frames(block, &mut pool);
        folio.copy_in(0, &[1; 4096]);
        folio.mark_dirty(block, Retention::Keep);
        drop(folio);
        let (reader, mut bytes) = (cache.lookup(&mapping, 0, 0).unwrap(), [0; 16]);
        assert!(reader.copy_out(&mut bytes) && bytes == [1; 16]);
        drop(cache.lock_folio(&mapping, 0).unwrap());
        assert!(!reader.copy_out(&mut bytes), "a writer had the lock meanwhile");
    }
}
