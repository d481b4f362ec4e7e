//! Where a block is, as far as memory tells; and the pin that keeps it readable.
//!
//! Lock: the state lock, held by the caller.

use crate::log::staging::Staging;
use crate::map::lookup::{Known, Pin};
use crate::map::overlay::{Piece, Where};
use crate::transaction::state::State;

impl State {
    /// The piece that begins at `block`, if the tree need not be asked.
    pub fn find_piece(&self, data_id: u64, block: u64, staging: &Staging) -> Known {
        match self.map.known(data_id, block) {
            Ok(piece) => {
                let pin = self.pin(&piece, staging);
                Known::Piece(piece, pin)
            }
            Err(blocks) if self.root.places.is_none() || !self.map.may_be_in_tree(data_id) => {
                Known::Piece(Piece::hole(blocks, 0), None)
            }
            Err(blocks) => Known::Tree(blocks, self.root),
        }
    }

    /// M22.
    pub fn pin(&self, piece: &Piece, staging: &Staging) -> Option<Pin> {
        match piece.at {
            Where::Run(place) => self.space.segments.pin(place.segment).map(|pin| pin as Pin),
            Where::Staged(at) => staging.pin(at).map(|pin| pin as Pin),
            Where::Hole => None,
        }
    }
}
