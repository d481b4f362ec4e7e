//! What of names and attributes stays in memory: within a bound of bytes, by the clock rule.
//!
//! ```text
//!   made, loaded ──▶ ring ──hand──▶ looked at since? ──▶ once more
//!                      ▲              open, owes something, just loaded for a waiter? ──▶ stays
//!                      └── stays ──── else it goes; of a large directory some entries at a time
//! ```
//! Invariants: Q31 what goes is in the tree or among the changes since: nothing is lost. What is ahead of
//! the log (S14) is written there before it goes. Q32 what was loaded since somebody began to wait is not let
//! go before he has tried, so that whoever loads one thing after the other comes to an end. Q33 each inode in
//! memory is in the ring, once.
//!
//! No locks: the volume's state lock covers it.

use crate::format::key::Cookie;
use std::collections::{BTreeMap, VecDeque};

/// Default bound, bytes.
pub(crate) const DEFAULT_BYTES: usize = 8 << 20;
/// Inodes that a leaf of the tree has, about.
pub(crate) const INODES_OF_LEAF: usize = 28;
/// Memory that a leaf of the tree takes, about.
pub(crate) const LEAF_BYTES: usize = 4096 + crate::btree::cache::ENTRY_BYTES;
/// Leaves that are read together for a listing, at most.
const LISTED_LEAVES_MAX: usize = 32;
/// Inodes of a listing lie close together where so many leaves have one of them.
const LISTED_APART: usize = 16;
/// Leaves of a window take a part of the bound, at most.
const WINDOW_PART: usize = 16;
/// Inodes that are loaded at a time, at most.
const INODES_AT_ONCE: usize = 1024;
/// Entries that a leaf of the tree has, about.
const ENTRIES_OF_LEAF: usize = 64;
/// Entries that are loaded at a time, at most, about.
const ENTRIES_LOADED: usize = 4096;
/// Leaves of a directory that are read while some of them are looked at, at most.
const DIRECTORY_LEAVES_MAX: usize = 256;
/// What an entry takes in memory, bytes, about.
const ENTRY_BYTES: u64 = 128;

/// See the module.
pub(crate) struct Cache {
    /// Bytes; of 0 nothing is kept that need not be.
    pub bytes_max: usize,
    ring: VecDeque<u64>,
    bytes: usize,
    /// Counts what is loaded.
    clock: u64,
    /// Who waits for something to be loaded, by when he began.
    waiters: BTreeMap<u64, u32>,
    /// Numbers that nobody has, as the tree said, and when.
    nobody: BTreeMap<u64, u64>,
    /// Behind what was loaded last: who goes on there goes in order.
    next_ino: u64,
}

/// How much of what lies beside something that is missing is loaded with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ahead {
    /// Inodes, or entries.
    pub items: usize,
    /// Leaves of the tree that are read together.
    pub leaves: usize,
    /// Of a directory: from there on it is in memory.
    pub end: Option<Cookie>,
    /// Somebody goes through inodes in order: those that follow are kept as they are stored.
    pub is_window: bool,
    /// Leaves that are likely to be wanted next, and are read while what is missing is looked at.
    pub meanwhile: usize,
}

/// Whether somebody goes on in order who looks at inode `ino`, and had all up to `next`.
pub(crate) fn continues(ino: u64, next: u64) -> bool {
    (next..next.saturating_add(INODES_OF_LEAF as u64)).contains(&ino)
}

impl Ahead {
    /// Leaves that a listing of a directory of `size` entries reads ahead with each one.
    pub fn of_entries(size: u64) -> usize {
        (size / ENTRIES_OF_LEAF as u64).min(LISTED_LEAVES_MAX as u64 / 4) as usize
    }

    /// An inode of a listing that lacks so many, whose numbers are so far apart at most, and as many others
    /// as a leaf has.
    pub fn of_listing(missing: usize, apart: u64) -> Self {
        let dense = apart <= (missing * INODES_OF_LEAF * LISTED_APART) as u64;
        let leaves = if dense { missing.clamp(1, LISTED_LEAVES_MAX) } else { 1 };
        Self { items: INODES_OF_LEAF, leaves, end: None, is_window: false, meanwhile: 0 }
    }
}

impl Cache {
    /// Nothing in it.
    pub fn new() -> Self {
        Self {
            bytes_max: DEFAULT_BYTES,
            ring: VecDeque::new(),
            bytes: 0,
            clock: 1,
            waiters: BTreeMap::new(),
            nobody: BTreeMap::new(),
            next_ino: 0,
        }
    }

    /// How much is loaded with an inode that is missing: nothing, but where that goes on where the last one
    /// ended, a leaf of them, and twice as much each time. `before`: as many are in the one that it follows.
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

    /// So far inodes were loaded.
    pub fn loaded_to(&mut self, next_ino: u64) {
        self.next_ino = next_ino;
    }

    /// How much is loaded of a directory of `size` entries of which so many loads found nothing here: more
    /// each time, if all of it would fit.
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

    /// Bytes of what is in memory, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts an inode that took `old` bytes and takes `new` now.
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

    /// Forgets unused numbers, if there are many or `all` are to go; those that a waiter needs are
    /// kept (Q32).
    pub fn forget_unused(&mut self, all: bool, kept_from: u64) {
        if self.nobody.len() > 1024 || all {
            self.nobody.retain(|_, when| *when >= kept_from);
        }
    }

    /// When something is loaded.
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// Somebody waits from now on.
    pub fn wait(&mut self) -> u64 {
        self.clock += 1;
        *self.waiters.entry(self.clock).or_default() += 1;
        self.clock
    }

    /// He does not wait any more.
    pub fn end_wait(&mut self, since: u64) {
        if let Some(count) = self.waiters.get_mut(&since) {
            *count -= 1;
            if *count == 0 {
                self.waiters.remove(&since);
            }
        }
    }

    /// What was loaded from then on stays (Q32).
    pub fn kept_from(&self) -> u64 {
        self.waiters.first_key_value().map_or(u64::MAX, |(since, _)| *since)
    }

    /// There is no inode with this number, and never will be.
    pub fn nobody(&mut self, ino: u64) {
        self.nobody.insert(ino, self.clock);
    }

    /// Whether there is known to be none.
    pub fn is_nobody(&self, ino: u64) -> bool {
        self.nobody.contains_key(&ino)
    }
}
