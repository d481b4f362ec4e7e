//! The tree of the newest durable checkpoint, and the changes that the next one merges into it.
//! Newer changes lie above them.
//!
//! ```text
//!   changes ──freeze──▶ frozen ──merged into the tree──▶ looked up until older reservations end
//!      ▲                  │ the checkpoint failed
//!      └──────thaw────────┘
//! ```
//! No locks: the volume's state lock covers it.

mod merge;

use crate::btree::empty_root;
use crate::format::place::Place;
use crate::format::superblock::{FILES_TREE, TreeRoot};
use crate::map::file_map::Changes;
use crate::names::counters::Counters;
use crate::names::items::Items;
use crate::space::segment::{Deltas, Snapshot};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The changes that a checkpoint merges, apart from those of content: the map has them.
struct Frozen {
    items: Arc<Items>,
    /// The keys of the reservations that existed at the freeze (checkpoint.H14).
    in_flight: BTreeSet<u64>,
    /// The changes are merged: they are in the new tree, too.
    is_merged: bool,
    before: Snapshot,
    counters: Counters,
    inodes: u64,
    ticket: u64,
    /// Pairs of nodes that the merge may need (space.P13).
    nodes: u64,
    /// The approximate bytes that this takes in memory.
    bytes: u64,
}

/// What a checkpoint merges into the tree.
pub(crate) struct ToMerge {
    /// Changes of content, by data id.
    pub data: Arc<Changes>,
    /// Changes of names and attributes.
    pub items: Arc<Items>,
}

/// What a checkpoint has merged.
pub(crate) struct MergedTree {
    pub root: TreeRoot,
    /// The change of the number of nodes.
    pub nodes: i64,
    /// By data id: its inode, and the change of its stored bytes.
    pub stored: BTreeMap<u64, (u64, i64)>,
}

/// The nodes of a checkpoint that is being written, and the live bytes that it changes.
pub(crate) struct Written<'a> {
    pub number: u64,
    pub deltas: Deltas,
    pub taken: &'a [Place],
    pub given_up: &'a [Place],
}

/// The tree of the newest durable checkpoint, with the changes that are being merged.
pub(crate) struct TreeState {
    root: TreeRoot,
    /// The approximate number of nodes.
    nodes: u64,
    frozen: Option<Frozen>,
}

impl TreeState {
    /// An empty tree.
    pub fn new() -> Self {
        Self { root: empty_root(FILES_TREE, 0), nodes: 0, frozen: None }
    }

    /// The tree that a checkpoint stored.
    pub fn of(root: TreeRoot) -> Self {
        Self { root, ..Self::new() }
    }

    /// The tree of files of the newest durable checkpoint.
    pub fn root(&self) -> TreeRoot {
        self.root
    }

    /// Whether the tree has no node.
    pub fn is_empty(&self) -> bool {
        self.root.places.is_none()
    }

    /// The approximate number of nodes.
    pub fn node_count(&self) -> u64 {
        self.nodes
    }

    /// Sets the number of nodes, which an opening has counted.
    pub fn set_node_count(&mut self, nodes: u64) {
        self.nodes = nodes;
    }

    /// Whether frozen changes exist. Merged ones stay while a reservation may look them up
    /// (checkpoint.H14).
    pub fn has_frozen(&self) -> bool {
        self.frozen.is_some()
    }

    /// The ticket of the mark with which the frozen changes end; 0: there is none.
    pub fn frozen_ticket(&self) -> u64 {
        self.frozen.as_ref().map_or(0, |frozen| frozen.ticket)
    }

    /// The approximate memory of the frozen changes, bytes.
    pub fn frozen_bytes(&self) -> u64 {
        self.frozen.as_ref().map_or(0, |frozen| frozen.bytes)
    }

    fn unmerged(&self) -> Option<&Frozen> {
        self.frozen.as_ref().filter(|frozen| !frozen.is_merged)
    }

    /// Frozen items that the tree does not have yet.
    pub fn unmerged_items(&self) -> Option<&Items> {
        self.unmerged().map(|frozen| &*frozen.items)
    }

    /// Pairs of nodes that the merge in progress may need. `None`: none is in progress.
    pub fn unmerged_nodes(&self) -> Option<u64> {
        self.unmerged().map(|frozen| frozen.nodes)
    }

    /// A reservation has ended. True: frozen changes were kept for it.
    pub fn end_reservation(&mut self, key: u64) -> bool {
        self.frozen.as_mut().is_some_and(|frozen| frozen.in_flight.remove(&key))
    }
}
