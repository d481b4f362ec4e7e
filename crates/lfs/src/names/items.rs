//! Names and attributes as items of the tree: what changed since the last checkpoint, in the form in which it
//! is stored. How it comes back is in [`crate::names::load`].
//!
//! Invariants: A11 what is in the tree below the newest durable checkpoint, with the frozen items over it and
//! the active ones over those, is what all records say, no more: times that are ahead of the log (S14) are
//! not among it. A12 a name of an attribute keeps its cookie as long as it is there; which one it gets
//! follows from the names that are there, so that replay gives the same.
//!
//! No locks: the volume's state lock covers it.

use crate::btree::{Change, Cursor, Tree};
use crate::format::item::{CHUNK_BYTES, EntryItem, Item, XattrItem};
use crate::format::key::{Cookie, Key, KeyBytes, NameHash};
use crate::format::place::Geometry;
use crate::format::superblock::TreeRoot;
use crate::names::node::Node;
use crate::transaction::state::State;
use forebay_base::Result;
use std::collections::BTreeMap;
use std::ops::Range;

/// Items by key; none: there is to be nothing.
#[derive(Debug, Default, Clone)]
pub(crate) struct Items {
    list: BTreeMap<KeyBytes, Option<Box<[u8]>>>,
    bytes: u64,
}

impl Items {
    /// How many.
    pub fn len(&self) -> u64 {
        self.list.len() as u64
    }

    /// Bytes of values.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What is said of a key: nothing, that there is nothing, or a value.
    pub fn get(&self, key: Key) -> Option<Option<&[u8]>> {
        self.list.get(&key.to_bytes()).map(|value| value.as_deref())
    }

    /// What is said of a range of keys.
    pub fn range(
        &self,
        keys: &Range<KeyBytes>,
    ) -> impl Iterator<Item = (&KeyBytes, Option<&[u8]>)> {
        let found = (keys.start < keys.end).then(|| self.list.range(keys.start..keys.end));
        found.into_iter().flatten().map(|(key, value)| (key, value.as_deref()))
    }

    /// Says what is under a key.
    pub fn put(&mut self, key: KeyBytes, value: Option<Box<[u8]>>) {
        self.bytes += value.as_ref().map_or(0, |value| value.len() as u64);
        if let Some(old) = self.list.insert(key, value).flatten() {
            self.bytes -= old.len() as u64;
        }
    }

    /// Says nothing of a key any more.
    pub fn forget(&mut self, key: &KeyBytes) {
        if let Some(old) = self.list.remove(key).flatten() {
            self.bytes -= old.len() as u64;
        }
    }

    /// What `newer` says, before what is said here.
    pub fn put_over(&mut self, newer: Self) {
        for (key, value) in newer.list {
            self.put(key, value);
        }
    }

    /// In the order of keys.
    pub fn changes(&self) -> impl Iterator<Item = Change> + Send + '_ {
        self.list.iter().map(|(key, value)| Change::stored(*key, value.clone()))
    }

    /// Says which item is under a key.
    pub fn item(&mut self, key: Key, item: &Item<'_>, geometry: &Geometry) -> Result<()> {
        let change = Change::put(key, item, geometry)?;
        self.put(key.to_bytes(), change.value().map(Into::into));
        Ok(())
    }

    fn nothing(&mut self, key: Key) {
        self.put(key.to_bytes(), None);
    }
}

fn pieces(len: usize) -> u16 {
    len.div_ceil(CHUNK_BYTES) as u16
}

impl State {
    /// The inode has changed.
    pub fn note_inode(&mut self, ino: u64) -> Result<()> {
        let geometry = self.layout.geometry;
        let Some(node) = self.nodes.get(&ino) else { return Ok(()) };
        self.items.item(Key::Inode(ino), &Item::Inode(node.recorded), &geometry)
    }

    /// The inode is new.
    pub fn note_target(&mut self, ino: u64, target: &[u8]) -> Result<()> {
        let geometry = self.layout.geometry;
        for (n, piece) in (0..).zip(target.chunks(CHUNK_BYTES)) {
            self.items.item(Key::Target(ino, n), &Item::Piece(piece), &geometry)?;
        }
        Ok(())
    }

    /// An entry came, or goes somewhere else.
    pub fn note_entry(&mut self, dir: u64, cookie: Cookie, entry: EntryItem<'_>) -> Result<()> {
        let geometry = self.layout.geometry;
        self.items.item(Key::Entry(dir, cookie), &Item::Entry(entry), &geometry)
    }

    /// An entry went.
    pub fn note_no_entry(&mut self, dir: u64, cookie: Cookie) {
        self.items.nothing(Key::Entry(dir, cookie));
    }

    /// An inode is an orphan, or is none any more.
    pub fn note_orphan(&mut self, ino: u64, is_orphan: bool) -> Result<()> {
        let geometry = self.layout.geometry;
        match is_orphan {
            true => self.items.item(Key::Orphan(ino), &Item::Orphan(0), &geometry),
            false => {
                self.items.nothing(Key::Orphan(ino));
                Ok(())
            }
        }
    }

    /// An attribute comes, in the stead of `old` bytes of the same name.
    pub fn note_xattr(
        &mut self,
        ino: u64,
        name: &[u8],
        value: &[u8],
        old: Option<usize>,
        nonce: &[u8; 16],
    ) -> Result<()> {
        let geometry = self.layout.geometry;
        let Some(node) = self.nodes.get_mut(&ino) else { return Ok(()) };
        let cookie = match node.cookies.get(name) {
            Some(cookie) => *cookie,
            None => {
                // A12: the first number that no other name of this hash has.
                let hash = NameHash::new(nonce, name);
                let taken = |nth| node.cookies.values().any(|c| *c == Cookie::new(hash, nth));
                let nth = (0..=u16::MAX).find(|nth| !taken(*nth)).unwrap_or(u16::MAX);
                let cookie = Cookie::new(hash, nth);
                node.cookies.insert(name.into(), cookie);
                cookie
            }
        };
        let (first, rest) = value.split_at(value.len().min(CHUNK_BYTES));
        let item = XattrItem { name, value_bytes: value.len() as u32, piece: first };
        self.items.item(Key::Xattr(ino, cookie, 0), &Item::Xattr(item), &geometry)?;
        for (n, piece) in (1..).zip(rest.chunks(CHUNK_BYTES)) {
            self.items.item(Key::Xattr(ino, cookie, n), &Item::Piece(piece), &geometry)?;
        }
        for n in pieces(value.len()).max(1)..pieces(old.unwrap_or(0)) {
            self.items.nothing(Key::Xattr(ino, cookie, n));
        }
        Ok(())
    }

    /// An attribute of so many bytes went.
    pub fn note_no_xattr(&mut self, ino: u64, name: &[u8], old: usize) {
        let cookie = self.nodes.get_mut(&ino).and_then(|node| node.cookies.remove(name));
        let Some(cookie) = cookie else { return };
        for n in 0..pieces(old).max(1) {
            self.items.nothing(Key::Xattr(ino, cookie, n));
        }
    }

    /// An inode went, with all that hangs on it.
    pub fn note_no_inode(&mut self, ino: u64, node: &Node) {
        self.items.nothing(Key::Inode(ino));
        for n in 0..pieces(node.target.len()) {
            self.items.nothing(Key::Target(ino, n));
        }
        for (name, value) in &node.xattrs {
            let Some(cookie) = node.cookies.get(name) else { continue };
            for n in 0..pieces(value.len()).max(1) {
                self.items.nothing(Key::Xattr(ino, *cookie, n));
            }
        }
    }
}

/// Reads which inodes below `root` are orphans into the state.
pub(crate) async fn load_orphans(tree: &Tree, root: &TreeRoot, state: &mut State) -> Result<()> {
    let mut orphans = Cursor::new(Key::Orphan(0), Some(Key::Usage(0)));
    while let Some(found) = orphans.next(tree, root).await? {
        if let (Key::Orphan(ino), _) = found.decode(tree.geometry())? {
            state.orphans.insert(ino);
        }
    }
    Ok(())
}
