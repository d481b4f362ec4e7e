//! Retained mappings of closed files: the cache mapping that a file had, so that the next open
//! continues with its cached folios.
//!
//! ```text
//!   open ──last close──▶ pending write-back ──nothing unwritten──▶ retained ──open──▶ open again
//!                                                                   ├──last folio evicted──▶ gone
//!                                                                   └──inode removed──▶ gone
//! ```
//! Invariants: Y11 a mapping is retained only if the file has nothing unwritten and no error to
//! report; it is found again only with the same data id and size. Y12 of a removed file, and of a
//! closed volume, nothing is retained. Y13 mappings without cached folios are removed before they
//! are more than half of the number of the others.
//!
//! No locks: the volume's state lock covers it.

use std::collections::BTreeMap;

/// Entries that are checked whenever one is added (Y13).
const LOOKS: usize = 3;

/// A closed file whose folios may be in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetainedMapping {
    /// Number of its mapping.
    pub mapping: u32,
    /// The data id of the file at the close.
    pub data_id: u64,
    /// The size of the file at the close, bytes.
    pub size: u64,
}

/// The retained mappings of closed files.
#[derive(Debug, Default)]
pub(crate) struct RetainedMappings {
    files: BTreeMap<u64, RetainedMapping>,
    /// The entry that is checked next.
    hand: u64,
    /// Mappings of removed files, whose folios have to be dropped (Y12).
    removed: Vec<u32>,
}

impl RetainedMappings {
    /// Adds the mapping of a closed file. `known`: whether a mapping has cached folios.
    pub fn put(&mut self, ino: u64, file: RetainedMapping, known: impl Fn(u32) -> bool) {
        self.files.insert(ino, file);
        for _ in 0..LOOKS.min(self.files.len()) {
            let next =
                self.files.range(self.hand..).next().or_else(|| self.files.first_key_value());
            let Some((at, file)) = next.map(|(at, file)| (*at, *file)) else { break };
            self.hand = at + 1;
            if at != ino && !known(file.mapping) {
                self.files.remove(&at);
            }
        }
    }

    /// Removes and returns the mapping of a file that is opened.
    pub fn take(&mut self, ino: u64) -> Option<RetainedMapping> {
        self.files.remove(&ino)
    }

    /// Removes the mapping of a file that is removed.
    pub fn remove(&mut self, ino: u64) {
        self.removed.extend(self.files.remove(&ino).map(|file| file.mapping));
    }

    /// Whether folios have to be dropped.
    pub fn has_removed(&self) -> bool {
        !self.removed.is_empty()
    }

    /// Mappings whose folios have to be dropped.
    pub fn take_removed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.removed)
    }

    /// Removes all mappings, because the volume is closed.
    pub fn take_all(&mut self) -> Vec<u32> {
        let all = std::mem::take(&mut self.files);
        let mut all: Vec<u32> = all.into_values().map(|file| file.mapping).collect();
        all.append(&mut self.removed);
        all
    }

    /// Number of files.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The story: a million files were closed, few with cached folios. The others must not stay.
    #[test]
    fn y13_files_of_which_nothing_is_cached_are_forgotten() {
        let mut left = RetainedMappings::default();
        for ino in 1..=50_000u64 {
            let file = RetainedMapping { mapping: ino as u32, data_id: ino, size: 1 };
            // Only the thousand last closed files have cached folios.
            left.put(ino, file, |mapping| u64::from(mapping) + 1000 > ino);
            assert!(left.len() < 1600, "Y13: {} of 1000", left.len());
        }
        assert_eq!(left.take(50_000).map(|file| file.mapping), Some(50_000));
        assert_eq!((left.take(50_000), left.take(7)), (None, None));
        left.remove(49_999);
        left.remove(49_999);
        assert_eq!(left.take_removed(), [49_999], "Y12");
        left.remove(49_998);
        let all = left.take_all();
        assert!(all.contains(&49_998) && all.contains(&49_997), "Y12");
        assert!(left.len() == 0 && left.take_all().is_empty());
    }
}
