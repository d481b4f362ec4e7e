//! Memory of sets of blocks, reused for all files of a cache: write-out that lists its completed
//! blocks must not need memory for it.
//!
//! Invariant: S1 the kept memory is counted with the records of write-out
//! ([`PageCache::record_bytes`]), and stays within their limit.
//!
//! Lock: one, a leaf.

use crate::cache::PageCache;
use crate::rangeset::RangeSet;

/// Parts that a set keeps where the limit does not allow for all that it has.
const FEW_PARTS: usize = 8;

impl PageCache {
    /// An empty set, with the memory of one that was kept.
    pub fn take_set(&self) -> RangeSet {
        let set = self.sets.0.lock().pop().unwrap_or_default();
        self.count_record(&mut kept_bytes(&set), 0);
        set
    }

    /// Keeps the memory of a set for reuse, all or a part, as far as the limit allows (S1).
    pub fn keep_set(&self, mut set: RangeSet) {
        set.clear();
        for parts in [usize::MAX, FEW_PARTS] {
            set.shrink(parts);
            let (mut counted, bytes) = (0, kept_bytes(&set));
            if bytes == 0 {
                return;
            }
            if self.count_record(&mut counted, bytes) {
                self.sets.0.lock().push(set);
                return;
            }
        }
    }

    /// Frees all sets that are kept: the limit has changed.
    pub(crate) fn trim_sets(&self) {
        for set in std::mem::take(&mut *self.sets.0.lock()) {
            self.count_record(&mut kept_bytes(&set), 0);
        }
    }
}

/// The bytes that count for a set while it is kept.
fn kept_bytes(set: &RangeSet) -> u64 {
    let own = size_of::<RangeSet>() as u64;
    if set.bytes() == 0 { 0 } else { set.bytes() + own }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use crate::{Config, PageCache};
    use forebay_base::world::RealWorld;

    /// S1: kept sets are counted, and stay within the limit.
    #[test]
    fn kept_sets_are_counted_and_bounded() {
        let config = Config { huge_pages: false, ..Config::with_budget(16 << 20) };
        let cache = PageCache::new(config, RealWorld::with_seed(1)).unwrap();
        let filled = |ranges: u64| {
            let mut set = cache.take_set();
            (0..ranges).for_each(|i| assert_eq!(set.insert(2 * i..2 * i + 1), 1));
            set
        };
        cache.keep_set(filled(0));
        assert_eq!(cache.record_bytes(), 0, "there was nothing to keep");
        cache.keep_set(filled(1000));
        let kept = cache.record_bytes();
        assert!(kept > 16_000 && kept < 32_000, "{kept}");
        let again = filled(1000);
        assert_eq!(cache.record_bytes(), 0);
        assert!(again.bytes() <= kept, "in the same memory");
        cache.keep_set(again);
        // All kept sets together: an eighth of 1 MiB.
        let most = 128 << 10;
        let sets: Vec<_> = (0..40).map(|_| filled(1000)).collect();
        sets.into_iter().for_each(|set| cache.keep_set(set));
        assert!(cache.record_bytes() <= most && cache.record_bytes() > most / 2);
        cache.trim_sets();
        // A large set keeps a part of its memory.
        cache.keep_set(filled(100_000));
        assert!(cache.record_bytes() > 0 && cache.record_bytes() < 16 << 10);
        cache.trim_sets();
        assert_eq!(cache.record_bytes(), 0);
    }
}
