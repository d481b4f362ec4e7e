//! Finding, locking and making folios; waiting for a state of their blocks.

use super::guard::{FolioRead, FolioWrite};
use super::table::{Blocks, Slot, State};
use crate::ageing::queues::SMALL;
use crate::cache::PageCache;
use crate::mapping::Mapping;
use crate::memory::arena::FRAME_SIZE;
use forebay_base::task::WaitQueue;

impl PageCache {
    /// The folio, for reading without its lock, if it is there. `None` is a hint (see
    /// [`crate::folio::index`]). The caller says where in the folio it is going to read: the bytes are on
    /// their way from memory while the states are looked at.
    #[inline]
    pub fn lookup(&self, mapping: &Mapping, index: u64, offset: usize) -> Option<FolioRead<'_>> {
        self.table.prefetch(mapping.guess_slot(index));
        let slot = self.index.find(&self.table, mapping.id, index)?;
        self.prefetch(slot, offset);
        let version = self.table.version(slot)?;
        let folio = FolioRead { cache: self, slot, version };
        (self.table.key(slot) == (mapping.id, index)).then_some(folio)
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

    /// The folio for a write at `offset` of it: [`PageCache::lock_or_make`], with what the write is going to
    /// touch on its way from memory meanwhile.
    #[inline]
    pub fn lock_for_write<'a>(
        &'a self,
        mapping: &'a Mapping,
        index: u64,
        offset: usize,
        passing: bool,
    ) -> Option<FolioWrite<'a>> {
        self.table.prefetch(mapping.guess_slot(index));
        if let Some(slot) = self.index.find(&self.table, mapping.id, index) {
            self.prefetch(slot, offset);
            self.table.lock(slot);
            let folio = FolioWrite::of_lock(self, mapping, slot, index);
            if self.table.key(slot) == (mapping.id, index) {
                return Some(folio);
            }
        }
        self.lock_or_make(mapping, index, passing)
    }

    /// The lowest byte from `from` on, within its folio, that is in a dirty block.
    pub(crate) fn lowest_dirty(&self, mapping: &Mapping, from: u64) -> Option<u64> {
        let index = mapping.folio_index(from);
        let folio = self.lock_folio(mapping, index)?;
        let end = mapping.folio_start(index) + mapping.folio_size();
        let run =
            folio.runs_with(mapping.blocks_touched(index, &(from..end)), State::Dirty).next()?;
        Some(mapping.range_of(index, run).start.max(from))
    }

    /// The folio, locked exclusively, if it is there: definite.
    pub fn lock_folio<'a>(&'a self, mapping: &'a Mapping, index: u64) -> Option<FolioWrite<'a>> {
        loop {
            let slot = self
                .index
                .find(&self.table, mapping.id, index)
                .or_else(|| self.index.find_locked(&self.table, mapping.id, index))?;
            self.table.lock(slot);
            let folio = FolioWrite::of_lock(self, mapping, slot, index);
            if self.table.key(slot) == (mapping.id, index) {
                return Some(folio);
            }
        }
    }

    /// The folio, locked exclusively, made if it is missing. `None` when no folio descriptor can
    /// be had: everything is dirty or in flight.
    pub fn lock_or_create<'a>(
        &'a self,
        mapping: &'a Mapping,
        index: u64,
    ) -> Option<FolioWrite<'a>> {
        self.lock_or_make(mapping, index, false)
    }

    /// The same; a folio made for an uncached request (`passing`) is new whatever ghost there is,
    /// and leaves the ghost to an ordinary request (U1).
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
            self.table.set_blocks_per_frame(slot, mapping.blocks_per_frame());
            self.table.unlock(slot);
            // Queued before it is locked again: the age lock comes before the folio lock.
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
    use crate::config::Config;
    use forebay_base::world::RealWorld;
    use std::sync::Barrier;

    fn cache() -> forebay_base::sync::Arc<PageCache> {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        PageCache::new(config, RealWorld::with_seed(1)).unwrap()
    }

    /// Two who make the same folio both take a slot; the one that comes second gives its slot back. Left
    /// locked, it would hold up whoever took it next, for ever.
    #[test]
    fn a_slot_that_was_not_needed_is_given_back_unlocked() {
        const FOLIOS: u64 = 200;
        let (cache, start) = (cache(), Barrier::new(2));
        let mapping = cache.new_mapping(4096, 1 << 40);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for index in 0..FOLIOS {
                        start.wait();
                        drop(cache.lock_or_create(&mapping, index).unwrap());
                    }
                });
            }
        });
        for slot in 1..=2 * FOLIOS as Slot {
            assert!(cache.table.try_lock(slot), "slot {slot} is locked");
            cache.table.unlock(slot);
        }
    }

    /// A reader without the lock who was overtaken by a writer must not believe what it has copied.
    #[test]
    fn what_changed_under_a_reader_is_not_read() {
        let cache = cache();
        let mapping = cache.new_mapping(4096, 1 << 20);
        let block = Blocks { start: 0, end: 1 };
        let mut pool = cache.take_frames(1).unwrap();
        let folio = cache.lock_or_create(&mapping, 0).unwrap();
        folio.install_frames(block, &mut pool);
        folio.copy_in(0, &[1; 4096]);
        folio.mark_dirty(block, false);
        drop(folio);
        let (reader, mut bytes) = (cache.lookup(&mapping, 0, 0).unwrap(), [0; 16]);
        assert!(reader.copy_out(0, &mut bytes) && bytes == [1; 16]);
        drop(cache.lock_folio(&mapping, 0).unwrap());
        assert!(!reader.copy_out(0, &mut bytes), "somebody had the lock meanwhile");
    }
}
