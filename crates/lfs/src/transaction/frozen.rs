//! The state that a checkpoint froze: changes that it merges into the tree. Newer changes lie above
//! them.
//!
//! No locks: the volume's state lock covers it.

use crate::names::items::Items;
use crate::space::segment::Snapshot;
use crate::transaction::counters::Counters;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The changes that a checkpoint merges.
pub(crate) struct Frozen {
    pub items: Arc<Items>,
    /// The keys of the reservations that existed at the freeze (checkpoint.H14).
    pub in_flight: BTreeSet<u64>,
    /// The changes are merged: they are in the new tree, too.
    pub is_merged: bool,
    pub before: Snapshot,
    pub counters: Counters,
    pub inodes: u64,
    pub ticket: u64,
    /// Pairs of nodes that the merge may need (space.P13).
    pub nodes: u64,
    /// The approximate bytes that this takes in memory.
    pub bytes: u64,
}
