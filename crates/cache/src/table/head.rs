//! The first words of a slot: lock, key, chain, and the states of its first 64 blocks. A hit needs
//! them one after the other, and one check of bounds serves them all. The frame map follows.
//!
//! Invariants and lock rules are those of [`crate::table`].

use super::{BITS, HELD, INDEX, LOCK, NEAR, NEXT, OWNER, Slot, State};
use crate::memory::arena::Frame;
use forebay_base::sync::atomic::{AtomicU64, Ordering, fence};

/// Number of these words.
const WORDS: usize = BITS + NEAR;

/// The first words of a slot, and the words of the table behind them.
#[derive(Clone, Copy)]
pub(crate) struct Head<'a> {
    words: &'a [AtomicU64; WORDS],
    /// Begins with the slot's frame map, and goes on to the end of the table.
    behind: &'a [AtomicU64],
}

impl<'a> Head<'a> {
    /// The head of the slot whose words begin at `words`; `None` if these are too few.
    #[inline]
    pub(super) fn new(words: &'a [AtomicU64]) -> Option<Self> {
        let (words, behind) = words.split_first_chunk()?;
        Some(Self { words, behind })
    }

    /// Frame number `at` of the folio, if it has one. The caller has compared `at` with the frames
    /// of a folio.
    #[inline]
    pub fn frame(self, at: usize) -> Option<Frame> {
        let word = self.behind.get(at / 2)?.load(Ordering::Relaxed);
        ((word >> (at % 2 * 32)) as u32).checked_sub(1)
    }

    /// Mapping id and folio index that the slot holds; id 0 is a free slot.
    #[inline]
    pub fn key(self) -> (u32, u64) {
        #[cfg(all(test, not(shuttle)))]
        super::KEYS_LOOKED_AT.set(super::KEYS_LOOKED_AT.get() + 1);
        let owner = self.words[OWNER].load(Ordering::Acquire) as u32;
        (owner, self.words[INDEX].load(Ordering::Acquire))
    }

    /// Next slot in the index chain.
    #[inline]
    pub fn next(self) -> Slot {
        self.words[NEXT].load(Ordering::Acquire) as Slot
    }

    /// The version of the slot; `None` while a task holds its lock.
    #[inline]
    pub fn version(self) -> Option<u64> {
        let word = self.words[LOCK].load(Ordering::Acquire);
        (word & HELD == 0).then_some(word)
    }

    /// Whether no task has held the lock since [`Head::version`] returned `version`: then the words
    /// and bytes read in between are consistent.
    #[inline]
    pub fn unchanged_since(self, version: u64) -> bool {
        fence(Ordering::Acquire);
        self.words[LOCK].load(Ordering::Relaxed) == version
    }

    /// The bits of a near state of the first 64 blocks.
    #[inline]
    pub fn bits(self, state: State) -> u64 {
        self.words[BITS + state as usize].load(Ordering::Relaxed)
    }

    /// Sets *referenced* bits of the first 64 blocks, as [`super::Table::set_age`] does.
    #[inline]
    pub fn set_referenced(self, mask: u64) {
        self.words[BITS + State::Referenced as usize].fetch_or(mask, Ordering::Relaxed);
    }

    /// Sets *active* bits of the first 64 blocks, those that are not set.
    #[inline]
    pub fn activate(self, mask: u64) {
        let word = &self.words[BITS + State::Active as usize];
        if word.load(Ordering::Relaxed) & mask != mask {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }
}
