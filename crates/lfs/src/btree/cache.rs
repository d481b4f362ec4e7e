//! A cache of clean tree nodes with a bound in bytes; the clock algorithm evicts them.
//!
//! Invariants: B31 an insertion leaves nodes and their bookkeeping within the budget; evicted nodes
//! that readers still hold are not counted. B32 a node is found only by a pointer that matches it
//! completely, so that a node whose place was reused is never taken for the new one.
//!
//! Locks: one; no other lock is taken under it. It is held for steps bounded by the number of
//! nodes, on average for a few.

use super::store::StoredNode;
use crate::format::node::NodePointer;
use crate::format::place::Place;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

/// Memory of an entry in addition to its node, bytes: slot, map, reference counts, allocator
/// overhead.
pub const ENTRY_BYTES: usize = 256;
/// Default budget, bytes.
pub const DEFAULT_BUDGET_BYTES: usize = 32 << 20;

/// Passes of the clock hand that a node survives without a hit: inner nodes stay longer, since they
/// lead to many leaves.
const LEAF_CHANCES: u8 = 1;
const INNER_CHANCES: u8 = 3;

struct Slot {
    node: Arc<StoredNode>,
    place: Place,
    chances: u8,
}

#[derive(Default)]
struct State {
    slots: Vec<Slot>,
    by_place: HashMap<Place, usize>,
    hand: usize,
    used_bytes: usize,
    hits: u64,
    misses: u64,
}

/// Fill and hit counts of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheCounts {
    /// Number of nodes.
    pub nodes: usize,
    /// Bytes in use, [`ENTRY_BYTES`] of each node included.
    pub used_bytes: usize,
    /// Lookups that found their node.
    pub hits: u64,
    /// Lookups that did not.
    pub misses: u64,
}

/// A cache of clean tree nodes.
pub struct NodeCache {
    budget_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
    state: Mutex<State>,
}

impl NodeCache {
    /// A cache with this budget; below the size of a node it keeps nothing.
    pub fn new(budget_bytes: usize) -> Self {
        let (budget_bytes, used_bytes) = (AtomicUsize::new(budget_bytes), AtomicUsize::new(0));
        Self { budget_bytes, used_bytes, state: Mutex::new(State::default()) }
    }

    /// Sets the budget in bytes. The next insertion of a node that fits the budget evicts the
    /// excess.
    pub fn set_budget(&self, bytes: usize) {
        self.budget_bytes.store(bytes, Ordering::Relaxed);
    }

    /// The budget, bytes.
    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Bytes in use, [`ENTRY_BYTES`] of each node included.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Whether a node of this place is cached, perhaps an outdated one.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.state.lock().by_place.contains_key(&place)
    }

    /// The current counts.
    pub fn counts(&self) -> CacheCounts {
        let state = self.state.lock();
        let State { used_bytes, hits, misses, .. } = *state;
        CacheCounts { nodes: state.slots.len(), used_bytes, hits, misses }
    }

    /// The node that matches the pointer completely.
    pub(crate) fn get(
        &self,
        pointer: &NodePointer,
        tree: u64,
        level: u8,
    ) -> Option<Arc<StoredNode>> {
        let mut state = self.state.lock();
        let found = state.by_place.get(&pointer.places[0]).copied();
        let found = found.filter(|n| {
            let node = state.slots[*n].node.node();
            let header = node.header;
            let same = (header.places, header.birth) == (pointer.places, pointer.birth);
            same && node.sum == pointer.sum && (header.owner, header.level) == (tree, level)
        });
        let Some(n) = found else {
            state.misses += 1;
            return None;
        };
        state.hits += 1;
        let slot = &mut state.slots[n];
        slot.chances = chances(&slot.node);
        Some(slot.node.clone())
    }

    /// Adds a node, and evicts others if necessary.
    pub(crate) fn insert(&self, node: &Arc<StoredNode>) {
        let cost = cost(node);
        let budget_bytes = self.budget_bytes.load(Ordering::Relaxed);
        if cost > budget_bytes {
            return;
        }
        let place = node.places()[0];
        // Evicted nodes are freed after the lock is released.
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        gone.extend(state.remove(place));
        while state.used_bytes + cost > budget_bytes {
            let Some(slot) = state.evict() else { break };
            gone.push(slot);
        }
        let at = state.slots.len();
        state.by_place.insert(place, at);
        state.used_bytes += cost;
        state.slots.push(Slot { node: node.clone(), place, chances: chances(node) });
        self.used_bytes.store(state.used_bytes, Ordering::Relaxed);
        drop(state);
    }

    /// Removes nodes whose places were given up.
    pub fn forget(&self, places: &[[Place; 2]]) {
        for [first, _] in places {
            let mut state = self.state.lock();
            let gone = state.remove(*first);
            self.used_bytes.store(state.used_bytes, Ordering::Relaxed);
            drop((state, gone));
        }
    }
}

/// Approximate memory of a node, bytes.
pub(super) fn cost(node: &StoredNode) -> usize {
    node.bytes().len() + ENTRY_BYTES
}

fn chances(node: &StoredNode) -> u8 {
    if node.node().header.level == 0 { LEAF_CHANCES } else { INNER_CHANCES }
}

impl State {
    fn remove(&mut self, place: Place) -> Option<Slot> {
        let at = self.by_place.remove(&place)?;
        let slot = self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.by_place.insert(moved.place, at);
        }
        self.used_bytes -= cost(&slot.node);
        Some(slot)
    }

    /// Ends, because each pass takes one chance from each slot.
    fn evict(&mut self) -> Option<Slot> {
        loop {
            if self.hand >= self.slots.len() {
                self.hand = 0;
            }
            let slot = self.slots.get_mut(self.hand)?;
            if slot.chances == 0 {
                let place = slot.place;
                return self.remove(place);
            }
            slot.chances -= 1;
            self.hand += 1;
        }
    }
}
