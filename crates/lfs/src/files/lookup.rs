//! Looks up the blocks of a file: first in the changes in memory, then in the tree.
//!
//! Invariants: M21 an answer reflects all records up to some moment of the call. M22 an address is
//! pinned in the same hold of the lock that found it current, so that it is not reused while it is
//! read.
//!
//! Locks: the state lock in turn; none across a wait.

use crate::btree::InOrder;
use crate::format::superblock::TreeRoot;
use crate::map::allocated::Told;
use crate::map::lookup::{Known, Pin, piece_in_order};
use crate::map::overlay::Piece;
use crate::map::overlay::Where;
use crate::transaction::resources::Resources;
use forebay_base::Result;
use std::ops::Range;

/// Where a block is.
pub(crate) struct Found {
    /// The piece that begins at the block; a hole if nothing is stored there.
    pub piece: Piece,
    pub pin: Option<Pin>,
    /// Root of the tree that gave the piece; `None`: it comes from the changes in memory.
    pub root: Option<TreeRoot>,
    /// The first lost blocks at or after the block. A read of them fails.
    pub lost: Option<Range<u64>>,
}

impl Found {
    /// The first part of the piece that is lost completely, or not at all; true: lost.
    pub fn split_at_lost(&self, block: u64, block_bytes: u64) -> (Piece, bool) {
        let (is_lost, end) = match &self.lost {
            Some(lost) if lost.start <= block => (true, lost.end),
            Some(lost) => (false, lost.start),
            None => (false, u64::MAX),
        };
        (self.piece.part(0, self.piece.blocks.min(end - block), block_bytes), is_lost)
    }
}

impl Resources {
    /// Whether these bytes of a file are stored, for a caller that can wait for the tree; `told`
    /// caches answers of the tree.
    pub(crate) async fn ask_stored(
        &self,
        ino: u64,
        told: &Told,
        range: &Range<u64>,
    ) -> Result<bool> {
        let data_id = {
            let state = self.state.lock();
            if state.is_stored(ino, range, told) {
                return Ok(true);
            }
            let Some(node) = state.names().node(ino) else { return Ok(false) };
            node.recorded.data_id
        };
        let unit = self.layout.block_bytes();
        let (mut block, end) = (range.start / unit, range.end.div_ceil(unit));
        let (mut runs, mut all): (Vec<Range<u64>>, bool) = (Vec::new(), true);
        while block < end {
            let (piece, _pin) = self.piece_at(data_id, block).await?;
            let blocks = piece.blocks.min(end - block);
            all &= piece.at != Where::Hole;
            if piece.at != Where::Hole {
                match runs.last_mut() {
                    Some(last) if last.end == block => last.end += blocks,
                    _ => runs.push(block..block + blocks),
                }
            }
            block += blocks;
        }
        told.add(data_id, runs);
        Ok(all)
    }
}

impl Resources {
    /// The piece that begins at `block`; a hole if nothing is stored there. It may be shorter than
    /// the extent.
    pub(crate) async fn piece_at(&self, data_id: u64, block: u64) -> Result<(Piece, Option<Pin>)> {
        self.piece_of(data_id, block).await.map(|found| (found.piece, found.pin))
    }

    /// As [`Self::piece_at`], with the tree and the lost blocks.
    pub(crate) async fn piece_of(&self, data_id: u64, block: u64) -> Result<Found> {
        loop {
            let (blocks, root) = {
                let state = self.state.lock();
                match state.find_piece(data_id, block, &self.staging) {
                    Known::Piece(piece, pin) => {
                        let lost = state.map().lost().next(data_id, block);
                        return Ok(Found { piece, pin, root: None, lost });
                    }
                    Known::Tree(blocks, root) => (blocks, root),
                }
            };
            let found =
                piece_in_order(&self.tree, &root, data_id, block, &mut InOrder::default()).await;
            self.note_nodes();
            let state = self.state.lock();
            if state.tree().root() != root {
                // The answer may be outdated, or refer to places that were reused.
                continue;
            }
            let piece = found?;
            // A record may have been published meanwhile.
            match state.map().known(data_id, block) {
                Ok(_) => {}
                Err(unknown) => {
                    let blocks = piece.blocks.min(blocks).min(unknown);
                    let piece = piece.part(0, blocks, self.layout.block_bytes());
                    let pin = state.pin(&piece, &self.staging);
                    let lost = state.map().lost().next(data_id, block);
                    return Ok(Found { piece, pin, root: Some(root), lost });
                }
            }
        }
    }
}
