//! The scan cache: inodes read ahead for a sequential scan, kept as tree leaves. A scan of a
//! million files uses each inode once, so creating an object for each would cost more than decoding
//! it. An operation that changes such an inode creates its object from the leaf, without I/O.
//!
//! Invariants: Q61 an inode found in a window reflects all records: the window is of the newest
//! tree, and the inode has no changes since. Q62 the number of windows is bounded; they count as
//! names, and take at most a quarter of the bound of names. Above that the oldest are dropped.
//!
//! No locks: the volume's state lock covers it.

use crate::format::key::Key;
use crate::format::superblock::TreeRoot;
use crate::names::load::Part;
use std::collections::VecDeque;

/// Most windows: as many concurrent scans are supported.
const WINDOWS: usize = 4;
/// All windows together take at most the bound of names divided by this (Q62).
pub(crate) const ALL_PART: usize = 4;

/// The windows of all scans.
#[derive(Default)]
pub(crate) struct Windows {
    /// Windows, the oldest first.
    list: VecDeque<Part>,
    /// Bytes of all windows.
    bytes: usize,
}

impl Windows {
    /// Approximate memory of the windows, bytes; some leaves are also in the node cache.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a window: it replaces the one that it continues, else the oldest.
    pub fn put(&mut self, ino: u64, part: Part) {
        let before = self.list.iter().position(|there| there.is_followed_by(ino));
        let full = (self.list.len() >= WINDOWS).then_some(0);
        if let Some(gone) = before.or(full).and_then(|at| self.list.remove(at)) {
            self.bytes -= gone.bytes();
        }
        self.bytes += part.bytes();
        self.list.push_back(part);
    }

    /// Drops the oldest windows until they take at most `bytes_max`.
    pub fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(gone) = self.list.pop_front()
        {
            self.bytes -= gone.bytes();
        }
    }

    /// Number of leaves of the window that this inode follows.
    pub fn before(&self, ino: u64) -> Option<usize> {
        self.list.iter().find(|part| part.is_followed_by(ino)).map(Part::leaves)
    }

    /// The newest window that covers a key.
    pub fn find(&self, key: Key) -> Option<&Part> {
        let key = key.to_bytes();
        self.list.iter().rev().find(|part| part.covers(&key))
    }

    /// Drops windows of other trees.
    pub fn keep(&mut self, root: &TreeRoot) {
        if self.list.iter().any(|part| part.root() != root) {
            self.list.retain(|part| part.root() == root);
            self.bytes = self.list.iter().map(Part::bytes).sum();
        }
    }
}
