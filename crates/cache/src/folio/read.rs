//! [`FolioRead`]: a folio read without its lock, as a hit does it.
//!
//! States and invariants (table.F1..F6) are in [`crate::table`]. No locks.

use crate::cache::PageCache;
use crate::memory::arena::{FRAME_SIZE, Frame};
use crate::table::{Blocks, Head, Slot, State, Table};

/// A folio read without its lock. The bytes read are valid only if [`FolioRead::intact`] says so
/// afterwards (see [`crate::table`]).
pub struct FolioRead<'a> {
    cache: &'a PageCache,
    slot: Slot,
    head: Head<'a>,
    version: u64,
    /// Where the copy begins within the folio, and the frame there.
    offset: usize,
    frame: Option<Frame>,
}

impl<'a> FolioRead<'a> {
    /// The folio in a slot whose version was read before its key. Its bytes from `offset` on are
    /// prefetched.
    #[inline]
    pub(crate) fn new(
        cache: &'a PageCache,
        (slot, head, version): (Slot, Head<'a>, u64),
        offset: usize,
    ) -> Self {
        let at = offset / FRAME_SIZE;
        let frame = if at < cache.table.layout().frames { head.frame(at) } else { None };
        if let Some(frame) = frame {
            cache.arena.prefetch(frame, offset % FRAME_SIZE);
        }
        Self { cache, slot, head, version, offset, frame }
    }

    /// Whether all blocks of the run are up to date.
    #[inline]
    pub fn uptodate(&self, blocks: Blocks) -> bool {
        self.cache.table.all(self.slot, State::Uptodate, blocks)
    }

    /// Whether a read of the blocks is a hit: they are up to date, and none came in by an uncached
    /// request.
    #[inline]
    pub fn is_hit(&self, blocks: Blocks) -> bool {
        match blocks.first_mask() {
            Some(mask) => {
                self.head.bits(State::Uptodate) & mask == mask
                    && self.head.bits(State::Uncached) & mask == 0
            }
            None => is_hit_in_groups(&self.cache.table, self.slot, blocks),
        }
    }

    /// Copies bytes out, from the offset that the folio was looked up for. False if the folio
    /// changed meanwhile: `dst` is then invalid. The blocks must have been up to date.
    #[inline]
    #[must_use]
    pub fn copy_out(&self, dst: &mut [u8]) -> bool {
        let within = self.offset % FRAME_SIZE;
        if dst.len() > FRAME_SIZE - within {
            return copy_out(self.cache, self.slot, self.offset, dst) && self.intact();
        }
        let Some(frame) = self.frame else { return false };
        self.cache.arena.copy_out(frame, within, dst);
        self.intact()
    }

    /// Whether the folio is unchanged since it was looked up.
    #[inline]
    pub fn intact(&self) -> bool {
        self.head.unchanged_since(self.version)
    }

    /// Ages: marks the blocks referenced, and those active that were referenced already, unless
    /// `same` says that this continues the previous touch (a reader that takes a block in small
    /// pieces touches it once). If the slot has gone to another folio since, that folio is touched:
    /// no harm.
    #[inline]
    pub fn touch(&self, blocks: Blocks, same: bool) {
        let Some(mask) = blocks.first_mask() else {
            return touch_groups(&self.cache.table, self.slot, blocks, same);
        };
        let seen = self.head.bits(State::Referenced);
        if seen & mask != mask {
            self.head.set_referenced(mask);
        }
        if !same {
            self.head.activate(seen & mask);
        }
    }
}

/// As [`FolioRead::is_hit`], for blocks beyond the first group.
#[inline(never)]
fn is_hit_in_groups(table: &Table, slot: Slot, blocks: Blocks) -> bool {
    table.all(slot, State::Uptodate, blocks) && !table.any(slot, State::Uncached, blocks)
}

/// As [`FolioRead::touch`], for blocks beyond the first group.
#[inline(never)]
fn touch_groups(table: &Table, slot: Slot, blocks: Blocks, same: bool) {
    touch(table, slot, blocks, same);
}

/// Ages blocks, for readers with the folio lock and without.
#[inline]
pub(super) fn touch(table: &Table, slot: Slot, blocks: Blocks, same: bool) {
    for (g, mask) in blocks.masks() {
        let seen = table.bits(slot, State::Referenced, g);
        table.set_age(slot, State::Referenced, g, mask);
        if !same {
            table.set_age(slot, State::Active, g, seen & mask);
        }
    }
}

/// Copies bytes out; false if a frame is missing, which only a reader without the lock can meet.
#[inline(never)]
pub(super) fn copy_out(
    cache: &PageCache,
    slot: Slot,
    mut offset: usize,
    mut dst: &mut [u8],
) -> bool {
    while !dst.is_empty() {
        let within = offset % FRAME_SIZE;
        let len = dst.len().min(FRAME_SIZE - within);
        let (part, rest) = dst.split_at_mut(len);
        let Some(frame) = cache.table.frame(slot, offset / FRAME_SIZE) else { return false };
        cache.arena.copy_out(frame, within, part);
        dst = rest;
        offset += len;
    }
    true
}
