//! Reclaim: frees frames and folio descriptors in batches of about a thousand frames, clean blocks
//! only, on the thread that needs them.
//!
//! ```text
//!   new ──▶ small ──(touched again)──▶ main ──(touched again: once more round, cold blocks go)─┐
//!             │                          ▲ │                                                  │
//!             └─(not again)───▶ ghost    │ └─(not touched)─▶ gone            ◀────────────────┘
//!                                └─ comes back to main
//! ```

mod frames;

use crate::ageing::queues::{MAIN, NONE, SMALL};
use crate::cache::PageCache;
use crate::folio::guard::{ABSENT_LACKS, FolioWrite};
use crate::mapping::Mapping;
use crate::memory::arena::Frame;
use crate::stats::Counters;
use crate::table::{Blocks, Slot, State, Table};
use forebay_base::sync::atomic::Ordering;
use std::ops::Range;

/// Frames that a batch aims at; less on a small cache.
const BATCH: usize = 1024;

/// Folios taken off the queues at a time.
const ROUND: usize = 64;

/// What becomes of a folio that reclaim visits.
enum Verdict {
    /// It is out of the index, and its descriptor is to be freed.
    Evicted,
    /// It stays, on this queue.
    Stays(u32),
    /// It stays in main, and may be evicted on its next visit.
    Again,
}

/// What reclaim has freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Evicted {
    frames: usize,
    /// Folio descriptors.
    slots: usize,
}

impl Evicted {
    fn add(&mut self, more: Self) {
        self.frames += more.frames;
        self.slots += more.slots;
    }

    fn total(self) -> usize {
        self.frames + self.slots
    }
}

/// An evicted folio: its descriptor; mapping, index and frames if a ghost of it is to be kept.
struct Gone {
    slot: Slot,
    ghost: Option<(u32, u64, u32)>,
}

/// How far reclaim has visited the queues.
struct Sweep {
    /// Folios on the queues when it began.
    all: usize,
    /// Visits that remain. Each folio may be visited a few times (frequency is at most 3); after
    /// that all are busy.
    left: usize,
    /// Folios visited in this round.
    looked: usize,
    /// A visit of this round changed something.
    changed: bool,
}

impl Sweep {
    fn over(all: usize) -> Self {
        Self { all, left: 4 * all, looked: 0, changed: false }
    }

    /// Counts `count` visited folios. False after a full round without a change: another round
    /// would find the same, for example only dirty folios.
    fn looked_at(&mut self, count: usize, changed: bool) -> bool {
        self.left -= count;
        self.looked += count;
        self.changed |= changed;
        if self.looked < self.all {
            return true;
        }
        self.looked = 0;
        std::mem::replace(&mut self.changed, false)
    }
}

impl PageCache {
    /// The queue for a new folio: main if it is a ghost of the small queue.
    pub(crate) fn queue_for_new(&self, id: u32, index: u64) -> u32 {
        let back = self.age.lock().recall(id, index);
        if back {
            Counters::add(&self.counters.ghost_hits, 1);
        }
        if back { MAIN } else { SMALL }
    }

    /// A free slot, reclaimed if need be.
    pub(crate) fn take_slot(&self) -> Option<Slot> {
        for _ in 0..4 {
            if let Some(slot) = self.free_slots.lock().pop() {
                return Some(slot);
            }
            self.reclaim(1);
        }
        self.free_slots.lock().pop()
    }

    /// Frames that the small queue may hold before it gives some up: a tenth.
    pub fn small_target(&self) -> usize {
        self.sizes.frames() / 10
    }

    /// Frees at least `want` frames if it can; returns how many frames and folio descriptors. One
    /// thread reclaims at a time. A thread that waited for its turn reclaims nothing, and returns
    /// `want`, if enough frames are free by then.
    pub fn reclaim(&self, want: usize) -> usize {
        let turn = self.reclaim_turn.try_lock();
        let _turn = match turn {
            Some(turn) => turn,
            None => {
                let turn = self.reclaim_turn.lock();
                if self.frames.lock().free() >= want && !self.free_slots.lock().is_empty() {
                    return want;
                }
                turn
            }
        };
        self.reclaim_timed(want)
    }

    /// Evicts `want` frames or folio descriptors, at least a batch, the coldest first.
    pub(crate) fn evict(&self, want: usize) {
        let _turn = self.reclaim_turn.lock();
        self.reclaim_timed(want);
    }

    fn reclaim_timed(&self, want: usize) -> usize {
        let start = self.world.now();
        let batch = want.max(BATCH.min(self.sizes.frames() / 8));
        let evicted = self.reclaim_batch(batch);
        Counters::add(&self.counters.reclaim_nanos, self.world.now() - start);
        Counters::add(&self.counters.reclaim_runs, 1);
        evicted.total()
    }

    /// Called with the number of free frames: one thread reclaims ahead of need, while the others
    /// use the free frames.
    pub(crate) fn reclaim_ahead(&self, free: usize) {
        if free >= (BATCH / 2).min(self.sizes.frames() / 32) {
            return;
        }
        if let Some(_turn) = self.reclaim_turn.try_lock() {
            self.reclaim_timed(1);
        }
    }

    /// Frees about `batch` frames or folio descriptors, if it can.
    fn reclaim_batch(&self, batch: usize) -> Evicted {
        let mut evicted = Evicted::default();
        let mut sweep = {
            let age = self.age.lock();
            Sweep::over(age.len(SMALL) + age.len(MAIN) + 1)
        };
        let mut round = Vec::with_capacity(ROUND);
        while evicted.frames < batch && evicted.slots < batch && sweep.left > 0 {
            self.pop_round(&mut round, sweep.left.min(ROUND));
            if round.is_empty() {
                break;
            }
            let looked = round.len();
            let (more, again) = self.reclaim_round(&mut round);
            evicted.add(more);
            if !sweep.looked_at(looked, again || more.total() > 0) {
                break;
            }
        }
        evicted
    }

    /// Takes the next candidates off the queues: the age lock is held for that only.
    fn pop_round(&self, round: &mut Vec<Slot>, count: usize) {
        let mut age = self.age.lock();
        while round.len() < count {
            let small_frames = self.queued[SMALL as usize].load(Ordering::Relaxed);
            let small_first = small_frames > self.small_target() as i64
                || age.len(SMALL) > self.sizes.slots() / 8
                || age.len(MAIN) == 0;
            let queue = if small_first && age.len(SMALL) > 0 { SMALL } else { MAIN };
            let Some(slot) = age.pop(queue).or_else(|| age.pop(SMALL)) else { return };
            round.push(slot);
        }
    }

    /// Visits each candidate and queues or evicts it; returns what was freed, and whether another
    /// visit may free more.
    fn reclaim_round(&self, round: &mut Vec<Slot>) -> (Evicted, bool) {
        let mut again = false;
        let mut freed: Vec<Frame> = Vec::with_capacity(ROUND * 2);
        let mut gone: Vec<Gone> = Vec::new();
        let mut stays: Vec<(u32, Slot)> = Vec::with_capacity(ROUND);
        for slot in round.drain(..) {
            if !self.table.try_lock(slot) {
                again = true;
                stays.push((self.table.queue(slot), slot));
                continue;
            }
            let ((id, index), had) = (self.table.key(slot), freed.len());
            // No ghost for a folio that only uncached requests and readahead touched.
            let touched = self.table.any_at_all(slot, State::Referenced);
            let remembered = self.table.queue(slot) == SMALL && touched;
            let verdict = self.age_one(slot, &mut freed);
            self.table.unlock(slot);
            match verdict {
                Verdict::Stays(queue) => stays.push((queue, slot)),
                Verdict::Again => {
                    again = true;
                    stays.push((MAIN, slot));
                }
                Verdict::Evicted => {
                    let ghost = remembered.then_some((id, index, (freed.len() - had) as u32));
                    gone.push(Gone { slot, ghost });
                }
            }
        }
        let mut age = self.age.lock();
        stays.iter().for_each(|&(queue, slot)| age.push(queue, slot));
        for (id, index, frames) in gone.iter().filter_map(|gone| gone.ghost) {
            age.remember(id, index, frames);
        }
        drop(age);
        Counters::add(&self.counters.evicted_folios, gone.len() as u64);
        self.give_slots(gone.iter().map(|gone| gone.slot));
        self.give_frames(&freed);
        (Evicted { frames: freed.len(), slots: gone.len() }, again)
    }

    /// Frees folio descriptors that the index and the age queues do not hold any more.
    pub(crate) fn give_slots(&self, slots: impl Iterator<Item = Slot>) {
        let mut free = self.free_slots.lock();
        slots.for_each(|slot| free.push(slot));
    }

    /// Ages one folio, whose lock is held: frees its cold blocks, and removes it from the index if
    /// it has no block then.
    fn age_one(&self, slot: Slot, freed: &mut Vec<Frame>) -> Verdict {
        let (table, queue, freq) = (&self.table, self.table.queue(slot), self.table.freq(slot));
        if freq > 0 {
            self.free_idle(slot, freed, |t, s, g| t.bits(s, State::Referenced, g));
            for g in 0..table.layout().groups {
                table.clear_bits(slot, State::Referenced, g, u64::MAX);
            }
            table.set_freq(slot, if queue == SMALL { 0 } else { freq - 1 });
            if queue == SMALL {
                Counters::add(&self.counters.promoted, 1);
                self.requeue(slot, MAIN);
            }
            return Verdict::Again;
        }
        self.free_idle(slot, freed, |_, _, _| 0);
        let busy = [State::Uptodate, State::Reading, State::Writing, State::Dirty];
        if busy.iter().any(|&s| table.any_at_all(slot, s)) {
            return Verdict::Stays(queue);
        }
        self.bury(slot);
        Verdict::Evicted
    }

    /// Takes a folio without blocks, whose lock is held, out of the index.
    fn bury(&self, slot: Slot) {
        let table = &self.table;
        self.owners.unlink(table, table.key(slot).0, slot);
        self.index.remove(table, slot);
        for g in 0..table.layout().groups {
            table.clear_bits(slot, State::Referenced, g, u64::MAX);
            table.clear_bits(slot, State::Uncached, g, u64::MAX);
            table.clear_bits(slot, State::HeldAbove, g, u64::MAX);
        }
        table.set_freq(slot, 0);
        table.set_queue(slot, NONE);
    }

    /// Takes every folio off the queues once and puts back the slot that `f` returns for it, so
    /// that all keep their order; `None`: `f` has removed the folio.
    pub(crate) fn rotate(&self, mut f: impl FnMut(Slot) -> Option<Slot>) {
        let _turn = self.reclaim_turn.lock();
        for queue in [SMALL, MAIN] {
            let mut left = self.age.lock().len(queue);
            while left > 0 {
                let mut round: Vec<Slot> = Vec::with_capacity(ROUND);
                {
                    let mut age = self.age.lock();
                    round.extend((0..ROUND.min(left)).map_while(|_| age.pop(queue)));
                }
                left = if round.is_empty() { 0 } else { left - round.len() };
                let stay: Vec<Slot> = round.into_iter().filter_map(&mut f).collect();
                let mut age = self.age.lock();
                stay.into_iter().for_each(|slot| age.push(queue, slot));
            }
        }
    }

    /// Frees the descriptors of folios that lost their blocks otherwise than by reclaim.
    pub(crate) fn drop_empty(&self) {
        let states = [State::Uptodate, State::Reading, State::Writing, State::Dirty];
        let mut gone = Vec::new();
        self.rotate(|slot| {
            if !self.table.try_lock(slot) {
                return Some(slot);
            }
            let mut frames = 0..self.table.layout().frames;
            let empty = !states.iter().any(|&s| self.table.any_at_all(slot, s))
                && frames.all(|at| self.table.frame(slot, at).is_none());
            if empty {
                self.bury(slot);
                gone.push(slot);
            }
            self.table.unlock(slot);
            (!empty).then_some(slot)
        });
        Counters::add(&self.counters.evicted_folios, gone.len() as u64);
        self.give_slots(gone.into_iter());
    }

    fn requeue(&self, slot: Slot, queue: u32) {
        let frames = self.table.layout().frames;
        let held = (0..frames).filter(|&f| self.table.frame(slot, f).is_some()).count() as i64;
        self.queued[self.table.queue(slot) as usize].fetch_sub(held, Ordering::Relaxed);
        self.queued[queue as usize].fetch_add(held, Ordering::Relaxed);
        self.table.set_queue(slot, queue);
    }

    /// Frees the clean idle blocks (table.F4), except those that `keep` names and those in pinned
    /// frames: evicting these would free no memory.
    fn free_idle(
        &self,
        slot: Slot,
        freed: &mut Vec<Frame>,
        keep: impl Fn(&Table, Slot, usize) -> u64,
    ) {
        let table = &self.table;
        let mut evicted = 0;
        let mut left = 0;
        for g in 0..table.layout().groups {
            let held = [State::Dirty, State::Writing, State::Reading, State::Unflushed];
            let kept = keep(table, slot, g) | self.pinned_blocks(slot, g);
            let held = held.iter().fold(kept, |w, &s| w | table.bits(slot, s, g));
            let gone = table.bits(slot, State::Uptodate, g) & !held;
            evicted += gone.count_ones();
            for state in ABSENT_LACKS {
                table.clear_bits(slot, state, g, gone);
            }
            left |= table.bits(slot, State::Uptodate, g) | table.bits(slot, State::Reading, g);
        }
        if evicted == 0 && left != 0 {
            return;
        }
        Counters::add(&self.counters.evicted_blocks, u64::from(evicted));
        self.strip_idle(slot, left != 0, freed);
    }

    /// Takes the frames away that no block needs.
    fn strip_idle(&self, slot: Slot, some_left: bool, freed: &mut Vec<Frame>) {
        let (table, layout) = (&self.table, self.table.layout());
        let queue = table.queue(slot) as usize;
        let blocks_per_frame = table.blocks_per_frame(slot);
        for at in 0..layout.frames {
            if table.frame(slot, at).is_none() {
                continue;
            }
            let start = at as u32 * blocks_per_frame;
            let run = Blocks { start, end: start + blocks_per_frame };
            let used = [State::Uptodate, State::Reading, State::Writing, State::Dirty];
            if some_left && used.iter().any(|&s| table.any(slot, s, run)) {
                continue;
            }
            let frame = table.replace_frame(slot, at, None).expect("looked at it");
            if self.words.leave(frame) {
                self.disown(frame, table.key(slot).0);
                freed.push(frame);
            }
            self.queued[queue].fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Evicts every clean block that is not in use; returns the bytes freed.
    pub fn drop_clean(&self) -> u64 {
        let mut total = 0;
        let _turn = self.reclaim_turn.lock();
        loop {
            // Each visit lowers a folio's frequency.
            let evicted = self.reclaim_batch(self.sizes.frames());
            total += evicted.frames as u64;
            if evicted.total() == 0 {
                return total * crate::FRAME_SIZE as u64;
            }
        }
    }

    /// Drops the clean idle blocks of a file range, referenced or not.
    pub fn drop_range(&self, mapping: &Mapping, range: Range<u64>) {
        for index in self.folios_present(mapping, &range) {
            let Some(folio) = self.lock_folio(mapping, index) else { continue };
            let blocks = mapping.blocks_touched(index, &range);
            self.drop_idle_blocks(&folio, blocks);
        }
    }

    fn drop_idle_blocks(&self, folio: &FolioWrite<'_>, blocks: Blocks) {
        let idle = |t: &Table, s: Slot, g: usize| {
            let busy = [State::Dirty, State::Writing, State::Reading, State::Unflushed];
            t.bits(s, State::Uptodate, g) & !busy.iter().fold(0, |w, &b| w | t.bits(s, b, g))
        };
        for run in folio.runs(blocks, idle) {
            folio.discard(run);
        }
    }

    /// Indices of the folios in the cache that a byte range of a file touches, ascending. Walks the
    /// range or the file's folios, whichever is shorter.
    pub fn folios_present(&self, mapping: &Mapping, range: &Range<u64>) -> Vec<u64> {
        let wanted = mapping.folios(range);
        // A step along the range costs less than one along the file's list of folios, and does not
        // hold the list's lock, which other files share.
        let walk = 4 * u64::from(self.owners.folios(mapping.id));
        if wanted.end - wanted.start <= walk {
            let there = |&i: &u64| self.index.find_locked(&self.table, mapping.id, i).is_some();
            return wanted.filter(there).collect();
        }
        let mut found = self.owners.indices(&self.table, mapping.id, &wanted);
        found.sort_unstable();
        found
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::PageCache;
    use crate::config::Config;
    use forebay_base::world::RealWorld;

    /// Shrinking the cache and freeing empty folios visit all folios. A folio passed over would
    /// keep its descriptor for ever; a changed order would evict the wrong folio next.
    #[test]
    fn q1_queue_pass_visits_each_folio_once_in_order() {
        let config = Config { huge_pages: false, ..Config::with_budget(8 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(4096, 16 << 20);
        let made = 3 * super::ROUND + 1;
        (0..made as u64)
            .for_each(|index| drop(cache.lock_or_make(&mapping, index, false).unwrap()));
        let pass = || {
            let mut seen = Vec::new();
            cache.rotate(|slot| {
                seen.push(slot);
                Some(slot)
            });
            seen
        };
        let first = pass();
        assert_eq!(first.len(), made);
        assert_eq!(pass(), first);
        cache.drop_empty();
        assert_eq!(pass(), [0; 0], "nothing was ever in them");
    }

    /// In the main queue each touch lasts for one visit of reclaim, so a folio touched repeatedly
    /// outlives one touched once. A folio that moves there from the small queue loses its touches:
    /// it must be touched again.
    #[test]
    fn main_queue_visit_costs_one_touch() {
        let config = Config { huge_pages: false, ..Config::with_budget(8 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(4096, 16 << 20);
        drop(cache.lock_or_make(&mapping, 0, false).unwrap());
        let folio = cache.lock_folio(&mapping, 0).unwrap();
        let (table, slot) = (&cache.table, folio.slot);
        let look = || {
            assert!(matches!(cache.age_one(slot, &mut Vec::new()), super::Verdict::Again));
            (table.queue(slot), table.freq(slot))
        };
        assert_eq!(table.queue(slot), super::SMALL);
        table.set_freq(slot, 3);
        assert_eq!(look(), (super::MAIN, 0));
        table.set_freq(slot, 3);
        assert_eq!([look(), look(), look()], [2, 1, 0].map(|freq| (super::MAIN, freq)));
    }
}
