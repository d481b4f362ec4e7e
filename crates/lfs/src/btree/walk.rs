//! Visits the places of all nodes of a tree, without reading leaves.
//!
//! Invariants: B101 each node below the root is reported once, and only inner nodes are read. B102
//! it ends: no path is longer than the root's level.
//!
//! No locks.

use super::store::StoredNode;
use super::{Link, Tree};
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;
use std::sync::Arc;

impl Tree {
    /// Reports the places of every node below `root`, the root first. Nodes below one for which
    /// `seen` returns false are skipped.
    pub async fn places(
        &self,
        root: &TreeRoot,
        seen: &mut (dyn FnMut([Place; 2]) -> Result<bool> + Send),
    ) -> Result<()> {
        let mut path: Vec<(Link, Arc<StoredNode>, usize)> = Vec::new();
        let mut next = Link::root(root)?;
        loop {
            if let Some(link) = next.take()
                && seen(link.pointer.places)?
                && link.level > 0
            {
                let node = self.load(&link).await?;
                path.push((link, node, 0));
            }
            let Some((link, node, n)) = path.last_mut() else { return Ok(()) };
            next = link.child(&node.node(), *n, &self.geometry)?;
            *n += 1;
            if next.is_none() {
                path.pop();
            }
        }
    }
}
