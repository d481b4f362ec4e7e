//! Compares the stored bytes in inodes with the extents of the tree, and finds extents without an
//! inode.
//!
//! Invariants: E14 nothing is reported for a tree that could not be read completely. E15 in a
//! checkpoint the stored bytes of each inode are exactly those of its extents. Records of the log
//! change the stored bytes of an inode only together with its data id.
//!
//! No locks.

use crate::format::inode::Inode;
use std::collections::BTreeMap;

/// What the tree of a checkpoint records about content.
#[derive(Default)]
pub(super) struct Stored {
    /// By inode: its data id, and its stored bytes.
    pub said: BTreeMap<u64, (u64, u64)>,
    /// By data id: the bytes of its extents.
    pub found: BTreeMap<u64, u64>,
    /// The whole tree was read.
    pub is_complete: bool,
}

impl Stored {
    /// Adds an inode of the tree.
    pub fn inode(&mut self, ino: u64, inode: &Inode) {
        self.said.insert(ino, (inode.data_id, inode.stored_bytes));
    }

    /// Adds an extent of the tree.
    pub fn extent(&mut self, data_id: u64, bytes: u64) {
        *self.found.entry(data_id).or_default() += bytes;
    }
}
