//! A snapshot of the cache's content, by file and position, for monitoring.
//!
//! It reads the slots of the folio table in order, at most [`Snapshot::LOOKS`] of them. Of a larger
//! cache it reads every n-th slot, other ones each time, and each counts n times. It takes no folio
//! lock, so it delays no request, and a folio that is being changed may appear inconsistent.
//!
//! Invariant: G1 the work and the memory of a snapshot are bounded, whatever the size of the cache.
//!
//! Locks: that of the free slots, to read how many slots were ever used.

use crate::cache::PageCache;
use crate::table::{STATES, Slot};

/// Bytes by state. A block in several states counts in each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Bytes {
    /// In the cache and valid.
    pub resident: u64,
    /// Of these: touched again since they were loaded.
    pub hot: u64,
    /// Newer than the device.
    pub dirty: u64,
    /// In write-out.
    pub writing: u64,
    /// Being read from the device.
    pub reading: u64,
    /// Written, and kept until the next flush.
    pub unflushed: u64,
    /// Brought in by uncached requests: dropped once they are consumed.
    pub uncached: u64,
}

impl Bytes {
    /// Adds `times` as much as `other` has.
    pub fn add(&mut self, other: &Self, times: u64) {
        self.resident += other.resident * times;
        self.hot += other.hot * times;
        self.dirty += other.dirty * times;
        self.writing += other.writing * times;
        self.reading += other.reading * times;
        self.unflushed += other.unflushed * times;
        self.uncached += other.uncached * times;
    }

    /// Whether all are 0.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A folio in the snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Number of the file's mapping.
    pub file: u32,
    /// First byte in the file.
    pub offset: u64,
    /// Its bytes by state.
    pub bytes: Bytes,
}

/// A snapshot of the cache's content.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Folios, in the order of the table.
    pub seen: Vec<Seen>,
    /// How many folios each of them stands for.
    pub stands_for: u64,
    /// Bytes of a folio.
    pub folio_bytes: u64,
}

impl Snapshot {
    /// Most slots read for one snapshot.
    pub const LOOKS: usize = 16 << 10;
}

impl PageCache {
    /// Takes a snapshot. In a large cache `turn` selects the slots: increase it by one each time.
    pub fn snapshot(&self, turn: usize) -> Snapshot {
        self.snapshot_of(turn, Snapshot::LOOKS)
    }

    fn snapshot_of(&self, turn: usize, looks: usize) -> Snapshot {
        let end = self.free_slots.lock().fresh();
        let step = (end - 1).div_ceil(looks).max(1);
        let folio_bytes = u64::from(self.table.layout().folio_size);
        let mut seen = Vec::new();
        for slot in (1 + turn % step..end).step_by(step) {
            seen.extend(self.look_at(slot as Slot, folio_bytes));
        }
        Snapshot { seen, stands_for: step as u64, folio_bytes }
    }

    fn look_at(&self, slot: Slot, folio_bytes: u64) -> Option<Seen> {
        let (file, index) = self.table.key(slot);
        if file == 0 {
            return None;
        }
        let block = crate::FRAME_SIZE as u64 / u64::from(self.table.blocks_per_frame(slot));
        let mut bytes = Bytes::default();
        for group in 0..self.table.layout().groups {
            let [up, _, dirty, writing, reading, unflushed, uncached, active, _] =
                STATES.map(|state| self.table.bits(slot, state, group));
            let size = |bits: u64| u64::from(bits.count_ones()) * block;
            bytes.add(
                &Bytes {
                    resident: size(up),
                    hot: size(up & active),
                    dirty: size(dirty),
                    writing: size(writing),
                    reading: size(reading),
                    unflushed: size(unflushed),
                    uncached: size(uncached & (up | reading)),
                },
                1,
            );
        }
        (!bytes.is_empty()).then_some(Seen { file, offset: index * folio_bytes, bytes })
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use crate::Retention;
    use crate::config::Config;
    use crate::table::Blocks;
    use forebay_base::world::RealWorld;

    fn cache(budget: u64) -> forebay_base::sync::Arc<PageCache> {
        let config = Config { huge_pages: false, ..Config::with_budget(budget) };
        PageCache::new(config, RealWorld::with_seed(1)).unwrap()
    }

    fn all(snapshot: &Snapshot) -> Bytes {
        let mut sum = Bytes::default();
        snapshot.seen.iter().for_each(|seen| sum.add(&seen.bytes, snapshot.stands_for));
        sum
    }

    #[test]
    fn snapshot_shows_cached_blocks() {
        let cache = cache(8 << 20);
        assert!(cache.snapshot(0).seen.is_empty());
        let mapping = cache.new_mapping(4096, 1 << 30);
        for index in [3_u64, 5000] {
            let mut pool = cache.take_frames(5).unwrap();
            let folio = cache.lock_or_make(&mapping, index, false).unwrap();
            folio.begin_fill(Blocks { start: 1, end: 6 }, false, &mut pool);
            folio.end_fill(Blocks { start: 1, end: 5 }, true);
            if index == 3 {
                folio.mark_dirty(Blocks { start: 2, end: 3 }, Retention::Keep);
            }
        }
        let snapshot = cache.snapshot(9);
        let mut offsets: Vec<u64> = snapshot.seen.iter().map(|seen| seen.offset).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [3 * 65536, 5000 * 65536]);
        assert!(snapshot.seen.iter().all(|seen| seen.file == mapping.id));
        let sum = all(&snapshot);
        assert_eq!((sum.resident, sum.dirty, sum.writing), (32768, 4096, 0));
        assert_eq!((sum.reading, sum.hot), (8192, 0));
    }

    /// With more folios than the limit each is read in its turn, and stands for the others.
    #[test]
    fn g1_snapshot_of_large_cache_samples_slots() {
        let cache = cache(8 << 20);
        let mapping = cache.new_mapping(4096, 1 << 30);
        for index in 0..10 {
            let mut pool = cache.take_frames(1).unwrap();
            let folio = cache.lock_or_make(&mapping, index, false).unwrap();
            let blocks = Blocks { start: 0, end: 1 };
            folio.begin_fill(blocks, false, &mut pool);
            folio.end_fill(blocks, true);
        }
        let mut offsets = std::collections::BTreeSet::new();
        for turn in 0..3 {
            let snapshot = cache.snapshot_of(turn, 4);
            assert!(snapshot.seen.len() <= 4 && snapshot.stands_for == 3, "{snapshot:?}");
            offsets.extend(snapshot.seen.iter().map(|seen| seen.offset));
        }
        assert_eq!(offsets.len(), 10);
    }
}
