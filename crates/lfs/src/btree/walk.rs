//! Visits the places of all nodes of a tree, without reading leaves.
//!
//! Invariants: B101 each node below the root is reported once, and only inner nodes are read. B102
//! it ends: no path is longer than the root's level. B103 inner nodes below one node are read
//! together, 16 at most.
//!
//! No locks.

use super::store::StoredNode;
use super::{Link, Tree};
use crate::format::place::Place;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use forebay_base::task::{BoxFuture, join_all};
use std::collections::VecDeque;
use std::sync::Arc;

/// Most inner nodes that are read at the same time.
const TOGETHER: usize = 16;

/// Called with the places of each node. False: the nodes below it are skipped.
type Seen<'a> = dyn FnMut([Place; 2]) -> Result<bool> + Send + 'a;

/// An inner node whose children are being reported.
struct Parent {
    link: Link,
    node: Arc<StoredNode>,
    /// The number of the next child to be reported.
    next: usize,
    /// Inner nodes that were reported, and whose children are not yet.
    inner: VecDeque<Link>,
}

impl Tree {
    /// Reports the places of every node of the tree, each node before those below it.
    pub async fn places(&self, root: &TreeRoot, seen: &mut Seen<'_>) -> Result<()> {
        let mut path: Vec<Parent> = Vec::new();
        let mut next = match Link::root(root)? {
            Some(link) if seen(link.pointer.places)? && link.level > 0 => Some(link),
            _ => None,
        };
        loop {
            if let Some(link) = next.take() {
                let node = self.load(&link).await?;
                path.push(Parent { link, node, next: 0, inner: VecDeque::new() });
            }
            let Some(parent) = path.last_mut() else { return Ok(()) };
            if parent.inner.is_empty() {
                self.report(parent, seen)?;
                self.load_together(&parent.inner).await;
            }
            next = parent.inner.pop_front();
            if next.is_none() {
                path.pop();
            }
        }
    }

    /// Reports children of a node, until the last one or until enough of them are inner nodes.
    fn report(&self, parent: &mut Parent, seen: &mut Seen<'_>) -> Result<()> {
        let Parent { link, node, next, inner } = parent;
        while inner.len() < TOGETHER
            && let Some(child) = link.child(&node.node(), *next, &self.geometry)?
        {
            *next += 1;
            if seen(child.pointer.places)? && child.level > 0 {
                inner.push_back(child);
            }
        }
        Ok(())
    }

    /// Reads nodes into the cache. An error is ignored here: loading the node meets it again, and
    /// then reads the second copy.
    async fn load_together(&self, links: &VecDeque<Link>) {
        let wanted: Vec<&Link> = links.iter().filter(|link| self.cached(link).is_none()).collect();
        if wanted.len() < 2 {
            return;
        }
        let read = |link: &&Link| -> BoxFuture<'_, Result<AlignedBuf>> {
            self.store.read(link.pointer.places[0])
        };
        for (bytes, link) in join_all(wanted.iter().map(read)).await.into_iter().zip(wanted) {
            if let Ok(node) = bytes.and_then(|bytes| self.verified(link, 0, &bytes)) {
                self.cache.insert(&node);
            }
        }
    }
}
