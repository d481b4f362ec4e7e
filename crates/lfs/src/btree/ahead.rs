//! Reading ahead: leaves that lie one behind the other in the tree, and often on the device, are had
//! together.
//!
//! Invariants: B45 what is read ahead is verified as any node is (B21), and what cannot be had is left to who
//! asks for it. B46 it is read only where it is not in the cache, and as much as is asked for, whatever nodes
//! of the level above lead to it.
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

/// Places that are read over to get at the next one that is wanted, at most, in one transfer.
const GAP_NODES: u64 = 2;

/// Leaves that are read in one transfer: where the first is on the device, and which of the places from there
/// on are wanted.
struct Run {
    offset: u64,
    places: Vec<Place>,
    wanted: Vec<(usize, Link)>,
}

impl Tree {
    /// Brings up to `most` leaves into the cache, from the one on that `key` would be in.
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
            // Those that follow are below the next node of that level (B46).
            let Some(high) = link.high else { break };
            key = high;
        }
        Ok(())
    }

    /// Those of the children of the node that `link` leads to that are not in the cache, as far as they can
    /// be had.
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

    /// What can be read together, of what is sorted by where it is.
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

/// Leaves that a merge has read ahead of itself. They are on their way out, and not put into the cache.
#[derive(Default)]
pub(super) struct MergeAhead {
    nodes: Vec<Arc<StoredNode>>,
    /// Which child of which node was opened last.
    last: Option<(NodePointer, usize)>,
    window: usize,
}

/// Leaves that a merge reads ahead, at most.
const MERGE_WINDOW: usize = 64;

impl MergeAhead {
    /// Child `n` of a node is opened. How many are to be read from there on; none: it is here, or it is not
    /// the next one.
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

    /// From now on these are here.
    pub fn put(&mut self, nodes: Vec<Arc<StoredNode>>) {
        self.nodes = nodes;
    }

    /// The node that all of the pointer says, if it was read.
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
