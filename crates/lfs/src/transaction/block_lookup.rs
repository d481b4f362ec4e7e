//! Finds the place of a block as far as the state in memory knows it, and pins it so that it stays
//! readable.
//!
//! Lock: the state lock, held by the caller.

use crate::log::Doubt;
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
            Err(blocks) if self.root.places.is_none() || !self.map.may_be_in_tree(data_id) => {
                Known::Piece(Piece::hole(blocks, 0), None)
            }
            Err(blocks) => Known::Tree(blocks, self.root),
        }
    }

    /// Cuts a piece of a record before what the device has lost of it, or may have lost
    /// (repair.Q4). `Err`: its first block is such. Only the log knows what is lost, so a piece
    /// from the tree is all there (repair.Q2). While a repair is outstanding a group in progress
    /// may have the records, so no piece counts as good.
    pub fn before_lost(&self, piece: Piece, doubt: Doubt) -> Result<Piece, Piece> {
        let Where::Run(at) = piece.at else { return Ok(piece) };
        if doubt.needs_repair {
            return Err(piece);
        }
        let unit = self.layout.block_bytes();
        let recorded = self.queue.iter().filter(|_| doubt.flush_failures > 0);
        let in_doubt = recorded.flat_map(|record| &record.runs);
        let in_doubt = in_doubt.filter(|run| run.is_in_doubt(doubt.flush_failures));
        let lost = self.sync_errors.lost_runs().iter().copied();
        let lost = lost.chain(in_doubt.map(|run| (run.at, run.len)));
        let len = piece.blocks * unit;
        match lost.filter_map(|lost| at.overlap(len, lost)).map(|shared| shared.start / unit).min()
        {
            None => Ok(piece),
            Some(0) => Err(piece),
            Some(blocks) => Ok(piece.part(0, blocks, unit)),
        }
    }

    /// Pins the place of a piece (M22).
    pub fn pin(&self, piece: &Piece, staging: &Staging) -> Option<Pin> {
        match piece.at {
            Where::Run(place) => self.space.segments.pin(place.segment).map(|pin| pin as Pin),
            Where::Staged(at) => staging.pin(at).map(|pin| pin as Pin),
            Where::Hole => None,
        }
    }
}
