//! What reclaim does with one folio: promotes it, sifts it, lets it age, evicts it.
//!
//! Under the lock of the folio.

use crate::ageing::queues::{MAIN, NONE, SMALL};
use crate::cache::PageCache;
use crate::folio::guard::ABSENT_LACKS;
use crate::memory::arena::Frame;
use crate::stats::Counters;
use crate::table::{Blocks, Slot, State, Table};
use forebay_base::sync::atomic::Ordering;

/// What reclaim does with the folios that it takes off a queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Visit {
    /// Of the small queue: a folio with active blocks is promoted, another one is evicted.
    Small,
    /// Of the main queue: young blocks are evicted.
    Sift,
    /// Of the main queue: active blocks that were not touched since the last visit of this kind are
    /// evicted.
    Age,
}

impl Visit {
    pub(super) fn queue(self) -> u32 {
        if self == Self::Small { SMALL } else { MAIN }
    }
}

/// What becomes of a folio that reclaim visits.
pub(super) enum Verdict {
    /// It is out of the index, and its descriptor is to be freed.
    Evicted,
    /// It stays, on this queue. Whether the visit changed its age: then another may free more.
    Stays(u32, bool),
}

impl PageCache {
    /// Visits a folio, whose lock is held: frees its cold blocks, and removes it from the index if
    /// it has no block then.
    pub(super) fn visit(&self, slot: Slot, visit: Visit, freed: &mut Vec<Frame>) -> Verdict {
        let table = &self.table;
        let changed = match visit {
            Visit::Small => self.promote(slot, freed),
            Visit::Sift => self.sift(slot, freed),
            Visit::Age => self.age(slot, freed),
        };
        let busy = [State::Uptodate, State::Reading, State::Writing, State::Dirty];
        if busy.iter().any(|&s| table.any_at_all(slot, s)) {
            return Verdict::Stays(table.queue(slot), changed);
        }
        self.bury(slot);
        Verdict::Evicted
    }

    /// Frees the young blocks of a folio in the small queue, and promotes it if it has active ones.
    fn promote(&self, slot: Slot, freed: &mut Vec<Frame>) -> bool {
        let (table, groups) = (&self.table, 0..self.table.layout().groups);
        let active = |g| table.bits(slot, State::Active, g);
        let is_active =
            groups.clone().any(|g| active(g) & table.bits(slot, State::Uptodate, g) != 0);
        self.free_idle(slot, freed, |_, _, g| if is_active { active(g) } else { 0 });
        if is_active {
            for g in groups {
                table.clear_bits(slot, State::Referenced, g, active(g));
            }
            Counters::add(&self.counters.promoted, 1);
            self.requeue(slot, MAIN);
        }
        is_active
    }

    /// Frees the young blocks of a folio in the main queue that has received frames since its last
    /// visit. Those of a ghost that came back are active from now on.
    fn sift(&self, slot: Slot, freed: &mut Vec<Frame>) -> bool {
        let table = &self.table;
        if table.is_recalled(slot) {
            table.set_recalled(slot, false);
            for g in 0..table.layout().groups {
                let up = table.bits(slot, State::Uptodate, g);
                let touched = table.clear_bits(slot, State::Referenced, g, up);
                table.set_age(slot, State::Active, g, touched);
            }
            return true;
        }
        // Of a folio with fills in flight the young frames still count.
        let has_young = !table.any_at_all(slot, State::Reading) && self.forget_young(slot) > 0;
        if has_young {
            self.free_idle(slot, freed, |t, s, g| t.bits(s, State::Active, g));
        }
        has_young
    }

    /// Frees the blocks of a folio in the main queue that were not touched since it aged last, and
    /// the young blocks unless it has received frames since its last visit.
    fn age(&self, slot: Slot, freed: &mut Vec<Frame>) -> bool {
        let table = &self.table;
        table.set_recalled(slot, false);
        let mut changed = self.forget_young(slot) > 0;
        let young = if changed { u64::MAX } else { 0 };
        self.free_idle(slot, freed, |t, s, g| {
            let active = t.bits(s, State::Active, g);
            active & t.bits(s, State::Referenced, g) | young & !active
        });
        for g in 0..table.layout().groups {
            let active = table.bits(slot, State::Active, g);
            changed |= table.clear_bits(slot, State::Referenced, g, active) != 0;
        }
        changed
    }

    /// Counts frames that a folio of the main queue, whose lock is held, has received or lost.
    pub(crate) fn count_young(&self, slot: Slot, change: i64) {
        if self.table.is_recalled(slot) {
            return;
        }
        let (old, most) = (i64::from(self.table.young(slot)), self.table.layout().frames as i64);
        let new = (old + change).clamp(0, most);
        self.table.set_young(slot, new as u32);
        self.young.fetch_add(new - old, Ordering::Relaxed);
    }

    /// Takes the young frames of a folio out of the count; returns how many there were.
    fn forget_young(&self, slot: Slot) -> u32 {
        let young = self.table.young(slot);
        if young > 0 {
            self.table.set_young(slot, 0);
            self.young.fetch_sub(i64::from(young), Ordering::Relaxed);
        }
        young
    }

    /// Takes a folio without blocks, whose lock is held, out of the index.
    pub(super) fn bury(&self, slot: Slot) {
        let table = &self.table;
        // Before the key is cleared, and the owner word with it (queues.Q2).
        self.forget_young(slot);
        self.owners.unlink(table, table.key(slot).0, slot);
        self.index.remove(table, slot);
        for g in 0..table.layout().groups {
            for state in ABSENT_LACKS {
                table.clear_bits(slot, state, g, u64::MAX);
            }
        }
        table.set_queue(slot, NONE);
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
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::config::Config;
    use forebay_base::world::RealWorld;

    /// In the main queue a touch lasts for one visit that ages, and one that sifts costs nothing. A
    /// folio that moves there from the small queue loses its touches: it must be touched again.
    #[test]
    fn main_queue_visit_costs_one_touch() {
        let config = Config { huge_pages: false, ..Config::with_budget(8 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let mapping = cache.new_mapping(4096, 16 << 20);
        let folio = cache.lock_or_make(&mapping, 0, false).unwrap();
        let (table, slot, block) = (&cache.table, folio.slot, Blocks { start: 3, end: 4 });
        let mut pool = cache.take_frames(1).unwrap();
        folio.begin_fill(block, false, &mut pool);
        folio.end_fill(block, true);
        let mut freed = Vec::new();
        let mut look = |visit| match cache.visit(slot, visit, &mut freed) {
            Verdict::Evicted => (0, false),
            Verdict::Stays(queue, changed) => (queue, changed),
        };
        assert_eq!(table.queue(slot), SMALL);
        (0..2).for_each(|_| folio.touch(block, false));
        assert_eq!(look(Visit::Small), (MAIN, true));
        folio.touch(block, false);
        assert_eq!([look(Visit::Sift), look(Visit::Sift)], [(MAIN, false); 2]);
        assert_eq!(look(Visit::Age), (MAIN, true));
        assert_eq!(look(Visit::Sift), (MAIN, false));
        assert_eq!(look(Visit::Age), (0, false), "evicted");
        drop(folio);
        cache.give_frames(&freed);
    }
}
