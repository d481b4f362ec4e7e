//! What a volume keeps in memory beside its cache: nodes of its tree, names, and changes that are not merged.
//!
//! On its own a volume has bounds for each ([`crate::OpenOptions`]). Opened `of_budget` they are shares of
//! the cache's budget, and what is in use is claimed there, so that it comes off the frames. Bounds of nodes
//! and names follow a budget that changes.
//!
//! Invariant: V11 what is claimed is what is in use, but for a little; of changes it is the most that there
//! were, for they come back with the next checkpoint; what a pass of the cleaner takes goes with it.
//! Lock: none; told without the state lock.

use crate::transaction::state::State;
use crate::volume::{Inner, OpenOptions};
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::units::{KIB, MIB};
use forebay_cache::{Claim, PageCache};

/// Shares of the budget: so many parts of it.
const CHANGES_PART: u64 = 8;
const NODES_PART: u64 = 2;
const NAMES_PART: u64 = 8;
/// Most of the budget that is for changes, bytes.
const CHANGES_MAX: u64 = 32 * MIB;
/// A change of less is not told, bytes.
const LITTLE: u64 = 256 * KIB;

/// What an item takes in memory beside its value, and what is known of a file's content beside the pieces.
const ITEM_BYTES: u64 = 96;
const OVERLAY_BYTES: u64 = 900;

/// What is in use under the state lock, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// Changes, those that are frozen included.
    pub changes: u64,
    /// What the cleaner is about to change, and copies with.
    cleaning: u64,
    names: u64,
}

impl Held {
    /// Changes, what the cleaner holds, names; bytes.
    pub fn parts(&self) -> [u64; 3] {
        [self.changes, self.cleaning, self.names]
    }
}

/// See the module.
pub(crate) struct Memory {
    budget: Option<(Arc<PageCache>, std::sync::Arc<Claim>)>,
    /// Budget that the bounds are shares of, bytes.
    shared_of: AtomicU64,
    /// Bound of names, bytes.
    names_max: AtomicUsize,
    /// Bytes that were told last.
    told: AtomicU64,
    /// Of these, of nodes.
    told_nodes: AtomicU64,
    /// Most that changes have taken, bytes.
    changes_most: AtomicU64,
}

impl OpenOptions {
    /// Bounds of memory that are shares of a budget of so many bytes.
    pub fn set_shares(&mut self, budget: u64) {
        self.overlay_bytes = (budget / CHANGES_PART).min(CHANGES_MAX);
        self.node_cache_bytes = (budget / NODES_PART) as usize;
        self.inode_cache_bytes = (budget / NAMES_PART) as usize;
    }

    /// The bounds that a volume is opened with.
    pub(crate) fn shared(&self) -> Self {
        let mut options = self.clone();
        if let (true, Some(cache)) = (self.of_budget, &self.cache) {
            options.set_shares(cache.budget_bytes());
        }
        options
    }
}

impl Memory {
    /// Of a volume that was opened like this.
    pub fn new(options: &OpenOptions) -> Self {
        let parts = ["nodes of a volume's tree", "names of a volume", "changes of a volume"];
        let cache = options.cache.as_ref().filter(|_| options.of_budget);
        let budget = cache.map(|cache| (cache.clone(), Claim::new(cache, &parts)));
        let shared_of = budget.as_ref().map_or(0, |(cache, _)| cache.budget_bytes());
        Self {
            budget,
            shared_of: AtomicU64::new(shared_of),
            names_max: AtomicUsize::new(options.inode_cache_bytes),
            told: AtomicU64::new(0),
            told_nodes: AtomicU64::new(0),
            changes_most: AtomicU64::new(0),
        }
    }

    /// Bound of names, bytes.
    pub fn names_max(&self) -> usize {
        self.names_max.load(Ordering::Relaxed)
    }
}

impl State {
    /// Bytes that what has changed since the last freeze takes, about.
    pub fn changes_bytes(&self) -> u64 {
        let items = self.items.bytes() + ITEM_BYTES * self.items.len();
        items + self.maps.1 + OVERLAY_BYTES * self.data.len() as u64
    }

    /// What is in use.
    pub fn held(&self) -> Held {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.bytes);
        let (changes, names) = (self.changes_bytes() + frozen, self.names_bytes() as u64);
        Held { changes, cleaning: self.cleaning_bytes, names }
    }
}

impl Inner {
    /// So much is in use now: claims it, and has the bounds follow the budget (V11).
    pub(crate) fn note_memory(&self, held: Held) {
        let memory = &self.memory;
        let Some((cache, claim)) = &memory.budget else { return };
        let nodes = self.tree.cache().used_bytes();
        let changes = memory.changes_most.fetch_max(held.changes, Ordering::Relaxed);
        let changes = changes.max(held.changes) + held.cleaning;
        let (all, budget) = (nodes as u64 + held.names + changes, cache.budget_bytes());
        let is_new = budget != memory.shared_of.swap(budget, Ordering::Relaxed);
        if !is_new && all.abs_diff(memory.told.load(Ordering::Relaxed)) < LITTLE {
            return;
        }
        memory.told.store(all, Ordering::Relaxed);
        if is_new {
            self.tree.cache().set_budget((budget / NODES_PART) as usize);
            memory.names_max.store((budget / NAMES_PART) as usize, Ordering::Relaxed);
        }
        memory.told_nodes.store(nodes as u64, Ordering::Relaxed);
        claim.set(&[nodes as u64, held.names, changes]);
    }

    /// The same for who has read nodes alone, and does not have the state lock.
    pub(crate) fn note_nodes(&self) {
        let nodes = self.tree.cache().used_bytes() as u64;
        let told = self.memory.told_nodes.load(Ordering::Relaxed);
        if self.memory.budget.is_some() && nodes.abs_diff(told) >= LITTLE {
            let held = self.state.lock().held();
            self.note_memory(held);
        }
    }
}
