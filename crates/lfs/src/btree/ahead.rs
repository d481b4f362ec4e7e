//! Read-ahead of leaves: leaves that are adjacent in the tree, and often on the device, are read
//! together.
//!
//! Invariants: B45 leaves read ahead are verified as any node (store.B21); an error of read-ahead
//! is ignored, because the reader of that leaf gets it itself. B46 read-ahead covers the requested
//! number of leaves. It skips cached ones, except in a gap between wanted ones.
//! [`Tree::read_ahead`] continues below the next parents.
//!
//! No locks.

use super::store::StoredNode;
use super::{Link, Tree};
use crate::format::key::Key;
use crate::format::node::NodePointer;
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;
use std::ops::Range;
use std::sync::Arc;

/// Most unwanted nodes that one transfer reads to reach the next wanted one.
const GAP_NODES: u64 = 2;

/// Leaves to read in one transfer: device offset of the first, all places from there on (gaps
/// included), and the wanted leaves with their index among these places.
struct Run {
    offset: u64,
    places: Vec<Place>,
    wanted: Vec<(usize, Link)>,
}

impl Tree {
    /// Loads up to `most` leaves into the cache, beginning with the leaf of `key`.
    pub(crate) async fn read_ahead(&self, root: &TreeRoot, key: Key, most: usize) -> Result<()> {
        let (mut key, mut left) = (key.to_bytes(), most);
        while left > 0 {
            let Some(mut link) = Link::root(root)? else { break };
            while link.level > 1 {
                let node = self.load(&link).await?;
                let inner = node.node();
                link = self.child(&link, &inner, inner.child_for(key.as_slice()))?;
            }
            if link.level == 0 {
                break;
            }
            let node = self.load(&link).await?;
            let first = node.node().child_for(key.as_slice());
            for node in self.children_ahead(&link, &node, first..first + left).await? {
                self.cache.insert(&node);
            }
            left -= left.min(node.node().len() - first);
            // The following leaves are below the next node of that level (B46).
            let Some(high) = link.high else { break };
            key = high;
        }
        Ok(())
    }

    /// The children of the node at `link` that are not cached, as far as they can be read.
    pub(super) async fn children_ahead(
        &self,
        link: &Link,
        node: &StoredNode,
        children: Range<usize>,
    ) -> Result<Vec<Arc<StoredNode>>> {
        let inner = node.node();
        let mut wanted = Vec::new();
        for n in children.start..inner.len().min(children.end) {
            let child = self.child(link, &inner, n)?;
            let place = child.pointer.places[0];
            if !self.cache.has(place)
                && let Some(offset) = self.store.offset_of(place)
            {
                wanted.push((offset, child));
            }
        }
        wanted.sort_unstable_by_key(|(offset, _)| *offset);
        let mut had = Vec::with_capacity(wanted.len());
        for run in self.runs(wanted) {
            self.read_run(&run, &mut had).await?;
        }
        Ok(had)
    }

    /// Groups nodes, which are sorted by device offset, into transfers.
    fn runs(&self, wanted: Vec<(u64, Link)>) -> Vec<Run> {
        let bytes = self.geometry.node_bytes() as u64;
        let mut runs: Vec<Run> = Vec::new();
        for (offset, link) in wanted {
            let place = link.pointer.places[0];
            let joins = runs.last_mut().and_then(|run| {
                let at = (offset - run.offset) / bytes;
                let gap = at.checked_sub(run.places.len() as u64)?;
                let same = run.places[0].segment == place.segment
                    && (offset - run.offset).is_multiple_of(bytes);
                (same && gap <= GAP_NODES).then_some((run, at, gap))
            });
            let Some((run, at, gap)) = joins else {
                runs.push(Run { offset, places: vec![place], wanted: vec![(0, link)] });
                continue;
            };
            let before = |n: u64| Place::new(place.segment, place.offset - (n * bytes) as u32);
            run.places.extend((0..=gap).rev().map(before));
            run.wanted.push((at as usize, link));
        }
        runs
    }

    async fn read_run(&self, run: &Run, nodes: &mut Vec<Arc<StoredNode>>) -> Result<()> {
        let (node_bytes, mut had) = (self.geometry.node_bytes(), 0);
        while had < run.places.len() {
            let bytes = self.store.read_run(&run.places[had..]).await?;
            let count = bytes.len() / node_bytes;
            if count == 0 {
                break;
            }
            for (at, link) in run.wanted.iter().filter(|(at, _)| (had..had + count).contains(at)) {
                let from = (at - had) * node_bytes;
                // B45
                nodes.extend(self.verified(link, 0, &bytes[from..from + node_bytes]));
            }
            had += count;
        }
        Ok(())
    }
}

/// Leaves that a merge has read ahead. The merge replaces them, so they are not put into the cache.
#[derive(Default)]
pub(super) struct MergeAhead {
    nodes: Vec<Arc<StoredNode>>,
    /// The child that was opened last: its parent, and its number.
    last: Option<(NodePointer, usize)>,
    window: usize,
}

/// Most leaves that a merge reads ahead.
const MERGE_WINDOW: usize = 64;

impl MergeAhead {
    /// Called when child `n` of a node is opened. Returns the number of leaves to read from it on;
    /// `None`: it is already read, or it does not follow the child that was opened last.
    pub fn window(&mut self, parent: &NodePointer, n: usize, child: &NodePointer) -> Option<usize> {
        let last = self.last.replace((*parent, n));
        let goes_on = n == 0 || last.is_some_and(|(node, at)| (node, at + 1) == (*parent, n));
        if !goes_on {
            self.window = 1;
            return None;
        }
        if self.nodes.iter().any(|node| node.places() == child.places) {
            return None;
        }
        self.window = (self.window.max(1) * 2).min(MERGE_WINDOW);
        Some(self.window)
    }

    /// Stores the leaves that were read.
    pub fn put(&mut self, nodes: Vec<Arc<StoredNode>>) {
        self.nodes = nodes;
    }

    /// The node that matches the pointer completely, if it was read.
    pub fn take(&mut self, pointer: &NodePointer) -> Option<Arc<StoredNode>> {
        let same = |node: &Arc<StoredNode>| {
            let header = node.node().header;
            (header.places, header.birth, node.node().sum)
                == (pointer.places, pointer.birth, pointer.sum)
        };
        let at = self.nodes.iter().position(same)?;
        Some(self.nodes.swap_remove(at))
    }
}
