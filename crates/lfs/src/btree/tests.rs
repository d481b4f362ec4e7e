//! Tests of the tree. `FOREBAY_SEED` sets the first seed (default 1), `FOREBAY_TREE_RUNS`
//! multiplies the runs.
//!
//! No locks.

mod cache;
mod concurrent;
mod content;
mod crash;
mod damage;
mod fuzz;
mod map;
mod reading;
mod work;

use super::mem::MemStore;
use super::{Cursor, Ledger, Merged, NodeCache, Report, Seen, Tree, empty_root};
use crate::btree::Change;
use crate::format::place::{Geometry, Place};
use crate::format::superblock::TreeRoot;
use crate::fuzz::make::seal;
use forebay_base::Result;
use forebay_base::task::block_on;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Keys and values in stored form.
pub(super) type Model = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) fn geometry() -> Geometry {
    Geometry::with_segment_shift(20)
}

/// Seeds of `runs` runs, multiplied by `FOREBAY_TREE_RUNS`.
pub(super) fn seeds(runs: u64) -> impl Iterator<Item = u64> {
    let times = std::env::var("FOREBAY_TREE_RUNS").ok().and_then(|text| text.parse().ok());
    crate::tests::seeds(runs * times.unwrap_or(1))
}

/// A tree in memory, and a model of its content.
pub(super) struct Bench {
    pub(super) store: Arc<MemStore>,
    pub(super) tree: Tree,
    pub(super) root: TreeRoot,
    pub(super) model: Model,
    pub(super) birth: u64,
    /// A merge removes freed places from the cache.
    pub(super) is_cache_told: bool,
}

impl Bench {
    pub(super) fn new(cache_bytes: usize) -> Self {
        Self::with_nodes(geometry().node_shift, cache_bytes)
    }

    /// With nodes of another size.
    pub(super) fn with_nodes(node_shift: u8, cache_bytes: usize) -> Self {
        let g = Geometry { node_shift, ..geometry() };
        Self::over(Arc::new(MemStore::new(g)), g, cache_bytes)
    }

    fn over(store: Arc<MemStore>, g: Geometry, cache_bytes: usize) -> Self {
        let cache = Arc::new(NodeCache::new(cache_bytes));
        let tree = Tree::new(store.clone(), cache, g, seal());
        let (root, model) = (empty_root(1, 0), Model::new());
        Self { store, tree, root, model, birth: 0, is_cache_told: true }
    }

    /// The same content in a store of its own, with nothing cached.
    pub(super) fn fork(&self) -> Self {
        let mut other = Self::over(Arc::new(self.store.fork()), *self.tree.geometry(), 0);
        (other.root, other.birth) = (self.root, self.birth);
        other.model = self.model.clone();
        other
    }

    /// Merges the changes; the places that are free then are given back at once.
    pub(super) fn merge(&mut self, changes: &[Change]) -> Result<(Merged, Ledger)> {
        self.birth += 1;
        let mut ledger = Ledger::default();
        let mut stream = changes.iter().cloned();
        let done = block_on(self.tree.merge(&self.root, &mut stream, self.birth, &mut ledger));
        match done {
            Ok(merged) => {
                if self.is_cache_told {
                    self.tree.cache().forget(&ledger.freed);
                }
                self.store.give_back(&ledger.freed);
                self.root = merged.root;
                apply(&mut self.model, changes);
                Ok((merged, ledger))
            }
            Err(e) => {
                self.store.give_back(&ledger.taken);
                Err(e)
            }
        }
    }

    pub(super) fn check(&self) -> Checked {
        check(&self.tree, &self.root)
    }

    /// All that a cursor finds.
    pub(super) fn scan(&self) -> Result<Model> {
        block_on(scan(&self.tree, &self.root))
    }
}

pub(super) fn apply(model: &mut Model, changes: &[Change]) {
    for change in changes {
        match change.value() {
            Some(value) => model.insert(change.key().to_vec(), value.to_vec()),
            None => model.remove(change.key()),
        };
    }
}

/// The report of a check, and what it visited.
pub(super) struct Checked {
    pub(super) report: Report,
    pub(super) places: BTreeSet<Place>,
    /// Places of each node, and its level.
    pub(super) nodes: Vec<([Place; 2], u8)>,
    pub(super) keys: Vec<Vec<u8>>,
}

pub(super) fn check(tree: &Tree, root: &TreeRoot) -> Checked {
    let (mut places, mut nodes, mut keys) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut seen = |seen: Seen<'_>| match seen {
        Seen::Pointer(both) => places.extend(both),
        Seen::Node(places, level) => nodes.push((places, level)),
        Seen::Item(key, _) => keys.push(key.to_bytes().as_slice().to_vec()),
    };
    let report = block_on(tree.check(root, &mut seen)).expect("a root");
    Checked { report, places, nodes, keys }
}

pub(super) async fn scan(tree: &Tree, root: &TreeRoot) -> Result<Model> {
    let (mut out, mut cursor, mut last) = (Model::new(), Cursor::all(), None);
    while let Some(found) = cursor.next(tree, root).await? {
        let (key, value) = found.raw();
        assert!(last.as_deref() < Some(key), "keys rise (B42)");
        last = Some(key.to_vec());
        out.insert(key.to_vec(), value.to_vec());
    }
    Ok(out)
}
