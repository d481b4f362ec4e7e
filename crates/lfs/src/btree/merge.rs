//! Merges changes into a tree, and builds a tree from all of its items.
//!
//! The merge walks the old tree along the changes. A node without a change below it is kept. Other
//! nodes are opened, and their items, changed, are passed to the writer, which fills new nodes.
//!
//! Invariants: B61 the new root has the items of the old one with the changes applied;
//! [`Tree::rewrite`] of the same items is the oracle. B62 in memory are one path of the old tree,
//! and at most 64 leaves read ahead. B63 the merge opens and gives up the nodes with a change below
//! them, and about as many neighbours: at most twice [`Merged::touched`], and one for each level.
//!
//! No locks.

use super::change::{Change, Changes};
use super::store::StoredNode;
use super::write::{FILL_PERCENT, Ledger, Writer};
use super::{Link, Tree, WHAT};
use crate::format::refused;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;
use std::sync::Arc;

/// Result of a merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Merged {
    /// The root of the new tree.
    pub root: TreeRoot,
    /// Changes that were applied.
    pub changes: u64,
    /// Nodes of the old tree with a change below them.
    pub touched: u64,
    /// Of these, the leaves.
    pub touched_leaves: u64,
    /// Nodes of the old tree that were replaced, `touched` included.
    pub replaced: u64,
    /// New nodes.
    pub written: u64,
}

impl Merged {
    /// The tree stays as it is.
    fn unchanged(root: &TreeRoot) -> Self {
        let (changes, touched, touched_leaves, replaced, written) = (0, 0, 0, 0, 0);
        Self { root: *root, changes, touched, touched_leaves, replaced, written }
    }
}

/// Changes, of which the next one is already read.
struct Stream<'c> {
    changes: &'c mut dyn Changes,
    next: Option<Change>,
    taken: u64,
}

impl<'c> Stream<'c> {
    async fn new(changes: &'c mut dyn Changes) -> Result<Self> {
        let next = changes.next().await?;
        Ok(Self { changes, next, taken: 0 })
    }

    /// Whether the next change is below `high`.
    fn has_below(&self, high: Option<&[u8]>) -> bool {
        self.next.as_ref().is_some_and(|change| high.is_none_or(|high| change.key() < high))
    }

    async fn take(&mut self) -> Result<Option<Change>> {
        let Some(taken) = self.next.take() else { return Ok(None) };
        self.next = self.changes.next().await?;
        self.taken += 1;
        if self.next.as_ref().is_some_and(|next| next.key() <= taken.key()) {
            return Err(refused(WHAT, format!("changes are not in order at {:02x?}", taken.key())));
        }
        Ok(Some(taken))
    }
}

/// An inner node of the old tree that is being replaced.
struct Frame {
    link: Link,
    node: Arc<StoredNode>,
    next: usize,
}

impl Tree {
    /// Merges changes into the tree below `old`; new nodes have birth `birth`. All of them are
    /// written when this returns. `ledger` has the places that were allocated and given up, also
    /// after an error.
    pub async fn merge(
        &self,
        old: &TreeRoot,
        changes: &mut dyn Changes,
        birth: u64,
        ledger: &mut Ledger,
    ) -> Result<Merged> {
        let mut stream = Stream::new(changes).await?;
        if stream.next.is_none() {
            return Ok(Merged::unchanged(old));
        }
        let mut writer = Writer::new(self, old.tree, birth, FILL_PERCENT, ledger);
        let merged = self.merge_into(&mut writer, old, &mut stream).await;
        // Waits for all writes of nodes, also after an error: none is in flight when the caller
        // releases their places (checkpoint.B73).
        writer.written_out().await.and(merged)
    }

    async fn merge_into(
        &self,
        writer: &mut Writer<'_>,
        old: &TreeRoot,
        stream: &mut Stream<'_>,
    ) -> Result<Merged> {
        let (mut touched, mut touched_leaves) = (0, 0);
        let mut path: Vec<Frame> = Vec::new();
        let mut next = Link::root(old)?;
        loop {
            if let Some(link) = next.take() {
                let has_change = stream.has_below(link.high.as_ref().map(|key| key.as_slice()));
                touched += u64::from(has_change);
                touched_leaves += u64::from(has_change && link.level == 0);
                if !has_change && writer.drain_below(link.level).await? {
                    writer.keep(link).await?;
                } else {
                    if let (0, Some(frame)) = (link.level, path.last()) {
                        writer.goes_to(&frame.link, &frame.node, frame.next - 1).await?;
                    }
                    let node = writer.open(&link).await?;
                    if link.level == 0 {
                        merge_leaf(writer, &link, &node, stream).await?;
                    } else {
                        path.push(Frame { link, node, next: 0 });
                    }
                }
            }
            debug_assert!(path.len() <= usize::from(old.level), "one path in memory (B62)");
            let Some(frame) = path.last_mut() else { break };
            next = frame.link.child(&frame.node.node(), frame.next, &self.geometry)?;
            frame.next += 1;
            if next.is_none() {
                path.pop();
            }
        }
        // Changes remain here only if the old tree was empty.
        while let Some(change) = stream.take().await? {
            put(writer, &change).await?;
        }
        let root = writer.finish(old.since).await?;
        let (replaced, written) = writer.counts();
        Ok(Merged { root, changes: stream.taken, touched, touched_leaves, replaced, written })
    }

    /// Builds a tree of these items, with nodes filled to `fill_percent` (70 to 100) of their
    /// space. The old tree is not touched: `ledger.freed` gets nothing.
    pub async fn rewrite(
        &self,
        tree: u64,
        since: u64,
        items: &mut dyn Changes,
        birth: u64,
        fill_percent: usize,
        ledger: &mut Ledger,
    ) -> Result<Merged> {
        let mut stream = Stream::new(items).await?;
        let mut writer = Writer::new(self, tree, birth, fill_percent, ledger);
        let root = put_all(&mut writer, &mut stream, since).await;
        let root = writer.written_out().await.and(root)?;
        let (replaced, written) = writer.counts();
        let changes = stream.taken;
        Ok(Merged { root, changes, replaced, written, ..Merged::unchanged(&root) })
    }
}

async fn put_all(writer: &mut Writer<'_>, stream: &mut Stream<'_>, since: u64) -> Result<TreeRoot> {
    while let Some(change) = stream.take().await? {
        put(writer, &change).await?;
    }
    writer.finish(since).await
}

async fn put(writer: &mut Writer<'_>, change: &Change) -> Result<()> {
    match change.value() {
        Some(value) => writer.item(change.key(), value).await,
        None => Ok(()),
    }
}

/// Merges the items of a leaf with the changes in its range, in order.
async fn merge_leaf(
    writer: &mut Writer<'_>,
    link: &Link,
    leaf: &StoredNode,
    stream: &mut Stream<'_>,
) -> Result<()> {
    let (node, mut from) = (leaf.node(), 0);
    while from < node.len() {
        // Items before the next change are copied unchanged.
        let (upto, is_changed) = match stream.next.as_ref().map(|next| node.search(next.key())) {
            Some(Ok(n)) => (n, true),
            Some(Err(n)) => (n, false),
            None => (node.len(), false),
        };
        if upto > from {
            writer.items(link, &node, from..upto).await?;
        }
        from = upto + usize::from(is_changed);
        if upto < node.len()
            && let Some(change) = stream.take().await?
        {
            put(writer, &change).await?;
        }
    }
    while stream.has_below(link.high.as_ref().map(|key| key.as_slice())) {
        if let Some(change) = stream.take().await? {
            put(writer, &change).await?;
        }
    }
    Ok(())
}
