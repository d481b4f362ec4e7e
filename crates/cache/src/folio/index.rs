//! Finding a folio by (mapping, index): chained hashing through the slots themselves.
//!
//! Lookup takes no lock. A chain read without the bucket lock may lead astray when a slot moves
//! meanwhile; then it finds nothing, which is only a hint: "not there" is decided under the bucket
//! lock. "There" is decided by comparing the key again under the folio lock.

use crate::folio::table::{Slot, Table};
use crate::memory::arena::huge_vec;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicU32, Ordering};

const LOCKS: usize = 64;
/// Longest chain that the lockless lookup follows.
const MAX_STEPS: u32 = 64;

/// The hash heads.
pub struct Index {
    heads: Box<[AtomicU32]>,
    locks: Box<[Mutex<()>]>,
}

impl Index {
    /// Heads for `slots` slots: at least one each.
    pub fn new(slots: usize) -> Self {
        let heads = slots.next_power_of_two().max(LOCKS);
        Self {
            heads: huge_vec(heads, || AtomicU32::new(0)).into_boxed_slice(),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
        }
    }

    /// Bytes of the heads.
    pub fn bytes(&self) -> u64 {
        self.heads.len() as u64 * 4
    }

    #[inline]
    fn bucket(&self, id: u32, index: u64) -> usize {
        // Neighbours in a file are neighbours here: the heads of a file that is in use stay in the
        // processor's cache. Files start at places of their own, and so does each stretch of a
        // file that is as long as the table.
        let stretch = index >> self.heads.len().trailing_zeros();
        let place = (stretch ^ u64::from(id) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        (index.wrapping_add(place)) as usize & (self.heads.len() - 1)
    }

    /// Lookup without a lock: a hint.
    #[inline]
    pub fn find(&self, table: &Table, id: u32, index: u64) -> Option<Slot> {
        self.walk(table, self.bucket(id, index), id, index, MAX_STEPS)
    }

    #[inline]
    fn walk(&self, t: &Table, bucket: usize, id: u32, index: u64, max: u32) -> Option<Slot> {
        let mut slot = self.heads[bucket].load(Ordering::Acquire);
        let mut steps = 0;
        while slot != 0 && steps < max {
            if t.key(slot) == (id, index) {
                return Some(slot);
            }
            slot = t.next(slot);
            steps += 1;
        }
        None
    }

    /// Lookup under the bucket lock: definite at that moment.
    pub fn find_locked(&self, table: &Table, id: u32, index: u64) -> Option<Slot> {
        let bucket = self.bucket(id, index);
        let _guard = self.locks[bucket % LOCKS].lock();
        self.walk(table, bucket, id, index, u32::MAX)
    }

    /// Inserts `slot`, whose key is not set yet and whose exclusive lock the caller holds; if the
    /// key is there already, inserts nothing and returns the slot that has it.
    pub fn insert(&self, table: &Table, slot: Slot, id: u32, index: u64) -> Option<Slot> {
        let bucket = self.bucket(id, index);
        let _guard = self.locks[bucket % LOCKS].lock();
        if let Some(other) = self.walk(table, bucket, id, index, u32::MAX) {
            return Some(other);
        }
        table.set_key(slot, id, index);
        table.set_next(slot, self.heads[bucket].load(Ordering::Relaxed));
        self.heads[bucket].store(slot, Ordering::Release);
        None
    }

    /// Takes `slot` out and clears its key. The caller holds its exclusive lock.
    pub fn remove(&self, table: &Table, slot: Slot) {
        let (id, index) = table.key(slot);
        let bucket = self.bucket(id, index);
        let _guard = self.locks[bucket % LOCKS].lock();
        let next = table.next(slot);
        let mut at = self.heads[bucket].load(Ordering::Relaxed);
        if at == slot {
            self.heads[bucket].store(next, Ordering::Release);
        } else {
            while table.next(at) != slot {
                at = table.next(at);
                assert!(at != 0, "slot {slot} is not on the chain of its key");
            }
            table.set_next(at, next);
        }
        table.set_key(slot, 0, 0);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::folio::table::Layout;

    #[test]
    fn finds_what_is_there() {
        let table = Table::new(Layout::new(65536), 500);
        let index = Index::new(8);
        for slot in 1..=500u32 {
            assert_eq!(index.insert(&table, slot, 1 + slot % 3, u64::from(slot) * 7), None);
        }
        assert_eq!(index.insert(&table, 1, 1, 63), Some(9)); // 9 % 3 is 0
        for slot in (1..=500u32).step_by(2) {
            index.remove(&table, slot);
        }
        for slot in 1..=500u32 {
            let found = index.find_locked(&table, 1 + slot % 3, u64::from(slot) * 7);
            assert_eq!(found, (slot % 2 == 0).then_some(slot));
        }
    }
}
