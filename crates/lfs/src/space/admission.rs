//! Space for accepted content: counted when it is accepted, and there when it is written out.
//!
//! ```text
//!   write ──admit──▶ arriving ──▶ dirty ──reserve──▶ a reservation ──publish──▶ in a record
//!             │ no space: refused now        ▲ no log space for it:
//!             ▼                              └── requests space, then in smaller parts
//!          NoSpace
//! ```
//! Log space for dirty data is not set aside: checkpoints make the log free again, and have space
//! of their own. So a task that writes out accepted content requests space and continues. It is not
//! refused.
//!
//! Invariants: P21 bytes that were admitted are arriving, dirty or in write-out, and count until a
//! reservation holds space for them. P22 writes past the cache leave that space alone. P23 a part
//! of the space is for the last blocks of files that are truncated, so that truncates and syncs
//! work on a full volume. Overwrites of stored content may use the reserve that new content may not
//! (capacity.P25). P27 bytes that are granted in advance count as arriving until a write draws
//! them. Each look at the accepted bytes takes the rest of the advance back first. So no decision
//! about space sees bytes that no write has asked for, and what was drawn had its space at the
//! grant.
//!
//! ```text
//!   admit, under the state lock ──the bytes of the write──▶ arriving
//!                               └─the advance, if it fits──▶ drawn by later writes, without lock
//!                                                        └──▶ taken back by a look at the ledger
//! ```
//! Locks: the state lock, held by the caller; arriving and dirty bytes, and the advance, are
//! counted without it.

use crate::format::MAX_EXTENT_BLOCKS;
use forebay_base::units::KIB;
use forebay_cache::writeback::Domain;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The most bytes of the tree that an extent of one block takes: two copies of a half-full leaf.
pub(crate) const BLOCK_TREE_BYTES: u64 = 2 * 2 * 84;

/// The bytes of an extent in the tree, without its checksums.
pub(crate) const MAP_ITEM_BYTES: u64 = 80;
/// The bytes of a short extent of one block. In memory it takes no more.
pub(crate) const SHORT_ITEM_BYTES: u64 = 52;

/// The minimum bytes of a part when an address range is written in parts. Each part may get its own
/// record.
pub(crate) const PART_BYTES: u64 = 64 * KIB;

/// Accepted content that is not written out yet (P21).
#[derive(Default)]
pub(crate) struct AcceptedContent {
    domain: Option<Arc<Domain>>,
    /// Bytes that were admitted and are not counted as dirty yet.
    arriving: AtomicU64,
    /// Of these, the bytes that no write has drawn (P27).
    advance: AtomicU64,
}

/// Bytes that are granted in advance together with those of a write, if there is space (P27).
pub(crate) const ADVANCE_BYTES: u64 = 1 << 20;

impl AcceptedContent {
    /// For the files whose pages are in `domain`.
    pub fn of(domain: Option<Arc<Domain>>) -> Self {
        Self { domain, ..Self::default() }
    }

    /// The bytes of accepted content. Bytes that are changing from one state to the next may be
    /// counted twice.
    pub fn bytes(&self) -> u64 {
        let arriving = self.arriving.load(Ordering::Acquire);
        let dirty = self.domain.as_ref().map_or(0, |d| d.dirty_bytes() + d.writeback_bytes());
        arriving + dirty
    }

    /// Counts bytes of an admitted write as arriving.
    pub fn admit(&self, bytes: u64) {
        self.arriving.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Grants bytes in advance. The caller has found space for them.
    pub fn grant_advance(&self, bytes: u64) {
        // In this order, so that the advance is never more than what counts.
        self.arriving.fetch_add(bytes, Ordering::AcqRel);
        self.advance.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Draws the bytes of a write from the advance: they are arriving. False: it has too few.
    pub fn draw(&self, bytes: u64) -> bool {
        let rest = |advance: u64| advance.checked_sub(bytes);
        self.advance.fetch_update(Ordering::AcqRel, Ordering::Acquire, rest).is_ok()
    }

    /// Takes the rest of the advance back.
    pub fn end_advance(&self) {
        if self.advance.load(Ordering::Acquire) > 0 {
            let rest = self.advance.swap(0, Ordering::AcqRel);
            self.arriving.fetch_sub(rest, Ordering::AcqRel);
        }
    }

    /// Ends the arrival of admitted bytes: they are dirty now, or the write failed.
    pub fn arrived(&self, bytes: u64) {
        self.arriving.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// An estimate of the space that changes take in the tree.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Number of items.
    pub entries: u64,
    /// Bytes of items.
    pub bytes: u64,
}

impl Growth {
    /// The sum of both.
    pub fn plus(self, other: Self) -> Self {
        Self { entries: self.entries + other.entries, bytes: self.bytes + other.bytes }
    }

    /// The growth from content in one address range: its own extents, and an older extent that it
    /// splits.
    pub fn of_content(bytes: u64, block_bytes: u64) -> Self {
        let blocks = bytes / block_bytes;
        let extents = extents_of(bytes, block_bytes);
        Self { entries: 2 * extents, bytes: extents * MAP_ITEM_BYTES + 4 * blocks }
    }
}

/// The number of extents that content in one address range becomes if it is written in parts.
pub(crate) fn extents_of(bytes: u64, block_bytes: u64) -> u64 {
    (bytes / block_bytes).div_ceil(u64::from(MAX_EXTENT_BLOCKS)) + bytes / PART_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P27: drawn bytes stay arriving, the rest of an advance ends, and no byte is drawn twice.
    #[test]
    fn p27_advance_is_drawn_once_and_its_rest_taken_back() {
        let accepted = AcceptedContent::default();
        assert!(!accepted.draw(1), "nothing was granted");
        accepted.admit(10);
        accepted.grant_advance(100);
        assert_eq!(accepted.bytes(), 110, "it counts at once");
        assert!(accepted.draw(60) && !accepted.draw(41), "no byte is drawn twice");
        accepted.end_advance();
        assert_eq!(accepted.bytes(), 70, "what was drawn is arriving");
        assert!(!accepted.draw(1), "the rest has ended");
        accepted.arrived(70);
        assert_eq!(accepted.bytes(), 0);
    }
}
