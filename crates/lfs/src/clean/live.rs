//! Types of a pass of the cleaner: the segments to clean, and their live blocks.
//!
//! No locks.

use crate::format::place::Place;
use forebay_base::units::KIB;
use std::collections::BTreeSet;

/// Bytes of an extent in the list of found ones (gather.M34).
pub(super) const FOUND_BYTES: u64 = 40;
/// Least bytes that estimates count for a buffer of copied data: even a shorter one is aligned to 4
/// KiB.
pub(super) const BUFFER_LEAST: u64 = 4 * KIB;

/// Segments to clean.
pub(super) type Victims = BTreeSet<u32>;

/// Live blocks in a segment that is being cleaned.
#[derive(Clone)]
pub(super) struct Live {
    pub data_id: u64,
    pub block: u64,
    pub blocks: u64,
    pub birth: u64,
    pub from: Place,
    pub sums: Vec<u32>,
    /// The place to which they are copied.
    pub to: Place,
    /// Blocks with equal numbers are read together.
    pub turn: u32,
}

impl Live {
    fn end(&self, unit: u64) -> [u64; 2] {
        [self.from, self.to].map(|at| u64::from(at.offset) + self.blocks * unit)
    }

    /// Whether it directly follows `last`, at both the old and the new place.
    pub fn goes_on(&self, last: &Self, unit: u64) -> bool {
        let segments = self.from.segment == last.from.segment && self.to.segment == last.to.segment;
        segments && last.end(unit) == [self.from, self.to].map(|at| u64::from(at.offset))
    }

    pub fn part(&self, skip: u64, blocks: u64, unit: u64) -> Self {
        let after = |at: Place| Place::new(at.segment, at.offset + (skip * unit) as u32);
        let sums = self.sums.get(skip as usize..(skip + blocks) as usize).unwrap_or_default();
        let (from, to) = (after(self.from), after(self.to));
        Self { block: self.block + skip, blocks, from, to, sums: sums.to_vec(), ..*self }
    }

    /// Splits the run into pieces of at most `bytes` bytes.
    pub fn pieces(self, bytes: u64, unit: u64) -> impl Iterator<Item = Self> {
        let most = (bytes / unit).max(1);
        let firsts = (0..self.blocks).step_by(most as usize);
        firsts.map(move |skip| self.part(skip, most.min(self.blocks - skip), unit))
    }
}
