//! What names and attributes are, item by item: what changed since the last freeze, over what is frozen, over
//! the tree; and how that comes into memory.
//!
//! Invariants: Q21 what is loaded is what all records up to the moment of its insertion say: the tree is read
//! without the lock, so it counts only if it is the tree still, and what changed is laid over it under the
//! lock. Q22 what is in memory is not replaced.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::btree::{Cursor, Tree};
use crate::dir::{COOKIES_END, Child};
use crate::evict::Ahead;
use crate::format::corrupt;
use crate::format::inode::Inode;
use crate::format::item::Item;
use crate::format::key::{Cookie, Key, KeyBytes};
use crate::format::place::Geometry;
use crate::format::superblock::TreeRoot;
use crate::inode::kind_of;
use crate::look::Want;
use crate::state::{Node, State};
use crate::volume::Inner;
use forebay_base::Result;
use forebay_vfs::{DirEntry, Ino, rules};
use std::collections::BTreeMap;
use std::ops::Range;

/// Items in stored form.
pub(crate) type Stored = BTreeMap<KeyBytes, Box<[u8]>>;

/// A range of keys, and what the tree below a root has of it.
pub(crate) struct Part {
    root: TreeRoot,
    keys: Range<KeyBytes>,
    items: Stored,
}

impl Part {
    /// Reads the range from `from` on, up to `end` or about `most` items, but not less than up to `least`.
    /// Leaves that have to be read are read so many more at a time.
    pub async fn read(
        tree: &Tree,
        root: TreeRoot,
        (from, least, end): (Key, Key, Key),
        (most, ahead): (usize, usize),
    ) -> Result<Self> {
        let mut items = Stored::new();
        let mut cursor = Cursor::new(from, Some(end)).with_ahead(ahead);
        let mut upto = end.to_bytes();
        while let Some(found) = cursor.next(tree, &root).await? {
            let (key, value) = found.raw();
            if items.len() >= most && key >= least.to_bytes().as_slice() {
                upto = KeyBytes::copy_of(key);
                break;
            }
            items.insert(KeyBytes::copy_of(key), value.into());
        }
        Ok(Self { root, keys: from.to_bytes()..upto, items })
    }

    /// Reads an inode with what hangs on it but for entries, and those behind it, up to the first directory
    /// with entries and to `most` of them: whole ones, and of numbers close by.
    async fn read_inodes(tree: &Tree, root: TreeRoot, ino: u64, most: usize) -> Result<Self> {
        let behind = Key::Entry(ino, Cookie::FIRST);
        let end = if most > 1 { Key::Extent(0, 0) } else { behind };
        let farthest = ino + 4 * most as u64;
        let (mut items, mut cursor) = (Stored::new(), Cursor::new(Key::Inode(ino), Some(end)));
        let (mut last, mut inodes) = (ino, 0);
        while let Some(found) = cursor.next(tree, &root).await? {
            let (key, value) = found.raw();
            match Key::decode(key)? {
                Key::Inode(next) if inodes == most || next > farthest => break,
                Key::Inode(next) => (last, inodes) = (next, inodes + 1),
                Key::Entry(..) => break,
                _ => {}
            }
            items.insert(KeyBytes::copy_of(key), value.into());
        }
        let upto = if last == ino { behind } else { Key::Entry(last, Cookie::FIRST) };
        Ok(Self { root, keys: Key::Inode(ino).to_bytes()..upto.to_bytes(), items })
    }

    /// Where it ends.
    pub fn end(&self) -> KeyBytes {
        self.keys.end
    }
}

impl State {
    /// A part of the tree, with what changed laid over it. None: it is of an old tree (Q21).
    pub fn over(&self, part: Part) -> Option<Stored> {
        if part.root != self.root {
            return None;
        }
        let mut all = part.items;
        // What is merged is in the tree, and more of it than was frozen.
        let frozen = self.frozen.as_ref().filter(|frozen| !frozen.is_merged);
        for items in frozen.map(|frozen| &*frozen.items).into_iter().chain([&self.items]) {
            for (key, value) in items.range(&part.keys) {
                match value {
                    Some(value) => drop(all.insert(*key, value.into())),
                    None => drop(all.remove(key)),
                }
            }
        }
        Some(all)
    }

    /// What changed of an item and is not in the tree: there is a value, or none. None: nothing is known.
    pub fn changed(&self, key: Key) -> Option<Option<&[u8]>> {
        let frozen = self.frozen.as_ref().filter(|frozen| !frozen.is_merged);
        self.items.get(key).or_else(|| frozen.and_then(|frozen| frozen.items.get(key)))
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

impl State {
    /// Brings what was missing into memory. False: the tree is another one by now.
    pub fn insert_part(&mut self, want: Want, part: Part) -> Result<bool> {
        let (end, geometry) = (part.end(), self.layout.geometry);
        let Some(items) = self.over(part) else { return Ok(false) };
        match want {
            Want::Inode(ino) => self.insert_inodes(ino, end, &items, &geometry)?,
            Want::Entries(dir, cookie) => {
                let from = Cookie::new(cookie.hash(), 0).to_u64();
                let upto = match Key::decode(end.as_slice()) {
                    Ok(Key::Entry(there, end)) if there == dir => end.to_u64(),
                    _ => COOKIES_END,
                };
                self.insert_entries(dir, from..upto, &items, &geometry)?;
            }
        }
        Ok(true)
    }

    /// Inserts the inode that was missing, and those behind it.
    fn insert_inodes(
        &mut self,
        wanted: u64,
        end: KeyBytes,
        items: &Stored,
        geometry: &Geometry,
    ) -> Result<()> {
        let (mut next, mut last) = (Some(wanted), wanted);
        while let Some(ino) = next {
            let behind = Key::Entry(ino, Cookie::FIRST).to_bytes();
            self.insert_inode(ino, items, geometry, ino == wanted)?;
            last = ino;
            let others = items.range(behind..).take_while(|(key, _)| **key < end);
            // What changed may be entries.
            next = others.into_iter().find_map(|(key, _)| match Key::decode(key.as_slice()) {
                Ok(Key::Inode(ino)) => Some(ino),
                _ => None,
            });
        }
        self.cache.loaded_to(last + 1);
        Ok(())
    }

    fn insert_inode(
        &mut self,
        ino: u64,
        items: &Stored,
        geometry: &Geometry,
        is_wanted: bool,
    ) -> Result<()> {
        if self.nodes.contains_key(&ino) {
            return Ok(());
        }
        let keys = Key::Inode(ino).to_bytes()..Key::Entry(ino, Cookie::FIRST).to_bytes();
        match assemble(ino, items.range(keys), geometry)? {
            Some(node) => {
                if node.inode.data_id != 0 {
                    self.owners.insert(node.inode.data_id, ino);
                    if let Some(overlay) = self.data.get_mut(&node.inode.data_id) {
                        overlay.owner = ino;
                    }
                }
                self.keep(ino, node);
            }
            None if is_wanted => self.cache.nobody(ino),
            None => {}
        }
        Ok(())
    }

    fn insert_entries(
        &mut self,
        dir: u64,
        cookies: Range<u64>,
        items: &Stored,
        geometry: &Geometry,
    ) -> Result<()> {
        let (now, kept_from) = (self.cache.now(), self.cache.kept_from());
        let Some(node) = self.nodes.get_mut(&dir) else { return Ok(()) };
        for (key, value) in items {
            let key = Key::decode(key.as_slice())?;
            let (Key::Entry(_, cookie), Item::Entry(entry)) =
                (key, Item::decode(key, value, geometry)?)
            else {
                return Err(corrupt("tree", format!("{key:?} among entries")));
            };
            node.entries.set(cookie, entry.name, (entry.child, entry.kind));
        }
        node.entries.loaded(cookies, now, kept_from);
        self.recount(dir);
        Ok(())
    }
}

impl Inner {
    /// All names and attributes, item by item. For tests and tools.
    pub(crate) async fn names(&self) -> Result<Stored> {
        let keys = (Key::Inode(0), Key::Inode(0), Key::Extent(0, 0));
        loop {
            let root = self.state.lock().root;
            let part = Part::read(&self.tree, root, keys, (usize::MAX, 0)).await;
            let state = self.state.lock();
            if state.root == root
                && let Some(items) = state.over(part?)
            {
                return Ok(items);
            }
        }
    }

    /// Up to `max` entries of a directory behind a cookie: out of memory if all that follow are there, else
    /// from the tree and what changed. They are not kept.
    pub(crate) async fn list(
        &self,
        dir: Ino,
        after: forebay_vfs::Cookie,
        max: usize,
    ) -> Result<Vec<DirEntry>> {
        let (mut listed, mut after) = (Vec::new(), after.0);
        loop {
            let noatime = self.options.noatime;
            let first = self.tried(|state, now| {
                rules::live_directory(state, "readdir", dir)?;
                let left = max - listed.len();
                let node = state.get("readdir", dir)?;
                let (entries, ahead) =
                    (node.entries.list(after, left), Ahead::of_entries(node.inode.size));
                let there = entries.map(|entries| entries.map(listed_entry).collect::<Vec<_>>());
                state.touch_atime(dir, now, noatime);
                Ok((there, state.root, ahead))
            });
            let (root, ahead) = match first.await? {
                (Some(there), ..) => {
                    listed.extend(there);
                    return Ok(listed);
                }
                (None, root, ahead) => (root, ahead),
            };
            let Some(from) = next_cookie(after) else { return Ok(listed) };
            let end = Key::Inode(dir.0 + 1);
            let keys = (Key::Entry(dir.0, from), Key::Entry(dir.0, from), end);
            let part = Part::read(&self.tree, root, keys, (max - listed.len(), ahead)).await;
            let state = self.state.lock();
            if state.root != root {
                continue;
            }
            let part = part?;
            let upto = part.end();
            for (key, value) in state.over(part).into_iter().flatten() {
                let geometry = &self.layout.geometry;
                let key = Key::decode(key.as_slice())?;
                let item = Item::decode(key, &value, geometry)?;
                let (Key::Entry(_, cookie), Item::Entry(entry)) = (key, item) else {
                    return Err(corrupt("tree", format!("{key:?} among entries")));
                };
                after = cookie.to_u64();
                listed.push(listed_entry((after, entry.name, (entry.child, entry.kind))));
                if listed.len() == max {
                    return Ok(listed);
                }
            }
            match Key::decode(upto.as_slice()) {
                // The last one that was read is not behind the next one.
                Ok(Key::Entry(there, cookie)) if there == dir.0 => after = cookie.to_u64() - 1,
                _ => return Ok(listed),
            }
        }
    }
}

/// The first cookie behind a number; none behind the last.
fn next_cookie(after: u64) -> Option<Cookie> {
    let next = after.saturating_add(1).max(Cookie::FIRST.to_u64());
    Cookie::from_u64(next)
}

fn listed_entry((cookie, name, (ino, kind)): (u64, &[u8], Child)) -> DirEntry {
    let cookie = forebay_vfs::Cookie(cookie);
    DirEntry { cookie, ino: Ino(ino), kind: kind_of(kind), name: name.into() }
}

/// An inode with its target and attributes.
fn assemble<'a>(
    ino: u64,
    items: impl Iterator<Item = (&'a KeyBytes, &'a Box<[u8]>)>,
    geometry: &Geometry,
) -> Result<Option<Node>> {
    let lone = |key: Key| corrupt("tree", format!("{key:?} belongs to nothing"));
    let mut found: Option<(Inode, Node)> = None;
    let mut target = Vec::new();
    let mut last: Option<(Cookie, Box<[u8]>)> = None;
    for (key, value) in items {
        let key = Key::decode(key.as_slice())?;
        let item = Item::decode(key, value, geometry)?;
        if let (Key::Inode(_), Item::Inode(inode)) = (key, item) {
            found = Some((inode, Node::new(inode, &[])));
            continue;
        }
        let Some((_, node)) = &mut found else { return Err(lone(key)) };
        match (key, item) {
            (Key::Target(..), Item::Piece(piece)) => target.extend_from_slice(piece),
            (Key::Xattr(_, cookie, _), Item::Xattr(xattr)) => {
                let mut value = Vec::with_capacity(xattr.value_bytes as usize);
                value.extend_from_slice(xattr.piece);
                node.cookies.insert(xattr.name.into(), cookie);
                node.xattrs.insert(xattr.name.into(), value.into());
                last = Some((cookie, xattr.name.into()));
            }
            (Key::Xattr(_, cookie, _), Item::Piece(piece)) => {
                let name = last.as_ref().filter(|(there, _)| *there == cookie);
                let (_, name) = name.ok_or_else(|| lone(key))?;
                let value = node.xattrs.get_mut(name).ok_or_else(|| lone(key))?;
                *value = [&**value, piece].concat().into();
            }
            _ => return Err(corrupt("tree", format!("{key:?} of inode {ino}"))),
        }
    }
    Ok(found.map(|(_, mut node)| {
        node.target = target.into();
        node
    }))
}
