//! The folio table: plain data, one slot per folio, all of it atomics. It is never freed while the
//! cache lives, so a slot number read without a lock always leads to a slot, though perhaps by now
//! another folio's.
//!
//! A folio covers an aligned run of a file's blocks and holds frames only for cached blocks. State
//! is per block:
//!
//! ```text
//!             begin_fill               end_fill ok
//!   absent ───────────────▶ reading ──────────────▶ uptodate ◀────────────┐
//!      ▲  ▲                    │ end_fill error         │ write           │ end_write ok,
//!      │  └────────────────────┘                        ▼                 │ not redirtied
//!      │ evict, punch                               uptodate+dirty        │
//!      └──────────── uptodate                           │ begin_write     │
//!                                                       ▼                 │
//!                       write again ◀──────────── uptodate+writing ───────┘
//!                  (uptodate+dirty+writing)             │ end_write error
//!                                                       └──────▶ uptodate+dirty
//! ```
//!
//! Invariants (`check_block` asserts F1 and F2): F1 reading excludes uptodate, dirty and writing.
//! F2 dirty or writing implies uptodate. F3 reading, uptodate or writing implies a frame. F4 a slot
//! with dirty, writing, reading or unflushed blocks is not evicted. F5 states other than
//! *referenced* and *active* change only under the folio lock. F6 bytes are copied in under the
//! lock, and out under it or between two equal versions.
//!
//! The folio lock is a word: a bit, and a version that moves on with each unlock. It is held for
//! copies and state changes, never across a wait.
//!
//! The hit path does not take it: it remembers the version, copies, and looks again (a sequence
//! lock). If another task held the lock meanwhile, the copy is thrown away. That saves two locked
//! operations, each of which would keep the processor from overlapping one copy with the next.

mod head;
pub mod index;
mod owner_word;
pub mod owners;
pub(crate) mod slots;

use crate::memory::arena::{FRAME_SIZE, Frame, prefetch_line};
use crate::memory::zeroed::ZeroTable;
use forebay_base::Result;
use forebay_base::sync::atomic::{AtomicU64, Ordering, fence};
use forebay_base::sync::relax;
pub(crate) use head::Head;

/// Smallest block whose state is tracked, bytes.
pub const MIN_BLOCK: u32 = 512;

/// Number of a slot in the table. Zero is no slot.
pub type Slot = u32;

/// Per-block states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum State {
    /// Memory is at least as new as the device.
    Uptodate = 0,
    /// Touched since it was filled, or since it aged in the main queue. Of an uncached block that
    /// is being read: not needed any more, so its fill drops it.
    Referenced = 1,
    /// Memory is newer than the device.
    Dirty = 2,
    /// A write-out of it is in flight.
    Writing = 3,
    /// A fill of it is in flight.
    Reading = 4,
    /// Written out and not yet flushed: kept, to be written again if the flush fails.
    Unflushed = 5,
    /// Brought in by an uncached request: dropped when clean and consumed.
    Uncached = 6,
    /// Touched when it was *referenced* already: only the main queue evicts it.
    Active = 7,
    /// Written by a caller that keeps the bytes in a cache of its own: dropped once clean and
    /// flushed.
    HeldAbove = 8,
}

/// The states before this one are read by hits, or could be: their words of the first group lie
/// before the frame map. The words of the others lie behind everything else.
const NEAR: usize = State::HeldAbove as usize;

/// All states, in order.
pub const STATES: [State; 9] = [
    State::Uptodate,
    State::Referenced,
    State::Dirty,
    State::Writing,
    State::Reading,
    State::Unflushed,
    State::Uncached,
    State::Active,
    State::HeldAbove,
];

/// The layout of a slot: where its words are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Bytes of a folio.
    pub folio_size: u32,
    /// Frames of a folio.
    pub frames: usize,
    /// 64-bit words for each state: a group is 64 blocks, and blocks may be of the smallest size.
    pub groups: usize,
    /// 64-bit words of a slot.
    pub stride: usize,
}

const LOCK: usize = 0;
/// Mapping id (low 32 bits), queue and the like (high 32 bits; see `owner_word`).
const OWNER: usize = 1;
const INDEX: usize = 2;
/// Next slot in the index chain.
const NEXT: usize = 3;
const BITS: usize = 4;

/// Lock word: held. The bits above are the version.
const HELD: u64 = 1;

/// Lock word: held while the slot's memory is given back. The version never reaches it.
const RETIRED: u64 = 1 << 63;

impl Layout {
    /// The layout for a folio size in bytes.
    pub fn new(folio_size: u32) -> Self {
        let frames = folio_size as usize / FRAME_SIZE;
        let groups = ((folio_size / MIN_BLOCK) as usize).div_ceil(64);
        // The last word links the folio into the list of its file's folios: no hit reads it.
        let words = BITS + groups * STATES.len() + frames.div_ceil(2) + 1;
        // Whole cache lines, so that two folios never share one.
        Self { folio_size, frames, groups, stride: words.next_multiple_of(LINE) }
    }

    /// The frame map comes right after the near states of the first group, so that a hit in a folio
    /// of up to 64 blocks reads two neighbouring cache lines.
    #[inline]
    fn map_word(&self, frame: usize) -> usize {
        BITS + NEAR + frame / 2
    }

    #[inline]
    fn state_word(&self, state: State, group: usize) -> usize {
        let map = self.frames.div_ceil(2);
        if state as usize >= NEAR {
            let far = STATES.len() - NEAR;
            return BITS + map + self.groups * NEAR + group * far + (state as usize - NEAR);
        }
        let skip = if group == 0 { 0 } else { map };
        BITS + skip + group * NEAR + state as usize
    }
}

/// A run of blocks of one folio, `start..end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// First block.
    pub start: u32,
    /// One past the last.
    pub end: u32,
}

impl Blocks {
    /// Every block of the run, as (group, mask) pairs. An empty run gives none (lineage.D2).
    #[inline]
    pub fn masks(self) -> impl Iterator<Item = (usize, u64)> {
        let (start, end) = (self.start as usize, self.end as usize);
        let groups = if start < end { start / 64..end.div_ceil(64) } else { 0..0 };
        groups.map(move |g| {
            let lo = start.saturating_sub(g * 64);
            let hi = (end - g * 64).min(64);
            (g, (u64::MAX << lo) & (u64::MAX >> (64 - hi)))
        })
    }

    /// The run as a mask, if it is not empty and lies within the first 64 blocks of the folio.
    #[inline]
    pub(crate) fn first_mask(self) -> Option<u64> {
        let fits = self.start < self.end && self.end <= 64;
        fits.then(|| (u64::MAX << self.start) & (u64::MAX >> (64 - self.end)))
    }

    /// All blocks of the frames that the run touches, `per` blocks a frame.
    pub fn whole_frames(self, per: u32) -> Self {
        Self { start: self.start / per * per, end: self.end.next_multiple_of(per) }
    }

    /// The blocks that are also in `other`.
    pub fn within(self, other: Self) -> Self {
        let start = self.start.max(other.start);
        Self { start, end: self.end.min(other.end).max(start) }
    }

    /// Number of blocks.
    pub fn len(self) -> u32 {
        self.end.saturating_sub(self.start)
    }

    /// Whether the run has no block.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// Words of a cache line.
const LINE: usize = 8;

/// The table.
pub struct Table {
    words: ZeroTable<AtomicU64>,
    layout: Layout,
}

#[cfg(all(test, not(shuttle)))]
std::thread_local! {
    /// How often the calling thread has read the key of a slot.
    pub(crate) static KEYS_LOOKED_AT: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

impl Table {
    /// Room for `max` slots, numbered from 1; resident as far as they are used. Errors: no address
    /// space.
    pub fn new(layout: Layout, max: usize) -> Result<Self> {
        Ok(Self { words: ZeroTable::new(Self::words(&layout, max))?, layout })
    }

    /// Words that the first `slots` slots take.
    fn words(layout: &Layout, slots: usize) -> usize {
        (slots + 1) * layout.stride
    }

    /// Asks for huge pages under the first `slots` slots, which may be used from now on.
    pub(crate) fn advise(&self, slots: usize) {
        self.words.advise(Self::words(&self.layout, slots));
    }

    /// Releases the memory of the slots above `slots`; of these, those below `ever` have been used.
    /// None holds a folio, but a task with a stale hint may lock one to check its key. So the lock
    /// words become zero only while this function holds all those locks. If a word were zeroed
    /// under another holder, its unlock would lock the slot for ever, or unlock it for a later
    /// owner.
    pub fn forget_above(&self, slots: usize, ever: usize) {
        let retired = slots as Slot + 1..ever as Slot;
        for slot in retired.clone() {
            self.lock(slot);
            self.word(slot, LOCK).fetch_or(RETIRED, Ordering::Relaxed);
        }
        let given_back = self.words.forget(Self::words(&self.layout, slots));
        for slot in retired {
            if slot as usize * self.layout.stride >= given_back {
                break;
            }
            // Released memory reads as unlocked. The rest of a page, and memory that the system
            // keeps, is unchanged.
            let word = self.word(slot, LOCK);
            let old = word.load(Ordering::Relaxed);
            if old & RETIRED != 0 {
                word.store((old & !RETIRED).wrapping_add(HELD), Ordering::Release);
            }
        }
    }

    /// Puts memory under the first `slots` slots.
    pub(crate) fn prefault(&self, slots: usize) {
        self.words.prefault(Self::words(&self.layout, slots));
    }

    /// Copies the complete state of the folio in slot `from`, except its link in the index, to slot
    /// `to`, and empties `from`. The locks of both are held; the key of `to` is stored last.
    pub(crate) fn move_slot(&self, from: Slot, to: Slot) {
        for word in (BITS..self.layout.stride).chain([INDEX, OWNER]) {
            let value = self.word(from, word).load(Ordering::Relaxed);
            self.word(to, word).store(value, Ordering::Release);
        }
        for word in (BITS..self.layout.stride).chain([OWNER, INDEX]) {
            self.word(from, word).store(0, Ordering::Release);
        }
    }

    /// The layout.
    #[inline]
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    #[inline]
    fn word(&self, slot: Slot, word: usize) -> &AtomicU64 {
        &self.words[slot as usize * self.layout.stride + word]
    }

    /// Has the processor fetch both lines of a slot that a hit reads, if there is such a slot.
    #[inline]
    pub fn prefetch(&self, slot: Slot) {
        let at = slot as usize * self.layout.stride;
        if let Some(second) = self.words.get(at + LINE) {
            prefetch_line(&self.words[at]);
            prefetch_line(second);
        }
    }

    /// The first words of a slot.
    #[inline]
    pub(crate) fn head(&self, slot: Slot) -> Head<'_> {
        let words = self.words.get(slot as usize * self.layout.stride..);
        words.and_then(Head::new).expect("a slot of the table")
    }

    /// Mapping id and folio index that the slot holds; id 0 is a free slot.
    #[inline]
    pub fn key(&self, slot: Slot) -> (u32, u64) {
        self.head(slot).key()
    }

    /// Sets the key. Lock held.
    pub fn set_key(&self, slot: Slot, id: u32, index: u64) {
        self.word(slot, INDEX).store(index, Ordering::Release);
        self.word(slot, OWNER).store(u64::from(id), Ordering::Release);
    }

    /// The next slot in the index chain; 0 at its end.
    #[inline]
    pub fn next(&self, slot: Slot) -> Slot {
        self.head(slot).next()
    }

    /// Links the slot to its successor in the index chain. Bucket lock held.
    pub fn set_next(&self, slot: Slot, next: Slot) {
        self.word(slot, NEXT).store(u64::from(next), Ordering::Release);
    }

    /// The slots before and after on the list of the file's folios. The lock of that list held.
    pub(crate) fn links(&self, slot: Slot) -> (Slot, Slot) {
        let word = self.word(slot, self.layout.stride - 1).load(Ordering::Relaxed);
        (word as Slot, (word >> 32) as Slot)
    }

    /// Sets the neighbours of the slot in its file's list.
    pub(crate) fn set_links(&self, slot: Slot, (before, after): (Slot, Slot)) {
        let word = u64::from(before) | u64::from(after) << 32;
        self.word(slot, self.layout.stride - 1).store(word, Ordering::Relaxed);
    }

    /// Takes the lock if it is free.
    #[inline]
    pub fn try_lock(&self, slot: Slot) -> bool {
        let word = self.word(slot, LOCK);
        let old = word.load(Ordering::Relaxed);
        if old & HELD != 0 {
            return false;
        }
        let taken = word.compare_exchange(old, old | HELD, Ordering::Acquire, Ordering::Relaxed);
        // Keeps the holder's changes after the bit that announces them to readers without the lock.
        fence(Ordering::Release);
        taken.is_ok()
    }

    /// Takes the lock.
    #[inline]
    pub fn lock(&self, slot: Slot) {
        let mut spins = 0;
        while !self.try_lock(slot) {
            relax(&mut spins);
        }
    }

    /// Releases the lock, and advances the version by one.
    #[inline]
    pub fn unlock(&self, slot: Slot) {
        let word = self.word(slot, LOCK);
        let old = word.load(Ordering::Relaxed);
        debug_assert!(old & HELD != 0, "unlocked by its holder");
        word.store(old.wrapping_add(HELD), Ordering::Release);
    }

    /// Whether a task holds the lock.
    #[inline]
    pub(crate) fn is_locked(&self, slot: Slot) -> bool {
        self.word(slot, LOCK).load(Ordering::Relaxed) & HELD != 0
    }

    /// A word of state bits: 64 blocks.
    #[inline]
    pub fn bits(&self, slot: Slot, state: State, group: usize) -> u64 {
        self.word(slot, self.layout.state_word(state, group)).load(Ordering::Relaxed)
    }

    /// Sets bits; returns those that were clear. Lock held (F5), which is why a load and
    /// a store will do.
    #[inline]
    pub fn set_bits(&self, slot: Slot, state: State, group: usize, mask: u64) -> u64 {
        self.check_held(slot, state);
        let word = self.word(slot, self.layout.state_word(state, group));
        let old = word.load(Ordering::Relaxed);
        if mask & !old != 0 {
            word.store(old | mask, Ordering::Relaxed);
        }
        mask & !old
    }

    fn check_held(&self, slot: Slot, state: State) {
        debug_assert!(
            matches!(state, State::Referenced | State::Active) || self.is_locked(slot),
            "F5: {state:?} of slot {slot}, not locked"
        );
    }

    /// Sets *referenced* or *active* bits without the lock. A holder of the lock that changes the
    /// word concurrently may overwrite such a bit, which is harmless.
    #[inline]
    pub fn set_age(&self, slot: Slot, state: State, group: usize, mask: u64) {
        debug_assert!(matches!(state, State::Referenced | State::Active), "F5: {state:?}");
        let word = self.word(slot, self.layout.state_word(state, group));
        if word.load(Ordering::Relaxed) & mask != mask {
            word.fetch_or(mask, Ordering::Relaxed);
        }
    }

    /// Clears bits; returns those that were set. Lock held.
    #[inline]
    pub fn clear_bits(&self, slot: Slot, state: State, group: usize, mask: u64) -> u64 {
        self.check_held(slot, state);
        let word = self.word(slot, self.layout.state_word(state, group));
        let old = word.load(Ordering::Relaxed);
        if mask & old != 0 {
            word.store(old & !mask, Ordering::Relaxed);
        }
        mask & old
    }

    /// Whether all blocks of the run have the state.
    #[inline]
    pub fn all(&self, slot: Slot, state: State, blocks: Blocks) -> bool {
        blocks.masks().all(|(g, m)| self.bits(slot, state, g) & m == m)
    }

    /// Whether any block of the run has the state.
    #[inline]
    pub fn any(&self, slot: Slot, state: State, blocks: Blocks) -> bool {
        blocks.masks().any(|(g, m)| self.bits(slot, state, g) & m != 0)
    }

    /// Whether any block of the folio has the state.
    pub fn any_at_all(&self, slot: Slot, state: State) -> bool {
        (0..self.layout.groups).any(|g| self.bits(slot, state, g) != 0)
    }

    /// Number of blocks of the folio with the state.
    pub fn count(&self, slot: Slot, state: State) -> u32 {
        (0..self.layout.groups).map(|g| self.bits(slot, state, g).count_ones()).sum()
    }

    /// Frame number `at` of the folio, if it has one.
    #[inline]
    pub fn frame(&self, slot: Slot, at: usize) -> Option<Frame> {
        debug_assert!(at < self.layout.frames);
        let word = self.word(slot, self.layout.map_word(at)).load(Ordering::Relaxed);
        ((word >> (at % 2 * 32)) as u32).checked_sub(1)
    }

    /// Sets or takes away a frame; returns the old one. Lock held.
    pub fn replace_frame(&self, slot: Slot, at: usize, frame: Option<Frame>) -> Option<Frame> {
        let word = self.word(slot, self.layout.map_word(at));
        let shift = at % 2 * 32;
        let old = word.load(Ordering::Relaxed);
        let new = u64::from(frame.map_or(0, |f| f + 1)) << shift;
        word.store(old & !(0xffff_ffff << shift) | new, Ordering::Relaxed);
        ((old >> shift) as u32).checked_sub(1)
    }

    /// Asserts F1 and F2 for a group of blocks. Lock held.
    pub fn check_block(&self, slot: Slot, group: usize) {
        let [up, _, dirty, writing, reading, ..] = STATES.map(|s| self.bits(slot, s, group));
        assert!(reading & (up | dirty | writing) == 0, "F1 broken in slot {slot} group {group}");
        assert!((dirty | writing) & !up == 0, "F2 broken in slot {slot} group {group}");
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn d2_empty_run_touches_nothing_and_masks_are_exact() {
        assert_eq!(Blocks { start: 5, end: 5 }.masks().count(), 0);
        for start in 0..130u32 {
            for end in start..=130 {
                let blocks = Blocks { start, end };
                let total: u32 = blocks.masks().map(|(_, m)| m.count_ones()).sum();
                assert_eq!(total, end - start);
                for (g, m) in blocks.masks() {
                    for bit in 0..64 {
                        let block = g as u32 * 64 + bit;
                        assert_eq!(m >> bit & 1 == 1, (start..end).contains(&block));
                    }
                }
            }
        }
    }

    #[test]
    fn frames_and_owner_word() {
        let table = Table::new(Layout::new(65536), 4).unwrap();
        table.set_key(2, 9, 77);
        assert_eq!(table.replace_frame(2, 3, Some(0)), None);
        assert_eq!(table.replace_frame(2, 2, Some(41)), None);
        assert_eq!(
            (table.frame(2, 3), table.frame(2, 2), table.frame(2, 1)),
            (Some(0), Some(41), None)
        );
        assert_eq!(table.replace_frame(2, 3, None), Some(0));
        table.head(2).activate(6);
        table.head(2).activate(3);
        assert_eq!(table.bits(2, State::Active, 0), 7);
        table.set_queue(2, 2);
        table.set_young(2, 512);
        table.set_recalled(2, true);
        assert_eq!((table.young(2), table.queue(2), table.key(2)), (512, 2, (9, 77)));
        assert!(table.is_recalled(2) && table.blocks_per_frame(2) == 1);
    }

    #[test]
    fn lock_excludes_and_moves_the_version() {
        let table = Table::new(Layout::new(65536), 1).unwrap();
        let version = table.head(1).version().unwrap();
        assert!(table.head(1).unchanged_since(version) && table.try_lock(1));
        assert!(!table.try_lock(1) && table.head(1).version().is_none());
        assert!(!table.head(1).unchanged_since(version));
        table.unlock(1);
        assert!(table.head(1).version().is_some() && !table.head(1).unchanged_since(version));
    }

    /// A cache that is made smaller releases the memory of its table, not only that of its frames.
    #[test]
    fn table_memory_above_slots_in_use_is_released() {
        let table = Table::new(Layout::new(65536), 100_000).unwrap();
        table.set_key(40, 7, 9);
        table.set_key(90_000, 7, 9);
        table.lock(60_000);
        table.unlock(60_000);
        table.forget_above(50, 90_001);
        assert_eq!((table.key(40), table.key(90_000)), ((7, 9), (0, 0)));
        // Also in the rest of the page in which the slots in use end.
        let held = (1..=90_000).find(|&slot| !table.try_lock(slot));
        assert_eq!(held, None, "a lock was left held");
    }
}
