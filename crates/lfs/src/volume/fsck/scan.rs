//! Reads inodes and entries as recovery finds them, a part at a time.
//!
//! Invariant: E21 a scan returns each inode and each entry once, in order of keys: an inode comes
//! directly before its entries. In memory is one part, about [`PART_ITEMS`] items.
//!
//! Locks: the state lock, taken briefly. No lock is held across a wait.

use crate::format::inode::{FileType, Inode};
use crate::format::item::Item;
use crate::format::key::{Cookie, Key};
use crate::names::load::Part;
use crate::volume::Inner;
use forebay_base::Result;
use std::vec::IntoIter;

/// Items of a part; the last leaf may have more.
const PART_ITEMS: usize = 256;
/// Leaves that are read together.
const AHEAD_LEAVES: usize = 15;

/// An item of the scan.
pub(super) enum Name {
    Inode(u64, Inode),
    Entry { dir: u64, name: Box<[u8]>, child: u64, kind: FileType },
}

/// Reads inodes and entries in order of keys.
pub(super) struct Scan<'v> {
    volume: &'v Inner,
    /// The first key of the next part. `None`: there are no more parts.
    from: Option<Key>,
    end: Key,
    items: IntoIter<Name>,
}

impl<'v> Scan<'v> {
    /// Reads all inodes and entries.
    pub fn all(volume: &'v Inner) -> Self {
        Self::over(volume, Key::Inode(0), Key::Extent(0, 0))
    }

    /// Reads the entries of a directory.
    pub fn directory(volume: &'v Inner, dir: u64) -> Self {
        Self::over(volume, Key::Entry(dir, Cookie::FIRST), Key::Inode(dir.saturating_add(1)))
    }

    fn over(volume: &'v Inner, from: Key, end: Key) -> Self {
        Self { volume, from: Some(from), end, items: Vec::new().into_iter() }
    }

    /// The next item. `None`: there are no more.
    pub async fn next(&mut self) -> Result<Option<Name>> {
        loop {
            if let Some(item) = self.items.next() {
                return Ok(Some(item));
            }
            let Some(from) = self.from else { return Ok(None) };
            self.read_part(from).await?;
        }
    }

    async fn read_part(&mut self, from: Key) -> Result<()> {
        let (tree, geometry) = (&self.volume.tree, self.volume.layout.geometry);
        let keys = (from, from, self.end);
        let (laid, end) = loop {
            let root = self.volume.state.lock().tree().root();
            let part = Part::read(tree, root, keys, (PART_ITEMS, AHEAD_LEAVES)).await;
            let state = self.volume.state.lock();
            if state.tree().root() == root {
                let part = part?;
                let end = part.end();
                // The part is of this root.
                if let Some(laid) = state.over(part) {
                    break (laid, end);
                }
            }
        };
        let mut items = Vec::new();
        for (key, value) in laid.iter() {
            let key = Key::decode(key)?;
            match (key, Item::decode(key, value, &geometry)?) {
                (Key::Inode(ino), Item::Inode(inode)) => items.push(Name::Inode(ino, inode)),
                (Key::Entry(dir, _), Item::Entry(entry)) => {
                    let (name, child, kind) = (entry.name.into(), entry.child, entry.kind);
                    items.push(Name::Entry { dir, name, child, kind });
                }
                _ => {}
            }
        }
        self.items = items.into_iter();
        self.from = match Key::decode(end.as_slice()) {
            Ok(next) if next < self.end => Some(next),
            _ => None,
        };
        Ok(())
    }
}

/// An inode as recovery finds it.
pub(super) async fn inode_of(volume: &Inner, ino: u64) -> Result<Option<Inode>> {
    if ino == 0 {
        return Ok(None);
    }
    let (key, geometry) = (Key::Inode(ino), volume.layout.geometry);
    let decoded = |item: &Item<'_>| match item {
        Item::Inode(inode) => Some(*inode),
        _ => None,
    };
    let root = {
        let state = volume.state.lock();
        match state.changed(key) {
            Some(Some(value)) => return Ok(decoded(&Item::decode(key, value, &geometry)?)),
            Some(None) => return Ok(None),
            None => state.tree().root(),
        }
    };
    let found = volume.tree.get(&root, key).await?;
    Ok(match found {
        Some(found) => decoded(&found.decode(&geometry)?.1),
        None => None,
    })
}
