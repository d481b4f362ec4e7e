//! Space for accepted content: counted when it is accepted, and there when it is written out.
//!
//! ```text
//!   write ──admit──▶ arriving ──▶ dirty ──reserve──▶ a reservation ──publish──▶ in a record
//!             │ no space: refused now                     ▲ no log space for it:
//!             ▼                                           └── requests space, then in smaller parts
//!          NoSpace
//! ```
//! Log space for dirty data is not set aside: checkpoints make the log free again, and have space of
//! their own. So a task that writes out accepted content requests space and continues. It is not
//! refused.
//!
//! Invariants: P21 bytes that were admitted are arriving, dirty or in write-out, and count until a
//! reservation holds space for them. P22 writes past the cache leave that space alone. P23 a part
//! of the space is for the last blocks of files that are truncated, so that truncates and syncs
//! work on a full volume. Overwrites of stored content may use the reserve that new content may not
//! (P25, `transaction::capacity`).
//!
//! Locks: the state lock, held by the caller; arriving and dirty bytes are counted without it.

use crate::format::MAX_EXTENT_BLOCKS;
use forebay_base::units::KIB;
use forebay_cache::writeback::Domain;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that an extent of one block takes of the tree at most: two copies of a half-full leaf.
pub(crate) const BLOCK_TREE_BYTES: u64 = 2 * 2 * 84;

/// Bytes of an extent in the tree, without its sums.
pub(crate) const MAP_ITEM_BYTES: u64 = 80;
/// The same of a short one of one block, which takes no more in memory.
pub(crate) const SHORT_ITEM_BYTES: u64 = 52;

/// An address range is written in parts of at least so many bytes. Each may get its own record.
pub(crate) const PART_BYTES: u64 = 64 * KIB;

/// What a grant is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Something new: leaves alone the kept segments, and what accepted content needs.
    New,
    /// Makes space, or makes accepted content durable.
    Urgent,
    /// Was admitted before, or the volume cannot continue without it: counted, never refused.
    Outstanding,
}

/// What else needs space while the log does.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct OtherNeeds {
    /// Bytes that accepted content takes of segments (P14).
    pub dirt: u64,
    /// Bytes for the last blocks of files that are truncated (P23).
    pub edges: u64,
    /// Bytes of segments that were given out and are not in use: accepted content may have them.
    pub held: u64,
    /// Pairs of nodes that checkpoints may need then (P13).
    pub pairs: u64,
    /// Pairs that new content leaves to operations that make space (P24).
    pub spare: u64,
}

/// Content that was accepted and is not written out (P21).
#[derive(Default)]
pub(crate) struct Dirt {
    domain: Option<Arc<Domain>>,
    /// Admitted, and not counted as dirty yet, bytes.
    arriving: AtomicU64,
}

impl Dirt {
    /// Of the files of `domain`.
    pub fn of(domain: Option<Arc<Domain>>) -> Self {
        Self { domain, arriving: AtomicU64::new(0) }
    }

    /// Bytes; what is on its way from one state to the next may be counted twice.
    pub fn bytes(&self) -> u64 {
        let arriving = self.arriving.load(Ordering::Acquire);
        let dirty = self.domain.as_ref().map_or(0, |d| d.dirty_bytes() + d.writeback_bytes());
        arriving + dirty
    }

    /// So many bytes are admitted: they are arriving.
    pub fn admit(&self, bytes: u64) {
        self.arriving.fetch_add(bytes, Ordering::AcqRel);
    }

    /// What was admitted is dirty, or did not come.
    pub fn arrived(&self, bytes: u64) {
        self.arriving.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// What changes take in the tree, about.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Growth {
    /// Items.
    pub entries: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Growth {
    /// What content at one address adds: its leaf, and that of an older extent that it splits.
    pub fn of_content(bytes: u64, block_bytes: u64) -> Self {
        let blocks = bytes / block_bytes;
        let extents = extents_of(bytes, block_bytes);
        Self { entries: 2 * extents, bytes: extents * MAP_ITEM_BYTES + 4 * blocks }
    }
}

/// Extents that content in one place becomes, if it is written in parts.
pub(crate) fn extents_of(bytes: u64, block_bytes: u64) -> u64 {
    (bytes / block_bytes).div_ceil(u64::from(MAX_EXTENT_BLOCKS)) + bytes / PART_BYTES
}
