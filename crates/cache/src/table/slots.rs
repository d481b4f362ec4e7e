//! Free folio descriptors: numbered from 1, handed out in the order in which they became free,
//! those never used last and in order, so that the table is resident as far as it is used.
//!
//! Invariants: B1 a slot is free (up to the limit), retired (above it), never used, or handed out,
//! and only one of these. B2 slots above the limit are not handed out.
//!
//! Locks: none of its own; the cache holds it behind one.

use crate::table::Slot;
use std::collections::VecDeque;

/// Slots in a block of a [`SlotQueue`].
const BLOCK: usize = 256;

/// First in, first out. Its memory follows its length, in blocks of 1 KiB.
#[derive(Default)]
pub(crate) struct SlotQueue {
    blocks: VecDeque<Box<[Slot; BLOCK]>>,
    /// Slots of the first block that were taken already.
    head: usize,
    len: usize,
    /// An empty block, so that a queue whose length moves around a block boundary does not allocate
    /// all the time.
    spare: Option<Box<[Slot; BLOCK]>>,
}

impl SlotQueue {
    /// Slots on it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Puts a slot at the end.
    pub fn push(&mut self, slot: Slot) {
        let at = self.head + self.len;
        if at == self.blocks.len() * BLOCK {
            self.blocks.push_back(self.spare.take().unwrap_or_else(|| Box::new([0; BLOCK])));
        }
        self.blocks[at / BLOCK][at % BLOCK] = slot;
        self.len += 1;
    }

    /// Takes the slot that has been there longest.
    pub fn pop(&mut self) -> Option<Slot> {
        if self.len == 0 {
            return None;
        }
        let slot = self.blocks[0][self.head];
        self.head += 1;
        self.len -= 1;
        if self.head == BLOCK {
            self.head = 0;
            self.spare = self.blocks.pop_front();
        }
        Some(slot)
    }
}

/// Which slots are free.
pub(crate) struct SlotAlloc {
    free: SlotQueue,
    /// Free, but above the limit.
    retired: SlotQueue,
    /// The lowest slot that was never used.
    fresh: usize,
    limit: usize,
}

impl SlotAlloc {
    /// `limit` slots, none used yet.
    pub fn new(limit: usize) -> Self {
        let (free, retired) = (SlotQueue::default(), SlotQueue::default());
        Self { free, retired, fresh: 1, limit }
    }

    /// Takes a slot, if one is free.
    pub fn pop(&mut self) -> Option<Slot> {
        if self.used() >= self.limit {
            return None;
        }
        self.pop_below()
    }

    /// Takes a slot for a folio that moves down from above the limit, whose old slot becomes free.
    pub fn pop_below(&mut self) -> Option<Slot> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.fresh <= self.limit => {
                self.fresh += 1;
                (self.fresh - 1) as Slot
            }
            None => return None,
        };
        assert!(slot as usize <= self.limit, "slot {slot} is above the limit (B2)");
        Some(slot)
    }

    /// Gives a slot back.
    pub fn push(&mut self, slot: Slot) {
        assert!((slot as usize) < self.fresh, "slot {slot} was never handed out (B1)");
        assert!(self.used() > 0, "slot {slot} is given back twice (B1)");
        let above = slot as usize > self.limit;
        if above { self.retired.push(slot) } else { self.free.push(slot) }
    }

    /// Slots that there may be.
    pub fn total(&self) -> usize {
        self.limit
    }

    /// Slots handed out, those above the limit included.
    pub fn used(&self) -> usize {
        self.fresh - 1 - self.free.len() - self.retired.len()
    }

    /// Slots handed out that are above the limit.
    pub fn above(&self) -> usize {
        (self.fresh - 1).saturating_sub(self.limit) - self.retired.len()
    }

    /// Whether no slot can be taken.
    pub fn is_empty(&self) -> bool {
        self.used() >= self.limit
    }

    /// One past the highest slot ever handed out.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// Slots up to `limit` may be handed out from now on.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        let (mut free, mut retired) = (SlotQueue::default(), SlotQueue::default());
        while let Some(slot) = self.free.pop().or_else(|| self.retired.pop()) {
            if slot as usize > limit { retired.push(slot) } else { free.push(slot) }
        }
        (self.free, self.retired) = (free, retired);
    }

    /// No slot above the limit is in use, and their memory is given back: they count as never used.
    pub fn forget_above(&mut self) {
        assert_eq!(self.above(), 0, "slots above the limit are in use (B1)");
        self.retired = SlotQueue::default();
        self.fresh = self.fresh.min(self.limit + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;
    use std::collections::BTreeSet;

    #[test]
    fn slot_queue_across_blocks_is_fifo() {
        let mut queue = SlotQueue::default();
        let (mut next, mut oldest, mut seed) = (0, 0, 3);
        for _ in 0..20_000 {
            if split_mix(&mut seed) % 5 < 3 - oldest / 4000 {
                queue.push(next as Slot);
                next += 1;
            } else if let Some(slot) = queue.pop() {
                assert_eq!(u64::from(slot), oldest);
                oldest += 1;
            }
            assert_eq!(queue.len() as u64, next - oldest);
        }
        assert!(oldest > 2000);
    }

    #[test]
    fn b1_slot_has_one_owner_under_limit_changes() {
        for seed in 0..20u64 {
            let mut state = seed;
            let (mut alloc, mut held) = (SlotAlloc::new(64), BTreeSet::new());
            let mut limit = 64;
            for _ in 0..4000 {
                let r = split_mix(&mut state);
                match r % 8 {
                    0 if alloc.above() == 0 => alloc.forget_above(),
                    0 => {
                        limit = (r >> 8) as usize % 600 + 1;
                        alloc.set_limit(limit);
                    }
                    1..=4 => match alloc.pop() {
                        Some(slot) => assert!(slot as usize <= limit && held.insert(slot)),
                        None => assert!(held.len() >= limit && alloc.is_empty()),
                    },
                    _ => {
                        let at = held.iter().nth((r >> 8) as usize % held.len().max(1)).copied();
                        if let Some(slot) = at {
                            held.remove(&slot);
                            alloc.push(slot);
                        }
                    }
                }
                assert_eq!(alloc.used(), held.len());
                assert_eq!(alloc.above(), held.iter().filter(|&&s| s as usize > limit).count());
            }
        }
    }
}
