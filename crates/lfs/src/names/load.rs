//! Loads names and attributes into memory, from the items since the last freeze, over the frozen
//! items, over the tree.
//!
//! Invariants: Q21 a loaded object reflects all records up to the moment of its insertion. The tree
//! is read without the lock, so the result is used only if that is still the newest tree, and
//! changes are added under the lock. Q22 an object in memory is not replaced by a loaded one.
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

/// Changes in a range of keys; `None`: the key is removed.
pub(crate) type Changed = BTreeMap<KeyBytes, Option<Box<[u8]>>>;

/// A range of keys, with the items in it of the tree below a root.
pub(crate) struct Part {
    root: TreeRoot,
    keys: Range<KeyBytes>,
    leaves: Vec<Leaf>,
    /// Index of the leaf with the last match.
    last: Cell<usize>,
}

impl Part {
    fn new(root: TreeRoot, keys: Range<KeyBytes>, leaves: Vec<Leaf>) -> Self {
        Self { root, keys, leaves, last: Cell::new(0) }
    }

    /// Reads the range from `from` to `end`, or to the end of the leaf that contains about the
    /// `most`th item, but at least up to `least`. With each uncached leaf, `ahead` more are read.
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
                // Only a key that decodes ends the range, because callers decode its end.
                items >= most && *next > least && Key::decode(next.as_slice()).is_ok()
            }) {
                upto = next;
                break;
            }
        }
        Ok(Self::new(root, from.to_bytes()..upto, leaves))
    }

    /// Reads an inode with its items except entries, and up to `most` following inodes, but none
    /// after the first directory with entries. Inodes are complete, and their numbers close
    /// together.
    async fn read_inodes(tree: &Tree, root: TreeRoot, ino: u64, most: usize) -> Result<Self> {
        let behind = Key::Entry(ino, Cookie::FIRST);
        let end = if most > 1 { Key::Extent(0, 0) } else { behind };
        let farthest = ino.saturating_add(4 * most as u64);
        // Leaves are limited, too, because a window keeps them, and large inodes need many
        // (scan_cache.Q62).
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

    /// The end of the range.
    pub fn end(&self) -> KeyBytes {
        self.keys.end
    }

    /// The keys of the range.
    pub fn keys(&self) -> &Range<KeyBytes> {
        &self.keys
    }

    /// The root of its tree.
    pub fn root(&self) -> &TreeRoot {
        &self.root
    }

    /// Number of its leaves.
    pub fn leaves(&self) -> usize {
        self.leaves.len()
    }

    /// Approximate memory of its leaves, bytes.
    pub fn bytes(&self) -> usize {
        self.leaves.iter().map(Leaf::memory_bytes).sum()
    }

    /// Whether the range contains a key.
    pub fn covers(&self, key: &KeyBytes) -> bool {
        self.keys.contains(key)
    }

    /// For inodes: the last one in the range.
    pub fn last_ino(&self) -> u64 {
        match Key::decode(self.keys.end.as_slice()) {
            Ok(Key::Inode(ino) | Key::Entry(ino, _)) => ino,
            _ => 0,
        }
    }

    /// Whether an inode follows the last one of the range, directly or closely.
    pub fn is_followed_by(&self, ino: u64) -> bool {
        continues(ino, self.last_ino().saturating_add(1))
    }

    /// The value of a key.
    pub fn get(&self, key: Key) -> Option<&[u8]> {
        let (key, last) = (key.to_bytes(), self.last.get());
        let key = key.as_slice();
        let begins = |n: usize| self.leaves.get(n).is_some_and(|leaf| leaf.first() <= key);
        // A caller that reads in order finds the key in the same leaf, or in the next one.
        let near = [last, last + 1].into_iter().find(|n| begins(*n) && !begins(n + 1));
        let at = match near {
            Some(at) => at,
            None => self.leaves.partition_point(|leaf| leaf.first() <= key).checked_sub(1)?,
        };
        self.last.set(at);
        self.leaves.get(at)?.get(key)
    }

    /// The part with these keys.
    pub fn part(&self, keys: Range<KeyBytes>) -> Self {
        let from = self.leaves.partition_point(|leaf| leaf.first() <= keys.start.as_slice());
        let leaves = self.leaves[from.saturating_sub(1)..].iter();
        let leaves = leaves.take_while(|leaf| leaf.first() < keys.end.as_slice());
        let leaves = leaves.map(|leaf| leaf.part(&keys)).filter(|leaf| leaf.len() > 0).collect();
        Self::new(self.root, keys, leaves)
    }
}

/// A part of the tree, with changes over it.
pub(crate) struct Laid {
    leaves: Vec<Leaf>,
    changed: Changed,
}

impl Laid {
    /// The items of `part`, with `changed` laid over them.
    pub fn new(part: Part, changed: Changed) -> Self {
        Self { leaves: part.leaves, changed }
    }

    /// Key and value of each item, in stored form and in order of keys.
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

/// The first key to read for a missing object.
fn first_key(want: Want) -> Key {
    match want {
        Want::Inode(ino) => Key::Inode(ino),
        Want::Entries(dir, cookie) => Key::Entry(dir, Cookie::new(cookie.hash(), 0)),
    }
}

/// Reads a missing object with its neighbours, without a lock.
pub(crate) async fn read(tree: &Tree, root: TreeRoot, want: Want, ahead: Ahead) -> Result<Part> {
    if ahead.leaves > 1
        && let Err(error) = tree.read_ahead(&root, first_key(want), ahead.leaves).await
    {
        // A caller that needs the leaf gets the error when it reads it.
        log::debug!("reading ahead in the tree: {error}");
    }
    match want {
        Want::Inode(ino) => Part::read_inodes(tree, root, ino, ahead.items).await,
        Want::Entries(dir, cookie) => {
            let last = Key::Entry(dir, Cookie::new(cookie.hash(), u16::MAX));
            // Entries in memory are not read again.
            let end = ahead.end.map_or(Key::Inode(dir + 1), |known| Key::Entry(dir, known));
            let keys = (first_key(want), last, end);
            Part::read(tree, root, keys, (ahead.items, 0)).await
        }
    }
}

/// The error for an item without an inode.
pub(crate) fn lone(key: Key) -> Error {
    corrupt("tree", format!("{key:?} belongs to nothing"))
}

/// An inode that is being assembled, with the items read so far.
pub(crate) struct Assembly {
    ino: u64,
    node: Node,
    target: Vec<u8>,
    /// The attribute of the last item.
    last: Option<(Cookie, Box<[u8]>)>,
}

impl Assembly {
    /// Begins with the item of the inode.
    pub fn new(ino: u64, key: Key, value: &[u8], geometry: &Geometry) -> Result<Self> {
        let Item::Inode(inode) = Item::decode(key, value, geometry)? else { return Err(lone(key)) };
        Ok(Self { ino, node: Node::new(inode, &[]), target: Vec::new(), last: None })
    }

    /// Adds a further item of the inode.
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
