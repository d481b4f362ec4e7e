//! Inodes, directories and attributes: their copies in memory, and how missing ones are loaded.

pub(crate) mod closed;
pub(crate) mod content;
pub(crate) mod counters;
pub(crate) mod directory;
pub(crate) mod evict;
pub(crate) mod inode;
pub(crate) mod inode_table;
pub(crate) mod items;
pub(crate) mod load;
pub(crate) mod lookup;
pub(crate) mod name_cache;
pub(crate) mod node;
mod noted;
pub(crate) mod open_times;
mod part;
pub(crate) mod scan_cache;
pub(crate) mod times_wanted;

use crate::format::place::Geometry;
use crate::names::counters::Counters;
use crate::names::evict::Cache;
use crate::names::inode_table::InodeTable;
use crate::names::items::Items;
use crate::names::scan_cache::Windows;
use std::collections::BTreeSet;

/// Names and attributes in memory, and their changes since the last freeze.
pub(crate) struct Names {
    geometry: Geometry,
    nonce: [u8; 16],
    /// The inodes in memory.
    nodes: InodeTable,
    /// The eviction clock of the inodes.
    cache: Cache,
    /// Inodes for sequential scans, in stored form.
    windows: Windows,
    /// Names and attributes that have changed since the last freeze.
    items: Items,
    orphans: BTreeSet<u64>,
    /// Inodes without a name or an opener whose removal found no space.
    unremoved: BTreeSet<u64>,
    /// The next free numbers (state.S13).
    counters: Counters,
}
