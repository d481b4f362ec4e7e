//! Caches whether blocks that a file overwrites are stored according to the tree: overwriting
//! stored blocks takes no additional space permanently (capacity.P25).
//!
//! ```text
//!   overlay ──knows──▶ yes, no
//!      │ does not
//!      ▼
//!   the file has no hole ──▶ yes     else ──▶ the tree, if the caller can wait; the answer is kept
//! ```
//! The answer is a hint. If a block was truncated meanwhile, and is in fact new, it may take space
//! that is reserved for overwrites.
//!
//! Lock: that of the cached ranges, below the state lock; none across a wait.

use forebay_base::sync::Mutex;
use std::ops::Range;

/// Most cached ranges: several clients may overwrite one file concurrently.
const TOLD_MAX: usize = 64;

/// Ranges of stored blocks of one data id, the newest last.
#[derive(Default)]
pub(crate) struct Told(Mutex<(u64, Vec<Range<u64>>)>);

impl Told {
    /// Adds ranges that are stored according to the tree.
    pub fn add(&self, data_id: u64, runs: Vec<Range<u64>>) {
        let mut told = self.0.lock();
        if told.0 != data_id {
            *told = (data_id, Vec::new());
        }
        told.1.retain(|old| runs.iter().all(|new| old.start < new.start || new.end < old.end));
        told.1.extend(runs);
        let over = told.1.len().saturating_sub(TOLD_MAX);
        told.1.drain(..over);
    }

    /// Number of blocks from `block` on that are stored according to the cache.
    pub fn has(&self, data_id: u64, block: u64) -> Option<u64> {
        let told = self.0.lock();
        let found = told.1.iter().find(|range| told.0 == data_id && range.contains(&block))?;
        Some(found.end - block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: several clients overwrote one file with holes on a full volume. Each evicted the
    /// cached answers of the others, asked the tree again, and requested space each time.
    #[test]
    fn p25_answers_for_several_clients_stay_cached() {
        let told = Told::default();
        let one = |run: Range<u64>| std::iter::once(run).collect::<Vec<_>>();
        (0..TOLD_MAX as u64).for_each(|n| told.add(7, one(10 * n..10 * n + 4)));
        assert_eq!((told.has(7, 1), told.has(7, 632), told.has(8, 1)), (Some(3), Some(2), None));
        assert_eq!(told.has(7, 5), None, "a hole");
        told.add(7, one(0..8));
        assert_eq!(
            (told.has(7, 1), told.has(7, 11)),
            (Some(7), Some(3)),
            "in the place of the older"
        );
        told.add(7, one(1000..1001));
        assert_eq!((told.has(7, 11), told.has(7, 1000)), (None, Some(1)), "the oldest goes");
        told.add(8, one(0..1));
        assert_eq!((told.has(7, 1000), told.has(8, 0)), (None, Some(1)), "of one data");
    }
}
