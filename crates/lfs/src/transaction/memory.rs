//! Memory that a volume takes in addition to the page cache: nodes of its tree, names, changes that
//! no checkpoint has merged, and what the cleaner holds.
//!
//! On its own a volume has a bound for each ([`OpenOptions`]). Opened `of_budget` they are shares
//! of the budget of the cache. What is in use is claimed there, so that frames get less. Bounds of
//! nodes and names follow a budget that changes.
//!
//! Invariant: V11 what is claimed is what is in use, except for small changes. Of changes it is the
//! most that there were, because they come back with the next checkpoint; what a pass of the
//! cleaner takes is returned with it.
//!
//! No locks: the volume's state lock covers the state; the claims are noted without it.

use crate::btree::Tree;
use crate::transaction::options::{NAMES_PART, NODES_PART, OpenOptions};
use crate::transaction::state::State;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::units::KIB;
use forebay_cache::{Claim, PageCache};

/// A change of less is not noted, bytes.
const LITTLE: u64 = 256 * KIB;

/// What an item takes in memory beside its value, and what is known of a file's content beside the
/// pieces.
const ITEM_BYTES: u64 = 96;
const OVERLAY_BYTES: u64 = 900;

/// What is in use under the state lock, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// Changes, those that are frozen included.
    pub changes: u64,
    /// What the cleaner is about to change, and copies with.
    pub cleaning: u64,
    pub names: u64,
}

impl Held {
    /// Changes, what the cleaner holds, names; bytes.
    pub fn parts(&self) -> [u64; 3] {
        [self.changes, self.cleaning, self.names]
    }
}

impl State {
    /// Bytes that what has changed since the last freeze takes, about.
    pub fn changes_bytes(&self) -> u64 {
        let items = self.items.bytes() + ITEM_BYTES * self.items.len();
        items + self.map.tree_bytes() + OVERLAY_BYTES * self.map.changes().len() as u64
    }

    /// What is in use.
    pub fn held(&self) -> Held {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.bytes);
        let (changes, names) = (self.changes_bytes() + frozen, self.names_bytes() as u64);
        Held { changes, cleaning: self.cleaning_bytes, names }
    }
}

/// Memory of a volume in addition to its cache: what is claimed of the budget, and the bounds that
/// follow it.
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
    /// The same while the log was replayed: merged before the volume is served.
    replay_peak: u64,
}

impl Memory {
    /// Of a volume that was opened like this, and whose replay took `replay_peak` bytes of changes.
    pub fn new(options: &OpenOptions, replay_peak: u64) -> Self {
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
            replay_peak,
        }
    }

    /// Most that changes took while the log was replayed, bytes.
    pub fn replay_peak(&self) -> u64 {
        self.replay_peak
    }

    /// Bound of names, bytes.
    pub fn names_max(&self) -> usize {
        self.names_max.load(Ordering::Relaxed)
    }
}

impl Memory {
    /// So much is in use now: claims it, and has the bounds follow the budget (V11).
    pub fn note(&self, tree: &Tree, held: Held) {
        let Some((cache, claim)) = &self.budget else { return };
        let nodes = tree.cache().used_bytes();
        let changes = self.changes_most.fetch_max(held.changes, Ordering::Relaxed);
        let changes = changes.max(held.changes) + held.cleaning;
        let (all, budget) = (nodes as u64 + held.names + changes, cache.budget_bytes());
        let is_new = budget != self.shared_of.swap(budget, Ordering::Relaxed);
        if !is_new && all.abs_diff(self.told.load(Ordering::Relaxed)) < LITTLE {
            return;
        }
        self.told.store(all, Ordering::Relaxed);
        if is_new {
            tree.cache().set_budget((budget / NODES_PART) as usize);
            self.names_max.store((budget / NAMES_PART) as usize, Ordering::Relaxed);
        }
        self.told_nodes.store(nodes as u64, Ordering::Relaxed);
        claim.set(&[nodes as u64, held.names, changes]);
    }

    /// Whether nodes of the tree take much more or less than was noted.
    pub fn is_outdated(&self, tree: &Tree) -> bool {
        let nodes = tree.cache().used_bytes() as u64;
        let told = self.told_nodes.load(Ordering::Relaxed);
        self.budget.is_some() && nodes.abs_diff(told) >= LITTLE
    }
}
