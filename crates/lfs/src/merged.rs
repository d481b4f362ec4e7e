//! What a checkpoint tells the trees: pieces of content, and items with what else became known of them.
//!
//! No locks.

use crate::btree::Change;
use crate::btree::map::{Piece, Stored};
use crate::format::extent::put_crc32c;
use crate::pending::{self, Overlay, Where};
use std::collections::BTreeMap;

/// All pieces, as the tree is told of them.
pub(crate) fn pieces_of(
    data: &BTreeMap<u64, Overlay>,
) -> Box<dyn Iterator<Item = Piece> + Send + '_> {
    Box::new(data.iter().flat_map(|(id, overlay)| overlay.pieces().map(|p| piece(*id, p))))
}

/// A piece as the tree is told of it.
fn piece(data_id: u64, (block, piece): (u64, &pending::Piece)) -> Piece {
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

/// Changes, with those of some inodes in the stead of what is said of them.
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
