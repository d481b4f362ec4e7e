//! Clean nodes of the tree, kept within a bound of bytes, by the clock rule (a second chance).
//!
//! Invariants: B31 nodes and what it takes to keep them stay within the budget; nodes that somebody still
//! reads are beyond it. B32 a node is found only by a pointer that says all of what it is, so that one
//! whose place was used again is never taken for the new one.
//!
//! Locks: one, a leaf; held for steps bounded by the number of nodes, and on average for a few.

use super::store::StoredNode;
use crate::format::node::NodePointer;
use crate::format::place::Place;
use forebay_base::sync::Mutex;
use forebay_base::sync::atomic::{AtomicUsize, Ordering};
use std::collections::HashMap;
use std::sync::Arc;

/// Bytes that an entry takes beside its node: slot, map, reference counts, the allocator's own.
pub const ENTRY_BYTES: usize = 256;
/// Default budget, bytes.
pub const DEFAULT_BUDGET_BYTES: usize = 32 << 20;

/// How often the clock passes by before a node goes: inner nodes lead to many.
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

/// How full the cache is, and how often it helped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheCounts {
    /// Nodes.
    pub nodes: usize,
    /// Bytes, those of the entries included.
    pub used_bytes: usize,
    /// Nodes that were found.
    pub hits: u64,
    /// Nodes that were not.
    pub misses: u64,
}

/// See the module.
pub struct NodeCache {
    budget_bytes: AtomicUsize,
    used_bytes: AtomicUsize,
    state: Mutex<State>,
}

impl NodeCache {
    /// A cache of at most this many bytes; of less than a node it keeps nothing.
    pub fn new(budget_bytes: usize) -> Self {
        let (budget_bytes, used_bytes) = (AtomicUsize::new(budget_bytes), AtomicUsize::new(0));
        Self { budget_bytes, used_bytes, state: Mutex::new(State::default()) }
    }

    /// Its bound from now on, bytes: nodes that are too many go with the next one that comes.
    pub fn set_budget(&self, bytes: usize) {
        self.budget_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Its bound, bytes.
    pub fn budget_bytes(&self) -> usize {
        self.budget_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that it holds, those of the entries included.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Whether it has a node in this place, which may be another one.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.state.lock().by_place.contains_key(&place)
    }

    /// How full it is.
    pub fn counts(&self) -> CacheCounts {
        let state = self.state.lock();
        let State { used_bytes, hits, misses, .. } = *state;
        CacheCounts { nodes: state.slots.len(), used_bytes, hits, misses }
    }

    /// The node that is all of what the pointer says.
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

    /// Keeps a node, and lets others go for it.
    pub(crate) fn insert(&self, node: &Arc<StoredNode>) {
        let cost = cost(node);
        let budget_bytes = self.budget_bytes.load(Ordering::Relaxed);
        if cost > budget_bytes {
            return;
        }
        let place = node.places()[0];
        // What goes is freed after the lock.
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

    /// Lets nodes go whose places were given up.
    pub fn forget(&self, places: &[[Place; 2]]) {
        for [first, _] in places {
            let mut state = self.state.lock();
            let gone = state.remove(*first);
            self.used_bytes.store(state.used_bytes, Ordering::Relaxed);
            drop((state, gone));
        }
    }
}

/// Bytes of memory that a node takes, about.
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

    /// Ends: each pass takes a chance from each slot.
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
