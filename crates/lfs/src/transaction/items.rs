//! Notes the changed tree items of a change of names and attributes in
//! [`Items`](crate::names::items::Items).
//!
//! No locks: the volume's state lock covers it.

use crate::btree::{Cursor, Tree};
use crate::format::item::{CHUNK_BYTES, EntryItem, Item, XattrItem};
use crate::format::key::{Cookie, Key, NameHash};
use crate::format::superblock::TreeRoot;
use crate::names::items::pieces;
use crate::names::node::Node;
use crate::transaction::state::State;
use forebay_base::Result;

impl State {
    /// Notes a changed inode.
    pub fn note_inode(&mut self, ino: u64) -> Result<()> {
        let geometry = self.layout.geometry;
        let Some(node) = self.nodes.get(ino) else { return Ok(()) };
        self.items.item(Key::Inode(ino), &Item::Inode(node.recorded), &geometry)
    }

    /// Notes the target of a new symbolic link.
    pub fn note_target(&mut self, ino: u64, target: &[u8]) -> Result<()> {
        let geometry = self.layout.geometry;
        for (n, piece) in (0..).zip(target.chunks(CHUNK_BYTES)) {
            self.items.item(Key::Target(ino, n), &Item::Piece(piece), &geometry)?;
        }
        Ok(())
    }

    /// Notes an entry that is new, or refers to another inode now.
    pub fn note_entry(&mut self, dir: u64, cookie: Cookie, entry: EntryItem<'_>) -> Result<()> {
        let geometry = self.layout.geometry;
        self.items.item(Key::Entry(dir, cookie), &Item::Entry(entry), &geometry)
    }

    /// Notes a removed entry.
    pub fn note_no_entry(&mut self, dir: u64, cookie: Cookie) {
        self.items.nothing(Key::Entry(dir, cookie));
    }

    /// Notes that an inode became an orphan, or is no longer one.
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

    /// Notes an extended attribute that replaces `old` bytes under the same name.
    pub fn note_xattr(
        &mut self,
        ino: u64,
        name: &[u8],
        value: &[u8],
        old: Option<usize>,
        nonce: &[u8; 16],
    ) -> Result<()> {
        let geometry = self.layout.geometry;
        let cookie = |node: &mut Node| match node.cookies.get(name) {
            Some(cookie) => *cookie,
            None => {
                // items.A12: the lowest number that no other name with this hash has.
                let hash = NameHash::new(nonce, name);
                let taken = |nth| node.cookies.values().any(|c| *c == Cookie::new(hash, nth));
                let nth = (0..=u16::MAX).find(|nth| !taken(*nth)).unwrap_or(u16::MAX);
                let cookie = Cookie::new(hash, nth);
                node.cookies.insert(name.into(), cookie);
                cookie
            }
        };
        let Some(cookie) = self.nodes.update(ino, cookie) else { return Ok(()) };
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
        let cookie = self.nodes.update(ino, |node| node.cookies.remove(name)).flatten();
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

/// Reads the orphans in the tree below `root` into the state.
pub(crate) async fn load_orphans(tree: &Tree, root: &TreeRoot, state: &mut State) -> Result<()> {
    let mut orphans = Cursor::new(Key::Orphan(0), Some(Key::Usage(0)));
    while let Some(found) = orphans.next(tree, root).await? {
        if let (Key::Orphan(ino), _) = found.decode(tree.geometry())? {
            state.orphans.insert(ino);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::layout::Layout;
    use crate::format::change::Change;
    use crate::format::corrupt;
    use crate::format::extent::Extent;
    use crate::format::inode::Inode;
    use crate::format::place::{Geometry, Seal};

    const NONCE: [u8; 16] = [1; 16];
    const INO: u64 = 7;

    fn apply(state: &mut State, change: &Change<'_>) {
        let nowhere = |_: &Extent<'_>| Err(corrupt("test", "there is no content"));
        state.apply(change, &nowhere).unwrap();
    }

    /// items.A12: an attribute keeps its cookie when its value is replaced, and when another one
    /// with the same hash is removed. A new name gets the lowest number that is free then.
    #[test]
    fn a12_attribute_keeps_its_cookie_while_it_exists() {
        let (geometry, seal) = (Geometry::with_segment_shift(20), Seal::new(&NONCE));
        let (nonce, data_start, align) = (NONCE, 16384, 512);
        let mut state =
            State::new(Layout { geometry, seal, nonce, data_start, segments: 9, align });
        let inode = Inode { mode: 0o100_644, nlink: 1, data_id: 5, ..Inode::default() };
        apply(&mut state, &Change::CreateInode(INO, inode, &[]));
        let (first, second) = (&b"user.a"[..], &b"user.b"[..]);
        let cookie = |nth| Cookie::new(NameHash::new(&NONCE, second), nth);
        let of = |state: &State| state.nodes.get(INO).unwrap().cookies.get(second).copied();
        let has = |state: &State, nth| {
            state.items.get(Key::Xattr(INO, cookie(nth), 0)).is_some_and(|item| item.is_some())
        };
        apply(&mut state, &Change::SetXattr(INO, first, b"1"));
        // As if both names had this hash.
        state.nodes.update(INO, |node| node.cookies.insert(first.into(), cookie(0)));
        apply(&mut state, &Change::SetXattr(INO, second, b"2"));
        assert_eq!((of(&state), has(&state, 1)), (Some(cookie(1)), true), "the first has 0");
        apply(&mut state, &Change::RemoveXattr(INO, first));
        apply(&mut state, &Change::SetXattr(INO, second, b"3"));
        assert_eq!((of(&state), has(&state, 1)), (Some(cookie(1)), true), "A12: it keeps its own");
        assert!(!has(&state, 0));
        apply(&mut state, &Change::RemoveXattr(INO, second));
        assert_eq!((of(&state), has(&state, 1)), (None, false));
        apply(&mut state, &Change::SetXattr(INO, second, b"4"));
        assert_eq!((of(&state), has(&state, 0)), (Some(cookie(0)), true), "A12: the lowest");
    }
}
