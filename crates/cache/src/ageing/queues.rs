//! Ageing: which folio is evicted first. S3-FIFO (Yang, Zhang, Qiu, Yue, Vinayak 2023): a small
//! queue that new folios enter, a main queue for those touched again, and ghosts of folios evicted
//! from the small queue lately. Queues are of folios but sized in frames. Age is kept by block: a
//! block is *active* once it was touched again, and young before. A folio is in the main queue for
//! its active blocks; young blocks that it receives there count as part of the small queue.
//!
//! Invariant Q1: a live slot is on exactly one queue, the one its `queue` field names, or held by
//! the thread that made it or that reclaims. Only the reclaiming thread removes it from the index,
//! so a queue never holds a slot twice. A folio whose last block was dropped stays queued, empty,
//! until reclaim visits it. Q2 the cache's count of young frames is the sum of those of the folios
//! in the main queue.

use crate::table::Slot;
use crate::table::slots::SlotQueue;

/// Not queued.
pub const NONE: u32 = 0;
/// The small queue.
pub const SMALL: u32 = 1;
/// The main queue.
pub const MAIN: u32 = 2;

/// The queues. Behind one lock; touched on insertion and reclaim only.
pub struct Age {
    small: SlotQueue,
    main: SlotQueue,
    ghosts: Ghosts,
}

impl Age {
    /// Queues for `slots` folios of `frames` frames in all.
    pub fn new(slots: usize, frames: usize) -> Self {
        let (small, main) = (SlotQueue::default(), SlotQueue::default());
        Self { small, main, ghosts: Ghosts::new(slots, frames) }
    }

    /// The cache will hold this many slots and frames. If the number of slots changes, ghosts are
    /// dropped.
    pub fn resize(&mut self, slots: usize, frames: usize) {
        if self.ghosts.table.len() == Ghosts::entries(slots) {
            self.ghosts.lifetime = Ghosts::lifetime(frames);
        } else {
            self.ghosts = Ghosts::new(slots, frames);
        }
    }

    /// Puts a folio at the young end of a queue.
    pub fn push(&mut self, queue: u32, slot: Slot) {
        self.queue_mut(queue).push(slot);
    }

    /// Takes the oldest folio of a queue.
    pub fn pop(&mut self, queue: u32) -> Option<Slot> {
        self.queue_mut(queue).pop()
    }

    /// Folios on a queue.
    pub fn len(&self, queue: u32) -> usize {
        if queue == MAIN { self.main.len() } else { self.small.len() }
    }

    fn queue_mut(&mut self, queue: u32) -> &mut SlotQueue {
        if queue == MAIN { &mut self.main } else { &mut self.small }
    }

    /// Records a folio that left the small queue as a ghost, with the frames it held.
    pub fn remember(&mut self, id: u32, index: u64, frames: u32) {
        self.ghosts.insert(id, index, frames);
    }

    /// Whether there is a valid ghost of the folio; removes the ghost.
    pub fn recall(&mut self, id: u32, index: u64) -> bool {
        self.ghosts.take(id, index)
    }

    /// Ghosts in the table, expired ones included; for statistics.
    pub fn ghosts(&self) -> u64 {
        self.ghosts.count
    }
}

/// Ghosts: a table of fingerprints in sets of two; the hash of a folio's key selects its set. The
/// time of entry is measured in frames that left the small queue. A ghost is valid until as many
/// frames as the cache has were evicted from that queue after it.
struct Ghosts {
    /// Fingerprint (high 32 bits) and time (low 32 bits, wraps); 0 is empty.
    table: Box<[u64]>,
    clock: u32,
    lifetime: u32,
    count: u64,
}

impl Ghosts {
    fn new(slots: usize, frames: usize) -> Self {
        // Zeroed memory comes from the system untouched: only used parts of the table are resident.
        let table = vec![0; Self::entries(slots)].into_boxed_slice();
        Self { table, clock: 1, lifetime: Self::lifetime(frames), count: 0 }
    }

    fn entries(slots: usize) -> usize {
        slots.max(8) * 2
    }

    fn lifetime(frames: usize) -> u32 {
        frames.min(u32::MAX as usize / 2) as u32
    }

    fn place(&self, id: u32, index: u64) -> (usize, u32) {
        let hash = (index ^ u64::from(id) << 44).wrapping_mul(0xd6e8_feb8_6659_fd93);
        let hash = (hash ^ hash >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
        // The low half selects the set, the high half is the fingerprint.
        let set = ((hash & 0xffff_ffff) * (self.table.len() as u64 / 2)) >> 32;
        (set as usize * 2, (hash >> 32) as u32 | 1)
    }

    fn alive(&self, entry: u64) -> bool {
        entry != 0 && self.clock.wrapping_sub(entry as u32) < self.lifetime
    }

    fn insert(&mut self, id: u32, index: u64, frames: u32) {
        self.clock = self.clock.wrapping_add(frames.max(1));
        let (at, print) = self.place(id, index);
        let older =
            |e: u64| if self.alive(e) { self.clock.wrapping_sub(e as u32) } else { u32::MAX };
        let victim = if older(self.table[at]) >= older(self.table[at + 1]) { at } else { at + 1 };
        self.count += u64::from(self.table[victim] == 0);
        self.table[victim] = u64::from(print) << 32 | u64::from(self.clock);
    }

    fn take(&mut self, id: u32, index: u64) -> bool {
        let (at, print) = self.place(id, index);
        for i in [at, at + 1] {
            let entry = self.table[i];
            if (entry >> 32) as u32 == print && entry != 0 {
                self.table[i] = 0;
                self.count -= 1;
                return self.clock.wrapping_sub(entry as u32) < self.lifetime;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ghosts_fade() {
        let mut age = Age::new(1024, 100);
        age.remember(1, 5, 1);
        assert!(age.recall(1, 5));
        assert!(!age.recall(1, 5), "taken once");
        age.remember(1, 6, 1);
        for i in 0..20 {
            age.remember(2, 100 + i, 10);
        }
        assert!(!age.recall(1, 6), "older than the cache is long");
        assert!(age.recall(2, 119));
    }

    #[test]
    fn queues_are_fifo() {
        let mut age = Age::new(8, 8);
        (1..4).for_each(|s| age.push(SMALL, s));
        age.push(MAIN, 9);
        assert_eq!((age.pop(SMALL), age.pop(SMALL), age.pop(MAIN)), (Some(1), Some(2), Some(9)));
        assert_eq!((age.len(SMALL), age.len(MAIN)), (1, 0));
    }

    /// Each ghost in the table can be found: a folio that is loaded again enters the main queue at
    /// once, also where two ghosts share a set.
    #[test]
    fn ghosts_in_table_are_all_found() {
        let mut age = Age::new(64, 100_000);
        (0..64).for_each(|i| age.remember(1, i, 1));
        let held = age.ghosts();
        assert!(held > 50, "{held}");
        let found = (0..64).filter(|&i| age.recall(1, i)).count() as u64;
        assert_eq!((found, age.ghosts()), (held, 0));
    }
}
