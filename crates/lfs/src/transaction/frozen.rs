//! What a checkpoint froze: changes that are on their way into the tree, below those made since.
//!
//! No locks: the volume's state lock covers it.

use crate::names::items::Items;
use crate::space::segment::Snapshot;
use crate::transaction::counters::Counters;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a checkpoint merges.
pub(crate) struct Frozen {
    pub items: Arc<Items>,
    /// Reservations that were there, by their keys (H14).
    pub in_flight: BTreeSet<u64>,
    /// It is in the tree, too.
    pub is_merged: bool,
    pub before: Snapshot,
    pub counters: Counters,
    pub inodes: u64,
    pub ticket: u64,
    /// Pairs of nodes that its merge may need (P13).
    pub nodes: u64,
    /// What it takes in memory, bytes, about.
    pub bytes: u64,
}
