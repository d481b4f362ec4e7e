//! Finding a folio by (mapping, index): chained hashing through the slots themselves.
//!
//! Lookup takes no lock. A chain read without the bucket lock may lead astray when a slot moves
//! meanwhile; then it finds nothing, which is only a hint: "not there" is decided under the bucket
//! lock. "There" is decided by comparing the key again under the folio lock.

use crate::memory::zeroed::ZeroTable;
use crate::table::{Head, Slot, Table};
use forebay_base::Result;
use forebay_base::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use forebay_base::sync::{Mutex, MutexGuard};

const LOCKS: usize = 64;
/// Longest chain that the lockless lookup follows.
const MAX_STEPS: u32 = 64;

/// The hash heads.
pub struct Index {
    heads: ZeroTable<AtomicU32>,
    /// Heads in use, less one: a power of two, less one. Changes with all locks held.
    mask: AtomicUsize,
    locks: Box<[Mutex<()>]>,
}

impl Index {
    /// Heads for `slots` slots, at least one each; `rehash` can extend them for up to `max` slots.
    /// Errors: no address space.
    pub fn new(slots: usize, max: usize) -> Result<Self> {
        let heads = ZeroTable::new(Self::heads_for(max))?;
        let index = Self {
            heads,
            mask: AtomicUsize::new(Self::heads_for(slots) - 1),
            locks: (0..LOCKS).map(|_| Mutex::new(())).collect(),
        };
        index.heads.advise(Self::heads_for(slots));
        Ok(index)
    }

    fn heads_for(slots: usize) -> usize {
        slots.next_power_of_two().max(LOCKS)
    }

    /// Bytes of the heads for `slots` slots.
    pub(crate) fn bytes_for(slots: usize) -> u64 {
        Self::heads_for(slots) as u64 * 4
    }

    /// Bytes of the heads in use.
    pub fn bytes(&self) -> u64 {
        (self.mask.load(Ordering::Relaxed) as u64 + 1) * 4
    }

    /// Puts memory under the heads in use.
    pub(crate) fn prefault(&self) {
        self.heads.prefault(self.mask.load(Ordering::Relaxed) + 1);
    }

    #[inline]
    fn bucket(&self, id: u32, index: u64) -> usize {
        // Neighbouring folios of a file have neighbouring heads: those of a file that is in use
        // stay in the processor's cache. The number of a file selects the head at which it starts.
        // Each later stretch of the file that is as long as the table starts at another one.
        let mask = self.mask.load(Ordering::Relaxed);
        let stretch = index >> (!mask).trailing_zeros();
        let place = (stretch ^ u64::from(id) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The number of the file affects only the high half of `place`: folds it into the low half.
        (index.wrapping_add(place ^ place >> 32)) as usize & mask
    }

    /// The bucket of a key, with its lock held: meanwhile no rehash changes the bucket of the key.
    fn lock_bucket(&self, id: u32, index: u64) -> (usize, MutexGuard<'_, ()>) {
        loop {
            let bucket = self.bucket(id, index);
            let guard = self.locks[bucket % LOCKS].lock();
            if self.bucket(id, index) == bucket {
                return (bucket, guard);
            }
        }
    }

    /// Resizes the heads for `slots` slots, and chains all folios again: those of the slots below
    /// `used`. Meanwhile lookups without a lock may find nothing, which is only a hint; all others
    /// wait.
    pub(crate) fn rehash(&self, table: &Table, used: usize, slots: usize) {
        let (old, new) = (self.mask.load(Ordering::Relaxed) + 1, Self::heads_for(slots));
        if old == new {
            return;
        }
        let _all: Vec<_> = self.locks.iter().map(Mutex::lock).collect();
        self.heads[..old.max(new)].iter().for_each(|h| h.store(0, Ordering::Relaxed));
        self.mask.store(new - 1, Ordering::Release);
        self.heads.advise(new);
        self.heads.forget(new);
        for slot in 1..used as Slot {
            let (id, index) = table.key(slot);
            if id != 0 {
                let head = &self.heads[self.bucket(id, index)];
                table.set_next(slot, head.load(Ordering::Relaxed));
                head.store(slot, Ordering::Release);
            }
        }
    }

    /// Lookup without a lock: a hint.
    #[inline]
    pub fn find(&self, table: &Table, id: u32, index: u64) -> Option<Slot> {
        self.walk(table, self.bucket(id, index), id, index, MAX_STEPS)
    }

    /// Lookup without a lock, for a reader without the folio's: the slot, its first words, and the
    /// version that it had before its key was read. A hint, and nothing while the slot is locked.
    #[inline]
    pub(crate) fn find_unlocked<'t>(
        &self,
        table: &'t Table,
        id: u32,
        index: u64,
    ) -> Option<(Slot, Head<'t>, u64)> {
        let mut slot = self.heads[self.bucket(id, index)].load(Ordering::Acquire);
        for _ in 0..MAX_STEPS {
            if slot == 0 {
                return None;
            }
            let head = table.head(slot);
            let version = head.version();
            if head.key() == (id, index) {
                return version.map(|version| (slot, head, version));
            }
            slot = head.next();
        }
        None
    }

    #[inline]
    fn walk(&self, t: &Table, bucket: usize, id: u32, index: u64, max: u32) -> Option<Slot> {
        let mut slot = self.heads[bucket].load(Ordering::Acquire);
        let mut steps = 0;
        while slot != 0 && steps < max {
            let head = t.head(slot);
            if head.key() == (id, index) {
                return Some(slot);
            }
            slot = head.next();
            steps += 1;
        }
        None
    }

    /// Lookup under the bucket lock: definite at that moment.
    pub fn find_locked(&self, table: &Table, id: u32, index: u64) -> Option<Slot> {
        let (bucket, _guard) = self.lock_bucket(id, index);
        self.walk(table, bucket, id, index, u32::MAX)
    }

    /// Inserts `slot`, whose key is not set yet and whose exclusive lock the caller holds; if the
    /// key is there already, inserts nothing and returns the slot that has it.
    pub fn insert(&self, table: &Table, slot: Slot, id: u32, index: u64) -> Option<Slot> {
        let (bucket, _guard) = self.lock_bucket(id, index);
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
        let (bucket, _guard) = self.lock_bucket(id, index);
        self.splice(table, bucket, slot, table.next(slot));
        table.set_key(slot, 0, 0);
    }

    /// Moves a folio from one slot to another, a free one. The caller holds the locks of both.
    pub(crate) fn relocate(&self, table: &Table, from: Slot, to: Slot) {
        let (id, index) = table.key(from);
        let (bucket, _guard) = self.lock_bucket(id, index);
        table.set_next(to, table.next(from));
        table.move_slot(from, to);
        self.splice(table, bucket, from, to);
    }

    /// Puts `with` where the chain of `bucket` leads to `slot`. Bucket lock held.
    fn splice(&self, table: &Table, bucket: usize, slot: Slot, with: Slot) {
        let mut at = self.heads[bucket].load(Ordering::Relaxed);
        if at == slot {
            self.heads[bucket].store(with, Ordering::Release);
            return;
        }
        while table.next(at) != slot {
            at = table.next(at);
            assert!(at != 0, "slot {slot} is not on the chain of its key");
        }
        table.set_next(at, with);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::table::Layout;

    /// The story: twelve bits of a file's address were always zero. So the first folios of all
    /// files shared sixteen chains, of thousands each, and a cache of small files spent its time
    /// walking them.
    #[test]
    fn index_hash_spreads_files_and_runs() {
        let (slots, mut longest) = (1 << 16, 0);
        let index = Index::new(slots, slots).unwrap();
        let mut looks = |keys: &mut dyn Iterator<Item = (u32, u64)>| {
            let mut chains = vec![0u8; slots];
            for (id, at) in keys.take(slots) {
                let chain = &mut chains[index.bucket(id, at)];
                *chain = chain.saturating_add(1);
                longest = longest.max(*chain);
            }
        };
        looks(&mut (1..).map(|id| (id, 0)));
        looks(&mut (1..).map(|id| (id * 1000 + id % 7, u64::from(id) % 3)));
        looks(&mut (0..).map(|n| (1 + n as u32 / 16, n % 16)));
        looks(&mut (0..).map(|n| (9, n << 16)));
        looks(&mut (0..).map(|n| (9, n)));
        assert!(longest <= 16, "a chain of {longest}");
    }

    #[test]
    fn finds_what_is_there() {
        let table = Table::new(Layout::new(65536), 500).unwrap();
        let index = Index::new(8, 500).unwrap();
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

    #[test]
    fn index_rehashed_with_moved_slots_finds_folios() {
        let table = Table::new(Layout::new(65536), 1000).unwrap();
        let index = Index::new(8, 1000).unwrap();
        for slot in 1..=500u32 {
            index.insert(&table, slot, 1 + slot % 3, u64::from(slot) * 7);
        }
        for slots in [1000, 200, 8, 600] {
            index.rehash(&table, 501, slots);
            for slot in 1..=500u32 {
                let found = index.find_locked(&table, 1 + slot % 3, u64::from(slot) * 7);
                assert_eq!(found, Some(slot), "{slots}");
            }
        }
        table.lock(500);
        table.set_bits(500, crate::State::Uptodate, 1, 0x55);
        table.unlock(500);
        for slot in 1..=500u32 {
            index.relocate(&table, slot, slot + 500);
            assert_eq!(table.key(slot).0, 0);
        }
        assert_eq!(table.bits(1000, crate::State::Uptodate, 1), 0x55);
        assert_eq!(table.bits(500, crate::State::Uptodate, 1), 0);
        for slot in 501..=1000u32 {
            let found = index.find_locked(&table, 1 + (slot - 500) % 3, u64::from(slot - 500) * 7);
            assert_eq!(found, Some(slot));
        }
    }
}
