//! Content of closed files that stays in the cache: which mapping a file had, so that whoever opens it next
//! goes on with that, and finds there what the cache has kept.
//!
//! ```text
//!   open ──last opener goes──▶ lingering ──owes nothing──▶ left ──opened──▶ open, the same mapping
//!                                                            ├──its last folio goes──▶ forgotten
//!                                                            └──its inode goes──▶ its folios go, too
//! ```
//! Invariants: Y11 what is left of a file is its content: only one that owes nothing and has no error to tell
//! is left, and it is found again only with the data and the size that it was left with. Y12 of a file that
//! is removed, or whose volume is let go of, nothing is left. Y13 files of which nothing is in the cache
//! any more are forgotten before they are more than half of the others.
//!
//! No locks: the volume's state lock covers it.

use std::collections::BTreeMap;

/// Files that are looked at whenever one is left (Y13).
const LOOKS: usize = 3;

/// A file without a mapping whose folios may be in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetainedMapping {
    /// Number that its mapping had.
    pub mapping: u32,
    /// Its data then.
    pub data_id: u64,
    /// Its size then, bytes.
    pub size: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct RetainedMappings {
    files: BTreeMap<u64, RetainedMapping>,
    /// Which one is looked at next.
    hand: u64,
    /// Numbers of mappings of files that were removed: their folios are to go (Y12).
    removed: Vec<u32>,
}

impl RetainedMappings {
    /// A file is left like this. `known`: whether a mapping has anything in the cache.
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

    /// The file is opened.
    pub fn take(&mut self, ino: u64) -> Option<RetainedMapping> {
        self.files.remove(&ino)
    }

    /// The inode is removed.
    pub fn remove(&mut self, ino: u64) {
        self.removed.extend(self.files.remove(&ino).map(|file| file.mapping));
    }

    /// Mappings whose folios are to go.
    pub fn take_removed(&mut self) -> Vec<u32> {
        std::mem::take(&mut self.removed)
    }

    /// The volume is let go of: all mappings.
    pub fn take_all(&mut self) -> Vec<u32> {
        let all = std::mem::take(&mut self.files);
        let mut all: Vec<u32> = all.into_values().map(|file| file.mapping).collect();
        all.append(&mut self.removed);
        all
    }

    /// Files.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A million files were closed, and of a few there was something in the cache.
    #[test]
    fn y13_files_of_which_nothing_is_cached_are_forgotten() {
        let mut left = RetainedMappings::default();
        for ino in 1..=50_000u64 {
            let file = RetainedMapping { mapping: ino as u32, data_id: ino, size: 1 };
            // The thousand that were closed last.
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
