//! What several clients know of the disk from which their workload starts.
//!
//! No locks.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A name: directory 0 (the root) or 1, and a letter.
pub type At = (u8, u8);

/// What clients know of a disk at first.
#[derive(Debug, Default)]
pub struct Ground {
    /// Inodes by their names.
    pub names: BTreeMap<At, u64>,
    /// Files: pattern and size.
    pub files: BTreeMap<u64, (u8, u64)>,
    /// Files that an earlier life has left, and their content.
    pub left: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Blocks of files that cannot be read, because they have decayed: inode and number.
    pub decayed: Vec<(u64, u64)>,
}
