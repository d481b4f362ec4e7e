//! Notes the changed tree items of a change of names and attributes in
//! [`Items`](crate::names::items::Items).
//!
//! No locks: the volume's state lock covers it.

use crate::format::item::{CHUNK_BYTES, EntryItem, Item, XattrItem};
use crate::format::key::{Cookie, Key, NameHash};
use crate::names::Names;
use crate::names::items::pieces;
use crate::names::node::Node;
use forebay_base::Result;

impl Names {
    /// Notes a changed inode.
    pub fn note_inode(&mut self, ino: u64) -> Result<()> {
        let geometry = self.geometry;
        let Some(node) = self.nodes.get(ino) else { return Ok(()) };
        self.items.item(Key::Inode(ino), &Item::Inode(node.recorded), &geometry)
    }

    /// Notes the target of a new symbolic link.
    pub fn note_target(&mut self, ino: u64, target: &[u8]) -> Result<()> {
        let geometry = self.geometry;
        for (n, piece) in (0..).zip(target.chunks(CHUNK_BYTES)) {
            self.items.item(Key::Target(ino, n), &Item::Piece(piece), &geometry)?;
        }
        Ok(())
    }

    /// Notes an entry that is new, or refers to another inode now.
    pub fn note_entry(&mut self, dir: u64, cookie: Cookie, entry: EntryItem<'_>) -> Result<()> {
        let geometry = self.geometry;
        self.items.item(Key::Entry(dir, cookie), &Item::Entry(entry), &geometry)
    }

    /// Notes a removed entry.
    pub fn note_no_entry(&mut self, dir: u64, cookie: Cookie) {
        self.items.nothing(Key::Entry(dir, cookie));
    }

    /// Notes that an inode became an orphan, or is no longer one.
    pub fn note_orphan(&mut self, ino: u64, is_orphan: bool) -> Result<()> {
        let geometry = self.geometry;
        match is_orphan {
            true => self.items.item(Key::Orphan(ino), &Item::Orphan(0), &geometry),
            false => {
                self.items.nothing(Key::Orphan(ino));
                Ok(())
            }
        }
    }

    /// Notes an extended attribute that replaces `old` bytes under the same name.
    pub fn note_xattr(
        &mut self,
        ino: u64,
        name: &[u8],
        value: &[u8],
        old: Option<usize>,
    ) -> Result<()> {
        let (geometry, nonce) = (self.geometry, self.nonce);
        let cookie = |node: &mut Node| match node.cookies.get(name) {
            Some(cookie) => *cookie,
            None => {
                // items.A12: the lowest number that no other name with this hash has.
                let hash = NameHash::new(&nonce, name);
                let taken = |nth| node.cookies.values().any(|c| *c == Cookie::new(hash, nth));
                let nth = (0..=u16::MAX).find(|nth| !taken(*nth)).unwrap_or(u16::MAX);
                let cookie = Cookie::new(hash, nth);
                node.cookies.insert(name.into(), cookie);
                cookie
            }
        };
        let Some(cookie) = self.update(ino, cookie) else { return Ok(()) };
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

    /// Notes a removed extended attribute of `old` bytes.
    pub fn note_no_xattr(&mut self, ino: u64, name: &[u8], old: usize) {
        let cookie = self.update(ino, |node| node.cookies.remove(name)).flatten();
        let Some(cookie) = cookie else { return };
        for n in 0..pieces(old).max(1) {
            self.items.nothing(Key::Xattr(ino, cookie, n));
        }
    }

    /// Notes a removed inode, with its target and extended attributes.
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
