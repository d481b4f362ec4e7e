//! The tree of a volume: a copy-on-write B+tree of items by key. It does all I/O through a
//! [`NodeStore`], and does not depend on the log, the overlay (changes in memory since the
//! checkpoint) or segments.
//!
//! ```text
//!   a checkpoint:  changes in key order ──▶ merge ──▶ new nodes (both copies) ──▶ new root
//!                  old root ─ read ─────────┘  └──▶ Ledger: places given up, places taken
//!   a reader:      root ──▶ get, floor, Cursor ──▶ NodeCache ──▶ NodeStore (first or second copy)
//! ```
//! Reading order: [`store`] (interface to the device, two copies), [`cache`], [`read`],
//! [`write`](mod@write) (fills nodes, with items from `waiting`), [`merge`](mod@merge),
//! [`checkpoint`](mod@checkpoint), [`check`](mod@check), [`map`](mod@map) (turns an overlay's
//! pieces into changes), [`device`].
//!
//! Invariants: B11 a node that is reachable from a root never changes. Only the merge that replaces
//! it gives up its places, so an old root reads as before until its places are reused. B12 an inner
//! node's first key is empty; each other key is the lowest possible key in its child. All keys
//! below a child lie between the child's key and the next one. A node that violates this is
//! corrupt, whatever its checksum. B13 a child is one level below its parent, so no walk is deeper
//! than the root's level. B14 no node is empty; a tree without items has no root. B15 every node
//! but the root uses at least a third of its space ([`min_used_bytes`]). B16 a cursor's position is
//! a key: it can continue in any root of the tree.
//!
//! Locks: one in [`cache`] and one around the last unreadable node. No other lock is taken under
//! either; both are held for a few steps and never across a wait.

mod ahead;
pub mod cache;
mod change;
pub mod check;
pub mod checkpoint;
pub mod device;
pub mod map;
#[cfg(test)]
pub(crate) mod mem;
pub mod merge;
pub mod read;
pub mod store;
#[cfg(test)]
mod tests;
mod waiting;
pub mod walk;
pub mod write;

pub use cache::NodeCache;
pub use change::{Change, Changes};
pub use check::{Problem, Report, Seen};
pub use checkpoint::{TreeChanges, checkpoint};
pub use device::DeviceStore;
pub use map::{GivenUp, MapChanges, Piece, Stored};
pub use merge::Merged;
pub(crate) use read::InOrder;
pub use read::{Cursor, Found};
pub use store::{NodeStore, StoredNode};
pub use write::{Ledger, min_used_bytes};

use crate::format::corrupt;
use crate::format::key::KeyBytes;
use crate::format::node::{MAX_LEVEL, Node, NodePointer};
use crate::format::place::{Geometry, Place, Seal};
use crate::format::superblock::TreeRoot;
use forebay_base::sync::Mutex;
use forebay_base::{Error, Result};
use std::sync::Arc;

const WHAT: &str = "tree";

/// The places of a node of which the device could read neither copy, and the reported error.
type UnreadableNode = ([Place; 2], Error);

/// Reads and writes the trees of a volume; each call names the root.
#[derive(Clone)]
pub struct Tree {
    store: Arc<dyn NodeStore>,
    cache: Arc<NodeCache>,
    geometry: Geometry,
    seal: Seal,
    /// The last node of which the device could read neither copy.
    unreadable: Arc<Mutex<Option<UnreadableNode>>>,
}

impl Tree {
    /// Trees in `store`, clean nodes kept in `cache`.
    pub fn new(
        store: Arc<dyn NodeStore>,
        cache: Arc<NodeCache>,
        geometry: Geometry,
        seal: Seal,
    ) -> Self {
        Self { store, cache, geometry, seal, unreadable: Arc::default() }
    }

    /// Units of the volume.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// The cache of clean nodes.
    pub fn cache(&self) -> &NodeCache {
        &self.cache
    }
}

/// The root of an empty tree.
pub fn empty_root(tree: u64, since: u64) -> TreeRoot {
    TreeRoot { tree, places: None, birth: 0, sum: 0, level: 0, since }
}

/// A pointer to a node, with the range of keys that the node may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    pub(crate) pointer: NodePointer,
    pub(crate) tree: u64,
    pub(crate) level: u8,
    /// The lowest possible key in the node.
    pub(crate) low: KeyBytes,
    /// All keys of the node are below this one; `None`: no upper bound.
    pub(crate) high: Option<KeyBytes>,
    pub(crate) is_root: bool,
}

impl Link {
    /// The link to the root; `None` if the tree is empty. `Corrupt` for an impossible level.
    pub(crate) fn root(root: &TreeRoot) -> Result<Option<Self>> {
        let Some(places) = root.places else { return Ok(None) };
        if root.level > MAX_LEVEL {
            return Err(corrupt(WHAT, format!("{}: a root at level {}", root.tree, root.level)));
        }
        let pointer = NodePointer { places, birth: root.birth, sum: root.sum };
        let (tree, level) = (root.tree, root.level);
        Ok(Some(Self { pointer, tree, level, low: KeyBytes::EMPTY, high: None, is_root: true }))
    }

    /// Whether `key` lies in the range of the node.
    pub(crate) fn has(&self, key: &[u8]) -> bool {
        self.low.as_slice() <= key && self.high.is_none_or(|high| key < high.as_slice())
    }

    /// The link to child `n` of the node that this leads to; `None` after the last one.
    pub(crate) fn child(&self, node: &Node<'_>, n: usize, g: &Geometry) -> Result<Option<Self>> {
        let Some((key, pointer)) = node.child(n, g)? else { return Ok(None) };
        let low = if n == 0 { self.low } else { KeyBytes::copy_of(key) };
        let high = node.raw(n + 1).map_or(self.high, |(key, _)| Some(KeyBytes::copy_of(key)));
        let Some(level) = self.level.checked_sub(1) else { return Ok(None) };
        Ok(Some(Self { pointer, tree: self.tree, level, low, high, is_root: false }))
    }

    /// B12, B14: checks that the node's keys lie in its range. Keys rise, so the first and the last
    /// key suffice.
    pub(crate) fn check_shape(&self, node: &Node<'_>) -> Result<()> {
        let bad = |why: &str| {
            let text = format!("{}: node at {:?}: {why}", self.tree, self.pointer.places);
            Err(corrupt(WHAT, text))
        };
        let (Some((first, _)), Some((last, _))) =
            (node.raw(0), node.raw(node.len().wrapping_sub(1)))
        else {
            return bad("there is nothing in it (B14)");
        };
        let mut lowest = first;
        if node.header.level > 0 {
            if !first.is_empty() {
                return bad("its first key is not empty (B12)");
            }
            // The first child has the lower bound of the node; the second key must be above it.
            match node.raw(1) {
                Some((second, _)) if second > self.low.as_slice() => lowest = second,
                Some(_) => return bad("its keys are below its place in the tree (B12)"),
                None if self.is_root => return bad("a root with one child (B14)"),
                None => return Ok(()),
            }
        }
        if lowest < self.low.as_slice() {
            return bad("its keys are below its place in the tree (B12)");
        }
        match &self.high {
            Some(high) if last >= high.as_slice() => {
                bad("its keys are above its place in the tree (B12)")
            }
            _ => Ok(()),
        }
    }
}
