//! Finds the place of a block as far as the state in memory knows it, and pins it so that it stays
//! readable.
//!
//! Lock: the state lock, held by the caller.

use crate::log::staging::Staging;
use crate::map::lookup::{Known, Pin};
use crate::map::overlay::{Piece, Where};
use crate::transaction::state::State;

impl State {
    /// The piece that begins at `block`, if it is known without the tree.
    pub fn find_piece(&self, data_id: u64, block: u64, staging: &Staging) -> Known {
        match self.map.known(data_id, block) {
            Ok(piece) => {
                let pin = self.pin(&piece, staging);
                Known::Piece(piece, pin)
            }
            Err(blocks) if self.tree.is_empty() || !self.map.may_be_in_tree(data_id) => {
                Known::Piece(Piece::hole(blocks, 0), None)
            }
            Err(blocks) => Known::Tree(blocks, self.tree.root()),
        }
    }

    /// Ends a piece before the blocks that the device may have lost, if this many flushes have
    /// failed (repair.Q4). `Err`: its first block may be lost. Pieces from the tree are complete
    /// (logged.Q2).
    pub fn before_doubt(&self, piece: Piece, flush_failures: u64) -> Result<Piece, Piece> {
        let Where::Run(at) = piece.at else { return Ok(piece) };
        let unit = self.layout.block_bytes();
        let len = piece.blocks * unit;
        let doubt = self.queue.in_doubt(flush_failures);
        match doubt.filter_map(|one| at.overlap(len, one)).map(|shared| shared.start / unit).min() {
            None => Ok(piece),
            Some(0) => Err(piece),
            Some(blocks) => Ok(piece.part(0, blocks, unit)),
        }
    }

    /// Pins the place of a piece (lookup.M22).
    pub fn pin(&self, piece: &Piece, staging: &Staging) -> Option<Pin> {
        match piece.at {
            Where::Run(place) => self.space.segments().pin(place.segment).map(|pin| pin as Pin),
            Where::Staged(at) => staging.pin(at).map(|pin| pin as Pin),
            Where::Hole => None,
        }
    }
}
