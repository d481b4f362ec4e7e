//! Room for content that was accepted: counted when it is, and there when it is written out.
//!
//! ```text
//!   write ──admit──▶ arriving ──▶ dirty ──reserve──▶ a share: places in segments ──publish──▶ in a record
//!             │ no room: refused now                     ▲ what the log has no room for
//!             ▼                                          └── waits for two checkpoints, then goes in parts
//!          NoSpace
//! ```
//! What dirt will take of the log is not set aside: the log comes free again by checkpoints, which have room
//! of their own. So whoever writes out what was accepted makes room and goes on, and is not refused.
//!
//! Invariants: P21 bytes that were admitted are arriving, dirty or in write-out, and count until a
//! reservation holds room for them. P22 what is written past the cache leaves that room alone. P23 a part of
//! the room is for the last blocks of files that are cut, so that cutting and syncing work on a full volume.
//! What overwrites stored content may have what is kept from new content (P25, `transaction::capacity`).
//!
//! Locks: the state lock, held by the caller; what is arriving and dirty is counted without.

use crate::format::MAX_EXTENT_BLOCKS;
use forebay_base::units::KIB;
use forebay_cache::writeback::Domain;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that an extent of one block takes of the tree at most: two copies of a leaf that is half full.
pub(crate) const BLOCK_TREE_BYTES: u64 = 2 * 2 * 84;

/// Bytes of an extent in the tree, without its sums.
pub(crate) const MAP_ITEM_BYTES: u64 = 80;
/// The same of a short one of one block, which takes no more in memory.
pub(crate) const SHORT_ITEM_BYTES: u64 = 52;

/// A place is written in parts of at least so many bytes, each of which may get a record of its own.
pub(crate) const PART_BYTES: u64 = 64 * KIB;

/// What a grant is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// Something new: leaves alone the kept segments, and what accepted content needs.
    New,
    /// Makes room, or makes durable what was promised before.
    Urgent,
    /// Was admitted before, or nothing goes on without it: counted, and never refused.
    Outstanding,
}

/// What else needs space while the log does.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Beside {
    /// Bytes that accepted content takes of segments (P14).
    pub dirt: u64,
    /// Bytes that are for the last blocks of files that are cut (P23).
    pub edges: u64,
    /// Bytes of segments that were given out and are not in use: accepted content may have them.
    pub held: u64,
    /// Pairs of nodes that checkpoints may need then (P13).
    pub pairs: u64,
    /// Pairs that what is new leaves to what makes room (P24).
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
    /// What content that lies in one place adds: its leaf, and where it cuts into an older one that one's.
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
