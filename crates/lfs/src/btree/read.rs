//! Lookups: of one key, of the highest key up to a key, and of ranges.
//!
//! Invariants: B41 a lookup reads one node per level, [`Tree::floor`] at most two. B42 a cursor
//! returns keys in ascending order, each once, and ends: each node that it visits lies above the
//! one before. B43 a cursor keeps a leaf and a key; in another root it finds its position by the
//! key.
//!
//! No locks.

use super::cache::cost;
use super::store::StoredNode;
use super::{Link, Tree};
use crate::format::corrupt;
use crate::format::item::Item;
use crate::format::key::{Key, KeyBytes};
use crate::format::node::{Node, NodePointer};
use crate::format::place::Geometry;
use crate::format::superblock::TreeRoot;
use forebay_base::Result;
use std::ops::Range;
use std::sync::Arc;

/// An item that was found. It keeps its leaf in memory.
#[derive(Clone)]
pub struct Found {
    leaf: Arc<StoredNode>,
    at: usize,
}

impl Found {
    /// Key and value in stored form.
    pub fn raw(&self) -> (&[u8], &[u8]) {
        self.leaf.node().raw(self.at).unwrap_or((&[], &[]))
    }

    /// Decodes key and value. `Corrupt` with the place if they are invalid.
    pub fn decode(&self, geometry: &Geometry) -> Result<(Key, Item<'_>)> {
        let item = self.leaf.node().item(self.at, geometry)?;
        item.ok_or_else(|| corrupt("item", format!("none at {:?}", self.leaf.places())))
    }
}

/// The items of a leaf that lie in a range.
pub(crate) struct Leaf {
    leaf: Arc<StoredNode>,
    items: Range<usize>,
}

impl Leaf {
    /// Number of items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Approximate memory of its node, bytes.
    pub fn memory_bytes(&self) -> usize {
        cost(&self.leaf)
    }

    /// The first key.
    pub fn first(&self) -> &[u8] {
        self.leaf.node().raw(self.items.start).map_or(&[], |(key, _)| key)
    }

    /// The value under a key.
    pub fn get(&self, key: &[u8]) -> Option<&[u8]> {
        let node = self.leaf.node();
        let at = node.search(key).ok().filter(|at| self.items.contains(at))?;
        node.raw(at).map(|(_, value)| value)
    }

    /// The items in a range of keys.
    pub fn part(&self, keys: &Range<KeyBytes>) -> Self {
        let node = self.leaf.node();
        let at = |key: &KeyBytes| match node.search(key.as_slice()) {
            Ok(n) | Err(n) => n.clamp(self.items.start, self.items.end),
        };
        Self { leaf: self.leaf.clone(), items: at(&keys.start)..at(&keys.end) }
    }

    /// Keeps only the first `count` items.
    pub fn truncate(&mut self, count: usize) {
        self.items.end = self.items.end.min(self.items.start + count);
    }

    /// The items of the leaf.
    pub fn iter(&self) -> impl Iterator<Item = InLeaf<'_>> {
        let node = self.leaf.node();
        self.items.clone().map(move |at| InLeaf { node, at })
    }
}

/// An item of a leaf.
pub(crate) struct InLeaf<'a> {
    node: Node<'a>,
    at: usize,
}

impl<'a> InLeaf<'a> {
    /// Key and value in stored form.
    pub fn raw(&self) -> (&'a [u8], &'a [u8]) {
        self.node.raw(self.at).unwrap_or((&[], &[]))
    }

    /// Decodes key and value. `Corrupt` with the place if they are invalid.
    pub fn decode(&self, geometry: &Geometry) -> Result<(Key, Item<'a>)> {
        let item = self.node.item(self.at, geometry)?;
        item.ok_or_else(|| corrupt("item", format!("none at {:?}", self.node.header.places)))
    }
}

impl Tree {
    /// The item with this key.
    pub async fn get(&self, root: &TreeRoot, key: Key) -> Result<Option<Found>> {
        let key = key.to_bytes();
        let Some((_, leaf)) = self.leaf_of(root, key.as_slice(), 0).await? else {
            return Ok(None);
        };
        let found = leaf.node().search(key.as_slice());
        Ok(found.ok().map(|at| Found { leaf, at }))
    }

    /// The item with the highest key up to this one, for example the extent of a block.
    pub async fn floor(&self, root: &TreeRoot, key: Key) -> Result<Option<Found>> {
        self.floor_in_order(root, key, &mut InOrder::default()).await
    }

    /// As [`Tree::floor`], for a caller that looks up ascending keys of one root (ahead.B46).
    pub(crate) async fn floor_in_order(
        &self,
        root: &TreeRoot,
        key: Key,
        order: &mut InOrder,
    ) -> Result<Option<Found>> {
        let key = key.to_bytes();
        let Some((link, leaf)) = self.leaf_in_order(root, key.as_slice(), order).await? else {
            return Ok(None);
        };
        match leaf.node().search(key.as_slice()) {
            Ok(at) => Ok(Some(Found { leaf: leaf.clone(), at })),
            Err(0) => {
                let low = link.low;
                self.last_below(root, &low).await
            }
            Err(n) => Ok(Some(Found { leaf: leaf.clone(), at: n - 1 })),
        }
    }

    /// The first item from `keys[0]` on and below `keys[1]`, for a caller of ascending keys.
    pub(super) async fn next_in_order(
        &self,
        root: &TreeRoot,
        keys: [Key; 2],
        order: &mut InOrder,
    ) -> Result<Option<Found>> {
        let [mut from, end] = keys.map(Key::to_bytes);
        loop {
            let Some((link, leaf)) = self.leaf_in_order(root, from.as_slice(), order).await? else {
                return Ok(None);
            };
            let node = leaf.node();
            let (Ok(at) | Err(at)) = node.search(from.as_slice());
            if let Some((key, _)) = node.raw(at) {
                let is_below = key < end.as_slice();
                return Ok(is_below.then(|| Found { leaf: leaf.clone(), at }));
            }
            match link.high {
                Some(high) if high < end => from = high,
                _ => return Ok(None),
            }
        }
    }

    /// The leaf that may contain `key`: usually the one of the last lookup.
    async fn leaf_in_order<'o>(
        &self,
        root: &TreeRoot,
        key: &[u8],
        order: &'o mut InOrder,
    ) -> Result<Option<&'o (Link, Arc<StoredNode>)>> {
        if !order.at.as_ref().is_some_and(|(link, _)| link.has(key)) {
            order.at = self.leaf_of(root, key, order.ahead).await?;
            if let Some((link, _)) = order.at {
                order.note(&link);
            }
        }
        Ok(order.at.as_ref())
    }

    /// The leaf that may contain `key`. `ahead`: number of following leaves that are read with it,
    /// if it has to be read.
    async fn leaf_of(
        &self,
        root: &TreeRoot,
        key: &[u8],
        ahead: usize,
    ) -> Result<Option<(Link, Arc<StoredNode>)>> {
        let Some(mut link) = Link::root(root)? else { return Ok(None) };
        loop {
            let node = self.load(&link).await?;
            if link.level == 0 {
                return Ok(Some((link, node)));
            }
            let inner = node.node();
            let n = inner.child_for(key);
            if link.level == 1 && ahead > 0 {
                self.ahead_of(&link, &node, n, ahead).await;
            }
            link = self.child(&link, &inner, n)?;
        }
    }

    /// Reads child `n` and the following ones into the cache, if that child is not cached
    /// (ahead.B45).
    async fn ahead_of(&self, link: &Link, node: &StoredNode, n: usize, ahead: usize) {
        let first = link.child(&node.node(), n, &self.geometry).ok().flatten();
        if first.is_none_or(|first| self.cached(&first).is_some()) {
            return;
        }
        for node in self.children_ahead(link, node, n..n + 1 + ahead).await.unwrap_or_default() {
            self.cache.insert(&node);
        }
    }

    /// The last item below `low`, from the leaf before the one that begins at `low`.
    async fn last_below(&self, root: &TreeRoot, low: &KeyBytes) -> Result<Option<Found>> {
        let Some(mut link) = Link::root(root)? else { return Ok(None) };
        if low.as_slice().is_empty() {
            return Ok(None);
        }
        loop {
            let node = self.load(&link).await?;
            let inner = node.node();
            if link.level == 0 {
                let last = inner.len() - 1;
                let below = inner.raw(last).is_some_and(|(key, _)| key < low.as_slice());
                return Ok(below.then_some(Found { leaf: node, at: last }));
            }
            let (Ok(first_above) | Err(first_above)) = inner.search(low.as_slice());
            link = self.child(&link, &inner, first_above.saturating_sub(1))?;
        }
    }

    pub(crate) fn child(&self, link: &Link, node: &Node<'_>, n: usize) -> Result<Link> {
        let child = link.child(node, n, &self.geometry)?;
        child.ok_or_else(|| corrupt("tree node", format!("no child {n} in {:?}", link.pointer)))
    }
}

/// Most leaves that are read ahead for a sequential reader.
const AHEAD_MOST: usize = 64;

/// Position of a reader of ascending keys: the more leaves it visits in sequence, the more
/// following ones are read together.
#[derive(Default)]
pub(crate) struct InOrder {
    /// The last leaf.
    at: Option<(Link, Arc<StoredNode>)>,
    /// Upper bound of the last leaf.
    high: Option<KeyBytes>,
    ahead: usize,
}

impl InOrder {
    fn note(&mut self, link: &Link) {
        if self.high.is_some() && self.high == link.high {
            return;
        }
        let goes_on = self.high.is_some_and(|high| high == link.low);
        self.ahead = if goes_on { (2 * self.ahead).clamp(1, AHEAD_MOST) } else { 0 };
        self.high = link.high;
    }
}

/// The leaf of a cursor.
struct At {
    root: NodePointer,
    leaf: Arc<StoredNode>,
    next: usize,
    high: Option<KeyBytes>,
}

/// Iterates over a range of keys in ascending order.
pub struct Cursor {
    from: KeyBytes,
    /// `from` itself was already returned.
    is_past: bool,
    end: Option<KeyBytes>,
    at: Option<At>,
    is_done: bool,
    ahead: usize,
}

impl Cursor {
    /// Iterates over the keys from `from` up to, but not including, `end`; `None`: no upper bound.
    pub fn new(from: Key, end: Option<Key>) -> Self {
        Self::over(from.to_bytes(), end.map(Key::to_bytes))
    }

    /// Iterates over all keys.
    pub fn all() -> Self {
        Self::over(KeyBytes::EMPTY, None)
    }

    pub(crate) fn over(from: KeyBytes, end: Option<KeyBytes>) -> Self {
        Self { from, is_past: false, end, at: None, is_done: false, ahead: 0 }
    }

    /// Sets the number of leaves that are read ahead with each uncached one.
    pub fn with_ahead(self, ahead: usize) -> Self {
        Self { ahead, ..self }
    }

    /// The next item below `root`, which may be another root than at the last call. `None` at the
    /// end, also in later calls. After an error the cursor is at the same position as before.
    pub async fn next(&mut self, tree: &Tree, root: &TreeRoot) -> Result<Option<Found>> {
        let end = self.end;
        let is_over = |key: &KeyBytes| end.is_some_and(|end| key.as_slice() >= end.as_slice());
        while !self.is_done {
            let Some(at) = self.seek(tree, root).await? else { break };
            let Some((key, _)) = at.leaf.node().raw(at.next) else {
                let Some(high) = at.high else { break };
                (self.from, self.is_past, self.at) = (high, false, None);
                if is_over(&high) {
                    break;
                }
                continue;
            };
            let key = KeyBytes::copy_of(key);
            if is_over(&key) {
                break;
            }
            let found = Found { leaf: at.leaf.clone(), at: at.next };
            at.next += 1;
            (self.from, self.is_past) = (key, true);
            return Ok(Some(found));
        }
        (self.is_done, self.at) = (true, None);
        Ok(None)
    }

    /// The next items that are in one leaf, the same as repeated calls of [`Self::next`] return.
    pub(crate) async fn leaf(&mut self, tree: &Tree, root: &TreeRoot) -> Result<Option<Leaf>> {
        let end = self.end;
        while !self.is_done {
            let Some(at) = self.seek(tree, root).await? else { break };
            let (leaf, first, high) = (at.leaf.clone(), at.next, at.high);
            let node = leaf.node();
            let last = match &end {
                Some(end) => match node.search(end.as_slice()) {
                    Ok(n) | Err(n) => n,
                },
                None => node.len(),
            };
            let is_over = |key: &KeyBytes| end.is_some_and(|end| key.as_slice() >= end.as_slice());
            (self.is_past, self.at) = (false, None);
            match high.filter(|high| !is_over(high)) {
                Some(high) => self.from = high,
                None => self.is_done = true,
            }
            if first < last {
                return Ok(Some(Leaf { leaf, items: first..last }));
            }
        }
        (self.is_done, self.at) = (true, None);
        Ok(None)
    }

    /// The key from which the cursor continues; `None`: the cursor is at the end.
    pub(crate) fn place(&self) -> Option<KeyBytes> {
        (!self.is_done).then_some(self.from)
    }

    /// The leaf of the next item.
    async fn seek(&mut self, tree: &Tree, root: &TreeRoot) -> Result<Option<&mut At>> {
        let Some(top) = Link::root(root)? else { return Ok(None) };
        if self.at.as_ref().is_none_or(|at| at.root != top.pointer) {
            let key = self.from.as_slice();
            let found = tree.leaf_of(root, key, self.ahead).await?;
            let Some((link, leaf)) = found else { return Ok(None) };
            let next = match leaf.node().search(key) {
                Ok(n) => n + usize::from(self.is_past),
                Err(n) => n,
            };
            self.at = Some(At { root: top.pointer, leaf, next, high: link.high });
        }
        Ok(self.at.as_mut())
    }
}
