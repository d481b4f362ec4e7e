//! What names and attributes are, item by item: what changed since the last freeze, over what is frozen, over
//! the tree; and how that comes into memory.
//!
//! Invariants: Q21 what is loaded is what all records up to the moment of its insertion say: the tree is read
//! without the lock, so it counts only if it is the tree still, and what changed is laid over it under the
//! lock. Q22 what is in memory is not replaced.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::btree::read::Leaf;
use crate::btree::{Cursor, Tree};
use crate::format::corrupt;
use crate::format::item::Item;
use crate::format::key::{Cookie, Key, KeyBytes};
use crate::format::place::Geometry;
use crate::format::superblock::TreeRoot;
use crate::names::evict::{Ahead, INODES_OF_LEAF, continues};
use crate::names::lookup::Want;
use crate::names::node::Node;
use forebay_base::{Error, Result};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::Range;

/// What changed in a range of keys; none: there is nothing.
pub(crate) type Changed = BTreeMap<KeyBytes, Option<Box<[u8]>>>;

/// A range of keys, and what the tree below a root has of it.
pub(crate) struct Part {
    root: TreeRoot,
    keys: Range<KeyBytes>,
    leaves: Vec<Leaf>,
    /// The leaf that something was found in last.
    last: Cell<usize>,
}

impl Part {
    fn new(root: TreeRoot, keys: Range<KeyBytes>, leaves: Vec<Leaf>) -> Self {
        Self { root, keys, leaves, last: Cell::new(0) }
    }

    /// Reads the range from `from` on, up to `end` or to the end of the leaf that has about the last of
    /// `most` items, but not less than up to `least`. Leaves that have to be read are read so many more at
    /// a time.
    pub async fn read(
        tree: &Tree,
        root: TreeRoot,
        (from, least, end): (Key, Key, Key),
        (most, ahead): (usize, usize),
    ) -> Result<Self> {
        let mut cursor = Cursor::new(from, Some(end)).with_ahead(ahead);
        let (mut leaves, mut items, least) = (Vec::new(), 0, least.to_bytes());
        let mut upto = end.to_bytes();
        while let Some(leaf) = cursor.leaf(tree, &root).await? {
            items += leaf.len();
            leaves.push(leaf);
            if let Some(next) = cursor.place().filter(|next| {
                // Where a name may be looked for, so that it is known how far this goes.
                items >= most && *next > least && Key::decode(next.as_slice()).is_ok()
            }) {
                upto = next;
                break;
            }
        }
        Ok(Self::new(root, from.to_bytes()..upto, leaves))
    }

    /// Reads an inode with what hangs on it but for entries, and those behind it, up to the first directory
    /// with entries and to `most` of them: whole ones, and of numbers close by.
    async fn read_inodes(tree: &Tree, root: TreeRoot, ino: u64, most: usize) -> Result<Self> {
        let behind = Key::Entry(ino, Cookie::FIRST);
        let end = if most > 1 { Key::Extent(0, 0) } else { behind };
        let farthest = ino.saturating_add(4 * most as u64);
        // Of large ones not as many: it is leaves that a window keeps (Q62).
        let leaves_most = 1 + most.div_ceil(INODES_OF_LEAF);
        let (mut leaves, mut cursor) = (Vec::new(), Cursor::new(Key::Inode(ino), Some(end)));
        let (mut last, mut inodes) = (ino, 0);
        while let Some(mut leaf) = cursor.leaf(tree, &root).await? {
            let (mut items, mut is_over) = (0, false);
            for item in leaf.iter() {
                match Key::decode(item.raw().0)? {
                    Key::Inode(next) if inodes == most || next > farthest => is_over = true,
                    Key::Inode(_) if inodes > 0 && leaves.len() >= leaves_most => is_over = true,
                    Key::Inode(next) => (last, inodes) = (next, inodes + 1),
                    Key::Entry(..) => is_over = true,
                    _ => {}
                }
                if is_over {
                    break;
                }
                items += 1;
            }
            leaf.truncate(items);
            leaves.extend((items > 0).then_some(leaf));
            if is_over {
                break;
            }
        }
        let upto = if last == ino { behind } else { Key::Entry(last, Cookie::FIRST) };
        Ok(Self::new(root, Key::Inode(ino).to_bytes()..upto.to_bytes(), leaves))
    }

    /// Where it ends.
    pub fn end(&self) -> KeyBytes {
        self.keys.end
    }

    /// The keys of the range.
    pub fn keys(&self) -> &Range<KeyBytes> {
        &self.keys
    }

    /// The tree that it is of.
    pub fn root(&self) -> &TreeRoot {
        &self.root
    }

    /// How many leaves it keeps.
    pub fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Bytes of memory that these take, about.
    pub fn bytes(&self) -> usize {
        self.leaves.iter().map(Leaf::memory_bytes).sum()
    }

    /// Whether all that there is of a key is in it.
    pub fn covers(&self, key: &KeyBytes) -> bool {
        self.keys.contains(key)
    }

    /// Of inodes: the last one.
    pub fn last_ino(&self) -> u64 {
        match Key::decode(self.keys.end.as_slice()) {
            Ok(Key::Inode(ino) | Key::Entry(ino, _)) => ino,
            _ => 0,
        }
    }

    /// Whether an inode is the next one behind it, or close to that.
    pub fn is_followed_by(&self, ino: u64) -> bool {
        continues(ino, self.last_ino().saturating_add(1))
    }

    /// What it has under a key.
    pub fn get(&self, key: Key) -> Option<&[u8]> {
        let (key, last) = (key.to_bytes(), self.last.get());
        let key = key.as_slice();
        let begins = |n: usize| self.leaves.get(n).is_some_and(|leaf| leaf.first() <= key);
        // Who goes on in order is in the same leaf, or in the next one.
        let near = [last, last + 1].into_iter().find(|n| begins(*n) && !begins(n + 1));
        let at = match near {
            Some(at) => at,
            None => self.leaves.partition_point(|leaf| leaf.first() <= key).checked_sub(1)?,
        };
        self.last.set(at);
        self.leaves.get(at)?.get(key)
    }

    /// The part of it that has these keys.
    pub fn part(&self, keys: Range<KeyBytes>) -> Self {
        let from = self.leaves.partition_point(|leaf| leaf.first() <= keys.start.as_slice());
        let leaves = self.leaves[from.saturating_sub(1)..].iter();
        let leaves = leaves.take_while(|leaf| leaf.first() < keys.end.as_slice());
        let leaves = leaves.map(|leaf| leaf.part(&keys)).filter(|leaf| leaf.len() > 0).collect();
        Self::new(self.root, keys, leaves)
    }
}

/// A part of the tree, with what changed laid over it.
pub(crate) struct Laid {
    leaves: Vec<Leaf>,
    changed: Changed,
}

impl Laid {
    /// The items of `part`, with `changed` laid over them.
    pub fn new(part: Part, changed: Changed) -> Self {
        Self { leaves: part.leaves, changed }
    }

    /// Key and value of each item, in stored form and in the order of keys.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut stored = self.leaves.iter().flat_map(Leaf::iter).map(|item| item.raw()).peekable();
        let mut changed = self.changed.iter().peekable();
        std::iter::from_fn(move || {
            loop {
                let is_changed = match (stored.peek(), changed.peek()) {
                    (Some((key, _)), Some((other, _))) => other.as_slice() <= *key,
                    (None, Some(_)) => true,
                    (_, None) => false,
                };
                if !is_changed {
                    return stored.next();
                }
                let (key, value) = changed.next()?;
                stored.next_if(|(there, _)| *there == key.as_slice());
                if let Some(value) = value {
                    return Some((key.as_slice(), &**value));
                }
            }
        })
    }
}

/// The key from which on something that is missing is read.
fn first_key(want: Want) -> Key {
    match want {
        Want::Inode(ino) => Key::Inode(ino),
        Want::Entries(dir, cookie) => Key::Entry(dir, Cookie::new(cookie.hash(), 0)),
    }
}

/// Reads what is missing, and what lies behind it, without a lock.
pub(crate) async fn read(tree: &Tree, root: TreeRoot, want: Want, ahead: Ahead) -> Result<Part> {
    if ahead.leaves > 1
        && let Err(error) = tree.read_ahead(&root, first_key(want), ahead.leaves).await
    {
        // Whoever needs it finds out, and what is not needed does not matter.
        log::debug!("reading ahead in the tree: {error}");
    }
    match want {
        Want::Inode(ino) => Part::read_inodes(tree, root, ino, ahead.items).await,
        Want::Entries(dir, cookie) => {
            let last = Key::Entry(dir, Cookie::new(cookie.hash(), u16::MAX));
            // What is here is not read again.
            let end = ahead.end.map_or(Key::Inode(dir + 1), |known| Key::Entry(dir, known));
            let keys = (first_key(want), last, end);
            Part::read(tree, root, keys, (ahead.items, 0)).await
        }
    }
}

/// An item that belongs to no inode.
pub(crate) fn lone(key: Key) -> Error {
    corrupt("tree", format!("{key:?} belongs to nothing"))
}

/// An inode, with what was found so far of its target and attributes.
pub(crate) struct Assembly {
    ino: u64,
    node: Node,
    target: Vec<u8>,
    /// The attribute that was found last.
    last: Option<(Cookie, Box<[u8]>)>,
}

impl Assembly {
    /// Begins with the item of the inode.
    pub fn new(ino: u64, key: Key, value: &[u8], geometry: &Geometry) -> Result<Self> {
        let Item::Inode(inode) = Item::decode(key, value, geometry)? else { return Err(lone(key)) };
        Ok(Self { ino, node: Node::new(inode, &[]), target: Vec::new(), last: None })
    }

    /// Adds an item that hangs on it.
    pub fn add(&mut self, key: Key, value: &[u8], geometry: &Geometry) -> Result<()> {
        let node = &mut self.node;
        match (key, Item::decode(key, value, geometry)?) {
            (Key::Target(ino, _), Item::Piece(piece)) if ino == self.ino => {
                self.target.extend_from_slice(piece);
            }
            (Key::Xattr(ino, cookie, _), Item::Xattr(xattr)) if ino == self.ino => {
                let mut value = Vec::with_capacity(xattr.value_bytes as usize);
                value.extend_from_slice(xattr.piece);
                node.cookies.insert(xattr.name.into(), cookie);
                node.xattrs.insert(xattr.name.into(), value.into());
                self.last = Some((cookie, xattr.name.into()));
            }
            (Key::Xattr(ino, cookie, _), Item::Piece(piece)) if ino == self.ino => {
                let name = self.last.as_ref().filter(|(there, _)| *there == cookie);
                let (_, name) = name.ok_or_else(|| lone(key))?;
                let value = node.xattrs.get_mut(name).ok_or_else(|| lone(key))?;
                *value = [&**value, piece].concat().into();
            }
            _ => return Err(lone(key)),
        }
        Ok(())
    }

    /// The inode, complete.
    pub fn finish(mut self) -> (u64, Node) {
        self.node.target = self.target.into();
        (self.ino, self.node)
    }
}
