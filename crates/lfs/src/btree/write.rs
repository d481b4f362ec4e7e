//! How new nodes are filled: a stream of items and of nodes that stay as they are goes in, in key order,
//! level by level, and a root comes out. Nothing is changed in place.
//!
//! ```text
//!   level 1   held: a node that stays | pending: entries of new and kept leaves > inner nodes > level 2
//!   level 0   held: a leaf that stays | pending: items > leaves > level 1
//!   in order:         first           |      then
//! ```
//! *Split*: as soon as more than two nodes' worth is pending, one node of the stated fill goes out; what is
//! there when a kept node follows is cut into nodes of equal size, one if it fits. *Merge*: less than
//! [`min_used_bytes`] never becomes a node of its own: it takes in the kept node that follows, else the one
//! before, which is why one is held back, or had back from the level above.
//!
//! Invariants: B51 with items of up to a third of a node's room (I1), every node but the root uses at least
//! a third of its room. B52 of the kept nodes at most one for each run of changed ones is opened, at each
//! level. B53 in memory are, for each level, less than four nodes' worth, and one batch of new nodes. B54
//! all nodes below a root are written before it is given.
//!
//! No locks.

use super::ahead::MergeAhead;
use super::store::StoredNode;
use super::{Link, Tree, WHAT, empty_root};
use crate::format::item::MAX_VALUE_BYTES;
use crate::format::key::{KeyBytes, MAX_KEY_BYTES};
use crate::format::node::{
    ITEM_OVERHEAD_BYTES, MAX_LEVEL, NODE_HEADER_BYTES, Node, NodeBuilder, NodeHeader, NodePointer,
    POINTER_BYTES,
};
use crate::format::place::{Geometry, Place};
use crate::format::superblock::TreeRoot;
use crate::format::{corrupt, refused};
use forebay_base::Result;
use forebay_base::buf::AlignedBuf;
use forebay_base::codec::Writer as Encoder;
use std::collections::VecDeque;
use std::sync::Arc;

/// Nodes written at a time.
pub const BATCH_NODES: usize = 32;
/// How full nodes become while items stream in, in hundredths of their room.
pub const FILL_PERCENT: usize = 90;

/// Bytes for items in a node.
pub fn room_bytes(geometry: &Geometry) -> usize {
    geometry.node_bytes() - NODE_HEADER_BYTES
}

/// What every node but the root uses at least, bytes of items with their overhead: a third of the room.
pub fn min_used_bytes(geometry: &Geometry) -> usize {
    room_bytes(geometry) / 3
}

/// Places that a merge gave up and took. If it succeeded, `freed` is free once the new root is durable
/// (twice); if it failed, `taken` is free at once, and `freed` means nothing. No place
/// is in both: a new node is not replaced by the merge that made it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Ledger {
    /// Of nodes that were replaced.
    pub freed: Vec<[Place; 2]>,
    /// Of new nodes.
    pub taken: Vec<[Place; 2]>,
}

/// Key and value of an extent of one block, or of a child, are kept without an allocation of their own: a
/// merge goes over all items of each leaf that it changes.
const SMALL_BYTES: usize = 60;

/// Key and value in stored form.
pub(super) struct Entry {
    bytes: EntryBytes,
    key_bytes: usize,
}

enum EntryBytes {
    Small([u8; SMALL_BYTES], u8),
    Large(Box<[u8]>),
}

impl Entry {
    pub(super) fn new(key: &[u8], value: &[u8]) -> Self {
        let len = key.len() + value.len();
        let bytes = if len <= SMALL_BYTES {
            let mut bytes = [0; SMALL_BYTES];
            bytes[..key.len()].copy_from_slice(key);
            bytes[key.len()..len].copy_from_slice(value);
            EntryBytes::Small(bytes, len as u8)
        } else {
            EntryBytes::Large([key, value].concat().into_boxed_slice())
        };
        Self { bytes, key_bytes: key.len() }
    }

    fn bytes(&self) -> &[u8] {
        match &self.bytes {
            EntryBytes::Small(bytes, len) => &bytes[..usize::from(*len)],
            EntryBytes::Large(bytes) => bytes,
        }
    }

    /// A node's entry in its parent.
    fn of_child(low: &KeyBytes, pointer: &NodePointer) -> Result<Self> {
        let mut value = [0; POINTER_BYTES];
        pointer.encode_into(&mut Encoder::new(WHAT, &mut value))?;
        Ok(Self::new(low.as_slice(), &value))
    }

    fn key(&self) -> &[u8] {
        &self.bytes()[..self.key_bytes]
    }

    fn value(&self) -> &[u8] {
        &self.bytes()[self.key_bytes..]
    }

    fn cost(&self) -> usize {
        ITEM_OVERHEAD_BYTES + self.bytes().len()
    }
}

/// What waits at one level: first `held`, then `pending`.
#[derive(Default)]
struct Level {
    held: Option<Link>,
    pending: VecDeque<Entry>,
    pending_bytes: usize,
}

impl Level {
    fn push(&mut self, entry: Entry) {
        self.pending_bytes += entry.cost();
        self.pending.push_back(entry);
    }

    fn is_empty(&self) -> bool {
        self.held.is_none() && self.pending.is_empty()
    }
}

/// See the module.
pub(super) struct Writer<'t> {
    tree: &'t Tree,
    owner: u64,
    birth: u64,
    fill_percent: usize,
    levels: Vec<Level>,
    batch: Vec<Arc<StoredNode>>,
    /// A replaced leaf was in the cache: so will be the new ones.
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
        let (levels, batch) = (Vec::new(), Vec::new());
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
            is_hot,
            ledger,
            ahead,
            opened,
            written,
        }
    }

    /// Nodes that were replaced, and new ones.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.opened, self.written)
    }

    /// Opens a node of the old tree that will be replaced.
    pub(super) async fn open(&mut self, link: &Link) -> Result<Arc<StoredNode>> {
        let cached = self.tree.cached(link);
        self.is_hot |= cached.is_some() && link.level == 0;
        let ahead = self.ahead.take(&link.pointer);
        let node = match cached.or(ahead) {
            Some(node) => link.check_shape(&node.node()).map(|()| node)?,
            // It is on its way out: not worth a place in the cache.
            None => self.tree.load_stored(link).await?,
        };
        self.ledger.freed.push(link.pointer.places);
        self.opened += 1;
        Ok(node)
    }

    /// Child `n` of the node that `link` leads to, a leaf, will be opened next: where leaves are opened one
    /// after the other, those that follow are read together.
    pub(super) async fn goes_to(&mut self, link: &Link, node: &StoredNode, n: usize) -> Result<()> {
        let child = self.tree.child(link, &node.node(), n)?;
        let Some(window) = self.ahead.window(&link.pointer, n, &child.pointer) else {
            return Ok(());
        };
        if self.tree.cached(&child).is_none() {
            let nodes = self.tree.children_ahead(link, node, n..n + window).await;
            // Whoever opens what could not be had finds out why.
            self.ahead.put(nodes.unwrap_or_default());
        }
        Ok(())
    }

    /// The next item of a leaf.
    pub(super) async fn item(&mut self, entry: Entry) -> Result<()> {
        self.level(0)?.push(entry);
        self.settle(0).await
    }

    /// The next thing is a node that stays as it is; nothing may wait below its level (see
    /// [`drain_below`](Self::drain_below)). It is opened after all if too little waits before it.
    pub(super) async fn keep(&mut self, link: Link) -> Result<()> {
        let n = link.level;
        let least = self.least(n);
        let level = self.level(n)?;
        if !level.pending.is_empty() && level.pending_bytes < least {
            let node = self.open(&link).await?;
            for entry in self.entries(&link, &node.node())? {
                self.level(n)?.push(entry);
            }
            self.assert_little_waits(n);
            return self.settle(n).await;
        }
        self.drain(n).await?;
        self.level(n)?.held = Some(link);
        Ok(())
    }

    /// Makes nodes of all that waits below a level. False if something is left that is too little for one:
    /// then what comes next must be given at a lower level.
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
        if !level.pending.is_empty() && level.pending_bytes < least {
            if !self.borrow(n).await? {
                return Ok(false);
            }
            self.take_in_held(n).await?;
        }
        self.flush_level(n).await?;
        Ok(true)
    }

    /// Holds back again the node that comes before all that is pending at level `n`: the last one below
    /// what waits at the next level that has anything. False if nothing comes before.
    async fn borrow(&mut self, n: u8) -> Result<bool> {
        let first = self.level(n)?.pending.front().map(|entry| KeyBytes::copy_of(entry.key()));
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
            let Some(last) = level.pending.pop_back() else { return Ok(false) };
            level.pending_bytes -= last.cost();
            let (tree, low) = (self.owner, KeyBytes::copy_of(last.key()));
            let pointer = NodePointer::decode(last.value(), &g)?;
            let level = at - 1;
            let link = Link { pointer, tree, level, low, high: first, is_root: false };
            self.level(level)?.held = Some(link);
        }
        Ok(true)
    }

    /// Hands all that waits to the next level.
    async fn flush_level(&mut self, n: u8) -> Result<()> {
        self.emit_held(n)?;
        while let Some(count) = self.cut(n) {
            self.emit_node(n, count).await?;
        }
        self.settle(n + 1).await
    }

    /// Opens the node that was held back, and puts what is in it before what is pending.
    async fn take_in_held(&mut self, n: u8) -> Result<()> {
        let Some(held) = self.level(n)?.held.take() else { return Ok(()) };
        let node = self.open(&held).await?;
        let entries = self.entries(&held, &node.node())?;
        let level = self.level(n)?;
        for entry in entries.into_iter().rev() {
            level.pending_bytes += entry.cost();
            level.pending.push_front(entry);
        }
        self.assert_little_waits(n);
        Ok(())
    }

    fn assert_little_waits(&self, n: u8) {
        let waits = self.levels.get(usize::from(n)).map_or(0, |level| level.pending_bytes);
        let room = room_bytes(&self.tree.geometry);
        debug_assert!(waits <= 4 * room, "{waits} bytes wait at level {n} (B53)");
        debug_assert!(self.batch.len() < BATCH_NODES, "a batch went out when it was full (B53)");
    }

    /// What is in a node; the first child of an inner one gets its key back.
    fn entries(&self, link: &Link, node: &Node<'_>) -> Result<Vec<Entry>> {
        let raw = (0..node.len()).filter_map(|n| node.raw(n)).enumerate();
        let mut out = Vec::with_capacity(node.len());
        for (n, (key, value)) in raw {
            let key = if n == 0 && link.level > 0 { link.low.as_slice() } else { key };
            if link.level > 0 {
                NodePointer::decode(value, &self.tree.geometry)?;
            }
            if value.len() > MAX_VALUE_BYTES {
                let text = format!("item {n} at {:?}: {} bytes", link.pointer.places, value.len());
                return Err(corrupt(WHAT, text));
            }
            out.push(Entry::new(key, value));
        }
        Ok(out)
    }

    /// From this level up: nodes of the stated fill where more than two nodes' worth is pending.
    async fn settle(&mut self, from: u8) -> Result<()> {
        let room = room_bytes(&self.tree.geometry);
        let fill = room * self.fill_percent / 100;
        let mut n = from;
        while usize::from(n) < self.levels.len() {
            while self.level(n)?.pending_bytes > 2 * room {
                self.emit_held(n)?;
                let mut sum = 0;
                let costs = self.level(n)?.pending.iter().map(Entry::cost);
                let fits = costs.take_while(|cost| {
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

    /// How many of the pending entries make the next node when all of them are to be used up.
    fn cut(&self, n: u8) -> Option<usize> {
        let level = self.levels.get(usize::from(n)).filter(|level| !level.pending.is_empty())?;
        let room = room_bytes(&self.tree.geometry);
        if level.pending_bytes <= room {
            return Some(level.pending.len());
        }
        let value = if n == 0 { MAX_VALUE_BYTES } else { POINTER_BYTES };
        let largest = ITEM_OVERHEAD_BYTES + MAX_KEY_BYTES + value;
        let nodes = level.pending_bytes.div_ceil(room - largest / 2);
        let target = level.pending_bytes / nodes;
        let mut sum = 0;
        for (count, entry) in level.pending.iter().enumerate() {
            // The cut nearest to the target: off by half an entry at most.
            if count > 0 && (sum + entry.cost()).abs_diff(target) > sum.abs_diff(target) {
                return Some(count);
            }
            sum += entry.cost();
        }
        Some(level.pending.len())
    }

    /// Writes the first `count` pending entries as a node, and enters it at the next level.
    async fn emit_node(&mut self, n: u8, count: usize) -> Result<()> {
        let places = self.tree.store.allocate().await?;
        self.ledger.taken.push(places);
        let (geometry, seal) = (self.tree.geometry, self.tree.seal);
        let mut bytes = AlignedBuf::new(geometry.node_bytes());
        let mut builder = NodeBuilder::new(&mut bytes, n, geometry)?;
        let mut low = KeyBytes::EMPTY;
        for at in 0..count.max(1) {
            let level = self.level(n)?;
            let Some(entry) = level.pending.pop_front() else { break };
            level.pending_bytes -= entry.cost();
            let mut key = entry.key();
            if at == 0 {
                low = KeyBytes::copy_of(key);
                key = if n > 0 { &[] } else { key };
            }
            if !builder.raw(key, entry.value())? {
                return Err(refused(WHAT, format!("{count} entries are too many for a node")));
            }
        }
        let header = NodeHeader { places, owner: self.owner, birth: self.birth, level: n };
        let pointer = builder.finish(seal, header)?;
        let known = Node::follow(&bytes, seal, &pointer, 0, self.owner, n, &geometry)?.verified();
        self.batch.push(Arc::new(StoredNode::new(&bytes, known)));
        self.written += 1;
        self.level(n + 1)?.push(Entry::of_child(&low, &pointer)?);
        if self.batch.len() >= BATCH_NODES {
            self.write_batch().await?;
        }
        Ok(())
    }

    fn emit_held(&mut self, n: u8) -> Result<()> {
        let Some(held) = self.level(n)?.held.take() else { return Ok(()) };
        self.level(n + 1)?.push(Entry::of_child(&held.low, &held.pointer)?);
        Ok(())
    }

    async fn write_batch(&mut self) -> Result<()> {
        let batch = std::mem::take(&mut self.batch);
        if batch.is_empty() {
            return Ok(());
        }
        self.tree.store.write(&batch).await?;
        for node in batch.iter().filter(|node| self.is_hot || node.node().header.level > 0) {
            self.tree.cache.insert(node);
        }
        self.is_hot = false;
        Ok(())
    }

    /// Nothing else comes: writes what is left, and gives the root.
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
            let has_little = !level.pending.is_empty() && level.pending_bytes < least;
            if has_little && self.borrow(n).await? {
                self.take_in_held(n).await?;
            }
            let is_top = self.levels.iter().skip(usize::from(n) + 1).all(Level::is_empty);
            let level = self.level(n)?;
            if is_top && level.held.is_some() && level.pending.is_empty() {
                let held = level.held.take().map(|held| held.pointer);
                set_root(&mut root, held, n);
            } else if is_top && level.held.is_none() && n > 0 && level.pending.len() == 1 {
                // One child is no tree of its own: the child is the root.
                let entry = level.pending.pop_front();
                let g = &self.tree.geometry;
                let child = entry.map(|e| NodePointer::decode(e.value(), g)).transpose()?;
                set_root(&mut root, child, n - 1);
            } else if is_top && level.held.is_none() && level.pending_bytes <= room {
                let count = level.pending.len();
                self.emit_node(n, count).await?;
            } else {
                self.flush_level(n).await?;
            }
        }
        self.write_batch().await?;
        debug_assert!(self.batch.is_empty(), "everything below a root is written (B54)");
        Ok(root)
    }

    /// Least bytes of a node at a level, as they are counted here: the first key of an inner node is counted
    /// and not stored.
    fn least(&self, level: u8) -> usize {
        min_used_bytes(&self.tree.geometry) + if level > 0 { MAX_KEY_BYTES } else { 0 }
    }

    fn level(&mut self, n: u8) -> Result<&mut Level> {
        // One more than there may be: where a root's entry goes before it is told to be one.
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

fn set_root(root: &mut TreeRoot, pointer: Option<NodePointer>, level: u8) {
    let Some(pointer) = pointer else { return };
    root.places = Some(pointer.places);
    (root.birth, root.sum, root.level) = (pointer.birth, pointer.sum, level);
}
