//! The changes of a file's content since the last checkpoint: an interval map from blocks to
//! places. It is consulted before the tree.
//!
//! Invariants: V1 pieces do not overlap; blocks without a piece are not known here. V2 a hole is a
//! piece: truncated or punched blocks stay so, whatever older content is recorded later. V3 where
//! pieces overlap, the one with the higher birth is kept; of two with the same birth the later one,
//! which has the same content. V4 a block that was written separately takes [`ONE_BYTES`] in
//! addition to its number, and no allocation of its own: random writes produce as many of them as
//! fit into the memory for changes.
//!
//! No locks: the volume's state lock covers it.

use crate::format::place::Place;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Where blocks are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    /// Nowhere: they read as zeros.
    Hole,
    /// From this place on.
    Run(Place),
    /// In a record that is not durable yet: from this offset of the staging area on.
    Staged(u64),
}

/// Sums of consecutive blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Sums {
    /// The volume has no sums.
    None,
    /// The checksum of one block.
    One(u32),
    /// Sums of the run that contains the blocks, and the index of the first block in it.
    Run(Arc<[u32]>, usize),
}

impl Sums {
    /// Sums of `blocks` blocks, or none.
    pub fn of(mut sums: impl Iterator<Item = u32>, blocks: u64) -> Self {
        match sums.next() {
            None => Self::None,
            Some(one) if blocks == 1 => Self::One(one),
            Some(first) => Self::Run(std::iter::once(first).chain(sums).collect(), 0),
        }
    }

    fn part(&self, skip: u64, blocks: u64) -> Self {
        match self {
            Self::Run(all, first) if blocks == 1 => Self::One(all[first + skip as usize]),
            Self::Run(all, first) => Self::Run(all.clone(), first + skip as usize),
            other => other.clone(),
        }
    }
}

/// Consecutive blocks that were written together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Number of blocks.
    pub blocks: u64,
    /// Sequence at which their content was captured.
    pub birth: u64,
    /// Where they are stored.
    pub at: Where,
    /// The checksums of these blocks.
    pub sums: Sums,
}

impl Piece {
    /// A hole.
    pub fn hole(blocks: u64, birth: u64) -> Self {
        Self { blocks, birth, at: Where::Hole, sums: Sums::None }
    }

    /// `blocks` blocks from `skip` on.
    pub fn part(&self, skip: u64, blocks: u64, block_bytes: u64) -> Self {
        let bytes = skip * block_bytes;
        let at = match self.at {
            Where::Hole => Where::Hole,
            Where::Run(place) => Where::Run(Place::new(place.segment, place.offset + bytes as u32)),
            Where::Staged(from) => Where::Staged(from + bytes),
        };
        Self { blocks, birth: self.birth, at, sums: self.sums.part(skip, blocks) }
    }

    /// Index of the first block in the run at `at` with these sums; `None`: the piece is not in
    /// that run.
    fn first_of(&self, at: Place, sums: &[u32], block_bytes: u64) -> Option<usize> {
        let Where::Run(place) = self.at else { return None };
        let skip = place.offset.checked_sub(at.offset).filter(|_| place.segment == at.segment)?;
        let first = (u64::from(skip) / block_bytes) as usize;
        (first + self.blocks as usize <= sums.len()).then_some(first)
    }

    /// The checksums of these blocks.
    pub fn own_sums(&self) -> &[u32] {
        match &self.sums {
            Sums::None => &[],
            Sums::One(sum) => std::slice::from_ref(sum),
            Sums::Run(all, first) => &all[*first..first + self.blocks as usize],
        }
    }

    /// Replaces their sums by a part of these, from `first` on.
    fn renew(&mut self, sums: &Arc<[u32]>, first: usize) {
        self.sums = Sums::Run(sums.clone(), first).part(0, self.blocks);
    }
}

/// Memory of a piece with one block, bytes (V4).
const ONE_BYTES: usize = 24;

/// A piece in its compact form.
#[derive(Debug, Clone)]
enum Kept {
    /// One block with a place.
    One {
        birth: u64,
        place: Place,
        sum: Option<u32>,
    },
    Other(Box<Piece>),
}

const _: () = assert!(size_of::<Kept>() == ONE_BYTES, "V4");

impl Kept {
    fn new(piece: Piece) -> Self {
        let Piece { blocks, birth, at, sums } = &piece;
        match (blocks, at, sums) {
            (1, Where::Run(place), Sums::None) => {
                Self::One { birth: *birth, place: *place, sum: None }
            }
            (1, Where::Run(place), Sums::One(sum)) => {
                Self::One { birth: *birth, place: *place, sum: Some(*sum) }
            }
            _ => Self::Other(Box::new(piece)),
        }
    }

    fn piece(&self) -> Piece {
        match self {
            Self::One { birth, place, sum } => {
                let sums = sum.map_or(Sums::None, Sums::One);
                Piece { blocks: 1, birth: *birth, at: Where::Run(*place), sums }
            }
            Self::Other(piece) => (**piece).clone(),
        }
    }

    fn birth(&self) -> u64 {
        match self {
            Self::One { birth, .. } => *birth,
            Self::Other(piece) => piece.birth,
        }
    }

    fn blocks(&self) -> u64 {
        match self {
            Self::One { .. } => 1,
            Self::Other(piece) => piece.blocks,
        }
    }

    fn at(&self) -> Where {
        match self {
            Self::One { place, .. } => Where::Run(*place),
            Self::Other(piece) => piece.at,
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Piece)) {
        let mut piece = self.piece();
        change(&mut piece);
        *self = Self::new(piece);
    }
}

/// The changes of one data id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Overlay {
    pieces: BTreeMap<u64, Kept>,
    /// The inode that has the content; 0 if it is not known.
    pub owner: u64,
    /// No inode has the content any more, so no inode counts its stored bytes.
    pub is_dead: bool,
}

impl Overlay {
    /// The piece from `block` on, if it is known; or the number of unknown blocks from there on.
    pub fn look_up(&self, block: u64, block_bytes: u64) -> Result<Piece, u64> {
        if let Some((start, piece)) = self.pieces.range(..=block).next_back()
            && start + piece.blocks() > block
        {
            let (skip, blocks) = (block - start, piece.blocks());
            return Ok(match piece {
                Kept::One { .. } => piece.piece(),
                Kept::Other(piece) => piece.part(skip, blocks - skip, block_bytes),
            });
        }
        let next = self.pieces.range(block..).next().map_or(u64::MAX, |(start, _)| *start);
        Err(next - block)
    }

    /// The piece that contains `block`.
    fn around(&mut self, block: u64) -> Option<&mut Kept> {
        let (start, kept) = self.pieces.range_mut(..=block).next_back()?;
        (start + kept.blocks() > block).then_some(kept)
    }

    /// Adds a piece at `block`, except where younger pieces are (V3).
    pub fn insert(&mut self, block: u64, piece: &Piece, block_bytes: u64) {
        if piece.blocks == 1 {
            // Most pieces of random writes have one block: this needs one search instead of
            // several.
            match self.around(block) {
                Some(there) if there.birth() > piece.birth => return,
                Some(there) if there.blocks() == 1 => {
                    *there = Kept::new(piece.clone());
                    return;
                }
                Some(_) => {}
                None => {
                    self.pieces.insert(block, Kept::new(piece.clone()));
                    return;
                }
            }
        }
        let end = block.saturating_add(piece.blocks);
        let mut at = block;
        while at < end {
            let (kept, upto) = match self.look_up(at, block_bytes) {
                Ok(there) => (there.birth > piece.birth, at + there.blocks),
                Err(unknown) => (false, at.saturating_add(unknown)),
            };
            let upto = upto.min(end);
            if !kept {
                self.clear(at..upto, block_bytes);
                let part = piece.part(at - block, upto - at, block_bytes);
                self.pieces.insert(at, Kept::new(part));
            }
            at = upto;
        }
    }

    /// Removes the pieces in a range.
    pub(super) fn clear(&mut self, range: Range<u64>, block_bytes: u64) {
        let before = self.pieces.range(..range.start).next_back().map(|(start, _)| *start);
        let inside = self.pieces.range(range.clone()).map(|(start, _)| *start);
        let hit: Vec<u64> = before.into_iter().chain(inside).collect();
        for start in hit {
            let end = start + self.pieces[&start].blocks();
            if end <= range.start {
                continue;
            }
            let piece = self.pieces.remove(&start).expect("it was listed").piece();
            if start < range.start {
                let part = piece.part(0, range.start - start, block_bytes);
                self.pieces.insert(start, Kept::new(part));
            }
            if end > range.end {
                let part = piece.part(range.end - start, end - range.end, block_bytes);
                self.pieces.insert(range.end, Kept::new(part));
            }
        }
    }

    /// Whether a block has a piece younger than `birth`.
    pub fn is_younger(&self, block: u64, birth: u64) -> bool {
        let before = self.pieces.range(..=block).next_back();
        before.is_some_and(|(start, kept)| start + kept.blocks() > block && kept.birth() > birth)
    }

    /// The parts of a range without a piece younger than `birth`.
    pub fn older(&self, range: Range<u64>, birth: u64, block_bytes: u64) -> Vec<Range<u64>> {
        let (mut older, mut at): (Vec<Range<u64>>, u64) = (Vec::new(), range.start);
        while at < range.end {
            let (kept, upto) = match self.look_up(at, block_bytes) {
                Ok(there) => (there.birth > birth, at + there.blocks),
                Err(unknown) => (false, at.saturating_add(unknown)),
            };
            let upto = upto.min(range.end);
            match older.last_mut() {
                _ if kept => {}
                Some(last) if last.end == at => last.end = upto,
                _ => older.push(at..upto),
            }
            at = upto;
        }
        older
    }

    /// Whether a piece is staged.
    pub fn is_staged(&self) -> bool {
        self.pieces.values().any(|piece| matches!(piece.at(), Where::Staged(_)))
    }

    /// Whether a piece of these blocks is in that part of the staging area.
    pub fn waits_for(&self, blocks: &Range<u64>, staged: &Range<u64>) -> bool {
        let mut there = self.pieces.range(blocks.clone()).map(|(_, piece)| piece.at());
        there.any(|at| matches!(at, Where::Staged(at) if staged.contains(&at)))
    }

    /// Adds the pieces of `newer` over these.
    pub fn put_over(&mut self, newer: &Self, block_bytes: u64) {
        for (block, piece) in newer.pieces() {
            self.clear(block..block.saturating_add(piece.blocks), block_bytes);
            self.pieces.insert(block, Kept::new(piece));
        }
    }

    /// Records that staged content of these blocks is at `place` now.
    pub fn resolve(&mut self, blocks: &Range<u64>, staged: &Range<u64>, place: Place) {
        for piece in self.pieces.range_mut(blocks.clone()).map(|(_, piece)| piece) {
            if let Where::Staged(at) = piece.at()
                && staged.contains(&at)
            {
                let offset = place.offset + (at - staged.start) as u32;
                piece.change(|piece| piece.at = Where::Run(Place::new(place.segment, offset)));
            }
        }
    }

    /// Replaces the sums of pieces in the run at `at`, whose blocks were written again.
    pub fn renew(&mut self, at: Place, sums: &Arc<[u32]>, block_bytes: u64) {
        for kept in self.pieces.values_mut() {
            if let Some(first) = kept.piece().first_of(at, sums, block_bytes) {
                kept.change(|piece| piece.renew(sums, first));
            }
        }
    }

    /// Whether a piece of the run at `at` has other sums.
    pub fn is_older(&self, at: Place, sums: &Arc<[u32]>, block_bytes: u64) -> bool {
        self.pieces.values().map(Kept::piece).any(|piece| {
            let first = piece.first_of(at, sums, block_bytes);
            first.is_some_and(|first| {
                piece.own_sums() != &sums[first..first + piece.blocks as usize]
            })
        })
    }

    /// All pieces, in order of their first blocks.
    pub fn pieces(&self) -> impl Iterator<Item = (u64, Piece)> {
        self.pieces.iter().map(|(start, piece)| (*start, piece.piece()))
    }

    /// Number of pieces.
    pub fn count(&self) -> usize {
        self.pieces.len()
    }

    /// Number of blocks that are not holes.
    pub fn stored_blocks(&self) -> u64 {
        let stored = self.pieces.values().filter(|piece| piece.at() != Where::Hole);
        stored.map(Kept::blocks).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_base::world::split_mix;

    const BLOCK: u64 = 512;

    /// V1 to V3, and lfs.I14, compared with an array, for any order of arrival.
    #[test]
    fn v1_v2_v3_like_an_array() {
        for seed in 0..200u64 {
            let mut rng = seed;
            let mut overlay = Overlay::default();
            let mut model: Vec<Option<(u64, Where)>> = vec![None; 64];
            for _ in 0..40 {
                let (first, len) = (split_mix(&mut rng) % 60, 1 + split_mix(&mut rng) % 12);
                let end = (first + len).min(64);
                let birth = split_mix(&mut rng) % 1000;
                let sums = Sums::of((0..end - first).map(|n| (birth + n) as u32), end - first);
                let piece = match split_mix(&mut rng) % 3 {
                    0 => Piece::hole(end - first, birth),
                    _ => {
                        let at = Where::Run(Place::new(birth as u32, 0));
                        Piece { blocks: end - first, birth, at, sums }
                    }
                };
                overlay.insert(first, &piece, BLOCK);
                for n in first..end {
                    let slot = &mut model[n as usize];
                    if slot.is_none_or(|(there, _)| there <= birth) {
                        let offset = ((n - first) * BLOCK) as u32;
                        let at = match piece.at {
                            Where::Run(place) => Where::Run(Place::new(place.segment, offset)),
                            other => other,
                        };
                        *slot = Some((birth, at));
                    }
                }
            }
            for n in 0..64u64 {
                let found = overlay.look_up(n, BLOCK).ok();
                let plain = found.as_ref().map(|piece| (piece.birth, piece.at));
                assert_eq!(plain, model[n as usize], "seed {seed} block {n}");
                let birth = split_mix(&mut rng) % 1000;
                let younger = model[n as usize].is_some_and(|(there, _)| there > birth);
                assert_eq!(overlay.is_younger(n, birth), younger, "seed {seed} block {n}");
                if let Some(piece) = found.filter(|piece| piece.at != Where::Hole) {
                    let Where::Run(place) = piece.at else { unreachable!() };
                    let sum = piece.birth as u32 + place.offset / BLOCK as u32;
                    assert_eq!(piece.own_sums()[0], sum, "seed {seed} block {n}");
                }
            }
        }
    }

    #[test]
    fn staged_pieces_are_found_again_in_their_record() {
        let mut overlay = Overlay::default();
        let piece = Piece { blocks: 8, birth: 1, at: Where::Staged(4096), sums: Sums::None };
        overlay.insert(10, &piece, BLOCK);
        overlay.insert(12, &Piece::hole(2, 2), BLOCK);
        assert!(overlay.is_staged());
        overlay.resolve(&(10..18), &(4096..8192), Place::new(3, 1024));
        assert!(!overlay.is_staged());
        let at = |block| overlay.look_up(block, BLOCK).unwrap().at;
        assert_eq!(at(10), Where::Run(Place::new(3, 1024)));
        assert_eq!(at(12), Where::Hole);
        assert_eq!(at(15), Where::Run(Place::new(3, 1024 + 5 * 512)));
        assert_eq!(overlay.stored_blocks(), 6);
    }
}
