//! Looks up blocks in the tree.
//!
//! No locks.

use crate::btree::{Cursor, Found, InOrder, Tree};
use crate::format::corrupt;
use crate::format::extent::{Source, UNWRITTEN};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::place::Geometry;
use crate::format::superblock::TreeRoot;
use crate::map::overlay::{Piece, Sums, Where};
use forebay_base::Result;
use std::any::Any;
use std::sync::Arc;

/// Keeps a place readable.
pub(crate) type Pin = Arc<dyn Any + Send + Sync>;

/// Result of a lookup without a wait.
pub(crate) enum Known {
    Piece(Piece, Option<Pin>),
    /// The tree has to be read for this number of blocks; its root.
    Tree(u64, TreeRoot),
}

/// The piece that begins at `block` according to a tree, without later changes. `order` speeds up
/// lookups in order of keys.
pub(crate) async fn piece_in_order(
    tree: &Tree,
    root: &TreeRoot,
    data_id: u64,
    block: u64,
    order: &mut InOrder,
) -> Result<Piece> {
    let key = Key::Extent(data_id, block);
    if let Some(found) = tree.floor_in_order(root, key, order).await?
        && let Some(piece) = decode(tree.geometry(), &found, data_id, block)?
    {
        return Ok(piece);
    }
    let (from, end) = (Key::Extent(data_id, block), Key::Extent(data_id + 1, 0));
    let next = Cursor::new(from, Some(end)).next(tree, root).await?;
    let upto = match next {
        None => u64::MAX,
        Some(found) => match found.decode(tree.geometry())? {
            (Key::Extent(_, next), _) => next,
            (key, _) => return Err(corrupt("tree", format!("{key:?} among extents"))),
        },
    };
    Ok(Piece::hole(upto - block, 0))
}

/// The part of an extent from `block` on, if it contains `block`.
fn decode(geometry: &Geometry, found: &Found, data_id: u64, block: u64) -> Result<Option<Piece>> {
    let (Key::Extent(id, first), Item::Extent(extent)) = found.decode(geometry)? else {
        return Ok(None);
    };
    let blocks = u64::from(extent.blocks);
    if id != data_id || first + blocks <= block {
        return Ok(None);
    }
    let at = match extent.source {
        _ if extent.flags & UNWRITTEN != 0 => Where::Hole,
        Source::Run(place) => Where::Run(place),
        Source::Inline(_) => return Err(corrupt("tree", "an inline extent")),
    };
    let sums = Sums::of(extent.sums.iter_crc32c(), blocks);
    let piece = Piece { blocks, birth: extent.birth, at, sums };
    let skip = block - first;
    Ok(Some(piece.part(skip, blocks - skip, u64::from(geometry.block_bytes()))))
}
