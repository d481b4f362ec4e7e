//! The changes that a checkpoint merges into the trees: pieces of content, items, and the owners of
//! content.
//!
//! No locks.

use crate::btree::map::{Piece, Stored};
use crate::btree::{Change, Cursor, Tree};
use crate::format::extent::put_crc32c;
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::superblock::TreeRoot;
use crate::map::overlay::{self, Overlay, Where};
use crate::names::items::Items;
use forebay_base::Result;
use std::collections::{BTreeMap, BTreeSet};

/// All pieces in the form of the tree.
pub(crate) fn pieces_of(
    data: &BTreeMap<u64, Overlay>,
) -> Box<dyn Iterator<Item = Piece> + Send + '_> {
    Box::new(data.iter().flat_map(|(id, overlay)| overlay.pieces().map(|p| piece(*id, p))))
}

/// A piece in the form of the tree.
fn piece(data_id: u64, (block, piece): (u64, overlay::Piece)) -> Piece {
    let stored = match piece.at {
        Where::Run(place) => {
            let mut sums = Vec::new();
            put_crc32c(piece.own_sums(), &mut sums);
            Some(Stored { place, birth: piece.birth, flags: 0, sums: sums.into() })
        }
        Where::Hole | Where::Staged(_) => None,
    };
    Piece { data_id, block, blocks: piece.blocks, stored }
}

/// The changes of items, where those in `patches` replace items of the same key.
pub(crate) fn overlaid(
    items: impl Iterator<Item = Change> + Send,
    patches: BTreeMap<u64, Change>,
) -> impl Iterator<Item = Change> + Send {
    let mut patches = patches.into_values().peekable();
    let mut items = items.peekable();
    std::iter::from_fn(move || {
        let (Some(patch), Some(item)) = (patches.peek(), items.peek()) else {
            return patches.next().or_else(|| items.next());
        };
        if patch.key() > item.key() {
            return items.next();
        }
        if patch.key() == item.key() {
            items.next();
        }
        patches.next()
    })
}

/// Finds the inodes of content that recovery applied without reading the inode, or that was written
/// while the inode was not in memory. It reads all inodes for that.
pub(crate) async fn find_owners(
    tree: &Tree,
    root: &TreeRoot,
    (data, items): (&BTreeMap<u64, Overlay>, &Items),
    stored: &mut BTreeMap<u64, (u64, i64)>,
) -> Result<()> {
    let is_unknown = |(data_id, (ino, bytes)): &(&u64, &(u64, i64))| {
        *ino == 0 && *bytes != 0 && data.get(data_id).is_some_and(|overlay| !overlay.is_dead)
    };
    let unknown = stored.iter().filter(is_unknown).map(|(data_id, _)| *data_id);
    let mut unknown: BTreeSet<u64> = unknown.collect();
    let ends = [Key::Inode(0), Key::Extent(0, 0)];
    // New inodes are not in the tree yet.
    let keys = ends[0].to_bytes()..ends[1].to_bytes();
    let new = (!unknown.is_empty()).then(|| items.range(&keys));
    for (key, value) in new.into_iter().flatten() {
        let (key, Some(value)) = (Key::decode(key.as_slice())?, value) else { continue };
        if let (Key::Inode(ino), Item::Inode(inode)) =
            (key, Item::decode(key, value, tree.geometry())?)
            && unknown.remove(&inode.data_id)
            && let Some(stored) = stored.get_mut(&inode.data_id)
        {
            stored.0 = ino;
        }
    }
    let mut cursor = Cursor::new(ends[0], Some(ends[1]));
    while !unknown.is_empty()
        && let Some(found) = cursor.next(tree, root).await?
    {
        if let (Key::Inode(ino), Item::Inode(inode)) = found.decode(tree.geometry())?
            && unknown.remove(&inode.data_id)
            && let Some(stored) = stored.get_mut(&inode.data_id)
        {
            stored.0 = ino;
        }
    }
    Ok(())
}
