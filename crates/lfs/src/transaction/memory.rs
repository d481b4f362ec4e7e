//! The memory that a volume uses in addition to the page cache: tree nodes, names, changes that no
//! checkpoint has merged, buffers of the cleaner, and what was read around small files.
//!
//! A volume can have its own limit for each of these ([`OpenOptions`]). With `of_budget` the limits
//! are shares of the budget of the page cache. Then the used memory is claimed from this budget, so
//! that fewer frames remain. The limits for nodes and names change with the budget.
//!
//! Invariant: V11 the claim equals the memory in use, except for small differences. For changes it
//! is the highest value so far, because the memory is needed again before the next checkpoint. The
//! memory of a cleaner pass is returned when it ends.
//!
//! No locks: the volume's state lock covers the state. The claim is updated without it.

use crate::btree::Tree;
use crate::transaction::options::{NAMES_PART, NODES_PART, OpenOptions};
use crate::transaction::state::State;
use forebay_base::sync::Arc;
use forebay_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use forebay_base::units::KIB;
use forebay_cache::{Claim, PageCache};

/// Smaller differences do not change the claim, bytes.
const LITTLE: u64 = 256 * KIB;

/// Bytes of memory of an item in addition to its value, and of an overlay in addition to its
/// pieces.
const ITEM_BYTES: u64 = 96;
const OVERLAY_BYTES: u64 = 900;

/// Memory in use that the state lock covers, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// Changes, including frozen ones.
    pub changes: u64,
    /// Buffers and pending changes of the cleaner.
    pub cleaning: u64,
    pub names: u64,
}

impl Held {
    /// Bytes of changes, of the cleaner, and of names.
    pub fn parts(&self) -> [u64; 3] {
        [self.changes, self.cleaning, self.names]
    }
}

impl State {
    /// The approximate memory of the changes since the last freeze, bytes.
    pub fn changes_bytes(&self) -> u64 {
        let items = self.names.items().bytes() + ITEM_BYTES * self.names.items().len();
        items + self.map.tree_bytes() + OVERLAY_BYTES * self.map.changes().len() as u64
    }

    /// The memory in use.
    pub fn held(&self) -> Held {
        let changes = self.changes_bytes() + self.tree.frozen_bytes();
        let names = self.names_bytes() as u64;
        Held { changes, cleaning: self.space.cleaning_bytes(), names }
    }
}

/// The memory of a volume in addition to its page cache: the claim on the budget, and the limits
/// that depend on the budget.
pub(crate) struct Memory {
    budget: Option<(Arc<PageCache>, std::sync::Arc<Claim>)>,
    /// The budget from which the limits were computed, bytes.
    shared_of: AtomicU64,
    /// The limit for names, bytes.
    names_max: AtomicUsize,
    /// The bytes of the last claim.
    told: AtomicU64,
    /// The bytes of nodes in the last claim.
    told_nodes: AtomicU64,
    /// Bytes that were read around small files, and those of the last claim.
    read_ahead: AtomicU64,
    told_read_ahead: AtomicU64,
    /// The most bytes that changes have used so far.
    changes_most: AtomicU64,
    /// The most bytes that changes used while the log was replayed. They are merged by now.
    replay_peak: u64,
}

impl Memory {
    /// The memory of a volume that was opened with these options, and whose replay took
    /// `replay_peak` bytes of changes.
    pub fn new(options: &OpenOptions, replay_peak: u64) -> Self {
        let parts = [
            "nodes of a volume's tree",
            "names of a volume",
            "changes of a volume",
            "small files read ahead",
        ];
        let cache = options.cache.as_ref().filter(|_| options.of_budget);
        let budget = cache.map(|cache| (cache.clone(), Claim::new(cache, &parts)));
        let shared_of = budget.as_ref().map_or(0, |(cache, _)| cache.budget_bytes());
        Self {
            budget,
            shared_of: AtomicU64::new(shared_of),
            names_max: AtomicUsize::new(options.inode_cache_bytes),
            told: AtomicU64::new(0),
            told_nodes: AtomicU64::new(0),
            read_ahead: AtomicU64::new(0),
            told_read_ahead: AtomicU64::new(0),
            changes_most: AtomicU64::new(0),
            replay_peak,
        }
    }

    /// The most that changes took while the log was replayed, bytes.
    pub fn replay_peak(&self) -> u64 {
        self.replay_peak
    }

    /// The limit for names, bytes.
    pub fn names_max(&self) -> usize {
        self.names_max.load(Ordering::Relaxed)
    }
}

impl Memory {
    /// Claims the memory in use, and adapts the limits to the budget (V11).
    pub fn note(&self, tree: &Tree, held: Held) {
        let Some((cache, claim)) = &self.budget else { return };
        let nodes = tree.cache().used_bytes();
        let changes = self.changes_most.fetch_max(held.changes, Ordering::Relaxed);
        let changes = changes.max(held.changes) + held.cleaning;
        let ahead = self.read_ahead.load(Ordering::Relaxed);
        let (all, budget) = (nodes as u64 + held.names + changes + ahead, cache.budget_bytes());
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
        self.told_read_ahead.store(ahead, Ordering::Relaxed);
        claim.set(&[nodes as u64, held.names, changes, ahead]);
    }

    /// Whether the memory of tree nodes and of read-ahead differs much from the last claim.
    pub fn is_outdated(&self, tree: &Tree) -> bool {
        let differs = |now: u64, told: &AtomicU64| {
            self.budget.is_some() && now.abs_diff(told.load(Ordering::Relaxed)) >= LITTLE
        };
        differs(tree.cache().used_bytes() as u64, &self.told_nodes)
            || differs(self.read_ahead.load(Ordering::Relaxed), &self.told_read_ahead)
    }

    /// Notes the bytes that were read around small files. The next claim has them.
    pub fn set_read_ahead(&self, bytes: u64) {
        self.read_ahead.store(bytes, Ordering::Relaxed);
    }
}
