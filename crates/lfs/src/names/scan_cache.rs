//! Inodes that were read for somebody who goes through them in order, kept as the leaves of the tree that
//! they lie in. Who looks at a million files one after the other looks at each once: an object for each costs
//! more than the look. Whoever changes one has it made into an object, without reading anything.
//!
//! Invariants: Q61 what is found in a window is what all records say: it is of the newest tree, and nothing
//! has changed since. Q62 there are few windows, which count as names, and hold at most a quarter of the
//! bound of names: of more the oldest go.
//!
//! No locks: the volume's state lock covers it.

use crate::format::key::Key;
use crate::format::superblock::TreeRoot;
use crate::names::load::Part;
use std::collections::VecDeque;

/// Windows, at most: as many may go through files at the same time.
const WINDOWS: usize = 4;
/// Of the bound of names all windows together take such a part, at most (Q62).
pub(crate) const ALL_PART: usize = 4;

/// See the module.
#[derive(Default)]
pub(crate) struct Windows {
    /// The oldest first.
    list: VecDeque<Part>,
    /// Of all of them.
    bytes: usize,
}

impl Windows {
    /// Bytes that they keep in memory, about: some of it is among the cached nodes as well.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// A window more: in the stead of the one that it goes on from, else of the oldest.
    pub fn put(&mut self, ino: u64, part: Part) {
        let before = self.list.iter().position(|there| there.is_followed_by(ino));
        let full = (self.list.len() >= WINDOWS).then_some(0);
        if let Some(gone) = before.or(full).and_then(|at| self.list.remove(at)) {
            self.bytes -= gone.bytes();
        }
        self.bytes += part.bytes();
        self.list.push_back(part);
    }

    /// The oldest go until they hold at most so many bytes.
    pub fn shrink(&mut self, bytes_max: usize) {
        while self.bytes > bytes_max
            && let Some(gone) = self.list.pop_front()
        {
            self.bytes -= gone.bytes();
        }
    }

    /// Leaves of the window that somebody who looks at this inode next has gone through.
    pub fn before(&self, ino: u64) -> Option<usize> {
        self.list.iter().find(|part| part.is_followed_by(ino)).map(Part::leaves)
    }

    /// The newest window that covers a key.
    pub fn find(&self, key: Key) -> Option<&Part> {
        let key = key.to_bytes();
        self.list.iter().rev().find(|part| part.covers(&key))
    }

    /// Those of another tree go.
    pub fn keep(&mut self, root: &TreeRoot) {
        if self.list.iter().any(|part| part.root() != root) {
            self.list.retain(|part| part.root() == root);
            self.bytes = self.list.iter().map(Part::bytes).sum();
        }
    }
}
