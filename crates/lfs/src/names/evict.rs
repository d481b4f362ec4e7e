//! The cache of names and attributes: bounded in bytes, evicted by the clock algorithm.
//!
//! ```text
//!   made, loaded ──▶ ring ──hand──▶ used since? ──▶ kept for a round
//!                      ▲              open, has new times, just loaded for a waiter? ──▶ stays
//!                      └── stays ──── else it goes; of a large directory some entries at a time
//! ```
//! Invariants: Q31 evicted inodes and entries are in the tree or among the changes since: nothing
//! is lost. Times that are ahead of the log (state.S14) are recorded before. Q32 objects that were
//! loaded after a task began to wait are not evicted before that task has tried again. So a task
//! that needs several objects makes progress. Q33 each inode in memory is in the ring, once.
//!
//! No locks: the volume's state lock covers it.

use crate::format::key::Cookie;
use std::collections::{BTreeMap, VecDeque};

/// Default bound, bytes.
pub(crate) const DEFAULT_BYTES: usize = 8 << 20;
/// Approximate number of inodes in a leaf of the tree.
pub(crate) const INODES_OF_LEAF: usize = 28;
/// Approximate memory of a leaf of the tree, bytes.
pub(crate) const LEAF_BYTES: usize = 4096 + crate::btree::cache::ENTRY_BYTES;
/// Most leaves that are read together for a listing.
const LISTED_LEAVES_MAX: usize = 32;
/// Inodes of a listing count as dense if on average they are at most this number of leaves apart.
const LISTED_APART: usize = 16;
/// The leaves of a window take at most the bound divided by this.
const WINDOW_PART: usize = 16;
/// Most inodes that are loaded at a time.
const INODES_AT_ONCE: usize = 1024;
/// Approximate number of entries in a leaf of the tree.
const ENTRIES_OF_LEAF: usize = 64;
/// Approximate maximum of entries that are loaded at a time.
const ENTRIES_LOADED: usize = 4096;
/// Most leaves of a directory that are read while other leaves are processed.
const DIRECTORY_LEAVES_MAX: usize = 256;
/// Approximate memory of an entry, bytes.
const ENTRY_BYTES: u64 = 128;

/// Accounting of names and attributes in memory.
pub(crate) struct Cache {
    /// The limit in bytes. With 0 only what is necessary stays in memory.
    pub bytes_max: usize,
    ring: VecDeque<u64>,
    bytes: usize,
    /// Incremented by waits; gives loads their times.
    clock: u64,
    /// Waiting tasks, by the time at which they began to wait.
    waiters: BTreeMap<u64, u32>,
    /// Numbers of inodes that do not exist according to the tree, with the time.
    absent: BTreeMap<u64, u64>,
    /// Number after the last loaded inode: a task that continues there reads in order.
    next_ino: u64,
}

/// How many neighbours of a missing object are loaded with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Number of inodes, or entries.
    pub items: usize,
    /// Leaves of the tree that are read together.
    pub leaves: usize,
    /// For a directory: the cookie from which on entries are in memory.
    pub end: Option<Cookie>,
    /// The caller scans inodes in order: the following ones are kept in stored form.
    pub is_window: bool,
    /// Leaves that are likely to be needed next, and are read while the missing object is
    /// processed.
    pub meanwhile: usize,
}

/// Whether a task that reads inode `ino`, after all below `next`, reads in order.
pub(crate) fn continues(ino: u64, next: u64) -> bool {
    (next..next.saturating_add(INODES_OF_LEAF as u64)).contains(&ino)
}

impl Ahead {
    /// Leaves that a listing of a directory of `size` entries reads ahead with each leaf.
    pub fn of_entries(size: u64) -> usize {
        (size / ENTRIES_OF_LEAF as u64).min(LISTED_LEAVES_MAX as u64 / 4) as usize
    }

    /// What to load with an inode of a listing that misses `missing` inodes, whose numbers span
    /// `apart`: the others of its leaf, and as many leaves as inodes if these are dense.
    pub fn of_listing(missing: usize, apart: u64) -> Self {
        let dense = apart <= (missing * INODES_OF_LEAF * LISTED_APART) as u64;
        let leaves = if dense { missing.clamp(1, LISTED_LEAVES_MAX) } else { 1 };
        Self { items: INODES_OF_LEAF, leaves, end: None, is_window: false, meanwhile: 0 }
    }
}

impl Cache {
    /// An empty cache.
    pub fn new() -> Self {
        Self {
            bytes_max: DEFAULT_BYTES,
            ring: VecDeque::new(),
            bytes: 0,
            clock: 1,
            waiters: BTreeMap::new(),
            absent: BTreeMap::new(),
            next_ino: 0,
        }
    }

    /// Number of inodes to load with a missing one: none, unless it continues after the last one.
    /// Then those of one leaf, and twice as many each time. `before`: approximate number of inodes
    /// in the window that it continues.
    pub fn inodes_ahead(&self, ino: u64, before: Option<usize>) -> Ahead {
        let before = before.or_else(|| continues(ino, self.next_ino).then_some(0));
        let most = INODES_OF_LEAF * (self.bytes_max / LEAF_BYTES / WINDOW_PART);
        let items = before.map_or(1, |items| (2 * items).max(INODES_OF_LEAF));
        let items = items.clamp(1, most.clamp(1, INODES_AT_ONCE));
        let is_window = items > 1;
        let leaves = if is_window { 1 + items.div_ceil(INODES_OF_LEAF) } else { 1 };
        let meanwhile = if is_window { leaves } else { 0 };
        Ahead { items, leaves, end: None, is_window, meanwhile }
    }

    /// Records that inodes below this number were loaded.
    pub fn loaded_to(&mut self, next_ino: u64) {
        self.next_ino = next_ino;
    }

    /// Number of entries to load of a directory of `size` entries after `loads` loads: more each
    /// time, if the complete directory would fit.
    pub fn entries_ahead(&self, size: u64, loads: u32, end: Option<Cookie>) -> Ahead {
        let fits = size.saturating_mul(ENTRY_BYTES) <= self.bytes_max as u64 / 4;
        let items = match loads {
            1.. if fits => (ENTRIES_OF_LEAF << (2 * loads.min(4))).min(ENTRIES_LOADED),
            _ => ENTRIES_OF_LEAF,
        };
        let leaves = if items == ENTRIES_OF_LEAF { 1 } else { 1 + items / ENTRIES_OF_LEAF };
        let all = size as usize / ENTRIES_OF_LEAF + 1;
        let meanwhile = if loads == 1 && fits { all.min(DIRECTORY_LEAVES_MAX) } else { 0 };
        Ahead { items, leaves, end, is_window: false, meanwhile }
    }

    /// Approximate memory in use, bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Updates the memory of an inode from `old` to `new` bytes.
    pub fn count(&mut self, old: usize, new: usize) {
        self.bytes = self.bytes + new - old;
    }

    /// Adds an inode to the ring.
    pub fn push(&mut self, ino: u64) {
        self.ring.push_back(ino);
    }

    /// Takes the inode at the hand out of the ring.
    pub fn pop(&mut self) -> Option<u64> {
        self.ring.pop_front()
    }

    /// The inodes in the ring.
    pub fn ring(&self) -> &VecDeque<u64> {
        &self.ring
    }

    /// Forgets numbers of inodes that do not exist, if there are many or `all` is set; those that a
    /// waiting task needs are kept (Q32).
    pub fn forget_unused(&mut self, all: bool, kept_from: u64) {
        if self.absent.len() > 1024 || all {
            self.absent.retain(|_, when| *when >= kept_from);
        }
    }

    /// The present time for loads.
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// Called when a task begins to wait; returns the time.
    pub fn wait(&mut self) -> u64 {
        self.clock += 1;
        *self.waiters.entry(self.clock).or_default() += 1;
        self.clock
    }

    /// Called when a task that began at `since` does not wait any more.
    pub fn end_wait(&mut self, since: u64) {
        if let Some(count) = self.waiters.get_mut(&since) {
            *count -= 1;
            if *count == 0 {
                self.waiters.remove(&since);
            }
        }
    }

    /// Objects loaded at this time or later must not be evicted (Q32).
    pub fn kept_from(&self) -> u64 {
        self.waiters.first_key_value().map_or(u64::MAX, |(since, _)| *since)
    }

    /// Records that no inode has this number, and none ever will.
    pub fn note_absent(&mut self, ino: u64) {
        self.absent.insert(ino, self.clock);
    }

    /// Whether it is known that no inode has this number.
    pub fn is_absent(&self, ino: u64) -> bool {
        self.absent.contains_key(&ino)
    }
}
