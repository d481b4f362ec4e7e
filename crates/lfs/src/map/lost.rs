//! Blocks that the device has lost: content that was accepted, and that no record of the log has.
//!
//! ```text
//!   reads ──▶ lost blocks ──▶ changes ──▶ frozen changes ──▶ tree
//!               error          the map, as the log has it once a checkpoint has corrected it
//! ```
//! Invariants: V15 a block is lost until something younger is recorded for it: content, a hole, or
//! the end of its data id. So no read shows older content in place of what was accepted. V16 lost
//! blocks are no part of the map: no checkpoint and no record has them, and the next life of the
//! volume does not know of them.
//!
//! No locks: the volume's state lock covers it.

use crate::map::overlay::{Overlay, Piece};
use std::collections::BTreeMap;
use std::ops::Range;

/// Pieces here have no place, so parts of them need no block size.
const NO_BYTES: u64 = 0;

/// The lost blocks of one file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct LostRuns {
    pub ino: u64,
    /// The number of lost blocks.
    pub blocks: u64,
    /// The first runs of them.
    pub first: Vec<Range<u64>>,
    /// The number of runs after those.
    pub more: u64,
}

/// Lost blocks by data id: as holes, with the births of what was lost.
#[derive(Default)]
pub(crate) struct LostBlocks {
    files: BTreeMap<u64, Overlay>,
}

impl LostBlocks {
    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Notes that these blocks of a file are lost, whose content had this birth.
    pub fn add(&mut self, (ino, data_id): (u64, u64), blocks: Range<u64>, birth: u64) {
        let lost = Piece::hole(blocks.end - blocks.start, birth);
        let file = self.files.entry(data_id).or_default();
        file.insert(blocks.start, &lost, NO_BYTES);
        file.owner = ino;
    }

    /// Whether some content of this inode is lost.
    pub fn has_of(&self, ino: u64) -> bool {
        self.files.values().any(|lost| lost.owner == ino)
    }

    /// The number of files with lost blocks.
    pub fn file_count(&self) -> usize {
        self.files.len()
    }

    /// The first `most` files, by data id, with the first `most` runs of each.
    pub fn files(&self, most: usize) -> impl Iterator<Item = LostRuns> {
        self.files.values().take(most).map(move |lost| {
            let mut found = LostRuns { ino: lost.owner, ..LostRuns::default() };
            let mut last = None;
            for (start, piece) in lost.pieces() {
                let end = start + piece.blocks;
                let joins = last == Some(start);
                last = Some(end);
                found.blocks += piece.blocks;
                if !joins && found.first.len() == most {
                    found.more += 1;
                } else if !joins {
                    found.first.push(start..end);
                } else if found.more == 0
                    && let Some(run) = found.first.last_mut()
                {
                    run.end = end;
                }
            }
            found
        })
    }

    /// Ends the loss of these blocks where it is older than a new record with this birth (V15).
    pub fn end(&mut self, data_id: u64, blocks: Range<u64>, birth: u64) {
        let Some(lost) = self.files.get_mut(&data_id) else { return };
        for part in lost.older(blocks, birth, NO_BYTES) {
            lost.clear(part, NO_BYTES);
        }
        if lost.count() == 0 {
            self.files.remove(&data_id);
        }
    }

    /// The data id has ended.
    pub fn forget(&mut self, data_id: u64) {
        self.files.remove(&data_id);
    }

    /// The first lost blocks from `block` on.
    pub fn next(&self, data_id: u64, block: u64) -> Option<Range<u64>> {
        let lost = self.files.get(&data_id)?;
        let start = match lost.look_up(block, NO_BYTES) {
            Ok(piece) => return Some(block..block + piece.blocks),
            Err(unknown) => block.checked_add(unknown)?,
        };
        let piece = lost.look_up(start, NO_BYTES).ok()?;
        Some(start..start + piece.blocks)
    }

    /// The end of the lost blocks that begin with `block`. If it is not lost: `block`.
    pub fn end_from(&self, data_id: u64, block: u64) -> u64 {
        let mut end = block;
        while let Some(more) = self.next(data_id, end).filter(|more| more.start == end) {
            end = more.end;
        }
        end
    }

    /// The end of the blocks before `end`, without the lost ones that lie directly before it.
    pub fn end_without(&self, data_id: u64, end: u64) -> u64 {
        let Some(lost) = self.files.get(&data_id) else { return end };
        let mut last = end..end;
        for (start, piece) in lost.pieces().take_while(|(start, _)| *start < end) {
            let joins = last.end == start;
            last = if joins { last.start } else { start }..start + piece.blocks;
        }
        if last.end < end { end } else { last.start }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// V15: older content does not bring a lost block back; younger content does.
    #[test]
    fn v15_v16_lost_block_stays_lost_until_younger_record() {
        let mut lost = LostBlocks::default();
        lost.add((3, 5), 10..14, 7);
        assert_eq!((lost.next(5, 0), lost.next(5, 12), lost.next(5, 14)), {
            (Some(10..14), Some(12..14), None)
        });
        lost.end(5, 0..100, 6);
        assert_eq!(lost.next(5, 0), Some(10..14), "what was written before it was lost");
        lost.end(5, 11..12, 8);
        assert_eq!((lost.next(5, 0), lost.next(5, 11)), (Some(10..11), Some(12..14)));
        let ends = [9, 10, 11, 12, 13, 14, 15].map(|end| lost.end_without(5, end));
        assert_eq!(ends, [9, 10, 10, 12, 12, 12, 15]);
        lost.add((3, 5), 14..20, 7);
        let runs = |first: Vec<Range<u64>>, more| vec![LostRuns { ino: 3, blocks: 9, first, more }];
        let list = [0, 1, 2].map(|most| lost.files(most).collect::<Vec<_>>());
        let both = vec![10..11, 12..20];
        assert_eq!(list, [vec![], runs(both[..1].to_vec(), 1), runs(both, 0)]);
        assert_eq!((lost.end_without(5, 20), lost.end_without(5, 21)), (12, 21));
        let ends = [9, 10, 11, 12, 20].map(|block| lost.end_from(5, block));
        assert_eq!(ends, [9, 11, 11, 20, 20]);
        lost.add((3, 5), 20..22, 8);
        assert_eq!(lost.end_from(5, 13), 22, "of another birth");
        assert!(lost.has_of(3) && !lost.has_of(5));
        lost.end(5, 10..u64::MAX, 9);
        assert!(!lost.has_of(3) && lost.is_empty() && lost.next(5, 0).is_none());
        lost.add((3, 5), 3..4, 1);
        lost.forget(5);
        assert!(lost.is_empty());
    }
}
