//! Fills new nodes: takes a stream of items and of nodes that are kept, in key order, and builds
//! the levels above them up to a root. Nothing is changed in place.
//!
//! ```text
//!   level 1   held: a kept node | pending: entries of new and kept leaves > inner nodes > level 2
//!   level 0   held: a kept leaf | pending: items > leaves > level 1
//!   in order:       first       |      then
//! ```
//! *Split*: when more than two nodes' worth is pending, one node of the configured fill is written.
//! When a kept node follows, all pending items are divided into nodes of equal size, one if they
//! fit. *Merge*: less than [`min_used_bytes`] never becomes a separate node. It is merged with the
//! kept node that follows, else with the one before. For this reason one kept node is held back, or
//! taken back from the level above.
//!
//! Invariants: B51 with items of up to a third of a node's space (item.I1), every node but the root
//! uses at least a third of its space. B52 of the kept nodes at most one for each run of changed
//! ones is opened, at each level. B53 in memory are less than four nodes' worth for each level, and
//! two batches of new nodes, one of them being written. B54 all nodes below a root are written
//! before the root is returned.
//!
//! No locks.

use super::ahead::MergeAhead;
use super::store::StoredNode;
use super::waiting::Waiting;
use super::{Link, Tree, WHAT, empty_root};
use crate::format::item::MAX_VALUE_BYTES;
use crate::format::key::{KeyBytes, MAX_KEY_BYTES};
use crate::format::node::{
    ITEM_OVERHEAD_BYTES, MAX_LEVEL, NODE_HEADER_BYTES, Node, NodeBuilder, NodeHeader, NodePointer,
    POINTER_BYTES, Verified,
};
use crate::format::place::{Geometry, Place};
use crate::format::superblock::TreeRoot;
use crate::format::{corrupt, refused};
use forebay_base::codec::Writer as Encoder;
use forebay_base::task::BoxFuture;
use forebay_base::{Error, Result};
use std::future::{poll_fn, ready};
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

/// Nodes written at a time.
pub const BATCH_NODES: usize = 32;
/// Fill of nodes while items stream in, in percent of their space.
pub const FILL_PERCENT: usize = 90;

/// Space for items in a node, bytes.
pub fn room_bytes(geometry: &Geometry) -> usize {
    geometry.node_bytes() - NODE_HEADER_BYTES
}

/// Least use of every node but the root, bytes of items with their overhead: a third of its space.
pub fn min_used_bytes(geometry: &Geometry) -> usize {
    room_bytes(geometry) / 3
}

/// Places that a merge has given up and allocated. After success, `freed` may be reused once two
/// durable checkpoints have the new root. After a failure, `taken` is free at once, and `freed` has
/// no meaning. No place is in both: a merge does not replace nodes that it has made.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// Places of replaced nodes.
    pub freed: Vec<[Place; 2]>,
    /// Places of new nodes.
    pub taken: Vec<[Place; 2]>,
}

/// Pending input of one level: first `held`, then `pending`.
#[derive(Default)]
struct Level {
    held: Option<Link>,
    pending: Waiting,
}

impl Level {
    /// Appends an entry for a child.
    fn push_child(&mut self, low: &KeyBytes, pointer: &NodePointer) -> Result<()> {
        let mut value = [0; POINTER_BYTES];
        pointer.encode_into(&mut Encoder::new(WHAT, &mut value))?;
        self.pending.push(low.as_slice(), &value);
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.held.is_none() && self.pending.is_empty()
    }
}

/// Nodes that are being written, and those of them that will be cached.
struct Writing<'t> {
    done: BoxFuture<'t, Result<()>>,
    cached: Vec<Arc<StoredNode>>,
}

/// Fills new nodes of a tree.
pub(super) struct Writer<'t> {
    tree: &'t Tree,
    owner: u64,
    birth: u64,
    fill_percent: usize,
    levels: Vec<Level>,
    batch: Vec<Arc<StoredNode>>,
    /// The previous batch, which is being written.
    writing: Option<Writing<'t>>,
    /// A leaf replaced since the last batch was cached, so the leaves of this batch will be, too.
    is_hot: bool,
    ledger: &'t mut Ledger,
    ahead: MergeAhead,
    opened: u64,
    written: u64,
}

impl<'t> Writer<'t> {
    pub(super) fn new(
        tree: &'t Tree,
        owner: u64,
        birth: u64,
        fill_percent: usize,
        ledger: &'t mut Ledger,
    ) -> Self {
        let (levels, batch, writing) = (Vec::new(), Vec::new(), None);
        let fill_percent = fill_percent.clamp(70, 100);
        let (is_hot, opened, written) = (false, 0, 0);
        let ahead = MergeAhead::default();
        Self {
            tree,
            owner,
            birth,
            fill_percent,
            levels,
            batch,
            writing,
            is_hot,
            ledger,
            ahead,
            opened,
            written,
        }
    }

    /// Number of replaced nodes, and of new ones.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.opened, self.written)
    }

    /// Opens a node of the old tree, which will be replaced.
    pub(super) async fn open(&mut self, link: &Link) -> Result<Arc<StoredNode>> {
        let cached = self.tree.cached(link);
        self.is_hot |= cached.is_some() && link.level == 0;
        let ahead = self.ahead.take(&link.pointer);
        let node = match cached.or(ahead) {
            Some(node) => link.check_shape(&node.node()).map(|()| node)?,
            // It will be replaced, so it is not put into the cache.
            None => self.tree.load_stored(link).await?,
        };
        self.ledger.freed.push(link.pointer.places);
        self.opened += 1;
        Ok(node)
    }

    /// Called before leaf `n` below the node at `link` is opened: if leaves are opened in sequence,
    /// the following ones are read together.
    pub(super) async fn goes_to(&mut self, link: &Link, node: &StoredNode, n: usize) -> Result<()> {
        let child = self.tree.child(link, &node.node(), n)?;
        let Some(window) = self.ahead.window(&link.pointer, n, &child.pointer) else {
            return Ok(());
        };
        if self.tree.cached(&child).is_none() {
            let nodes = self.tree.children_ahead(link, node, n..n + window).await;
            // An error of read-ahead is ignored; opening that leaf reports it.
            self.ahead.put(nodes.unwrap_or_default());
        }
        Ok(())
    }

    /// Appends an item of a leaf.
    pub(super) async fn item(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        self.level(0)?.pending.push(key, value);
        self.settle_items().await
    }

    /// Appends some items of the leaf at `link`, unchanged.
    pub(super) async fn items(
        &mut self,
        link: &Link,
        leaf: &Node<'_>,
        items: Range<usize>,
    ) -> Result<()> {
        let pushed = self.level(0)?.pending.push_items(leaf, items);
        pushed.map_err(|n| too_long(link, leaf, n))?;
        self.settle_items().await
    }

    async fn settle_items(&mut self) -> Result<()> {
        let most = 2 * room_bytes(&self.tree.geometry);
        match self.level(0)?.pending.cost() > most {
            true => self.settle(0).await,
            false => Ok(()),
        }
    }

    /// Appends a node that is kept; nothing may be pending below its level (see
    /// [`drain_below`](Self::drain_below)). The node is opened after all if too little is pending
    /// before it.
    pub(super) async fn keep(&mut self, link: Link) -> Result<()> {
        let n = link.level;
        let least = self.least(n);
        let level = self.level(n)?;
        if !level.pending.is_empty() && level.pending.cost() < least {
            let node = self.open(&link).await?;
            let mut all = std::mem::take(&mut self.level(n)?.pending);
            self.take_entries(&link, &node.node(), &mut all)?;
            self.level(n)?.pending = all;
            self.assert_little_waits(n);
            return self.settle(n).await;
        }
        self.drain(n).await?;
        self.level(n)?.held = Some(link);
        Ok(())
    }

    /// Writes nodes of everything pending below a level. False if the rest is too little for a
    /// node: then the next input must be at a lower level.
    pub(super) async fn drain_below(&mut self, level: u8) -> Result<bool> {
        for n in 0..level {
            if !self.drain(n).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn drain(&mut self, n: u8) -> Result<bool> {
        let least = self.least(n);
        let level = self.level(n)?;
        if !level.pending.is_empty() && level.pending.cost() < least {
            if !self.borrow(n).await? {
                return Ok(false);
            }
            self.take_in_held(n).await?;
        }
        self.flush_level(n).await?;
        Ok(true)
    }

    /// Takes back the node before everything pending at level `n`: the last child of the next level
    /// with pending entries. False if no node comes before.
    async fn borrow(&mut self, n: u8) -> Result<bool> {
        let pending = &self.level(n)?.pending;
        let first = (!pending.is_empty()).then(|| pending.low());
        while self.level(n)?.held.is_none() {
            let above = self.levels.iter().skip(usize::from(n) + 1);
            let Some(up) = above.zip(1..).find_map(|(level, up)| (!level.is_empty()).then_some(up))
            else {
                return Ok(false);
            };
            let at: u8 = n + up;
            if self.level(at)?.pending.is_empty() {
                self.take_in_held(at).await?;
            }
            let g = self.tree.geometry;
            let level = self.level(at)?;
            let Some((key, value)) = level.pending.last() else { return Ok(false) };
            let (low, pointer) = (KeyBytes::copy_of(key), NodePointer::decode(value, &g)?);
            level.pending.pop_last();
            let (tree, level) = (self.owner, at - 1);
            let link = Link { pointer, tree, level, low, high: first, is_root: false };
            self.level(level)?.held = Some(link);
        }
        Ok(true)
    }

    /// Writes everything pending as nodes, whose entries are added to the next level.
    async fn flush_level(&mut self, n: u8) -> Result<()> {
        self.emit_held(n)?;
        while let Some(count) = self.cut(n) {
            self.emit_node(n, count).await?;
        }
        self.settle(n + 1).await
    }

    /// Opens the node that was held back, and puts its items before the pending ones.
    async fn take_in_held(&mut self, n: u8) -> Result<()> {
        let Some(held) = self.level(n)?.held.take() else { return Ok(()) };
        let node = self.open(&held).await?;
        let mut entries = Waiting::default();
        self.take_entries(&held, &node.node(), &mut entries)?;
        self.level(n)?.pending.put_before(entries);
        self.assert_little_waits(n);
        Ok(())
    }

    fn assert_little_waits(&self, n: u8) {
        let waits = self.levels.get(usize::from(n)).map_or(0, |level| level.pending.cost());
        let room = room_bytes(&self.tree.geometry);
        debug_assert!(waits <= 4 * room, "{waits} bytes wait at level {n} (B53)");
        debug_assert!(self.batch.len() < BATCH_NODES, "a batch went out when it was full (B53)");
    }

    /// Appends the entries of a node to `out`; the first child of an inner node gets its key back.
    fn take_entries(&self, link: &Link, node: &Node<'_>, out: &mut Waiting) -> Result<()> {
        let mut from = 0;
        if link.level > 0 {
            for (_, value) in (0..node.len()).filter_map(|n| node.raw(n)) {
                NodePointer::decode(value, &self.tree.geometry)?;
            }
            if let Some((_, value)) = node.raw(0) {
                out.push(link.low.as_slice(), value);
                from = 1;
            }
        }
        out.push_items(node, from..node.len()).map_err(|n| too_long(link, node, n))
    }

    /// Writes nodes, from this level up, of the configured fill where more than two nodes' worth is
    /// pending.
    async fn settle(&mut self, from: u8) -> Result<()> {
        let room = room_bytes(&self.tree.geometry);
        let fill = room * self.fill_percent / 100;
        let mut n = from;
        while usize::from(n) < self.levels.len() {
            while self.level(n)?.pending.cost() > 2 * room {
                self.emit_held(n)?;
                let mut sum = 0;
                let fits = self.level(n)?.pending.costs().take_while(|cost| {
                    sum += cost;
                    sum <= fill
                });
                let count = fits.count();
                self.emit_node(n, count).await?;
            }
            n += 1;
        }
        Ok(())
    }

    /// Number of pending entries for the next node when all of them are to be used up.
    fn cut(&self, n: u8) -> Option<usize> {
        let level = self.levels.get(usize::from(n)).filter(|level| !level.pending.is_empty())?;
        let room = room_bytes(&self.tree.geometry);
        let bytes = level.pending.cost();
        if bytes <= room {
            return Some(level.pending.len());
        }
        let value = if n == 0 { MAX_VALUE_BYTES } else { POINTER_BYTES };
        let largest = ITEM_OVERHEAD_BYTES + MAX_KEY_BYTES + value;
        let nodes = bytes.div_ceil(room - largest / 2);
        let target = bytes / nodes;
        let mut sum = 0;
        for (count, cost) in level.pending.costs().enumerate() {
            // The division nearest to the target is off by half an entry at most.
            if count > 0 && (sum + cost).abs_diff(target) > sum.abs_diff(target) {
                return Some(count);
            }
            sum += cost;
        }
        Some(level.pending.len())
    }

    /// Writes the first `count` pending entries as a node, and adds it to the next level.
    async fn emit_node(&mut self, n: u8, count: usize) -> Result<()> {
        let places = self.tree.store.allocate().await?;
        self.ledger.taken.push(places);
        let (geometry, seal) = (self.tree.geometry, self.tree.seal);
        let owner = self.owner;
        let mut bytes = vec![0; geometry.node_bytes()].into_boxed_slice();
        let mut builder = NodeBuilder::new(&mut bytes, n, geometry)?;
        let pending = &mut self.level(n)?.pending;
        let low = pending.low();
        if !fill(&mut builder, pending, n, count.max(1))? {
            return Err(refused(WHAT, format!("{count} entries are too many for a node")));
        }
        pending.drop_first(count.max(1));
        let count = builder.len();
        let header = NodeHeader { places, owner, birth: self.birth, level: n };
        let pointer = builder.finish(seal, header)?;
        debug_assert!(
            Node::follow(&bytes, seal, &pointer, 0, owner, n, &geometry)
                .is_ok_and(|node| node.len() == count),
            "B21: it is what will be read"
        );
        let known = Verified::made(header, &pointer, count);
        self.batch.push(Arc::new(StoredNode::made(bytes, known)));
        self.written += 1;
        self.level(n + 1)?.push_child(&low, &pointer)?;
        if self.batch.len() >= BATCH_NODES {
            self.write_batch().await?;
        }
        Ok(())
    }

    fn emit_held(&mut self, n: u8) -> Result<()> {
        let Some(held) = self.level(n)?.held.take() else { return Ok(()) };
        self.level(n + 1)?.push_child(&held.low, &held.pointer)
    }

    /// Begins to write the batch when the previous one is written; the next one is filled in the
    /// meantime (B53).
    async fn write_batch(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        self.written_out().await?;
        if batch.is_empty() {
            return Ok(());
        }
        let is_kept = |node: &&Arc<StoredNode>| self.is_hot || node.node().header.level > 0;
        let cached = batch.iter().filter(is_kept).cloned().collect();
        let mut done = self.tree.store.write(batch);
        let early = poll_fn(|cx| Poll::Ready(done.as_mut().poll(cx))).await;
        if let Poll::Ready(result) = early {
            done = Box::pin(ready(result));
        }
        self.writing = Some(Writing { done, cached });
        self.is_hot = false;
        Ok(())
    }

    /// Waits for the batch that is being written, also after an error, so that no write of a failed
    /// merge is in flight.
    pub(super) async fn written_out(&mut self) -> Result<()> {
        let Some(Writing { done, cached }) = self.writing.take() else { return Ok(()) };
        done.await?;
        cached.iter().for_each(|node| self.tree.cache.insert(node));
        Ok(())
    }

    /// Ends the input: writes what is pending, and returns the root.
    pub(super) async fn finish(&mut self, since: u64) -> Result<TreeRoot> {
        let mut root = empty_root(self.owner, since);
        for n in 0..=MAX_LEVEL + 1 {
            if self.levels.get(usize::from(n)).is_none_or(Level::is_empty) {
                if self.levels.iter().all(Level::is_empty) {
                    break;
                }
                continue;
            }
            let (least, room) = (self.least(n), room_bytes(&self.tree.geometry));
            let level = self.level(n)?;
            let has_little = !level.pending.is_empty() && level.pending.cost() < least;
            if has_little && self.borrow(n).await? {
                self.take_in_held(n).await?;
            }
            let is_top = self.levels.iter().skip(usize::from(n) + 1).all(Level::is_empty);
            let level = self.level(n)?;
            if is_top && level.held.is_some() && level.pending.is_empty() {
                let held = level.held.take().map(|held| held.pointer);
                set_root(&mut root, held, n);
            } else if is_top && level.held.is_none() && n > 0 && level.pending.len() == 1 {
                // A root with one child is not needed: the child becomes the root.
                let g = self.tree.geometry;
                let level = self.level(n)?;
                let child = level.pending.first().map(|(_, value)| NodePointer::decode(value, &g));
                let child = child.transpose()?;
                level.pending.drop_first(1);
                set_root(&mut root, child, n - 1);
            } else if is_top && level.held.is_none() && level.pending.cost() <= room {
                let count = level.pending.len();
                self.emit_node(n, count).await?;
            } else {
                self.flush_level(n).await?;
            }
        }
        self.write_batch().await?;
        self.written_out().await?;
        debug_assert!(self.batch.is_empty(), "everything below a root is written (B54)");
        Ok(root)
    }

    /// Least bytes of a node at a level, with the first key of an inner node, which is counted but
    /// not stored.
    fn least(&self, level: u8) -> usize {
        min_used_bytes(&self.tree.geometry) + if level > 0 { MAX_KEY_BYTES } else { 0 }
    }

    fn level(&mut self, n: u8) -> Result<&mut Level> {
        // One level more than the maximum, because a root's entry is added there before it is known
        // to be the root.
        if n > MAX_LEVEL + 1 {
            return Err(refused(WHAT, format!("a tree of more than {MAX_LEVEL} levels")));
        }
        let n = usize::from(n);
        while self.levels.len() <= n {
            self.levels.push(Level::default());
        }
        Ok(&mut self.levels[n])
    }
}

/// Adds the first entries to a node; the first key of an inner node is empty (btree.B12). False:
/// they do not fit.
fn fill(builder: &mut NodeBuilder<'_>, pending: &Waiting, level: u8, count: usize) -> Result<bool> {
    let (items, mut lens) = pending.first_items(count);
    if level == 0 {
        return builder.items(items, lens);
    }
    let first = pending.first().map_or(&[][..], |(_, value)| value);
    let skip = lens.next().map_or(0, usize::from);
    Ok(builder.raw(&[], first)? && builder.items(&items[skip..], lens)?)
}

fn too_long(link: &Link, node: &Node<'_>, n: usize) -> Error {
    let bytes = node.raw(n).map_or(0, |(_, value)| value.len());
    corrupt(WHAT, format!("item {n} at {:?}: {bytes} bytes", link.pointer.places))
}

fn set_root(root: &mut TreeRoot, pointer: Option<NodePointer>, level: u8) {
    let Some(pointer) = pointer else { return };
    root.places = Some(pointer.places);
    (root.birth, root.sum, root.level) = (pointer.birth, pointer.sum, level);
}
