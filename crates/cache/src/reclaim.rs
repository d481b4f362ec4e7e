//! Reclaim: frees frames and folio descriptors in batches of about a thousand frames, clean blocks
//! only, on the thread that needs them.
//!
//! ```text
//!   new ──▶ small ──(a block is active)──▶ main ──(touched: once more round)─┐
//!             │                             ▲ │  ▲                            │
//!             └─(none is)──────▶ ghost      │ │  └────────────────────────────┘
//!                                └──────────┘ └─(not touched)─▶ gone
//! ```
//!
//! A block becomes *active* when it is touched again. What is not active is young, also in a folio
//! of the main queue: there a scan may fill the blocks between active ones. Young blocks go first,
//! those of the small queue and those of the main queue, while they hold more than a tenth of the
//! frames. Reclaim then *sifts* the main queue: active blocks do not age, so a scan costs them
//! nothing. Only when young blocks hold less does the main queue age.

mod frames;
mod visits;

use crate::ageing::queues::{MAIN, SMALL};
use crate::cache::PageCache;
use crate::folio::guard::FolioWrite;
use crate::mapping::Mapping;
use crate::memory::arena::Frame;
use crate::stats::Counters;
use crate::table::{Blocks, Slot, State, Table};
use forebay_base::sync::atomic::{AtomicI64, Ordering};
use std::ops::Range;
use visits::{Verdict, Visit};

/// Frames that a batch aims at; less on a small cache.
const BATCH: usize = 1024;

/// Folios taken off the queues at a time.
const ROUND: usize = 64;

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
    /// Visits that remain. Each folio may be visited four times: it is promoted, sifted, ages and
    /// is evicted. After that all are busy.
    left: usize,
    /// Visits of each kind since one of that kind changed something.
    unchanged: [usize; 3],
}

impl Sweep {
    fn over(folios: usize) -> Self {
        Self { left: 4 * folios, unchanged: [0; 3] }
    }

    /// Counts `count` visited folios.
    fn visited(&mut self, visit: Visit, count: usize, changed: bool) {
        self.left -= count;
        let unchanged = &mut self.unchanged[visit as usize];
        *unchanged = if changed { 0 } else { *unchanged + count };
    }

    /// Whether visits of this kind to a queue of `len` folios have changed nothing: further ones
    /// would find the same, for example only dirty folios.
    fn is_done(&self, visit: Visit, len: usize) -> bool {
        self.unchanged[visit as usize] >= len
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
                if self.frames.lock().free() >= want && self.has_slots() {
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
        let evicted = self.reclaim_batch(want, batch);
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

    /// Frees about `batch` frames or folio descriptors, if it can. Once it has freed `want`, it
    /// does not go on from young blocks to ageing the main queue.
    fn reclaim_batch(&self, want: usize, batch: usize) -> Evicted {
        let mut evicted = Evicted::default();
        let mut sweep = {
            let age = self.age.lock();
            Sweep::over(age.len(SMALL) + age.len(MAIN))
        };
        let mut round = Vec::with_capacity(ROUND);
        let mut was_young = false;
        while evicted.frames < batch && evicted.slots < batch && sweep.left > 0 {
            let Some(visit) = self.next_visit(&sweep) else { break };
            if visit == Visit::Age && was_young && evicted.frames >= want && self.has_slots() {
                break;
            }
            was_young |= visit != Visit::Age;
            self.pop_round(&mut round, visit.queue(), sweep.left.min(ROUND));
            if round.is_empty() {
                break;
            }
            let looked = round.len();
            let (more, again) = self.reclaim_round(&mut round, visit);
            evicted.add(more);
            sweep.visited(visit, looked, again || more.total() > 0);
        }
        evicted
    }

    /// Takes the next candidates off a queue: the age lock is held for that only.
    fn pop_round(&self, round: &mut Vec<Slot>, queue: u32, count: usize) {
        let mut age = self.age.lock();
        round.extend((0..count).map_while(|_| age.pop(queue)));
    }

    fn has_slots(&self) -> bool {
        !self.free_slots.lock().is_empty()
    }

    /// The visit that frees what is to be evicted next; none if all folios are busy.
    fn next_visit(&self, sweep: &Sweep) -> Option<Visit> {
        let (small_len, main_len) = {
            let age = self.age.lock();
            (age.len(SMALL), age.len(MAIN))
        };
        let frames = |of: &AtomicI64| of.load(Ordering::Relaxed).max(0);
        // Young blocks that are all dirty or in flight do not keep the main queue from ageing.
        let has_small = !sweep.is_done(Visit::Small, small_len);
        let small = if has_small { frames(&self.queued[SMALL as usize]) } else { 0 };
        // Sifting frees hardly any descriptors.
        let sifts = self.has_slots() && !sweep.is_done(Visit::Sift, main_len);
        let young = if sifts { frames(&self.young) } else { 0 };
        let is_over = small + young > self.small_target() as i64;
        let is_crowded = small_len > self.sizes.slots() / 8 || main_len == 0;
        if has_small && (is_crowded || is_over && small >= young) {
            return Some(Visit::Small);
        }
        let visit = if is_over && young > small { Visit::Sift } else { Visit::Age };
        if !sweep.is_done(visit, main_len) {
            return Some(visit);
        }
        has_small.then_some(Visit::Small)
    }

    /// Visits each candidate and queues or evicts it; returns what was freed, and whether another
    /// visit may free more.
    fn reclaim_round(&self, round: &mut Vec<Slot>, visit: Visit) -> (Evicted, bool) {
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
            let verdict = self.visit(slot, visit, &mut freed);
            self.table.unlock(slot);
            match verdict {
                Verdict::Stays(queue, changed) => {
                    again |= changed;
                    stays.push((queue, slot));
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

    /// Evicts every clean block that is not in use; returns the bytes freed.
    pub fn drop_clean(&self) -> u64 {
        let mut total = 0;
        let _turn = self.reclaim_turn.lock();
        loop {
            // A visit may only age a folio.
            let evicted = self.reclaim_batch(self.sizes.frames(), self.sizes.frames());
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
}
