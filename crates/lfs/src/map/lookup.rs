//! Where a block is: what changed since the last checkpoint answers first, then what is frozen, then the
//! tree.
//!
//! Invariants: M21 an answer is what all records up to some moment of the call say. M22 a place is pinned in
//! the same hold of the lock that found it current, so that it is not used again while it is read.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::btree::{Cursor, Found, InOrder};
use crate::format::corrupt;
use crate::format::extent::{Source, UNWRITTEN};
use crate::format::item::Item;
use crate::format::key::Key;
use crate::format::superblock::TreeRoot;
use crate::log::staging::Staging;
use crate::map::overlay::{Piece, Sums, Where};
use crate::transaction::state::State;
use crate::volume::Inner;
use forebay_base::Result;
use std::any::Any;
use std::sync::Arc;

/// Keeps a place readable.
pub(crate) type Pin = Arc<dyn Any + Send + Sync>;

/// What is known without a wait.
pub(crate) enum Known {
    Piece(Piece, Option<Pin>),
    /// Of so many blocks the tree knows, and this is its root.
    Tree(u64, TreeRoot),
}

impl State {
    /// The piece that begins at `block`, if the tree need not be asked.
    pub fn find_piece(&self, data_id: u64, block: u64, staging: &Staging) -> Known {
        match self.known(data_id, block) {
            Ok(piece) => {
                let pin = self.pin(&piece, staging);
                Known::Piece(piece, pin)
            }
            Err(blocks) if self.root.places.is_none() || data_id >= self.tree_data_ids => {
                Known::Piece(Piece::hole(blocks, 0), None)
            }
            Err(blocks) => Known::Tree(blocks, self.root),
        }
    }

    /// M22.
    fn pin(&self, piece: &Piece, staging: &Staging) -> Option<Pin> {
        match piece.at {
            Where::Run(place) => self.space.segments.pin(place.segment).map(|pin| pin as Pin),
            Where::Staged(at) => staging.pin(at).map(|pin| pin as Pin),
            Where::Hole => None,
        }
    }
}

impl Inner {
    /// The piece that begins at `block`: a hole where there is nothing. It may end before what follows does.
    pub(crate) async fn piece_at(&self, data_id: u64, block: u64) -> Result<(Piece, Option<Pin>)> {
        self.piece_of(data_id, block).await.map(|(piece, pin, _)| (piece, pin))
    }

    /// The same, and the tree that it was found in.
    pub(crate) async fn piece_of(
        &self,
        data_id: u64,
        block: u64,
    ) -> Result<(Piece, Option<Pin>, Option<TreeRoot>)> {
        loop {
            let (blocks, root) = match self.state.lock().find_piece(data_id, block, &self.staging) {
                Known::Piece(piece, pin) => return Ok((piece, pin, None)),
                Known::Tree(blocks, root) => (blocks, root),
            };
            let found = self.piece_in_tree(&root, data_id, block).await;
            self.note_nodes();
            let state = self.state.lock();
            if state.root != root {
                // Whatever was read may be of the past, or of places that were used again.
                continue;
            }
            let piece = found?;
            // Something may have been published meanwhile.
            match state.known(data_id, block) {
                Ok(_) => {}
                Err(unknown) => {
                    let blocks = piece.blocks.min(blocks).min(unknown);
                    let piece = piece.part(0, blocks, self.layout.block_bytes());
                    let pin = state.pin(&piece, &self.staging);
                    return Ok((piece, pin, Some(root)));
                }
            }
        }
    }

    /// The piece that begins at `block` as a tree has it, whatever has changed since.
    pub(crate) async fn piece_in_tree(
        &self,
        root: &TreeRoot,
        data_id: u64,
        block: u64,
    ) -> Result<Piece> {
        self.piece_in_order(root, data_id, block, &mut InOrder::default()).await
    }

    /// The same for who asks for one after the other, in the order of keys.
    pub(crate) async fn piece_in_order(
        &self,
        root: &TreeRoot,
        data_id: u64,
        block: u64,
        order: &mut InOrder,
    ) -> Result<Piece> {
        let key = Key::Extent(data_id, block);
        if let Some(found) = self.tree.floor_in_order(root, key, order).await?
            && let Some(piece) = self.decode(&found, data_id, block)?
        {
            return Ok(piece);
        }
        let (from, end) = (Key::Extent(data_id, block), Key::Extent(data_id + 1, 0));
        let next = Cursor::new(from, Some(end)).next(&self.tree, root).await?;
        let upto = match next {
            None => u64::MAX,
            Some(found) => match found.decode(&self.layout.geometry)? {
                (Key::Extent(_, next), _) => next,
                (key, _) => return Err(corrupt("tree", format!("{key:?} among extents"))),
            },
        };
        Ok(Piece::hole(upto - block, 0))
    }

    /// The part of an extent from `block` on, if it has that.
    fn decode(&self, found: &Found, data_id: u64, block: u64) -> Result<Option<Piece>> {
        let (Key::Extent(id, first), Item::Extent(extent)) = found.decode(&self.layout.geometry)?
        else {
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
        Ok(Some(piece.part(skip, blocks - skip, self.layout.block_bytes())))
    }
}
