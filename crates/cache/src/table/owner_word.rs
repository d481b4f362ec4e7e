//! The word of a slot that names its mapping, and what is behind that number in it: age queue,
//! young frames, blocks of a frame.
//!
//! Changes under the folio lock only.

use super::{OWNER, Slot, Table};
use forebay_base::sync::atomic::Ordering;

/// The folio came back as a ghost, and reclaim has not visited it since.
const RECALLED: u64 = 1 << 32;
const QUEUE_SHIFT: u32 = 34;
const QUEUE_MASK: u64 = 3 << QUEUE_SHIFT;
/// Logarithm of the blocks per frame of the mapping, 0..=3.
const GEOMETRY_SHIFT: u32 = 36;
const GEOMETRY_MASK: u64 = 3 << GEOMETRY_SHIFT;
/// Number of young frames: at most those of a folio of 2 MiB, 512.
const YOUNG_SHIFT: u32 = 38;
const YOUNG_MASK: u64 = 0x3ff << YOUNG_SHIFT;

impl Table {
    fn owner_word(&self, slot: Slot) -> u64 {
        self.word(slot, OWNER).load(Ordering::Relaxed)
    }

    fn update_owner(&self, slot: Slot, mask: u64, value: u64) {
        debug_assert_eq!(value & !mask, 0, "the value fits its part of the word");
        self.word(slot, OWNER).store(self.owner_word(slot) & !mask | value, Ordering::Relaxed);
    }

    /// Age queue that the folio is on (see [`crate::ageing::queues`]); 0 is none.
    pub fn queue(&self, slot: Slot) -> u32 {
        ((self.owner_word(slot) & QUEUE_MASK) >> QUEUE_SHIFT) as u32
    }

    /// Sets the age queue.
    pub fn set_queue(&self, slot: Slot, queue: u32) {
        self.update_owner(slot, QUEUE_MASK, u64::from(queue) << QUEUE_SHIFT);
    }

    /// Frames that the folio has received in the main queue since reclaim visited it.
    pub fn young(&self, slot: Slot) -> u32 {
        ((self.owner_word(slot) & YOUNG_MASK) >> YOUNG_SHIFT) as u32
    }

    /// Sets the number of young frames.
    pub fn set_young(&self, slot: Slot, frames: u32) {
        self.update_owner(slot, YOUNG_MASK, u64::from(frames) << YOUNG_SHIFT);
    }

    /// Whether the folio came back as a ghost, and reclaim has not visited it since.
    pub fn is_recalled(&self, slot: Slot) -> bool {
        self.owner_word(slot) & RECALLED != 0
    }

    /// Sets whether it came back as a ghost.
    pub fn set_recalled(&self, slot: Slot, recalled: bool) {
        self.update_owner(slot, RECALLED, if recalled { RECALLED } else { 0 });
    }

    /// Blocks of a frame in the mapping that the slot belongs to.
    pub fn blocks_per_frame(&self, slot: Slot) -> u32 {
        1 << ((self.owner_word(slot) & GEOMETRY_MASK) >> GEOMETRY_SHIFT)
    }

    /// Sets the blocks of a frame: 1, 2, 4 or 8.
    pub fn set_blocks_per_frame(&self, slot: Slot, blocks: u32) {
        let log = u64::from(blocks.trailing_zeros());
        self.update_owner(slot, GEOMETRY_MASK, log << GEOMETRY_SHIFT);
    }
}
