//! What inodes say is stored of them, against the extents of the tree; and extents that are nobody's.
//!
//! Invariants: E14 of a tree that could not be read whole nothing is said. E15 a checkpoint says of each
//! inode exactly what the extents below it store; the log changes that only for data that is new.
//!
//! No locks.

use crate::format::inode::Inode;
use std::collections::BTreeMap;

/// What the tree of a checkpoint says of content.
#[derive(Default)]
pub(super) struct Stored {
    /// Data of an inode, and the bytes that it says.
    pub said: BTreeMap<u64, (u64, u64)>,
    /// Bytes of extents, by data.
    pub found: BTreeMap<u64, u64>,
    /// All of the tree was read.
    pub is_complete: bool,
}

impl Stored {
    /// An inode of the tree.
    pub fn inode(&mut self, ino: u64, inode: &Inode) {
        self.said.insert(ino, (inode.data_id, inode.stored_bytes));
    }

    /// An extent of the tree.
    pub fn extent(&mut self, data_id: u64, bytes: u64) {
        *self.found.entry(data_id).or_default() += bytes;
    }
}
